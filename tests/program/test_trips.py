"""Steps of loops, counted from the graph and against how often the loop really goes round."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from tfmp import tf_api
from tfmp.program.program import from_function
from tfmp.program.trips import runs
from tfmp.program.unfold import unfold

X = tf.ones([2, 2])


def counted(function: Callable[[tf.Tensor], object], kind: str) -> list[int]:
    """Returns how often each loop body (or function whose name holds `kind`) runs, as the graph tells."""
    concrete = tf.function(function).get_concrete_function(tf.TensorSpec(X.shape))
    program = from_function(concrete.inference_fn.name.decode(), tf_api.function_definition)
    instances = unfold(program)
    return [times for instance, times in zip(instances, runs(program, instances), strict=True) if kind in instance.function]


def loop(x: tf.Tensor, steps: int, maximum: int | None = None) -> tf.Tensor:
    return tf.while_loop(lambda i, y: i < steps, lambda i, y: (i + 1, y @ x), [0, x], maximum_iterations=maximum)[1]


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_counts_up_to_a_constant(steps: int) -> None:
    assert counted(lambda x: loop(x, steps), "while_body") == [steps or 1]


def test_the_smaller_limit_counts() -> None:
    assert counted(lambda x: loop(x, 7, maximum=3), "while_body") == [3]
    assert counted(lambda x: loop(x, 3, maximum=7), "while_body") == [3]


def test_autograph_range() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(5):
            x = x @ x
        return x

    assert counted(step, "while_body") == [5]


def test_loops_in_loops_multiply() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, loop(y, 3)), [0, x])[1]

    assert sorted(counted(step, "while_body")) == [4, 12]


def test_gradient_goes_round_as_often_as_its_loop() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(loop(x, 6))
        return tape.gradient(y, x)

    assert counted(step, "while_body") == [6, 6]


def test_limit_that_comes_with_the_data_counts_as_one_step() -> None:
    assert counted(lambda x: loop(x, tf.cast(x[0, 0], tf.int32)), "while_body") == [1]


@pytest.mark.parametrize(("start", "stride", "expected"), [(0, 2, 4), (0, 3, 3), (1, 3, 3), (7, 1, 1), (9, 1, 1)])
def test_strides(start: int, stride: int, expected: int) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, y: i < 8, lambda i, y: (i + stride, y @ x), [start, x])[1]

    assert counted(step, "while_body") == [max(1, len(range(start, 8, stride)))] == [expected]


def test_counter_that_doubles_does_not_tell() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, y: i < 8, lambda i, y: (i + i, y @ x), [1, x])[1]

    assert counted(step, "while_body") == [1]


def test_function_in_a_loop_runs_at_every_step() -> None:
    @tf.function
    def inner(y: tf.Tensor) -> tf.Tensor:
        return y @ y

    def step(x: tf.Tensor) -> tf.Tensor:
        return inner(tf.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, inner(y)), [0, x])[1])

    assert sorted(counted(step, "inner")) == [1, 5]
