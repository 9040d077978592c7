"""TensorFlow 1 optimizers: eagerly and in functions here, in graphs with Sessions in v1_graph.py."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.conftest import Scripts
from tests.optimizers.families import MODES, make_function
from tfmp.optimizers.policies import DynamicLossScale
from tfmp.optimizers.v1 import V1LossScaleOptimizer
from tfmp.optimizers.wrap import wrap

v1 = tf.compat.v1


@pytest.fixture(scope="module", params=["eager_off", "v2_off"])
def record(request: pytest.FixtureRequest, run_script: Scripts) -> dict[str, Any]:
    """What happened in graph mode, with resource variables and with reference variables."""
    return json.loads(run_script("tests/optimizers/v1_graph.py", request.param).splitlines()[-1])


@pytest.mark.slow
class TestGraphMode:
    def test_the_classic_example_runs_word_for_word(self, record: dict[str, Any]) -> None:
        assert record["words"] == {"moved": True, "collection": True}

    def test_bad_steps_are_skipped_and_global_step_stays(self, record: dict[str, Any]) -> None:  # R77
        assert record["skipping"]["kinds"] == ["SymbolicTensor", "IndexedSlices", None]
        assert record["skipping"]["record"] == [
            # same weights, scale, skipped, in a row, last, global step, just skipped
            [False, 2.0**15, 0, 0, 0, 1, False],
            [True, 2.0**14, 1, 1, 2, 1, True],
            [False, 2.0**14, 1, 0, 2, 2, False],
            [True, 2.0**13, 2, 1, 4, 2, True],
            [True, 2.0**12, 3, 2, 5, 2, True],
        ]

    def test_variables_lists_slots_under_their_own_names_and_the_scale(self, record: dict[str, Any]) -> None:  # R95
        slots = {"beta1_power:0", "beta2_power:0", "table/Adam:0", "table/Adam_1:0", "w/Adam:0", "w/Adam_1:0"}
        scale = {"loss_scale/current_loss_scale:0", "loss_scale/good_steps:0", "loss_scale/history:0"}
        assert set(record["skipping"]["names"]) == slots | scale

    def test_each_graph_has_its_own_scale(self, record: dict[str, Any]) -> None:  # R149
        assert record["two graphs"] == [2.0**14, 2.0**12]

    def test_gradients_by_hand_are_served_by_the_two_helpers(self, record: dict[str, Any]) -> None:  # R89
        assert record["by hand"] == {"seen": [[1024.0, 1024.0], [1.0, 1.0]], "after": [0.5, 0.5]}

    def test_a_checkpoint_restores_the_scale_into_a_session(self, record: dict[str, Any]) -> None:
        assert record["resumed"] == [2.0**14, 2.0**14]

    def test_sync_replicas_is_refused_in_either_order(self, record: dict[str, Any]) -> None:  # R89
        assert len(record["sync"]) == 2
        for message in record["sync"]:
            assert message.startswith("SyncReplicasOptimizer and loss scaling do not work together, in either order")

    @pytest.mark.parametrize("kind", ["v1", "legacy"])
    def test_tf_keras_fits_in_graph_mode(self, record: dict[str, Any], kind: str) -> None:  # R95
        fit = record[f"fit {kind}"]
        assert fit["state"] == [2.0**14, 1, 2]
        assert fit["finite"]
        assert "loss_scale/current_loss_scale:0" in fit["variables"]
        assert not fit["pulls in Keras 3"]


def test_it_is_recognised_wherever_tensorflow_looks_for_its_own() -> None:
    inner = v1.train.AdamOptimizer(0.1)
    optimizer = wrap(inner)
    assert type(optimizer) is V1LossScaleOptimizer
    assert isinstance(optimizer, v1.mixed_precision.MixedPrecisionLossScaleOptimizer)
    assert isinstance(optimizer, v1.train.Optimizer)
    assert optimizer.inner_optimizer is inner
    with pytest.raises(ValueError, match="has already been called|already wrapped|must not already be"):
        v1.mixed_precision.enable_mixed_precision_graph_rewrite(optimizer)


def test_wrapping_twice_and_other_things_are_refused() -> None:
    inner = v1.train.AdamOptimizer(0.1)
    theirs = v1.mixed_precision.MixedPrecisionLossScaleOptimizer(inner, "dynamic")
    for one in (wrap(inner), theirs):
        with pytest.raises(ValueError, match="already scales the loss"):
            V1LossScaleOptimizer(one)
    with pytest.raises(TypeError, match="inner_optimizer=3 is a int, not a tf.compat.v1.train.Optimizer."):
        V1LossScaleOptimizer(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_minimize_skips_bad_steps_and_leaves_global_step(mode: str) -> None:
    weight, spoil = tf.Variable([1.0, 2.0]), tf.Variable(0.0)
    count = tf.Variable(0, dtype=tf.int64)
    optimizer = wrap(v1.train.GradientDescentOptimizer(0.25), DynamicLossScale(initial=64))

    def step() -> None:
        optimizer.minimize(lambda: tf.reduce_sum(weight**2) + spoil * weight[0], global_step=count, var_list=[weight])

    run = make_function(step, mode)
    run()
    spoil.assign(np.nan)
    run()
    assert weight.numpy().tolist() == [0.5, 1.0]
    assert (int(count), float(optimizer.scale), int(optimizer.skipped_steps)) == (1, 32.0, 1)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_that_are_computed_are_unscaled_at_every_scale(mode: str) -> None:  # R73, R74
    weight, results = tf.Variable([3.0, 4.0]), []
    for scale in (1, 2**10, 2**15):
        optimizer = wrap(v1.train.GradientDescentOptimizer(1.0), scale)

        def step(optimizer: Any = optimizer) -> None:
            ((gradient, variable),) = optimizer.compute_gradients(lambda: tf.reduce_sum(weight**2) / 2, [weight])
            optimizer.apply_gradients([(tf.clip_by_norm(gradient, 1.0), variable)])

        weight.assign([3.0, 4.0])
        make_function(step, mode)()
        results.append(weight.numpy().tolist())
    assert results == [results[0]] * 3
    np.testing.assert_allclose(results[0], [3.0 - 0.6, 4.0 - 0.8], rtol=1e-6)


def test_an_empty_list_of_gradients_is_an_error_that_changes_nothing() -> None:  # R71; as TensorFlow's own optimizers have it
    optimizer = wrap(v1.train.GradientDescentOptimizer(0.1))
    before = optimizer.loss_scale_state()
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.apply_gradients([])
    assert optimizer.loss_scale_state() == before


def test_slots_are_those_of_the_inner_optimizer() -> None:
    weight, optimizer = tf.Variable([1.0, 2.0]), wrap(v1.train.MomentumOptimizer(0.1, 0.9))
    optimizer.minimize(lambda: tf.reduce_sum(weight), var_list=[weight])
    assert optimizer.get_slot_names() == ["momentum"]
    assert optimizer.get_slot(weight, "momentum").numpy().tolist() == [1.0, 1.0]
    assert optimizer.get_name() == "Momentum"
    assert len(optimizer.variables()) == 1 + 3
