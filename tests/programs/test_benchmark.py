"""What `benchmarks/programs.py` measures with: counts by hand, and the minimum cut against trying every choice."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from benchmarks.executed import Stage, measure
from benchmarks.least import SIXTEEN, THIRTY_TWO, least_traffic

ROWS, WIDTH, TRIPS = 4, 8, 3
X = np.ones((ROWS, WIDTH), np.float32)
FLOAT, HALF = 4, 2


def staged(build: Any, *fetches: str) -> Stage:
    """Returns what the graph that `build` makes, with a placeholder "x", executes."""
    with tf.Graph().as_default() as graph:
        build(tf.compat.v1.placeholder(tf.float32, X.shape, name="x"))
    return Stage(graph.as_graph_def(), fetches, [], {"x": X})


def test_flops_casts_and_traffic_of_one_product() -> None:
    def build(x: Any) -> None:
        w = tf.fill([WIDTH, WIDTH], 0.5, name="w")
        y = tf.matmul(tf.cast(x, tf.float16), tf.cast(w, tf.float16))
        tf.cast(tf.nn.relu(y), tf.float32, name="y")

    found = measure([staged(build, "y")], saved_bytes=0)
    x, w = ROWS * WIDTH, WIDTH * WIDTH
    assert found.coverage == 1.0
    assert found.casts == 3
    assert found.cast_bytes == (2 * x + w) * (FLOAT + HALF)
    others = w * FLOAT + FLOAT + (x + w + x) * HALF + 2 * x * HALF  # Fill and its scalar, the product, Relu
    assert found.traffic == found.cast_bytes + others


def test_casts_of_constants_are_folded_and_half_of_the_flops_is_half() -> None:
    def build(x: Any) -> None:
        w = tf.constant(np.eye(WIDTH, dtype=np.float32))
        y = tf.matmul(x, w)
        tf.matmul(tf.cast(y, tf.float16), tf.cast(w, tf.float16), name="y")

    found = measure([staged(build, "y")], saved_bytes=0)
    assert (found.casts, found.coverage) == (1, 0.5)


def _loop(dtype: Any) -> Any:
    def build(x: Any) -> None:
        body = lambda i, total: (i + 1, total + tf.cast(tf.cast(x, tf.float16) * 2.0, dtype))  # noqa: E731
        total = tf.raw_ops.Identity(input=tf.compat.v1.while_loop(lambda i, _: i < TRIPS, body, (0, tf.zeros(X.shape, dtype)))[1])
        tf.identity(tf.cast(total, tf.float32), name="y")

    return build


@pytest.mark.parametrize(("dtype", "casts"), [(tf.float32, 2 * TRIPS), (tf.float16, TRIPS + 1)])
def test_loops_count_by_their_trips_and_their_narrow_sums_are_noticed(dtype: Any, casts: int) -> None:
    tf.compat.v1.disable_control_flow_v2()
    try:
        stage = staged(_loop(dtype), "y")
    finally:
        tf.compat.v1.enable_control_flow_v2()
    found = measure_without_products(stage)
    assert found["casts"] == casts
    assert found["narrow sums"] == (TRIPS * X.size * HALF if dtype == tf.float16 else 0)
    np.testing.assert_array_equal(stage.results[0], 2.0 * TRIPS * X)


def measure_without_products(stage: Stage) -> dict[str, int]:
    """Returns the counts that make sense for a graph without a matrix multiplication."""
    return {"casts": sum(one.is_cast for one in stage.executions), "narrow sums": stage.narrow_sums()}


def test_saved_activations_are_what_the_backward_part_reads_once_each() -> None:
    def build(x: Any) -> None:
        w = tf.fill([WIDTH, WIDTH], 0.5)
        hidden = tf.tanh(tf.matmul(x, w))
        with tf.name_scope("gradient_tape"):
            slope = tf.raw_ops.TanhGrad(y=hidden, dy=tf.ones_like(hidden))
            tf.matmul(x, slope, transpose_a=True, name="dw")
        tf.identity(hidden, name="y")

    assert staged(build, "gradient_tape/dw", "y").saved_bytes() == 2 * X.size * FLOAT  # x and hidden


CHAIN = ("Placeholder", "MatMul", "Relu", "Exp", "Mul", "MatMul", "Identity")


@hypothesis.settings(max_examples=30, deadline=None, derandomize=True, database=None)
@hypothesis.given(st.lists(st.integers(0, 5), min_size=5, max_size=5), st.lists(st.integers(1, 50), min_size=7, max_size=7))
def test_the_least_traffic_is_that_of_the_best_of_all_choices(extra: list[int], sizes: list[int]) -> None:
    """A chain of ops in which some read an earlier tensor as well; sizes are in units of 4 bytes."""
    reads = {number: {number - 1, *([extra[number - 2] % number] if number > 1 else [])} for number in range(1, len(CHAIN))}
    traffic = {str(number): (op, 4 * sizes[number]) for number, op in enumerate(CHAIN)}
    readers = {number: [reader for reader, read in reads.items() if number in read] for number in range(len(CHAIN))}
    tensors = {(str(number), 0): (str(number), [str(one) for one in readers[number]], 8 * sizes[number]) for number in range(len(CHAIN))}
    kept = {0, len(CHAIN) - 1}
    best = None
    for choice in itertools.product([False, True], repeat=len(CHAIN)):
        forced = [(op in SIXTEEN) if op in SIXTEEN | THIRTY_TWO or number in kept else None for number, op in enumerate(CHAIN)]
        if all(want is None or want == has for want, has in zip(forced, choice, strict=True)):
            cost = sum(4 * size // (2 if sixteen else 1) for size, sixteen in zip(sizes, choice, strict=True))
            cost += sum(12 * sizes[number] for number in range(len(CHAIN)) if any(choice[one] != choice[number] for one in readers[number]))
            best = cost if best is None else min(best, cost)
    assert least_traffic(traffic, tensors, frozenset(map(str, kept))) == best
