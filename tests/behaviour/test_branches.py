"""Branches: both ways of a cond, and every case of a switch, keep the types that their results were declared with (R13)."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run

X, W = normal(4, 8), normal(8, 8, seed=12)


def test_a_cond_of_a_product_and_its_own_input(dtype: str, jit: bool) -> None:
    def program() -> Any:
        f = tf.function(lambda x, yes: tf.cond(yes, lambda: tf.nn.relu(x @ W), lambda: x) @ W, jit_compile=jit)
        return f(X, tf.constant(True)), f(X, tf.constant(False))

    run(program, dtype).check()


@pytest.mark.parametrize("inside", ["branch", "whole"])
def test_the_gradient_through_a_cond(dtype: str, inside: str) -> None:
    def program() -> Any:
        w = tf.Variable(W)

        @tf.function
        def f(x: tf.Tensor, yes: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                hidden = tf.cond(yes, lambda: x @ w, lambda: 2.0 * x)
                loss = tf.reduce_mean((hidden @ w if inside == "whole" else hidden) ** 2)
            return tape.gradient(loss, [x, w])

        return f(X, tf.constant(True)), f(X, tf.constant(False))[0]

    run(program, dtype).check()


def test_a_switch_with_branches_of_every_kind(dtype: str) -> None:
    branches = [lambda: X, lambda: X @ W, lambda: tf.zeros([4, 8]), lambda: tf.exp(X @ W), lambda: tf.cast(tf.cast(X @ W, tf.int32), tf.float32)]

    def program() -> Any:
        f = tf.function(lambda n: tf.switch_case(n, branches, default=lambda: tf.nn.relu(X @ W) @ W) @ W)
        return [f(tf.constant(n)) for n in (0, 1, 2, 3, 9)]

    run(program, dtype).check()


def test_a_branch_that_assigns_and_one_that_does_not(dtype: str) -> None:
    def program() -> Any:
        total = tf.Variable(tf.zeros([4, 8]))

        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            if tf.reduce_sum(x) > 0.0:
                total.assign_add(x @ W)
                result = total + 0.0
            else:
                result = x @ W - total
            return result

        return [f(sign * tf.abs(X)) for sign in (1.0, -1.0, 1.0)], total.read_value()

    run(program, dtype).check()


def test_products_in_branches_are_converted(dtype: str) -> None:
    f = tf.function(lambda x, yes: tf.cond(yes, lambda: x @ W, lambda: x))
    assert on_off.convert(f, X, tf.constant(True), dtype=dtype).types("MatMul") == [dtype]


@pytest.mark.parametrize("layer", ["GaussianNoise", "Dropout"])
def test_noise_layers_switch_between_training_and_inference(dtype: str, layer: str) -> None:
    def program() -> Any:
        import keras

        noise = getattr(keras.layers, layer)(0.3)
        f = tf.function(lambda x, training: tf.cond(training, lambda: noise(x @ W, training=True), lambda: noise(x @ W, training=False)) @ W)
        return f(X, tf.constant(True)), f(X, tf.constant(False))

    run(program, dtype).check()


def test_where_with_broadcasting_and_a_choice_of_products(dtype: str, jit: bool) -> None:  # R8
    def program() -> Any:
        f = tf.function(lambda x: tf.where(x[:, :1] > 0, x @ W, -1.0) @ W, jit_compile=jit)
        return f(X)

    run(program, dtype).check()
