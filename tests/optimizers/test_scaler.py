"""The scaler: with an optimizer of any family, with several losses and several optimizers, with clipping and second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.families import FAMILIES, KERAS3, MODES, Family, make_function
from tfmp.optimizers.policies import DynamicLossScale, NoLossScale
from tfmp.optimizers.scaler import LossScaler
from tfmp.optimizers.wrap import wrap

families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
modes = pytest.mark.parametrize("mode", MODES)


def scaled_gradients(scaler: LossScaler, loss: Callable[[], tf.Tensor], variables: list[tf.Variable]) -> list[Any]:
    with tf.GradientTape() as tape:
        scaled = scaler.scale_loss(loss())
    return tape.gradient(scaled, variables)


@families
@modes
def test_one_call_unscales_steps_and_updates(family: Family, mode: str) -> None:
    weight, spoil, unused = tf.Variable([1.0, 2.0]), tf.Variable(0.0), tf.Variable(0.0)
    scaler, optimizer = LossScaler(DynamicLossScale(initial=64, growth_interval=2)), family.sgd(0.25)
    taken = tf.Variable(False)

    def step() -> None:
        gradients = scaled_gradients(scaler, lambda: tf.reduce_sum(weight**2) + spoil * weight[0], [weight, unused])
        taken.assign(scaler.apply(optimizer, gradients, [weight, unused]))

    run = make_function(step, mode)
    run()
    assert (bool(taken), weight.numpy().tolist()) == (True, [0.5, 1.0])
    spoil.assign(np.inf)
    run()
    assert (bool(taken), weight.numpy().tolist()) == (False, [0.5, 1.0])
    assert (float(scaler.scale), int(scaler.skipped_steps), bool(scaler.last_step_skipped)) == (32.0, 1, True)
    assert scaler.last_bad_variable == weight.name
    spoil.assign(0.0)
    run()
    run()
    assert float(scaler.scale) == 64.0


@families
def test_sixteen_bit_variables_get_gradients_of_their_dtype(family: Family) -> None:
    weight, scaler, optimizer = tf.Variable(tf.constant([1.0, 2.0], tf.float16)), LossScaler(1024), family.sgd(0.25)
    unscaled = scaler.unscale(scaled_gradients(scaler, lambda: tf.reduce_sum(weight * weight), [weight]))
    assert unscaled.gradients[0].dtype == tf.float32
    scaler.step(optimizer, [(unscaled.gradients[0], weight)], unscaled)
    assert weight.dtype == tf.float16
    assert weight.numpy().tolist() == [0.5, 1.0]


@modes
def test_two_optimizers_share_a_scale_and_each_is_skipped_for_its_own_overflow(mode: str) -> None:
    first, second, spoil = tf.Variable([1.0]), tf.Variable([1.0]), tf.Variable(0.0)
    scaler, optimizers = LossScaler(), [KERAS3.sgd(0.5), KERAS3.sgd(0.5)]

    def step() -> None:
        parts = []
        for optimizer, weight, factor in zip(optimizers, (first, second), (1.0, spoil), strict=True):
            part = scaler.unscale(scaled_gradients(scaler, lambda weight=weight, factor=factor: tf.reduce_sum(weight) * (1.0 + factor * 0.0), [weight]))
            scaler.step(optimizer, zip(part.gradients, [weight], strict=True), part)
            parts.append(part)
        scaler.update(*parts)

    run = make_function(step, mode)
    run()
    assert (float(first[0]), float(second[0])) == (0.5, 0.5)
    spoil.assign(np.inf)
    run()
    assert (float(first[0]), float(second[0])) == (0.0, 0.5)
    state = scaler.loss_scale_state()
    assert (state.scale, state.skipped_steps, state.steps, state.last_bad_gradient) == (2.0**14, 1, 2, 1)


@modes
def test_each_loss_can_have_a_scale_of_its_own(mode: str) -> None:
    """Two losses of very different size feed one set of weights: each is unscaled by its own scale before they are added."""
    weight, spoil = tf.Variable([1.0, 2.0]), tf.Variable(0.0)
    scalers, optimizer = [LossScaler(DynamicLossScale(initial=scale)) for scale in (2.0**4, 2.0**20)], KERAS3.sgd(1.0)

    def step() -> None:
        losses = [lambda: tf.reduce_sum(weight) * 0.5 + spoil * weight[0], lambda: tf.reduce_sum(weight**2) * 2.0**-20]
        parts = [scaler.unscale(scaled_gradients(scaler, loss, [weight])) for scaler, loss in zip(scalers, losses, strict=True)]
        total = parts[0].gradients[0] + parts[1].gradients[0]
        scalers[0].step(optimizer, [(total, weight)], parts[0])
        for scaler, part in zip(scalers, parts, strict=True):
            scaler.update(part)

    run = make_function(step, mode)
    run()
    np.testing.assert_array_equal(weight.numpy(), np.float32([1, 2]) - (np.float32(0.5) + np.float32([2, 4]) * np.float32(2**-20)))
    before = weight.numpy()
    spoil.assign(np.nan)
    run()
    np.testing.assert_array_equal(weight.numpy(), before)
    assert [float(scaler.scale) for scaler in scalers] == [2.0**3, 2.0**20]


@modes
def test_clipping_between_unscale_and_step_sees_true_norms_and_hides_nothing(mode: str) -> None:
    weight, spoil = tf.Variable([3.0, 4.0]), tf.Variable(0.0)
    scaler, optimizer, norm = LossScaler(), KERAS3.sgd(1.0), tf.Variable(0.0)

    def step() -> None:
        part = scaler.unscale(scaled_gradients(scaler, lambda: tf.reduce_sum(weight**2) / 2 + spoil * weight[0], [weight]))
        norm.assign(tf.linalg.global_norm(part.gradients))
        clipped = [tf.clip_by_value(gradient, -1.0, 1.0) for gradient in part.gradients]
        scaler.step(optimizer, zip(clipped, [weight], strict=True), part)
        scaler.update(part)

    run = make_function(step, mode)
    run()
    assert float(norm) == 5.0
    assert weight.numpy().tolist() == [2.0, 3.0]
    spoil.assign(np.inf)
    run()
    assert weight.numpy().tolist() == [2.0, 3.0]
    assert int(scaler.skipped_steps) == 1


@modes
def test_a_gradient_penalty_has_the_derivative_of_the_unscaled_one(mode: str) -> None:
    """Double backward: the derivative with respect to the weights of the norm of the derivative with respect to the input."""

    def penalty(weight: tf.Tensor, scaler: LossScaler) -> tf.Tensor:
        point = tf.constant([[1.0, -2.0]])
        with tf.GradientTape() as inner:
            inner.watch(point)
            output = scaler.scale_loss(tf.reduce_sum(tf.tanh(point @ weight)))
        (gradient,) = scaler.unscale([inner.gradient(output, point)]).gradients
        return (tf.norm(gradient) - 1.0) ** 2

    results = []
    for policy in (None, "dynamic"):
        weight, scaler, optimizer = tf.Variable([[0.5, 0.25], [-0.125, 1.0]]), LossScaler(policy), KERAS3.sgd(0.5)

        def step(weight: tf.Variable = weight, scaler: LossScaler = scaler, optimizer: Any = optimizer) -> None:
            scaler.apply(optimizer, scaled_gradients(scaler, lambda: penalty(weight, scaler), [weight]), [weight])

        run = make_function(step, mode)
        for _ in range(3):
            run()
        results.append(weight.numpy())
    assert (results[0] != np.float32([[0.5, 0.25], [-0.125, 1.0]])).all()
    if mode == "jit":  # XLA may fuse differently
        np.testing.assert_allclose(results[0], results[1], rtol=8 * np.finfo(np.float32).eps)
    else:
        np.testing.assert_array_equal(results[0], results[1])


@families
def test_an_optimizer_used_only_every_second_step_does_not_disturb(family: Family) -> None:  # R71
    weight, rare, scaler = tf.Variable([8.0]), tf.Variable([8.0]), LossScaler()
    often_optimizer, rare_optimizer = family.sgd(1.0), family.sgd(1.0)
    for index in range(4):
        parts = []
        for optimizer, variable, used in ((often_optimizer, weight, True), (rare_optimizer, rare, index % 2 == 0)):
            if used:
                part = scaler.unscale(scaled_gradients(scaler, lambda variable=variable: tf.reduce_sum(variable), [variable]))
                scaler.step(optimizer, zip(part.gradients, [variable], strict=True), part)
                parts.append(part)
        scaler.update(*parts)
    assert (float(weight[0]), float(rare[0])) == (4.0, 6.0)
    assert scaler.loss_scale_state().steps == 4


def test_a_wrapped_optimizer_or_no_optimizer_is_refused() -> None:
    scaler, weight = LossScaler(), tf.Variable([1.0])
    part = scaler.unscale([tf.constant([1.0])])
    with pytest.raises(ValueError, match="already scales the loss"):
        scaler.step(wrap(KERAS3.sgd(0.1)), [(part.gradients[0], weight)], part)
    with pytest.raises(TypeError, match="Cannot scale losses for 'sgd' of type str"):
        scaler.apply("sgd", [tf.constant([1.0])], [weight])


def test_all_gradients_none_is_an_error_that_changes_nothing() -> None:
    scaler, weight = LossScaler(), tf.Variable([1.0])
    before = scaler.loss_scale_state()
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        scaler.apply(KERAS3.sgd(0.1), [None], [weight])
    assert scaler.loss_scale_state() == before


def test_without_scaling_everything_passes_through() -> None:
    scaler, weight, loss = LossScaler(None), tf.Variable([1.0]), tf.constant(2.0)
    assert scaler.loss_scale_policy == NoLossScale()
    assert scaler.scale_loss(loss) is loss
    gradient = tf.constant([np.inf])
    part = scaler.unscale([gradient])
    assert part.gradients[0] is gradient
    scaler.step(KERAS3.sgd(1.0), [(gradient, weight)], part)
    assert bool(scaler.update(part))
    assert float(weight[0]) == -np.inf
    assert scaler.loss_scale_state().steps == 0


def test_gradients_of_several_dtypes_in_one_step() -> None:
    scaler, dtypes = LossScaler(1024), ["float16", "bfloat16", "float32", "float64"]
    unscaled = scaler.unscale([tf.constant([2048.0], dtype) for dtype in dtypes])
    assert [gradient.dtype.name for gradient in unscaled.gradients] == ["float32", "float32", "float32", "float64"]
    assert [float(gradient[0]) for gradient in unscaled.gradients] == [2.0] * 4
    assert unscaled.finite.numpy().tolist() == [True] * 4
