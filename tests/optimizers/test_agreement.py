"""All replicas and all workers take or skip a step together. What is judged here was done in other processes: strategies.py, multi_worker_fit.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.optimizers.conftest import Scripts

STATE = ("scale", "good_steps", "hysteresis_left", "skipped_steps", "skip_run", "last_skip_step", "last_bad_gradient")
FAMILIES = ("keras3", "tf_keras", "legacy", "v1")
KERASES = FAMILIES[:3]

Records = dict[int, dict[str, Any]]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def records(run_script: Scripts) -> Records:
    """What happened on two and on four replicas."""
    return {count: json.loads(run_script("tests/optimizers/strategies.py", str(count), timeout=400).splitlines()[-1]) for count in (2, 4)}


@pytest.mark.parametrize(
    ("replicas", "case"),
    [(count, f"{family}-function") for count in (2, 4) for family in (*FAMILIES, "scaler")] + [(2, f"{family}-eager") for family in FAMILIES],
)
def test_an_overflow_on_each_single_replica_is_skipped_by_all(records: Records, replicas: int, case: str) -> None:
    record = records[replicas][f"turn-{case}"]
    for index, skip in enumerate(record["skips"]):
        assert skip["same weights"]
        assert skip["in step"]
        assert skip["state"][:4] == [2.0 ** (14 - index), 0, 0, index + 1]  # the scale is halved once, not once for each replica
    assert record["moves again"]
    assert record["in step"]
    assert record["state"] == [2.0 ** (15 - replicas), 1, 0, replicas, replicas, replicas + 1, 0]


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("family", KERASES)
def test_fit_skips_on_all_replicas(records: Records, replicas: int, family: str) -> None:
    record = records[replicas][f"fit-{family}"]
    assert record["state"] == [2.0**13, 1, 0, 2, 1, 5, 0]
    assert record["iterations"] == 4
    assert record["copies"] == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_thousand_growth_periods_and_three_hundred_overflows_stay_in_bounds(records: Records, family: str) -> None:
    record = records[2][f"many-{family}"]
    assert record["grown"] == [2.0**24, 1_000, 0, 0, 0, 0, -1]
    assert record["fallen"] == [1.0, 0, 0, 300, 300, 1_300, 0]
    assert record["same weights"]
    assert record["recovered"] == [2.0, 1, 0, 300, 300, 1_300, 0]
    assert record["moves again"]
    assert record["in step"]


@pytest.mark.parametrize("family", FAMILIES)
def test_clipping_under_a_strategy_is_that_of_the_unwrapped_optimizer(records: Records, family: str) -> None:
    plain, *wrapped = records[2][f"clipped-{family}"]
    assert wrapped == [plain] * 3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sum_that_overflows_is_skipped_although_each_replica_is_finite(records: Records, family: str) -> None:
    record = records[2][f"sum-{family}"]
    assert record["finite"]
    assert dict(zip(STATE, record["state"], strict=True))["skipped_steps"] == 1


@pytest.mark.parametrize("family", ["tf_keras", "legacy"])
def test_gradients_summed_by_hand_in_float16_are_not_summed_again_and_their_overflow_is_found(records: Records, family: str) -> None:
    assert records[2][f"reduced-{family}"] == {"once": [0.5, 0.5], "after overflow": [0.5, 0.5], "skipped": 1, "scale": 2.0**12}


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoints_pass_between_strategies(records: Records, family: str) -> None:
    record = records[2][f"checkpoints-{family}"]
    assert record == {"into one": {"state": True, "weights": True}, "back": True, "in step": True, "skipped": 2}


@pytest.mark.parametrize("family", FAMILIES)
def test_compiling_for_several_cpus_says_which_of_three_things_to_drop(records: Records, family: str) -> None:
    assert "jit_compile=True inside MirroredStrategy works on GPUs only" in records[2][f"compiled-{family}"]
    assert "Drop jit_compile=True, or the strategy, or the CPU devices." in records[2][f"compiled-{family}"]


@pytest.mark.parametrize(("strategy", "families"), [("OneDevice", 1), ("Mirrored", len(FAMILIES))])
def test_compiling_for_a_strategy_of_one_device_works(records: Records, strategy: str, families: int) -> None:
    assert records[2][f"single-{strategy}"] == [[2.0**14, 0, 0, 1, 1, 2, 0]] * families


def test_a_wrapper_made_outside_of_the_scope_works(records: Records) -> None:
    assert records[2]["outside"]["state"] == [2.0**14, 1, 0, 1, 1, 2, 0]


@pytest.mark.parametrize("strategy", ["CentralStorageStrategy", "ParameterServerStrategyV2"])
def test_other_strategies_are_refused_at_construction(records: Records, strategy: str) -> None:
    message = records[2][f"refused-{strategy}"]
    assert message.startswith(f"Loss scaling does not work under {strategy}. Its replicas do not step together on mirrored variables")
    assert message.endswith("Use MirroredStrategy or MultiWorkerMirroredStrategy, or bfloat16 with loss_scale=None.")


def test_two_worker_processes_fit_in_step(run_script: Scripts) -> None:
    first, second = (json.loads(line) for line in run_script("tests/optimizers/multi_worker_fit.py").splitlines()[-2:])
    assert first == second
    assert [record["name"] for record in first] == ["tf_keras", "legacy"]
    for record in first:
        state = dict(zip(STATE, record["state"], strict=True))
        assert (state["scale"], state["skipped_steps"], record["iterations"]) == (2.0**13, 2, 4)


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
