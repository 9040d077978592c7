"""Weights read and cast once a step, by whoever calls what needs them, where that cannot be noticed; and as often as they are read where it could."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tfmp import engine
from tfmp.program.program import from_graph
from tfmp.settings import make_settings

X = tf.constant(np.linspace(-1, 1, 8).reshape(2, 4).astype("float32"))


@pytest.fixture
def weight() -> tf.Variable:
    return tf.Variable(np.linspace(-0.5, 0.5, 16).reshape(4, 4).astype("float32"))


def loop(body: Callable[[tf.Tensor], tf.Tensor], steps: int = 5) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: tf.while_loop(lambda i, y: i < steps, lambda i, y: (i + 1, body(y)), [0, x])[1]


def casts_inside_and_outside(function: Callable[[tf.Tensor], tf.Tensor]) -> tuple[int, int]:
    """Returns the number of casts in loop bodies, and elsewhere, of the converted function, after checking that it gives what the original gives."""
    with tfmp.mixed_precision(enabled=False):
        expected = tf.function(function)(X)
    with tfmp.mixed_precision(dtype="float16", ignore_performance=True, strict=True):
        np.testing.assert_allclose(tf.function(function)(X), expected, atol=16 * 2.0**-11 * np.abs(expected).max())
    conversion = tfmp.convert_function(tf.function(function).get_concrete_function(X), dtype="float16")
    inside = sum(body.plan.run_time_casts for body in conversion.bodies.values() if "while_body" in body.function)
    return inside, conversion.casts - inside


def test_weight_is_cast_once_before_the_loop(weight: tf.Variable) -> None:
    inside, outside = casts_inside_and_outside(loop(lambda y: tf.tanh(y @ weight)))
    assert (inside, outside) == (0, 3)  # the weight, what goes in, what comes out


def test_weight_of_an_inner_loop_leaves_both_loops(weight: tf.Variable) -> None:
    assert casts_inside_and_outside(loop(loop(lambda y: tf.tanh(y @ weight), 2), 3)) == (0, 3)


def test_two_reads_in_one_body_are_both_moved(weight: tf.Variable) -> None:
    other = tf.Variable(weight)
    assert casts_inside_and_outside(loop(lambda y: tf.tanh(y @ weight) @ other)) == (0, 4)


@pytest.mark.parametrize("where", ["same body", "called function", "condition"])
def test_weight_that_the_loop_changes_is_read_at_every_step(weight: tf.Variable, where: str) -> None:
    start = weight.numpy()

    @tf.function
    def change(y: tf.Tensor) -> tf.Tensor:
        weight.assign(weight * 0.5)
        return y

    def body(y: tf.Tensor) -> tf.Tensor:
        y = tf.tanh(y @ weight)
        if where == "same body":
            weight.assign(weight * 0.5)
        return change(y) if where == "called function" else y

    def condition(i: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        if where == "condition":
            weight.assign(weight * 0.5)
        return i < 4

    def function(x: tf.Tensor) -> tf.Tensor:
        weight.assign(start)
        return tf.while_loop(condition, lambda i, y: (i + 1, body(y)), [0, x])[1]

    inside, _ = casts_inside_and_outside(function)
    assert inside == 1


def test_assignment_before_the_loop_is_seen(weight: tf.Variable) -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        weight.assign(tf.ones([4, 4]) * 0.25)
        x = loop(lambda y: y @ weight)(x)
        weight.assign(tf.ones([4, 4]) * 0.125)
        return loop(lambda y: y @ weight)(x)

    assert casts_inside_and_outside(function)[0] == 0


def test_gradient_through_the_loop(weight: tf.Variable) -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(loop(lambda y: tf.tanh(y @ weight))(x))
        return tape.gradient(y, weight)

    inside, _ = casts_inside_and_outside(function)
    assert inside == 1  # each step's gradient, which is added up in float32


def test_nothing_is_hoisted_at_tensorflows_level(weight: tf.Variable) -> None:
    concrete = tf.function(loop(lambda y: tf.tanh(y @ weight))).get_concrete_function(X)
    conversion = tfmp.convert_function(concrete, dtype="float16", level="tensorflow")
    assert not any(body.plan.reads for body in conversion.bodies.values())


def casts_of_weights(function: Callable[[tf.Tensor], tf.Tensor], *weights: tf.Variable) -> int:
    """Returns how many casts of variables a call of the converted function runs, loops step by step, after checking what two calls give and leave."""
    start, results = [weight.numpy() for weight in weights], []
    for on in (False, True):
        for weight, value in zip(weights, start, strict=True):
            weight.assign(value)
        traced = tf.function(function)
        with tfmp.mixed_precision(on, dtype="float16", ignore_performance=True, strict=True):
            results.append([traced(X), traced(X), *(weight.numpy() for weight in weights)])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, atol=32 * 2.0**-11 * max(1.0, np.abs(expected).max()))
    conversion = tfmp.convert_function(tf.function(function).get_concrete_function(X), dtype="float16")
    made = 0
    for count, body in zip(conversion.runs, conversion.bodies.values(), strict=True):
        plan = body.plan
        made += count * (sum(plan.body.ops[cast.source[0]] == "ReadVariableOp" for cast in plan.casts) + sum(read.is_new for read in plan.reads))
    return made


def test_a_weight_is_cast_once_however_often_it_is_read(weight: tf.Variable) -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        for _ in range(5):
            x = tf.tanh(x @ weight)
        return x

    assert casts_of_weights(function, weight) == 1


def test_what_is_read_in_float32_goes_on_reading_its_own(weight: tf.Variable) -> None:
    concrete = tf.function(lambda x: (tf.tanh(x @ weight) @ weight, tf.exp(weight))).get_concrete_function(X)
    (body,) = tfmp.convert_function(concrete, dtype="float16").bodies.values()
    moved = {body.plan.body.names[move.reader[0]] for move in body.plan.moves}
    assert moved == {"matmul_1"}


def test_no_cast_is_shared_across_an_assignment(weight: tf.Variable) -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        y = tf.tanh(x @ weight) @ weight
        weight.assign(-0.5 * weight)
        return y @ weight @ weight

    assert casts_of_weights(function, weight) == 3  # one before, and each read after it, which waits for it


def test_no_cast_is_shared_across_a_call_that_assigns(weight: tf.Variable) -> None:
    @tf.function
    def change(x: tf.Tensor) -> tf.Tensor:
        weight.assign(-0.5 * weight)
        return tf.tanh(x @ weight)

    assert casts_of_weights(lambda x: change(x @ weight) @ weight, weight) == 3


def layer(weight: tf.Variable) -> Callable[[tf.Tensor], tf.Tensor]:
    return tf.function(lambda x: tf.tanh(x @ weight))


def test_functions_that_read_one_weight_are_handed_one_cast(weight: tf.Variable) -> None:
    inner = layer(weight)
    block = tf.function(lambda x: inner(inner(x)))
    assert casts_of_weights(lambda x: inner(block(block(x))) @ weight, weight) == 1


def test_a_cast_goes_up_no_further_than_to_those_who_share_it(weight: tf.Variable) -> None:
    inner, other = layer(weight), layer(tf.Variable(weight))
    block = tf.function(lambda x: inner(other(inner(x))))
    concrete = tf.function(lambda x: block(x)).get_concrete_function(X)
    conversion = tfmp.convert_function(concrete, dtype="float16")
    reads = {body.function.split("_")[-2]: len(body.plan.reads) for body in conversion.bodies.values() if body.plan.reads}
    assert list(reads.values()) == [2], "the block reads once for its two inner layers; the root and the other layer have nothing to share"
    assert conversion.bodies[conversion.root].plan.arguments == ()


def test_a_function_that_is_called_after_an_assignment_reads_for_itself(weight: tf.Variable) -> None:
    inner = layer(weight)

    def function(x: tf.Tensor) -> tf.Tensor:
        y = inner(inner(x))
        weight.assign(-0.5 * weight)
        return inner(inner(y))

    assert casts_of_weights(function, weight) == 3


def test_a_weight_of_a_function_in_a_loop_leaves_the_loop(weight: tf.Variable) -> None:
    inner = layer(weight)
    block = tf.function(lambda x: inner(x) + 1.0)
    assert casts_of_weights(loop(block), weight) == 1


@pytest.mark.parametrize("both", [False, True])
def test_a_weight_of_a_branch_in_a_loop_leaves_the_loop(weight: tf.Variable, both: bool) -> None:
    other = weight if both else tf.Variable(weight)

    def body(y: tf.Tensor) -> tf.Tensor:
        return tf.cond(tf.reduce_sum(y) > 0.1, lambda: tf.tanh(y @ weight), lambda: tf.tanh(y @ other) + 0.01)

    assert casts_of_weights(loop(body), weight) == (1 if both else 2)


def test_a_branch_outside_of_loops_casts_only_if_it_is_taken(weight: tf.Variable) -> None:
    concrete = tf.function(lambda x: tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.tanh(x @ weight) @ weight, lambda: x)).get_concrete_function(X)
    conversion = tfmp.convert_function(concrete, dtype="float16")
    assert conversion.bodies[conversion.root].plan.reads == ()


def test_a_loop_that_runs_python_reads_at_every_step(weight: tf.Variable) -> None:
    def change(y: tf.Tensor) -> tf.Tensor:
        weight.assign(weight * 0.5)
        return y

    def body(y: tf.Tensor) -> tf.Tensor:
        y = tf.ensure_shape(tf.py_function(change, [y], tf.float32), [2, 4])
        with tf.control_dependencies([y]):
            return tf.tanh(y @ weight.read_value())

    assert casts_of_weights(loop(body), weight) == 5


def test_unrolled_recurrent_layers_cast_each_weight_once() -> None:
    lstm = keras.layers.LSTM(4, unroll=True)
    lstm.build((2, 6, 4))
    weights = [one.value for one in lstm.trainable_weights]
    assert casts_of_weights(lambda x: lstm(tf.stack([x] * 6, axis=1)), *weights) <= len(weights)


@pytest.mark.parametrize("ordered", [True, False])
def test_in_a_graph_made_by_hand_reads_are_shared_only_if_writes_wait_for_them(ordered: bool) -> None:
    """Nothing says that `first` comes before the assignment, but `second` does."""
    with tf.Graph().as_default() as graph:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[4, 4], shared_name="w", name="w")
        first, second = (tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name=name) for name in ("first", "second"))
        out = tf.matmul(tf.nn.relu(tf.matmul(tf.constant(X.numpy()), first)), second)
        with tf.control_dependencies([second, first] if ordered else [second]):
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([4, 4]), name="write")
        tf.identity(out, name="out")
    plan = tfmp.convert_graph_def(graph.as_graph_def(), fetches=["out", "write"]).bodies[""].plan
    moved = {(plan.body.names[move.reader[0]], plan.body.names[move.source[0]]) for move in plan.moves}
    assert moved == ({("MatMul_1", "first")} if ordered else {("MatMul", "second")})


def test_a_read_that_is_fed_reaches_its_own_reader() -> None:
    with tf.Graph().as_default() as graph:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[4, 4], shared_name="w", name="w")
        first, second = (tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name=name) for name in ("first", "second"))
        hidden = tf.nn.relu(tf.matmul(tf.constant(X.numpy()), first))
        tf.identity(tf.matmul(hidden, second), name="out")
    for feeds, moved in ((["second:0"], False), ([], True)):
        conversion = tfmp.convert_graph_def(graph.as_graph_def(), fetches=["out"], feeds=feeds)
        assert bool(conversion.bodies[""].plan.moves) is moved


def test_functions_share_no_cast_in_a_graph_that_may_grow() -> None:
    """An assignment that is added to a Session's graph later cannot wait for a read that nobody knows of."""
    with tf.Graph().as_default() as graph:
        variable = tf.compat.v1.get_variable("w", [4, 4], use_resource=True)
        inner = tf.function(lambda x: tf.tanh(x @ variable))
        tf.identity(inner(inner(tf.constant(X.numpy()))), name="out")
    program = from_graph(graph.as_graph_def())
    for grows, handed_over in ((True, 0), (False, 2)):
        conversion = engine.convert(program, make_settings(dtype="float16", device="CPU"), {"out"}, feedable=grows)
        assert len(conversion.bodies[""].plan.reads) == handed_over
