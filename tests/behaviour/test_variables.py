"""Variables: written in their own type, read fresh at every use, updated without rounding, and in the order that the program says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run, scope

X, W = normal(4, 8), normal(8, 8, seed=12)


def test_small_increments_and_counters_are_not_lost(dtype: str) -> None:  # R22
    steps = 5000
    value, count = tf.Variable(0.0), tf.Variable(0.0)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        y = x @ W
        value.assign_add(1e-4)
        count.assign_add(1.0)
        return y

    with scope(dtype):
        for _ in range(steps):
            step(X)
    assert abs(float(value) - 0.5) < 1e-3
    assert float(count) == steps


def test_an_increment_that_comes_from_a_product_is_added_in_float32(dtype: str) -> None:  # R22
    def program() -> Any:
        total = tf.Variable(2048.0 * tf.ones([4, 8]))

        @tf.function
        def step(x: tf.Tensor) -> None:
            total.assign(total + 0.5 * (x @ tf.ones([8, 8])))

        for _ in range(4):
            step(tf.ones([4, 8]) / 8.0)
        return total.read_value()

    runs = run(program, dtype).check()
    np.testing.assert_array_equal(runs.on, np.full([4, 8], 2050.0, np.float32))


def test_a_moving_average_of_weights_equals_float64(dtype: str) -> None:  # R23
    decay, steps = 0.9999, 300
    weights, average = tf.Variable(W), tf.Variable(tf.zeros_like(W))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        y = x @ weights
        average.assign_sub((1.0 - decay) * (average - weights))
        return y

    expected = np.zeros([8, 8])
    with scope(dtype):
        for _ in range(steps):
            step(X)
            expected -= (1.0 - decay) * (expected - W.numpy().astype(np.float64))
    np.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("how", ["momentum", "adam", "weight decay"])
def test_optimizers_that_are_written_out_keep_their_slots(dtype: str, how: str) -> None:
    target = normal(8, 1, seed=14)

    def program() -> Any:
        w, m, v = tf.Variable(tf.zeros([8, 1])), tf.Variable(tf.zeros([8, 1])), tf.Variable(tf.zeros([8, 1]))

        @tf.function
        def step() -> None:
            gradient = tf.matmul(X, X @ (w - target), transpose_a=True)
            if how == "momentum":
                m.assign(0.9 * m + gradient)
                w.assign_sub(1e-2 * m)
            elif how == "adam":
                m.assign(m + (gradient - m) * 0.1)
                v.assign(v + (tf.square(gradient) - v) * 1e-3)
                w.assign_sub(1e-2 * m / (tf.sqrt(v) + 1e-7))
            else:
                w.assign(w * (1.0 - 1e-4) - 1e-2 * gradient)

        for _ in range(20):
            step()
        program.step = step
        return w.read_value(), m.read_value(), v.read_value()

    runs = run(program, dtype).check(4 * on_off.ROUNDINGS)
    assert np.abs(runs.on[0]).max() > 0.05
    nodes = on_off.convert(program.step, dtype=dtype)
    assert nodes.types("MatMul") == [dtype]
    assert nodes.types("Mul", "AddV2") == ["float32"]


def test_an_assigned_weight_is_used_at_once(dtype: str, jit: bool) -> None:  # R32
    def program() -> Any:
        w = tf.Variable(W)

        @tf.function(jit_compile=jit)
        def between(x: tf.Tensor) -> Any:
            first = x @ w
            w.assign(2.0 * w)
            second = x @ w
            w.assign_add(tf.ones_like(w))
            return first, second, x @ w

        read = tf.function(lambda x: x @ w, jit_compile=jit)
        results = [read(X), between(X), read(X)]
        w.assign(-W)
        return [*results, read(X), w.read_value()]

    run(program, dtype).check()


def test_a_weight_assigned_in_a_loop_between_two_products(dtype: str) -> None:  # R32
    def program() -> Any:
        w = tf.Variable(W)

        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            total = tf.zeros([4, 8])
            for _ in tf.range(3):
                total += x @ w
                w.assign(-0.5 * w)
                total += 2.0 * (x @ w)
            return total

        return f(X), w.read_value()

    run(program, dtype).check()


def test_inference_first_then_training_then_inference(dtype: str) -> None:  # R32
    def program() -> Any:
        w = tf.Variable(W)
        infer = tf.function(lambda x: x @ w)

        @tf.function
        def train(x: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(infer(x) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))

        results = [infer(X)]
        for _ in range(3):
            train(X)
            results.append(infer(X))
        return results

    run(program, dtype).check()


def test_control_dependencies_and_the_order_of_assignments(dtype: str) -> None:
    def program() -> Any:
        log = tf.Variable(tf.zeros([6]))
        position = tf.Variable(0)

        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            def note(value: tf.Tensor) -> None:
                log.scatter_nd_update([[position]], [value])
                position.assign_add(1)

            note(tf.reduce_sum(x))
            y = x @ W
            note(tf.reduce_sum(y) * 0.0 + 2.0)
            with tf.control_dependencies([position.assign_add(1)]):
                y = y @ W
            note(tf.reduce_max(y) * 0.0 + 3.0)
            return y

        return f(X), log.read_value(), position.read_value()

    run(program, dtype).check()


def test_variables_of_other_types_and_a_mask_that_is_assigned(dtype: str) -> None:  # R101
    def program() -> Any:
        w, mask = tf.Variable(W), tf.Variable(tf.ones([8, 8]), trainable=False)
        steps, half = tf.Variable(0, dtype=tf.int64), tf.Variable(tf.ones([8], tf.float16))

        @tf.function
        def f(x: tf.Tensor) -> Any:
            mask.assign(tf.cast(tf.abs(w) > 0.5, tf.float32))
            steps.assign_add(1)
            half.assign(half * tf.constant(0.5, tf.float16))
            return x @ (w * mask) + tf.cast(half, tf.float32)

        return f(X), f(X), mask.read_value(), steps.read_value(), half.read_value()

    run(program, dtype).check()


def test_sparse_updates(dtype: str) -> None:
    def program() -> Any:
        table = tf.Variable(tf.ones([10, 8]))

        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            table.scatter_add(tf.IndexedSlices(x @ W, tf.constant([1, 3, 1, 9])))
            table.scatter_update(tf.IndexedSlices(x @ W, tf.constant([0, 2, 4, 5])))
            return tf.gather(table, [1, 2]) @ W

        return f(X), table.read_value()

    run(program, dtype).check()


@pytest.mark.parametrize("generator", ["tf.random", "stateless", "Generator", "dropout"])
def test_random_numbers_are_the_same(dtype: str, generator: str) -> None:
    def program() -> Any:
        state = tf.random.Generator.from_seed(5)
        draws = {
            "tf.random": lambda: tf.random.normal([4, 8]),
            "stateless": lambda: tf.random.stateless_uniform([4, 8], [1, 2]),
            "Generator": lambda: state.normal([4, 8]),
            "dropout": lambda: tf.nn.dropout(tf.ones([4, 8]), 0.4),
        }

        @tf.function
        def f(x: tf.Tensor) -> Any:
            noise = draws[generator]()
            return noise, (x * noise) @ W, tf.random.shuffle(tf.range(10), seed=3)

        return f(X), f(X)

    runs = run(program, dtype).check()
    for off, on in zip(runs.off, runs.on, strict=True):
        on_off.assert_alike((off[0], off[2]), (on[0], on[2]), 0.0)
