"""A scale and an offset for each channel are one kernel; other products and sums stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.fusion.running import FusedFunction, agree, with_gradients

FORWARD = "FusedBatchNormV3"


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(1.0, 2.0, shape).astype(np.float32)


def convolved(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv2d(x, tf.constant(random(1, 1, 4, 4, seed=7)), 1, "SAME")


def settled_batch_norm() -> tuple[Callable[..., Any], list[Any]]:
    layer = keras.layers.BatchNormalization()
    layer.build((None, 1, 1, 4))
    for weight in layer.weights:
        weight.assign(np.abs(random(4, seed=3)) + 0.1)
    return lambda x: layer(convolved(x), training=False), [weight.value for weight in layer.trainable_weights]


def by_hand() -> tuple[Callable[..., Any], list[Any]]:
    scale, offset = tf.Variable(random(1, 1, 4, seed=1)), tf.Variable(random(4, seed=2))
    return lambda x: offset + scale * convolved(x), [scale, offset]


@pytest.mark.parametrize("batch", [3, None], ids=["batch known", "batch unknown"])
@pytest.mark.parametrize("make", [settled_batch_norm, by_hand], ids=lambda make: make.__name__)
def test_scale_and_offset(make: Callable[[], tuple[Callable[..., Any], list[Any]]], batch: int | None) -> None:
    forward, variables = make()
    spec = tf.TensorSpec([batch, 6, 5, 4])
    function = FusedFunction(with_gradients(forward, variables), spec, spec)
    assert function.live_ops[FORWARD] == 1
    for size in [3] if batch else [0, 1, 7]:
        arguments = random(size, 6, 5, 4), random(size, 6, 5, 4, seed=5)
        agree(function(*arguments), function.before(*arguments))
        agree(function(*arguments, compiled=True), function.before(*arguments), 1e-4)


def test_volumes() -> None:
    scale, offset = tf.constant(random(4, seed=1)), tf.constant(random(4, seed=2))
    filters = tf.constant(random(1, 1, 1, 4, 4))
    function = FusedFunction(lambda x: tf.nn.conv3d(x, filters, [1] * 5, "SAME") * scale + offset, tf.TensorSpec([None, 3, 2, 5, 4]))
    assert function.live_ops[FORWARD] == 1
    x = random(2, 3, 2, 5, 4)
    agree(function(x), function.before(x))


OTHERS = {
    "the product is read elsewhere": lambda x, scale, offset: (product := x * scale) + offset + tf.sin(product),
    "the offset is for each row": lambda x, scale, offset: x * scale + tf.reduce_sum(x, 3, keepdims=True),
    "the offset is one number": lambda x, scale, offset: x * scale + 2.0,
    "the scale is data": lambda x, scale, offset: x * tf.sin(x) + offset,
    "the result is larger": lambda x, scale, offset: tf.reduce_sum(x, 1, keepdims=True) * scale + offset + tf.zeros([3, 6, 5, 4]),
}


@pytest.mark.parametrize("other", list(OTHERS)[:-1])
def test_what_looks_alike_is_left_alone(other: str) -> None:
    scale, offset = tf.constant(random(4, seed=1)), tf.constant(random(4, seed=2))
    assert not FusedFunction(lambda x: OTHERS[other](convolved(x), scale, offset), tf.TensorSpec([3, 6, 5, 4])).found


def test_one_beside_a_larger_sum() -> None:
    scale, offset = tf.constant(random(4, seed=1)), tf.constant(random(4, seed=2))
    function = FusedFunction(lambda x: OTHERS["the result is larger"](convolved(x), scale, offset), tf.TensorSpec([3, 6, 5, 4]))
    x = random(3, 6, 5, 4)
    agree(function(x), function.before(x))


def test_without_convolutions_nothing_is_looked_for() -> None:
    scale, offset = tf.constant(random(4, seed=1)), tf.constant(random(4, seed=2))
    assert not FusedFunction(lambda x: x * scale + offset, tf.TensorSpec([3, 6, 5, 4])).found
