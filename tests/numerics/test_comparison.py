"""Float32 and mixed side by side: errors that NumPy agrees with, in loops and branches, and in as many rounds as memory asks for."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.numerics.faults import FAULTS
from tfmp import numerics

RNG = np.random.default_rng(2)
A, B = (RNG.normal(size=(16, 16)).astype("float32") for _ in range(2))
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def row_of(comparison: numerics.Comparison, node: str, port: int = 0) -> numerics.TensorComparison:
    return next(row for row in comparison if (row.node, row.port) == (node, port))


@tf.function
def product(a: Any, b: Any) -> Any:
    return tf.matmul(a, b, name="product")


@pytest.mark.parametrize("dtype", UNIT)
def test_errors_are_in_units_of_roundoff(dtype: str) -> None:
    comparison = numerics.compare(product, (A, B), dtype=dtype)
    row = row_of(comparison, "product")
    full = tf.matmul(A, B).numpy().astype("float64")
    mixed = tf.cast(tf.matmul(tf.cast(A, dtype), tf.cast(B, dtype)), tf.float64).numpy()
    assert (comparison.dtype, comparison.unit, row.dtype, row.elements, row.runs) == (dtype, UNIT[dtype], dtype, 256, 1)
    assert row.error == pytest.approx(np.sqrt(np.sum((mixed - full) ** 2) / np.sum(full**2)) / UNIT[dtype])
    assert row.worst == pytest.approx(np.abs(mixed - full).max() / np.abs(full).max() / UNIT[dtype])
    assert 0 < row.error < 2 and not comparison.diverged


def test_counts_are_pairs_of_float32_and_mixed() -> None:
    a = np.float32([[1e-9, 0, 1], [300, 2, 0]])
    row = row_of(numerics.compare(product, (a, np.float32([[1e-4], [0], [300]]))), "product")
    assert (row.zeros, row.infs, row.nans, row.broken) == ((0, 0), (0, 0), (0, 0), 0)
    row = row_of(numerics.compare(product, (a, np.float32([[1e-4], [0], [0]]))), "product")
    assert row.zeros == (0, 1)
    row = row_of(numerics.compare(product, (np.float32([[300], [1]]), np.float32([[300, np.inf, np.nan, 2]]))), "product")
    assert (row.infs, row.nans, row.broken) == ((2, 3), (2, 2), 1)


def test_what_is_not_converted_has_no_error() -> None:
    comparison = numerics.compare(product, (A, B), denylist_add="MatMul")
    assert {(row.error, row.dtype) for row in comparison} == {(0.0, "float32")}


@tf.function
def looping(x: Any) -> Any:
    y = x
    for _ in tf.range(5):
        y = tf.matmul(y, A, name="turn") * 4.0
    return tf.reduce_sum(y)


def test_a_loop_is_followed_step_by_step() -> None:
    comparison = numerics.compare(looping, (B,))
    row = row_of(comparison, "while/turn")
    exact, first = B.astype("float64"), 0
    for step in range(1, 6):
        exact = exact @ A
        if np.abs(exact).max() > 65520:
            first = step
            break
        exact *= 4
    assert comparison[0].broken and row.runs == 5 and row.place == ("while:body",) and row.layer == "while"
    assert (row.broken or 6) >= (first or 6) - 1


def test_little_memory_means_more_rounds_and_the_same_result() -> None:
    everything = numerics.compare(looping, (B,))
    for memory in (1, 4000):
        assert list(numerics.compare(looping, (B,), memory=memory)) == list(everything)


def test_broken_comes_before_diverged_and_that_before_the_rest() -> None:
    fault = FAULTS[3]  # a factor vanishes, and then something is divided by it
    step, _ = fault.step()
    comparison = numerics.compare(step, fault.batches(1)[0])
    groups = [0 if row.broken else 1 if row.diverged else 2 for row in comparison]
    assert groups == sorted(groups) and set(groups) == {0, 1, 2}
    assert next(row for row in comparison.diverged if not row.broken).op == "Mul"
    assert [row.node for row in comparison.broken] == [row.node for row in comparison[: groups.count(0)]]


def test_random_numbers_are_the_same_in_both() -> None:
    @tf.function
    def noisy(x: Any) -> Any:
        return tf.matmul(tf.nn.dropout(x, 0.5) + tf.random.uniform([16, 16], name="noise"), A, name="product")

    first, second = (numerics.compare(noisy, (B,)) for _ in range(2))
    assert row_of(first, "noise/RandomUniform").error == 0
    assert row_of(first, "product").error < 4
    assert list(first) == list(second)


def test_a_branch_that_only_float32_takes_is_told() -> None:
    @tf.function
    def branching(x: Any) -> Any:
        y = tf.matmul(x, x)
        return tf.cond(tf.reduce_max(y) < 1e30, lambda: tf.matmul(y, x, name="usual"), lambda: tf.zeros_like(y))

    comparison = numerics.compare(branching, (np.full((2, 2), 200.0, "float32"),))
    assert row_of(comparison, "MatMul").broken == 1
    assert [row.node for row in comparison if row.node == "cond/usual"] == []


def test_a_program_that_stops_is_compared_up_to_there() -> None:
    @tf.function
    def checked(x: Any) -> Any:
        return tf.matmul(tf.debugging.check_numerics(tf.matmul(x, x, name="product"), "stop"), x, name="after")

    comparison = numerics.compare(checked, (A * 1000,))
    assert comparison[0].node == "product" and comparison[0].broken
    assert "stop : Tensor had Inf values" in comparison.stopped and comparison.stopped in str(comparison)


def test_layers_and_gradients_of_a_model() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((16,)), keras.layers.Dense(16, name="first"), keras.layers.Dense(16, name="second")])
    model.compile("sgd", "mse", jit_compile=False)
    comparison = numerics.compare(model, (A, B))
    layers = {(row.layer.rpartition("/")[2], row.kind) for row in comparison if row.op == "MatMul"}
    assert layers >= {("first", "activation"), ("second", "activation"), ("second", "activation gradient"), ("first", "weight gradient")}
    rule = numerics.compare(model, (A, B), keep_float32="layer:second")
    assert {row.dtype for row in rule if row.op == "MatMul" and row.layer.endswith("second")} == {"float32"}
    assert {row.dtype for row in rule if row.op == "MatMul" and row.layer.endswith("first")} == {"float16"}


def test_settings_in_force_are_used() -> None:
    with tfmp.mixed_precision(dtype="bfloat16", ignore_performance=True, keep_float32="name:product"):
        assert {row.dtype for row in numerics.compare(product, (A, B))} == {"float32"}
    assert row_of(numerics.compare(product, (A, B)), "product").dtype == "float16"


def test_it_prints_as_a_table() -> None:
    step, _ = FAULTS[8].step()
    comparison = numerics.compare(step, FAULTS[8].batches(1)[0])
    text = str(comparison)
    assert f"{len(comparison)} tensors in float32 and mixed with float16: {len(comparison.broken)} broke" in text
    assert "BROKE" in text and "while/mul in while:body" in text and " of 8" in text
    assert "Identity" not in text and "_Arg" not in text
    assert len(comparison.table(2).splitlines()) < len(text.splitlines())
    assert str(numerics.Comparison([], "float16", 2.0**-11)).startswith("0 tensors")


def test_nothing_in_float32_means_an_infinite_error() -> None:
    zero = numerics.compare(product, (np.zeros((2, 2), "float32"), np.full((2, 2), 1e9, "float32")))
    row = row_of(zero, "product")
    assert math.isnan(row.error) is False and row.nans == (0, 4) and row.broken == 1


def test_statistics_that_are_scaled_before_they_are_copied_are_not_compared_with_copies() -> None:
    x = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)

    def centred(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.reduce_mean(x @ tf.transpose(x), 1) ** 3)
        return tf.matmul(tape.gradient(loss, x), x, transpose_a=True)

    rows = list(numerics.compare(tf.function(centred, autograph=False), x, dtype="float16"))
    assert "MatMul" in {row.op for row in rows}
    assert not {row.op for row in rows} & {"Tile", "BroadcastTo"}
