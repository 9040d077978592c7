"""Weights read and cast before a loop, where that cannot be noticed, and inside where it could."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import tfmp

X = tf.constant(np.linspace(-1, 1, 8).reshape(2, 4).astype("float32"))


@pytest.fixture
def weight() -> tf.Variable:
    return tf.Variable(np.linspace(-0.5, 0.5, 16).reshape(4, 4).astype("float32"))


def loop(body: Callable[[tf.Tensor], tf.Tensor], steps: int = 5) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: tf.while_loop(lambda i, y: i < steps, lambda i, y: (i + 1, body(y)), [0, x])[1]


def casts_inside_and_outside(function: Callable[[tf.Tensor], tf.Tensor]) -> tuple[int, int]:
    """Returns the number of casts in loop bodies, and elsewhere, of the converted function, after checking that it gives what the original gives."""
    with tfmp.mixed_precision(enabled=False):
        expected = tf.function(function)(X)
    with tfmp.mixed_precision(dtype="float16", ignore_performance=True, strict=True):
        np.testing.assert_allclose(tf.function(function)(X), expected, atol=16 * 2.0**-11 * np.abs(expected).max())
    conversion = tfmp.convert_function(tf.function(function).get_concrete_function(X), dtype="float16")
    inside = sum(body.plan.run_time_casts for body in conversion.bodies.values() if "while_body" in body.function)
    return inside, conversion.casts - inside


def test_weight_is_cast_once_before_the_loop(weight: tf.Variable) -> None:
    inside, outside = casts_inside_and_outside(loop(lambda y: tf.tanh(y @ weight)))
    assert (inside, outside) == (0, 3)  # the weight, what goes in, what comes out


def test_weight_of_an_inner_loop_leaves_both_loops(weight: tf.Variable) -> None:
    assert casts_inside_and_outside(loop(loop(lambda y: tf.tanh(y @ weight), 2), 3)) == (0, 3)


def test_two_reads_in_one_body_are_both_moved(weight: tf.Variable) -> None:
    other = tf.Variable(weight)
    assert casts_inside_and_outside(loop(lambda y: tf.tanh(y @ weight) @ other)) == (0, 4)


@pytest.mark.parametrize("where", ["same body", "called function", "condition"])
def test_weight_that_the_loop_changes_is_read_at_every_step(weight: tf.Variable, where: str) -> None:
    start = weight.numpy()

    @tf.function
    def change(y: tf.Tensor) -> tf.Tensor:
        weight.assign(weight * 0.5)
        return y

    def body(y: tf.Tensor) -> tf.Tensor:
        y = tf.tanh(y @ weight)
        if where == "same body":
            weight.assign(weight * 0.5)
        return change(y) if where == "called function" else y

    def condition(i: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        if where == "condition":
            weight.assign(weight * 0.5)
        return i < 4

    def function(x: tf.Tensor) -> tf.Tensor:
        weight.assign(start)
        return tf.while_loop(condition, lambda i, y: (i + 1, body(y)), [0, x])[1]

    inside, _ = casts_inside_and_outside(function)
    assert inside == 1


def test_assignment_before_the_loop_is_seen(weight: tf.Variable) -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        weight.assign(tf.ones([4, 4]) * 0.25)
        x = loop(lambda y: y @ weight)(x)
        weight.assign(tf.ones([4, 4]) * 0.125)
        return loop(lambda y: y @ weight)(x)

    assert casts_inside_and_outside(function)[0] == 0


def test_gradient_through_the_loop(weight: tf.Variable) -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(loop(lambda y: tf.tanh(y @ weight))(x))
        return tape.gradient(y, weight)

    inside, _ = casts_inside_and_outside(function)
    assert inside == 1  # each step's gradient, which is added up in float32


def test_nothing_is_hoisted_at_tensorflows_level(weight: tf.Variable) -> None:
    concrete = tf.function(loop(lambda y: tf.tanh(y @ weight))).get_concrete_function(X)
    conversion = tfmp.convert_function(concrete, dtype="float16", level="tensorflow")
    assert not any(body.plan.reads for body in conversion.bodies.values())
