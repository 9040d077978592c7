"""Integers that travel as floats, and integers that are left alone: ids, labels, positions and counts stay exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run

CLASSES = 5000
EXACT = 0.0
LABELS = np.array([4999, 2909, 2049, 257, 1, 3001])
X, WIDE = normal(6, 8), normal(8, CLASSES, seed=12)


@pytest.mark.parametrize("labels", ["float32", "int32", "int64"])
@pytest.mark.parametrize("where", ["beside the logits", "with the logits"])
def test_class_labels_through_float_are_exact(dtype: str, labels: str, where: str) -> None:  # R25
    given = tf.constant(LABELS.astype(labels))

    def program() -> Any:
        w = tf.Variable(WIDE)

        @tf.function
        def f(x: tf.Tensor, y: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                logits = x @ w
                ids = tf.reshape(tf.cast(y, tf.float32 if where == "beside the logits" else logits.dtype), [-1, 1])
                if where == "with the logits":
                    both = tf.concat([logits, ids], 1)
                    logits, ids = both[:, :-1], both[:, -1:]
                ids = tf.cast(tf.reshape(ids, [-1]), tf.int64)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits)
            return ids, losses, tape.gradient(losses, w)

        return f(X, given)

    runs = run(program, dtype).check()
    np.testing.assert_array_equal(runs.on[0], LABELS)


@pytest.mark.parametrize("ids", ["float32", "int32", "int64", "uint16"])
def test_token_ids_gather_the_same_rows(dtype: str, ids: str) -> None:  # R26
    table = tf.reshape(tf.range(60001 * 2, dtype=tf.float32), [60001, 2])
    given = tf.constant(np.array([[60000, 2909], [2049, 3]]).astype(ids))
    w = normal(2, 4)

    def program() -> Any:
        @tf.function
        def f(given: tf.Tensor) -> Any:
            given = tf.concat([tf.pad(tf.reshape(given, [4]), [[1, 1]]), tf.zeros([1], given.dtype)], 0)
            rows = tf.gather(table, tf.cast(given, tf.int32))
            return rows, (rows / 1e5) @ w

        return f(given)

    runs = run(program, dtype).check()
    on_off.assert_alike(runs.off[0], runs.on[0], EXACT)
    assert float(runs.on[0][1, 0]) == 120000.0


def test_ids_made_by_argmax_of_logits_come_back_as_floats(dtype: str) -> None:
    def program() -> Any:
        @tf.function
        def f(x: tf.Tensor) -> Any:
            choice = tf.cast(tf.argmax(x @ WIDE * 3.0 + tf.one_hot(tf.constant(LABELS), CLASSES) * 1e4, 1), tf.float32)
            return choice, tf.cast(choice + 0.0, tf.int32), tf.reduce_sum(tf.cast(tf.cast(choice, tf.int32) == LABELS, tf.float32))

        return f(X)

    runs = run(program, dtype).check()
    np.testing.assert_array_equal(runs.on[1], LABELS)


def test_positions_and_lengths_above_2048_are_exact(dtype: str) -> None:
    length = 4097

    def program() -> Any:
        @tf.function
        def f(x: tf.Tensor) -> Any:
            positions = tf.cast(tf.range(length), tf.float32)
            last = tf.reduce_max(positions + tf.reduce_max(x @ x) * 0.0)
            mask = tf.cast(positions < 4096.0, tf.float32)
            return positions, last, mask, tf.reduce_sum(mask), tf.cast(tf.shape(positions)[0], tf.float32) - 1.0

        return f(normal(8, 8))

    runs = run(program, dtype).check()
    on_off.assert_alike(runs.off, runs.on, EXACT)


def test_integer_and_boolean_arithmetic_beside_products(dtype: str, jit: bool) -> None:
    def program() -> Any:
        @tf.function(jit_compile=jit)
        def f(x: tf.Tensor, n: tf.Tensor) -> Any:
            y = x @ x
            return y, n * 4999 // 7, tf.bitwise.bitwise_xor(n, 12345), tf.reduce_any(n > 3), tf.cast(n, tf.float32) * 1.0, tf.cumsum(n)

        return f(normal(8, 8), tf.constant([1, 2909, 60000]))

    runs = run(program, dtype).check()
    on_off.assert_alike(runs.off[1:], runs.on[1:], EXACT)


def test_one_hot_and_embedding_of_large_ids_in_keras(dtype: str) -> None:
    def program() -> Any:
        import keras

        model = keras.Sequential([keras.Input((3,), dtype="float32"), keras.layers.Embedding(3000, 4), keras.layers.Flatten(), keras.layers.Dense(2)])
        model.layers[0].set_weights([np.arange(12000, dtype=np.float32).reshape(3000, 4) / 1e4])
        return model.predict(np.array([[2909.0, 2049.0, 2999.0]], np.float32), verbose=0)

    run(program, dtype).check()
