"""The state in variables follows the rule on Python numbers, step by step."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tfmp.optimizers.loss_scale import STATE_FIELDS, ScaleState, initial_state, next_state
from tfmp.optimizers.policies import DynamicLossScale, FixedLossScale, LossScalePolicy
from tfmp.optimizers.state import TENSORS, ScaleVariables

POLICIES = [
    DynamicLossScale(growth_interval=3),
    DynamicLossScale(initial=4, growth_factor=8, backoff_factor=0.125, growth_interval=2, minimum=0.5, maximum=32, hysteresis=3),
    FixedLossScale(16),
]


def take_step(variables: ScaleVariables, policy: LossScalePolicy, good: tf.Tensor, place: tf.Tensor) -> None:
    def move(finite: bool) -> tf.Tensor:
        before = variables.state(history=not finite or policy.hysteresis > 1)
        variables.assign(next_state(policy, before, finite, place, TENSORS))
        return tf.constant(0)

    tf.cond(good, lambda: move(True), lambda: move(False))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", ["eager", "function", "jit"])
def test_tensors_follow_the_rule_on_numbers(policy: LossScalePolicy, mode: str) -> None:
    variables, state = ScaleVariables(policy), initial_state(policy)

    def step(good: tf.Tensor, place: tf.Tensor) -> None:
        take_step(variables, policy, good, place)

    function = step if mode == "eager" else tf.function(step, jit_compile=mode == "jit")
    random = np.random.default_rng(0)
    for index in range(100):
        good = bool(random.random() < 0.7)
        function(tf.constant(good), tf.constant(index, tf.int64))
        state = next_state(policy, state, good, index)
        assert variables.numbers() == state
        assert int(variables.state().consecutive_skips(TENSORS)) == state.consecutive_skips()


def test_each_field_can_be_read_alone() -> None:
    variables = ScaleVariables(DynamicLossScale(hysteresis=4))
    variables.assign(ScaleState(2.0, *range(1, len(STATE_FIELDS))))
    assert [float(variables.value(field)) for field in STATE_FIELDS] == [2.0, *range(1, len(STATE_FIELDS))]
    assert variables.value("scale").dtype == tf.float32
    assert all(variables.value(field).dtype == tf.int64 for field in STATE_FIELDS[1:])


def test_a_mapping_keeps_every_field() -> None:
    saved, loaded = ScaleVariables(DynamicLossScale()), ScaleVariables(DynamicLossScale())
    saved.assign(ScaleState(0.5, *range(7, 6 + len(STATE_FIELDS))))
    store: dict[str, np.ndarray] = {}
    saved.save_to(store)
    assert loaded.load_from(store)
    assert loaded.numbers() == saved.numbers() != ScaleVariables(DynamicLossScale()).numbers()


def test_a_mapping_without_a_scale_changes_nothing() -> None:
    variables = ScaleVariables(DynamicLossScale())
    before = variables.numbers()
    assert not variables.load_from({"0": np.zeros(3)})
    assert variables.numbers() == before


def test_checkpoints_of_tensorflows_own_scale_can_be_read(tmp_path: pathlib.Path) -> None:
    theirs = tf.compat.v1.mixed_precision.DynamicLossScale(initial_loss_scale=64)
    path = tf.train.Checkpoint(loss_scale=theirs).write(str(tmp_path / "theirs"))
    ours = ScaleVariables(DynamicLossScale())
    tf.train.Checkpoint(loss_scale=ours).read(path).expect_partial()
    assert ours.numbers().scale == 64
