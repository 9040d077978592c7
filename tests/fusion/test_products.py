"""Products that are summed over examples become one product; others stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.fusion.running import FusedFunction, agree, with_gradients
from tfmp.reports.shapes import graphs_of


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def einsum_dense() -> tuple[Callable[..., Any], list[Any]]:
    layer = keras.layers.EinsumDense("abc,cd->abd", output_shape=(5, 7))
    layer.build((None, 5, 6))
    return layer, [layer.kernel.value]


def product() -> tuple[Callable[..., Any], list[Any]]:
    weight = tf.Variable(random(6, 7, seed=1))
    return lambda x: x @ weight, [weight]


def attention() -> tuple[Callable[..., Any], list[Any]]:
    layer = keras.layers.MultiHeadAttention(2, 4, use_bias=False)
    layer.build((None, 5, 6), (None, 5, 6))
    return lambda x: tf.pad(layer(x, x), [[0, 0], [0, 0], [0, 1]]), [weight.value for weight in layer.trainable_weights]


@pytest.mark.parametrize("batch", [3, None], ids=["batch known", "batch unknown"])
@pytest.mark.parametrize(("make", "count"), [(einsum_dense, 1), (product, 1), (attention, 4)], ids=lambda one: getattr(one, "__name__", ""))
def test_gradients_of_weights(make: Callable[[], tuple[Callable[..., Any], list[Any]]], count: int, batch: int | None) -> None:
    forward, variables = make()
    function = FusedFunction(with_gradients(forward, variables), tf.TensorSpec([batch, 5, 6]), tf.TensorSpec([batch, 5, 7]))
    assert function.live_ops["MatMul"] == count
    for size in [3] if batch else [1, 2, 7]:
        arguments = random(size, 5, 6), random(size, 5, 7, seed=5)
        agree(function(*arguments), function.before(*arguments))
        agree(function(*arguments, compiled=True), function.before(*arguments))


@pytest.mark.parametrize("shapes", [([3, 5, 6], [3, 5, 7]), ([2, 3, 5, 6], [2, 3, 5, 7])], ids=["one axis", "two axes"])
def test_by_hand(shapes: tuple[list[int], list[int]]) -> None:
    def summed(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.matmul(x, y, transpose_a=True), list(range(len(x.shape) - 2)))

    function = FusedFunction(summed, *map(tf.TensorSpec, shapes))
    assert function.live_ops["MatMul"] == 1 and not function.live_ops["BatchMatMulV2"]
    arguments = random(*shapes[0]), random(*shapes[1], seed=5)
    agree(function(*arguments), [np.einsum("...ij,...ik->...jk", *map(np.float64, arguments)).reshape(-1, 6, 7).sum(0).astype(np.float32)])


def keeps_axes(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.matmul(x, y, transpose_a=True), 0, keepdims=True)


def sums_rows(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.matmul(x, y, transpose_a=True), 1)


def reads_the_products_too(x: tf.Tensor, y: tf.Tensor) -> Any:
    products = tf.matmul(x, y, transpose_a=True)
    return tf.reduce_sum(products, 0), products


def not_transposed(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.matmul(x, y, transpose_b=True), 0)


@pytest.mark.parametrize("function", [keeps_axes, sums_rows, reads_the_products_too], ids=lambda function: function.__name__)
def test_other_sums_stay(function: Callable[..., Any]) -> None:
    assert not FusedFunction(function, tf.TensorSpec([3, 5, 6]), tf.TensorSpec([3, 5, 7])).found


def test_products_along_rows_stay() -> None:
    assert not FusedFunction(not_transposed, tf.TensorSpec([3, 5, 6]), tf.TensorSpec([3, 7, 6])).found


@pytest.mark.parametrize("batch", [1, None])
def test_an_example_that_is_repeated_stays(batch: int | None) -> None:
    """With one example on one side, which the product repeats, there is no one product of all rows; whether it is one may not be known."""
    assert not FusedFunction(lambda x, y: tf.reduce_sum(tf.matmul(x, y, transpose_a=True), 0), tf.TensorSpec([batch, 5, 6]), tf.TensorSpec([None, 5, 7])).found


@pytest.mark.parametrize("batch", [8, None], ids=["batch known", "batch unknown"])
def test_reports_count_the_product_once_and_as_16_bit(batch: int | None) -> None:
    forward, variables = attention()
    step = tf.function(with_gradients(forward, variables), autograph=False)
    function = step.get_concrete_function(tf.TensorSpec([batch, 5, 6]), tf.TensorSpec([batch, 5, 7]))
    fused, plain = (tfmp.report_on(tfmp.convert_function(function, fuse=fuse), graphs=graphs_of([function.inference_fn])) for fuse in (True, False))
    assert fused[0].kernels == 4 and not plain[0].kernels
    assert fused[0].flop_share == plain[0].flop_share == 1.0 and not fused[0].kept
    assert fused.details[0].flops == plain.details[0].flops > 0  # type: ignore[union-attr]


def test_the_record_of_what_runs_counts_it_as_16_bit() -> None:
    forward, variables = attention()
    with tfmp.mixed_precision(dtype="float16", ignore_performance=True):
        step = tf.function(with_gradients(forward, variables), autograph=False)
        step(random(3, 5, 6), random(3, 5, 7))
    record = tfmp.report()[-1]
    assert (record.flop_share, record.kernels, record.kept) == (1.0, 4, ())
