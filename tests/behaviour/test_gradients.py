"""Gradients in every way that TensorFlow takes them: outside and inside the function, of higher order, forward, through custom rules."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run

X, W, V = normal(4, 8), normal(8, 8, seed=12, scale=0.5), normal(8, 2, seed=13, scale=0.5)


def network(x: tf.Tensor, w: Any, v: Any) -> tf.Tensor:
    """Two matrix multiplications with a smooth function between them."""
    return tf.tanh(x @ w) @ v


def test_outside_the_function_for_variables_inputs_and_results(dtype: str, jit: bool) -> None:  # R14
    def program() -> Any:
        w, v = tf.Variable(W), tf.Variable(V)

        @tf.function(jit_compile=jit)
        def f(x: tf.Tensor) -> Any:
            hidden = x @ w
            return hidden, tf.tanh(hidden) @ v

        with tf.GradientTape() as tape:
            tape.watch(X)
            hidden, result = f(X)
            loss = tf.reduce_sum(result**2) + tf.reduce_sum(hidden)
        return tape.gradient(loss, [w, v, X, hidden])

    runs = run(program, dtype).check()
    assert {gradient.dtype for gradient in runs.on} == {tf.float32}


def test_inside_the_function(dtype: str, jit: bool) -> None:
    def program() -> Any:
        w, v = tf.Variable(W), tf.Variable(V)

        @tf.function(jit_compile=jit)
        def f(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                hidden = x @ w
                result = tf.tanh(hidden) @ v
            return tape.gradient(result, [w, v, x, hidden])

        return f(X)

    run(program, dtype).check()


def test_the_backward_pass_is_16_bit_too(dtype: str) -> None:
    w = tf.Variable(W)

    def gradient(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(x @ w) @ V)
        return tape.gradient(loss, w)

    nodes = on_off.convert(tf.function(gradient), X, dtype=dtype)
    assert len(list(nodes.of("MatMul"))) == 4
    assert nodes.types("MatMul") == [dtype]


def test_a_tape_outside_leaves_records_of_all_that_ran(dtype: str) -> None:
    def program() -> Any:
        w = tf.Variable(W)
        f = tf.function(lambda x: network(x, w, V))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(f(X))
        return tape.gradient(loss, w)

    runs = run(program, dtype).check()
    assert runs.records
    assert {record.flop_share for record in runs.records} == {1.0}


def test_a_persistent_tape_and_several_targets(dtype: str) -> None:
    def program() -> Any:
        w = tf.Variable(W)
        f = tf.function(lambda x: network(x, w, V))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(X)
            y = f(X)
            first, second = tf.reduce_sum(y), tf.reduce_sum(y * y)
        return tape.gradient(first, w), tape.gradient(second, [w, X]), tape.gradient({"a": first, "b": second}, {"w": w})

    run(program, dtype).check()


@pytest.mark.parametrize("inner", ["eager tapes", "tapes in the function"])
def test_second_order_gradients(dtype: str, inner: str) -> None:
    def second(f: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(X)
            with tf.GradientTape() as tape:
                tape.watch(X)
                y = tf.reduce_sum(f(X))
            slope = tape.gradient(y, X)
            penalty = tf.reduce_sum(slope**2)
        return slope, outer.gradient(penalty, X)

    def program() -> Any:
        f = tf.function(lambda x: network(x, W, V))
        return second(f) if inner == "eager tapes" else tf.function(lambda: second(f))()

    run(program, dtype).check()


def test_third_order_gradients(dtype: str) -> None:
    def program() -> Any:
        f = tf.function(lambda x: tf.reduce_sum(network(x, W, V) ** 2))
        with tf.GradientTape() as third:
            third.watch(X)
            with tf.GradientTape() as second:
                second.watch(X)
                with tf.GradientTape() as first:
                    first.watch(X)
                    y = f(X)
                one = first.gradient(y, X)
            two = second.gradient(one, X)
        return one, two, third.gradient(two, X)

    run(program, dtype).check(2 * on_off.ROUNDINGS)


@pytest.mark.parametrize("experimental_use_pfor", [True, False])
def test_jacobians(dtype: str, experimental_use_pfor: bool) -> None:
    x = X[:2]

    def program() -> Any:
        f = tf.function(lambda x: network(x, W, V))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = f(x)
        return (
            tape.jacobian(y, x, experimental_use_pfor=experimental_use_pfor),
            tape.batch_jacobian(y, x, experimental_use_pfor=experimental_use_pfor),
        )

    run(program, dtype).check()


def test_a_jacobian_inside_the_function(dtype: str) -> None:
    @tf.function
    def f(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = network(x, W, V)
        return tape.jacobian(y, x)

    run(lambda: tf.function(f.python_function)(X[:2]), dtype).check()


@pytest.mark.parametrize("inside", [False, True])
def test_forward_mode(dtype: str, inside: bool) -> None:
    def forward(f: Any) -> Any:
        with tf.autodiff.ForwardAccumulator(X, tf.ones_like(X)) as accumulator:
            y = f(X)
        return y, accumulator.jvp(y)

    def program() -> Any:
        f = tf.function(lambda x: network(x, W, V))
        return tf.function(lambda: forward(f))() if inside else forward(f)

    run(program, dtype).check()


def test_forward_over_reverse(dtype: str) -> None:
    def program() -> Any:
        f = tf.function(lambda x: tf.reduce_sum(network(x, W, V) ** 2))
        with tf.autodiff.ForwardAccumulator(X, tf.ones_like(X)) as accumulator:
            with tf.GradientTape() as tape:
                tape.watch(X)
                y = f(X)
            gradient = tape.gradient(y, X)
        return gradient, accumulator.jvp(gradient)

    run(program, dtype).check()


@pytest.mark.parametrize("tape_inside", [False, True])
def test_custom_gradients(dtype: str, tape_inside: bool, jit: bool) -> None:
    @tf.custom_gradient
    def product(x: tf.Tensor, w: tf.Tensor) -> Any:
        def grad(upstream: tf.Tensor) -> Any:
            return 3.0 * tf.matmul(upstream, w, transpose_b=True), tf.matmul(x, upstream, transpose_a=True)

        return x @ w, grad

    def program() -> Any:
        w = tf.Variable(W)
        f = tf.function(lambda x: tf.reduce_sum(tf.tanh(product(x, w) @ V)), jit_compile=jit)

        def gradient() -> Any:
            with tf.GradientTape() as tape:
                tape.watch(X)
                loss = f(X)
            return tape.gradient(loss, [X, w])

        return tf.function(gradient)() if tape_inside else gradient()

    run(program, dtype).check()


def test_stopped_and_missing_gradients(dtype: str) -> None:
    def program() -> Any:
        w, unused = tf.Variable(W), tf.Variable(V)

        @tf.function
        def f(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.stop_gradient(x @ w) * (x @ w))
            return tape.gradient(loss, [w, unused])

        return f(X)

    runs = run(program, dtype).check()
    assert runs.on[1] is None


@pytest.mark.parametrize("block", ["dense", "convolution"])
def test_recomputed_blocks(dtype: str, block: str) -> None:  # R31
    def program() -> Any:
        import keras

        layer, inputs = (keras.layers.Dense(8), X) if block == "dense" else (keras.layers.Conv2D(4, 3), normal(2, 6, 6, 3))
        layer.build(inputs.shape)
        kernel = layer.trainable_variables[0].value

        def step(call: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(call(inputs) ** 2)
            return loss, tape.gradient(loss, kernel)

        def forward(x: tf.Tensor) -> tf.Tensor:
            return tf.nn.gelu(layer(x))

        return tf.function(lambda: step(forward))(), tf.function(lambda: step(tf.recompute_grad(forward)))()

    runs = run(program, dtype).check()
    plain, recomputed = runs.on
    on_off.assert_alike(plain, recomputed, on_off.ROUNDINGS * on_off.SIXTEEN_BIT[dtype].unit_roundoff)


def test_a_gradient_penalty(dtype: str) -> None:
    def program() -> Any:
        w = tf.Variable(W)

        @tf.function
        def step(x: tf.Tensor) -> Any:
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    score = tf.reduce_sum(tf.nn.relu(x @ w) @ V)
                slope = inner.gradient(score, x)
                penalty = tf.reduce_mean((tf.norm(slope, axis=1) - 1.0) ** 2)
            return slope, penalty, outer.gradient(penalty, w)

        return step(X)

    run(program, dtype).check()


def test_sparse_gradients_stay_sparse(dtype: str) -> None:
    def program() -> Any:
        table = tf.Variable(normal(100, 8))

        @tf.function
        def step(ids: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((tf.gather(table, ids) @ W) ** 2)
            return tape.gradient(loss, table)

        return step(tf.constant([3, 99, 3]))

    runs = run(program, dtype).check()
    assert isinstance(runs.on, tf.IndexedSlices)
