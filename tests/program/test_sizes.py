"""Sizes that are unknown but the same: sums in gradients of broadcasts that are over nothing, whatever the batch is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.program.test_rearrange import call, moved, work
from tfmp import tf_api
from tfmp.graph.view import read_function
from tfmp.program.rearrange import rearranged
from tfmp.program.shapes import Sizes

W = np.random.default_rng(3).normal(size=(4, 4)).astype(np.float32)
FILTERS = np.random.default_rng(4).normal(size=(3, 3, 4, 4)).astype(np.float32)


def residual(x: tf.Tensor) -> tf.Tensor:
    return x + tf.tanh(tf.nn.relu(x @ W) @ W) * tf.sigmoid(x)


def normalisation(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3) * W[0] + W[1]


def convolutions(x: tf.Tensor) -> tf.Tensor:
    x = tf.tile(x[:, None, None, :], [1, 5, 5, 1])
    y = tf.nn.max_pool2d(tf.nn.conv2d(x, FILTERS, 1, "SAME"), 3, 1, "SAME")
    return tf.reshape(y + tf.nn.conv2d(y, FILTERS, 1, "SAME"), [-1, 100])


def attention(x: tf.Tensor) -> tf.Tensor:
    x = tf.reshape(tf.tile(x[:, None, :], [1, 6, 1]), [-1, 6, 2, 2])
    q = tf.transpose(x, [0, 2, 1, 3])
    mixed = tf.matmul(tf.nn.softmax(tf.matmul(q, q, transpose_b=True)), q)
    return tf.transpose(mixed, [0, 2, 1, 3]) * x


def embedding(x: tf.Tensor) -> tf.Tensor:
    tokens = tf.argmax(x, 1)
    rows = tf.gather(W @ tf.transpose(x) @ x, tokens)
    return rows * tf.nn.relu(rows) + tf.gather(W[::-1], tokens)


def gradient_of(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], Any]:
    """Returns what computes the gradients by the input, and by a factor of the result that is as large as all of it."""

    def gradient(x: tf.Tensor) -> Any:
        factor = tf.cos(function(x))
        with tf.GradientTape() as tape:
            tape.watch((x, factor))
            y = tf.reduce_sum((function(x) * factor) ** 2)
        return [one for one in tape.gradient(y, (x, factor)) if one is not None]

    return gradient


def sums(body: Any) -> int:
    return work(body, "Sum")


@pytest.mark.parametrize(
    ("function", "passed"),
    [(residual, 4), (normalisation, 3), (convolutions, 2), (attention, 4), (embedding, 2)],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_sums_over_nothing_are_passed_by_and_give_the_same(function: Callable[[tf.Tensor], tf.Tensor], passed: int) -> None:
    concrete, after, definition = moved(gradient_of(function), tf.TensorSpec([None, 4], tf.float32))
    original = tf_api.function_definition(concrete.name)
    assert sums(read_function(original, {})) - sums(after) >= passed
    for batch in (1, 2, 7):
        x = np.random.default_rng(batch).normal(size=(batch, 4)).astype(np.float32)
        for found, expected in zip(call(definition, x), call(original, x), strict=True):
            np.testing.assert_array_equal(found, expected)


def by_two(function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], *specs: tf.TensorSpec) -> Any:
    """Returns the view, after the moves, of the gradients of a function of two arguments."""

    def gradient(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((x, y))
            z = tf.reduce_sum(function(x, y) ** 2)
        return tape.gradient(z, (x, y))

    concrete = tf.function(gradient, autograph=False).get_concrete_function(*specs)
    body = read_function(tf_api.function_definition(concrete.name), {})
    return body, rearranged(body, Sizes.of_body(body, tf_api.python_graphs([concrete.inference_fn]).get))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x * y,  # either batch may be 1
        lambda x, y: tf.reduce_mean(x, tf.cast(tf.reduce_sum(y), tf.int32) * 0, keepdims=True) * x,  # who knows which axis
        lambda x, y: tf.transpose(x)[:, :1] * tf.matmul(x, x, transpose_a=True)[:, :1] * tf.concat([y, y], 0)[:1, :1],
        lambda x, y: tf.concat([x, y], 0) * tf.concat([y, x], 0),
    ],
    ids=["two arguments", "a mean over who knows what", "slices", "concatenations"],
)
def test_sizes_that_may_differ_move_nothing(function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> None:
    spec = tf.TensorSpec([None, 4], tf.float32)
    before, after = by_two(function, spec, spec)
    products = [node for node, op in enumerate(before.ops) if op == "BroadcastGradientArgs" and "gradient_tape/mul" in before.names[node]]
    assert products
    for node, op in enumerate(before.ops):
        if op == "Sum" and before.inputs[node][1][0] in products:
            assert any((node, 0) in edges for edges in after.inputs), before.names[node]


def test_a_deep_network_is_followed_without_recursion() -> None:
    def deep(x: tf.Tensor) -> tf.Tensor:
        for _ in range(700):
            x = x + tf.tanh(x)
        return x

    concrete, after, _ = moved(gradient_of(deep), tf.TensorSpec([None, 4], tf.float32))
    assert sums(after) <= 2 < sums(read_function(tf_api.function_definition(concrete.name), {}))
