"""Unscaling ahead of the step: recognised whatever happens in between, and without keeping anything alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.families import FAMILIES, KERAS3, MODES, TF_KERAS, Family, make_function, train_step
from tfmp.optimizers.policies import DynamicLossScale
from tfmp.optimizers.wrap import wrap

families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
modes = pytest.mark.parametrize("mode", MODES)


class Two:
    """Two losses with their gradients, of one variable each or of one for both; either can be spoilt."""

    def __init__(self, family: Family, shared: bool = False) -> None:
        self.optimizer = wrap(family.sgd(1.0), DynamicLossScale(initial=64))
        first = tf.Variable([8.0])
        self.variables = [first, first if shared else tf.Variable([8.0])]
        self.spoil = tf.Variable([0.0, 0.0])

    def unscaled(self, index: int) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.optimizer.get_scaled_loss(tf.reduce_sum(self.variables[index]) * (1.0 + self.spoil[index]))
        return self.optimizer.get_unscaled_gradients(tape.gradient(loss, [self.variables[index]]))[0]

    def values(self) -> list[float]:
        return [float(variable[0]) for variable in self.variables]


@families
@modes
def test_two_unscalings_then_two_steps(family: Family, mode: str) -> None:
    """Each step knows its own gradients; the second loss overflows in the second round."""
    two = Two(family)

    def step() -> None:
        gradients = [two.unscaled(0), two.unscaled(1)]
        for gradient, variable in zip(gradients, two.variables, strict=True):
            two.optimizer.apply_gradients([(gradient, variable)])

    if family in (KERAS3, TF_KERAS):
        two.optimizer.build(two.variables)
    run = make_function(step, mode)
    run()
    assert two.values() == [7.0, 7.0]
    two.spoil.assign([0.0, np.inf])
    run()
    assert two.values() == [6.0, 7.0]
    state = two.optimizer.loss_scale_state()
    assert (state.scale, state.skipped_steps, state.steps) == (32.0, 1, 4)


@families
@modes
def test_the_sum_of_two_unscalings_is_one_step(family: Family, mode: str) -> None:
    """Nothing of one round is left over for the next, in eager execution either: an overflow is skipped once."""
    two = Two(family, shared=True)

    def step() -> None:
        two.optimizer.apply_gradients([(two.unscaled(0) + two.unscaled(1), two.variables[0])])

    run = make_function(step, mode)
    for spoil in (0.0, np.inf, 0.0, 0.0):
        two.spoil.assign([0.0, spoil])
        run()
    assert two.values()[0] == 8.0 - 2.0 * 3
    state = two.optimizer.loss_scale_state()
    assert (state.scale, state.skipped_steps, state.steps) == (32.0, 1, 4)


@modes
def test_gradients_that_were_only_looked_at_are_still_unscaled_by_keras_3(mode: str) -> None:
    """The user logs the norm of the unscaled gradients and applies the scaled ones, as Keras 3 wants them."""
    variable, optimizer, norm = tf.Variable([8.0]), wrap(KERAS3.sgd(1.0)), tf.Variable(0.0)
    optimizer.build([variable])

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(3.0 * tf.reduce_sum(variable))
        gradients = tape.gradient(loss, [variable])
        norm.assign(tf.linalg.global_norm(optimizer.get_unscaled_gradients(gradients)))
        optimizer.apply_gradients(zip(gradients, [variable], strict=True))

    run = make_function(step, mode)
    run()
    run()
    assert (float(norm), float(variable[0])) == (3.0, 2.0)


@modes
def test_keras_3_takes_the_idiom_of_tf_keras_word_for_word(mode: str) -> None:  # R86
    """The loop of TensorFlow's mixed-precision guide, which Keras 3 itself has no methods for."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    optimizer, loss_object = wrap(keras.optimizers.SGD(0.5)), keras.losses.MeanSquaredError()
    x, y = tf.constant([[1.0, 2.0]]), tf.constant([[1.0]])

    def train_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            predictions = model(x)
            loss = loss_object(y, predictions)
            scaled_loss = optimizer.get_scaled_loss(loss)
        scaled_gradients = tape.gradient(scaled_loss, model.trainable_variables)
        gradients = optimizer.get_unscaled_gradients(scaled_gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    make_function(train_step, mode)(x, y)
    assert model.get_weights()[0].ravel().tolist() == [1 - 0.5 * 2 * 2 * 1, 1 - 0.5 * 2 * 2 * 2]


def in_a_branch(unscale: Callable[[], tf.Tensor], apply: Callable[[tf.Tensor], None]) -> None:
    gradient = unscale()
    tf.cond(tf.constant(True), lambda: (apply(gradient), 0)[1], lambda: 0)


def in_a_loop(unscale: Callable[[], tf.Tensor], apply: Callable[[tf.Tensor], None]) -> None:
    gradient = unscale()
    tf.while_loop(lambda count: count < 1, lambda count: (apply(gradient), [count + 1])[1], [tf.constant(0)])


def in_an_inner_function(unscale: Callable[[], tf.Tensor], apply: Callable[[tf.Tensor], None]) -> None:
    @tf.function
    def inner(gradient: tf.Tensor) -> None:
        apply(gradient)

    inner(unscale())


def from_an_inner_function(unscale: Callable[[], tf.Tensor], apply: Callable[[tf.Tensor], None]) -> None:
    apply(tf.function(unscale)())


INSIDE = {function.__name__: function for function in (in_a_branch, in_a_loop, in_an_inner_function, from_an_inner_function)}
ACROSS = {
    "two functions": lambda unscale, apply: in_an_inner_function(tf.function(unscale), apply),
    "function, then eager": from_an_inner_function,
    "eager, then function": in_an_inner_function,
    **{name: lambda unscale, apply, way=way: tf.function(lambda: way(unscale, apply))() for name, way in INSIDE.items()},
}


@families
@pytest.mark.parametrize("way", ACROSS)
def test_gradients_are_unscaled_once_wherever_the_step_is_taken(family: Family, way: str, caplog: pytest.LogCaptureFixture) -> None:
    two = Two(family)
    two.optimizer.build(two.variables) if family in (KERAS3, TF_KERAS) else None
    for expected in (7.0, 6.0):
        with caplog.at_level("WARNING", logger="absl"):
            ACROSS[way](lambda: two.unscaled(0), lambda gradient: two.optimizer.apply_gradients([(gradient, two.variables[0])]))
        assert two.values() == [expected, 8.0]
    assert [record.getMessage() for record in caplog.records if "not scaled" in record.getMessage()] == []


@families
@pytest.mark.parametrize("way", ["in_a_branch", "in_a_loop"])
def test_clipping_before_a_branch_or_a_loop_cannot_hide_an_overflow(family: Family, way: str) -> None:
    two = Two(family)
    two.optimizer.build(two.variables) if family in (KERAS3, TF_KERAS) else None
    two.spoil.assign([np.inf, 0.0])
    clipped = lambda: tf.clip_by_value(two.unscaled(0), -1.0, 1.0)  # noqa: E731
    ACROSS[way](clipped, lambda gradient: two.optimizer.apply_gradients([(gradient, two.variables[0])]))
    assert two.values() == [8.0, 8.0]
    assert int(two.optimizer.skipped_steps) == 1


@modes
@pytest.mark.parametrize("looked_at", [slice(0, 1), slice(None)], ids=["one was looked at", "all were looked at"])
@pytest.mark.parametrize("parts", [[slice(None)], [slice(0, 2), slice(2, 3)]], ids=["one step", "two steps"])
def test_looking_at_gradients_never_changes_what_keras_3_does_with_the_scaled_ones(mode: str, looked_at: slice, parts: list[slice]) -> None:
    variables = [tf.Variable([8.0]) for _ in range(3)]
    optimizer = wrap(KERAS3.sgd(1.0))
    optimizer.build(variables)

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.add_n([tf.reduce_sum(variable) for variable in variables]))
        gradients = tape.gradient(loss, variables)
        optimizer.get_unscaled_gradients(gradients[looked_at])
        for part in parts if looked_at == slice(None) else parts[:1]:
            optimizer.apply_gradients(list(zip(gradients[part], variables[part], strict=True)))

    make_function(step, mode)()
    taken = 3 if looked_at == slice(None) or parts == [slice(None)] else 2
    assert [float(variable[0]) for variable in variables] == [7.0] * taken + [8.0] * (3 - taken)


def test_keras_3_refuses_what_may_be_scaled_or_not() -> None:
    variable, optimizer = tf.Variable([8.0]), wrap(KERAS3.sgd(1.0))
    optimizer.build([variable])
    unscale = tf.function(lambda gradient: optimizer.get_unscaled_gradients([gradient])[0])

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(variable))
        optimizer.apply_gradients([(unscale(tape.gradient(loss, variable)), variable)])

    with pytest.raises(ValueError, match="Cannot tell whether these gradients are still scaled: .* in the same function as apply_gradients"):
        step()
    assert float(variable[0]) == 8.0


def test_a_loop_that_only_looks_at_gradients_does_not_fill_the_memory() -> None:
    variable, optimizer = tf.Variable([8.0]), wrap(KERAS3.sgd(1.0))
    for _ in range(1100):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(variable))
        optimizer.get_unscaled_gradients(tape.gradient(loss, [variable]))
    (step,) = optimizer._guard._ahead._steps()
    assert len(step.entries) == 1000


def graphs_kept(family: Family, wrapped: bool) -> list[bool]:
    """Which graphs of functions that are gone are still there."""
    variable = tf.Variable(tf.ones([4]))
    optimizer = wrap(family.sgd(0.1)) if wrapped else family.sgd(0.1)
    if family is KERAS3:
        optimizer.build([variable])

    def traced() -> Any:
        function = tf.function(lambda: train_step(family, optimizer, lambda: tf.reduce_sum(variable**2), [variable]))
        function()
        return weakref.ref(function.get_concrete_function().graph)

    graphs = [traced() for _ in range(3)]
    gc.collect()
    return [graph() is not None for graph in graphs]


@families
def test_no_graph_is_kept_alive_that_the_unwrapped_optimizer_lets_go(family: Family) -> None:
    assert graphs_kept(family, wrapped=True) == graphs_kept(family, wrapped=False)


@families
def test_no_gradient_is_kept_alive(family: Family) -> None:
    variable, optimizer = tf.Variable(tf.ones([4])), wrap(family.sgd(0.1))
    with tf.GradientTape() as tape:
        scaled = optimizer.get_scaled_loss(tf.reduce_sum(variable**2))
    gradient = weakref.ref(optimizer.get_unscaled_gradients(tape.gradient(scaled, [variable]))[0])
    del tape, scaled
    gc.collect()
    assert gradient() is None
