"""All replicas and all workers take or skip a step together, as written and in float16. What is judged here was done in other processes: strategies.py,
multi_worker.py.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.optimizers.conftest import Scripts

STATE = ("scale", "good_steps", "hysteresis_left", "skipped_steps", "skip_run", "last_skip_step", "last_bad_gradient")
FAMILIES = ("keras3", "tf_keras", "legacy", "v1")
KERASES = FAMILIES[:3]

MODES = ("float32", "float16")
INITIAL = {"float32": 15, "float16": 10}  # powers of two
MAXIMUM = {"float32": 2.0**24, "float16": 2.0**13}
CLIPNORM = 2.0**-9

Records = dict[int, dict[str, Any]]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def records(run_script: Scripts) -> Records:
    """What happened on two and on four replicas."""
    return {count: json.loads(run_script("tests/optimizers/strategies.py", str(count)).splitlines()[-1]) for count in (2, 4)}


counts = pytest.mark.parametrize("replicas", [2, 4])
modes = pytest.mark.parametrize("mode", MODES)


@counts
def test_the_float16_runs_were_converted(records: Records, replicas: int) -> None:
    assert records[replicas]["converted"] > 100


@pytest.mark.parametrize(
    ("replicas", "mode", "case"),
    [(count, mode, f"{family}-function") for count in (2, 4) for mode in MODES for family in (*FAMILIES, "scaler")]
    + [(2, "float32", f"{family}-eager") for family in FAMILIES],
)
def test_an_overflow_on_each_single_replica_is_skipped_by_all(records: Records, replicas: int, mode: str, case: str) -> None:  # R106
    record = records[replicas][mode][f"turn-{case}"]
    for index, skip in enumerate(record["skips"]):
        assert skip["same weights"]
        assert skip["in step"]
        assert skip["state"][:4] == [2.0 ** (INITIAL[mode] - 1 - index), 0, 0, index + 1]  # the scale is halved once, not once for each replica
    assert record["moves again"]
    assert record["in step"]
    assert record["state"] == [2.0 ** (INITIAL[mode] - replicas), 1, 0, replicas, replicas, replicas + 1, 0]


@counts
@modes
@pytest.mark.parametrize("family", KERASES)
def test_fit_skips_on_all_replicas(records: Records, replicas: int, mode: str, family: str) -> None:  # R106
    record = records[replicas][mode][f"fit-{family}"]
    assert record["state"] == [2.0 ** (INITIAL[mode] - 2), 1, 0, 2, 1, 5, 0]
    assert record["iterations"] == 4
    assert record["copies"] == 1


@counts
@modes
@pytest.mark.parametrize("family", FAMILIES)
def test_growth_periods_and_three_hundred_overflows_stay_in_bounds(records: Records, replicas: int, mode: str, family: str) -> None:
    """10,000 growth periods; in float16 the maximum is what gradients of the scaled loss allow."""
    record = records[replicas][mode][f"many-{family}"]
    steps = 10_000
    assert record["grown"] == [MAXIMUM[mode], steps, 0, 0, 0, 0, -1]
    assert record["fallen"][:4] == [1.0, 0, 0, 300]
    assert record["same weights"]
    assert record["recovered"][:4] == [2.0, 1, 0, 300]
    assert record["recovered"][5] == steps + 300
    assert record["moves again"]
    assert record["in step"]


@counts
@modes
@pytest.mark.parametrize("family", FAMILIES)
def test_clipping_under_a_strategy_is_the_same_at_every_scale(records: Records, replicas: int, mode: str, family: str) -> None:  # R73
    record = records[replicas][mode][f"clipped-{family}"]
    plain, (first, *others), summed_after_clipping = record["plain"], record["wrapped"], family in ("keras3", "v1")
    assert others == [first] * 2
    assert first["first step"] == pytest.approx(CLIPNORM * (replicas if summed_after_clipping else 1), rel=1e-3)  # a larger one without clipping
    assert record["skipped"] == 0
    assert first == plain


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sum_that_overflows_is_skipped_although_each_replica_is_finite(records: Records, family: str) -> None:
    record = records[2]["float32"][f"sum-{family}"]
    assert record["finite"]
    assert dict(zip(STATE, record["state"], strict=True))["skipped_steps"] == 1


@pytest.mark.parametrize("family", ["tf_keras", "legacy"])
def test_gradients_summed_by_hand_in_float16_are_not_summed_again_and_their_overflow_is_found(records: Records, family: str) -> None:  # R109
    assert records[2]["float32"][f"reduced-{family}"] == {"once": [0.5, 0.5], "after overflow": [0.5, 0.5], "skipped": 1, "scale": 2.0**12}


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoints_pass_between_strategies(records: Records, family: str) -> None:  # R107
    record = records[2]["float32"][f"checkpoints-{family}"]
    assert record == {"into one": {"state": True, "weights": True}, "back": True, "in step": True, "skipped": 2}


@pytest.mark.parametrize("family", FAMILIES)
def test_compiling_for_several_cpus_says_which_of_three_things_to_drop(records: Records, family: str) -> None:  # R116
    assert "jit_compile=True inside MirroredStrategy works on GPUs only" in records[2]["float32"][f"compiled-{family}"]
    assert "Drop jit_compile=True, or the strategy, or the CPU devices." in records[2]["float32"][f"compiled-{family}"]


@modes
@pytest.mark.parametrize(("strategy", "families"), [("OneDevice", 1), ("Mirrored", len(FAMILIES))])
def test_compiling_for_a_strategy_of_one_device_works(records: Records, mode: str, strategy: str, families: int) -> None:
    record = {"grown": [MAXIMUM[mode], 10_000, 0, 0, 0, 0, -1], "fallen": [1.0, 0, 0, 300, 300, 10_300, 0], "same weights": True}
    assert records[2][mode][f"single-{strategy}"] == [record] * families


def test_a_wrapper_made_outside_of_the_scope_works(records: Records) -> None:  # R107
    assert records[2]["float32"]["outside"]["state"] == [2.0**14, 1, 0, 1, 1, 2, 0]


@pytest.mark.parametrize("strategy", ["CentralStorageStrategy", "ParameterServerStrategyV2"])
def test_other_strategies_are_refused_at_construction(records: Records, strategy: str) -> None:
    message = records[2]["float32"][f"refused-{strategy}"]
    assert message.startswith(f"Loss scaling does not work under {strategy}. Its replicas do not step together on mirrored variables")
    assert message.endswith("Use MirroredStrategy or MultiWorkerMirroredStrategy, or bfloat16 with loss_scale=None.")


def test_under_parameter_servers_a_model_trains_without_a_scale_and_says_so(records: Records) -> None:  # R110
    record = records[2]["float32"]["parameter servers"]
    assert record["steps"] == 20
    assert record["losses"][-1] < record["losses"][0]
    assert record["converted"] > 0
    assert len(record["said"]) == 1
    assert "Loss scaling does not work under ParameterServerStrategyV2." in record["said"][0]


@pytest.fixture(scope="session")
def workers(run_script: Scripts) -> list[dict[str, Any]]:
    """What happened on each of two workers, by name."""
    lines = run_script("tests/optimizers/multi_worker.py").splitlines()[-2:]
    return [{record.pop("name"): record for record in json.loads(line)} for line in lines]


@modes
@pytest.mark.parametrize("family", KERASES)
def test_two_worker_processes_fit_in_step(workers: list[dict[str, Any]], mode: str, family: str) -> None:  # R104
    """Over 3 batches in `fit`, over 6 smaller ones with Keras 3's step by itself, twice, of which the third is bad on one worker."""
    first, second = (records[f"fit {family} {mode}"] for records in workers)
    assert first == second
    state, steps = dict(zip(STATE, first["state"], strict=True)), 12 if family == "keras3" else 6
    assert (state["scale"], state["skipped_steps"], first["iterations"]) == (2.0 ** (INITIAL[mode] - 2), 2, steps - 2)
    assert state["last_skip_step"] == steps // 2 + 3


def test_what_keras_3_cannot_do_with_two_workers_it_cannot_do_without_a_scale(workers: list[dict[str, Any]]) -> None:
    """The day this fails, Keras has learnt it, and `fit` belongs among the cases above."""
    for records in workers:
        assert records["fit fails"] == {"plain": records["fit fails"]["plain"], "wrapped": records["fit fails"]["plain"]}
        assert records["fit fails"]["plain"].startswith("Attempt to convert a value (PerReplica")


@modes
@pytest.mark.parametrize("family", FAMILIES)
def test_three_hundred_overflows_on_one_worker_stop_both(workers: list[dict[str, Any]], mode: str, family: str) -> None:  # R104
    first, second = (records[f"many {family} {mode}"] for records in workers)
    assert first == second
    grown, fallen, recovered = (dict(zip(STATE, first[name]["state"], strict=True)) for name in ("grown", "fallen", "recovered"))
    assert (grown["scale"], grown["skipped_steps"]) == (MAXIMUM[mode], 0)
    assert (fallen["scale"], fallen["skipped_steps"]) == (1.0, 300)
    assert first["grown"]["weight"] == first["fallen"]["weight"] > first["recovered"]["weight"]
    assert recovered["scale"] == 2.0


@modes
@pytest.mark.parametrize("family", FAMILIES)
def test_clipping_on_two_workers_is_the_same_at_every_scale(workers: list[dict[str, Any]], mode: str, family: str) -> None:  # R73
    first, second = (records[f"clipped {family} {mode}"]["weights"] for records in workers)
    assert first == second == [first[0]] * 4  # unwrapped, and at three scales
    moved = np.linalg.norm(np.array(first[0]) - 1.0) / CLIPNORM
    assert 1.0 < moved < 4.1  # two steps, each as long as one or, where it is clipped before it is summed, two clipped gradients of different directions


def test_the_float16_loops_of_both_workers_were_converted(workers: list[dict[str, Any]]) -> None:
    assert [records["converted"]["count"] > 8 for records in workers] == [True, True]


def test_applying_outside_of_a_replica_is_refused() -> None:
    import tensorflow as tf

    from tests.optimizers.families import FAMILIES as ALL
    from tfmp.optimizers.wrap import wrap

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    for family in ALL:
        with strategy.scope():
            variable, optimizer = tf.Variable([1.0]), wrap(family.sgd(0.1))
            with pytest.raises(ValueError, match=r"must be applied in replica context: call the training step through strategy.run"):
                optimizer.apply_gradients([(tf.constant([1.0]), variable)])
