"""Moved ops give the same bits: functions whose ops were only moved, and nothing converted, run beside the originals."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.graph_text import nodes, parse
from tfmp import engine, tf_api
from tfmp.graph.view import read_function
from tfmp.graph.wire import as_proto
from tfmp.program.moves import moved_edges
from tfmp.program.rearrange import rearranged
from tfmp.program.shapes import Sizes
from tfmp.rewriting.apply import apply
from tfmp.rewriting.plan import Move, Plan

X = np.random.default_rng(1).normal(size=(16, 8, 8, 4)).astype(np.float32)
SPEC = tf.TensorSpec(X.shape, tf.float32)


def moved(function: Callable[..., Any], spec: tf.TensorSpec = SPEC) -> tuple[Any, Any, Any]:
    """Returns the traced function, its view after the moves, and the edited definition."""
    concrete = tf.function(function, autograph=False).get_concrete_function(spec)
    definition = tf_api.function_definition(concrete.name)
    body = read_function(definition, {})
    after = rearranged(body, Sizes.of_body(body, tf_api.python_graphs([concrete.inference_fn]).get))
    plan = Plan(after, (), (), moves=tuple(Move(reader, source) for reader, source in moved_edges(body, after)))
    return concrete, after, definition if plan.empty and not plan.moves else as_proto(apply(plan, definition, {}, ("CPU",)))


def call(definition: Any, *arguments: np.ndarray) -> list[np.ndarray]:
    """Returns what a definition that needs a name of its own makes of `arguments`."""
    copy = type(definition).FromString(definition.SerializeToString())
    copy.signature.name = f"moved_{abs(hash(definition.SerializeToString()))}"
    tf_api.add_function(copy)
    types = [tf.as_dtype(result.type) for result in copy.signature.output_arg]
    as_written = tf.compat.v1.ConfigProto()  # TensorFlow's own optimizers would reorder arithmetic in one of the two
    as_written.graph_options.rewrite_options.disable_meta_optimizer = True
    results = tf.raw_ops.PartitionedCall(
        args=list(map(tf.constant, arguments)), Tout=types, f=Named(copy.signature.name), config_proto=as_written.SerializeToString()
    )
    return [result.numpy() for result in results]


class Named:
    """What `raw_ops` takes for a function: it asks for a name only."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add_to_graph(self, graph: Any) -> None:
        """Nothing to add: the eager context has it."""


def work(body: Any, op: str) -> int:
    """Returns how many nodes of `op` some result still needs."""
    live, todo = set[int](), [node for node in range(len(body)) if body.ops[node] == "_Retval"]
    while todo:
        node = todo.pop()
        if node not in live:
            live.add(node)
            todo += [source for source, _ in body.inputs[node]]
    return collections.Counter(body.ops[node] for node in live)[op]


def moments_gradient(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        mean, variance = tf.nn.moments(x, [0, 1, 2])
        y = tf.reduce_sum(tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3) ** 3)
    return tape.gradient(y, x)


def mean_gradient(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.reduce_mean(x, [1, 2]) ** 2)
    return tape.gradient(y, x)


def broadcast_gradient(x: tf.Tensor) -> tf.Tensor:
    w = tf.ones([4, 4])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum((x @ w) ** 2)
    return tape.gradient(y, x)


def dropout(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.experimental.stateless_dropout(x, 0.3, [1, 2]) * 1.0 + tf.nn.relu(x) + 0.0


@pytest.mark.parametrize("function", [moments_gradient, mean_gradient, broadcast_gradient, dropout], ids=lambda function: function.__name__)
def test_the_same_bits(function: Callable[..., Any]) -> None:
    concrete, after, definition = moved(function)
    assert list(moved_edges(read_function(tf_api.function_definition(concrete.name), {}), after))
    original = tf_api.function_definition(concrete.name)
    np.testing.assert_array_equal(call(definition, X)[0].view(np.int32), call(original, X)[0].view(np.int32))


def test_statistics_are_scaled_and_read_before_they_are_copied() -> None:
    concrete, after, _ = moved(moments_gradient)
    before = read_function(tf_api.function_definition(concrete.name), {})
    assert (work(before, "Tile"), work(after, "Tile")) == (3, 1)  # two are read by ops that copy by themselves
    sizes = Sizes.of_body(after, tf_api.python_graphs([concrete.inference_fn]).get)
    divisions = [node for node, op in enumerate(after.ops) if op == "RealDiv" and node in after.resized]
    assert [sizes.elements((node, 0)) for node in divisions] == [4, 4]


def test_random_numbers_are_not_scaled_by_one() -> None:
    concrete, after, _ = moved(dropout)
    before = read_function(tf_api.function_definition(concrete.name), {})
    assert work(after, "Mul") == work(before, "Mul") - 2  # the random numbers' and the one written above
    assert work(after, "AddV2") == work(before, "AddV2") - 1  # the random numbers', which cannot be -0; what is added to the sum may turn -0 into 0


def test_unknown_shapes_move_nothing_that_depends_on_them() -> None:
    concrete, after, definition = moved(mean_gradient, tf.TensorSpec([None, None, None, 4], tf.float32))
    np.testing.assert_array_equal(call(definition, X)[0], concrete(tf.constant(X)).numpy())
    assert work(after, "Tile") == 1


def test_copies_that_the_scalar_waits_for_stay_before_it() -> None:
    """As in gradients of gradients of tanh, whose constants wait for the gradient that comes in; or through another node."""

    def gradient_of_gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_mean(tf.tanh(x), 0)
            total = tf.reduce_sum(inner.gradient(y, x) ** 2)
        return tape.gradient(total, x)

    def by_hand(x: tf.Tensor) -> tf.Tensor:
        copies = tf.tile(tf.reduce_sum(x, 0, keepdims=True), [16, 1, 1, 1])
        with tf.control_dependencies([copies]):
            waiting = tf.constant(3.0)
        with tf.control_dependencies([tf.identity(waiting)]):
            number = tf.identity(tf.constant(0.5))
        return copies * number

    for function in (gradient_of_gradient, by_hand):
        concrete, after, definition = moved(function)
        assert after.controlled
        np.testing.assert_array_equal(call(definition, X)[0], concrete(tf.constant(X)).numpy())


COPIES = """
s = Placeholder() shape=[1, 4]
x = Placeholder() shape=[8, 4]
times = Const() dtype=int32 value=[8, 1]
half = Const() value=0.5 shape=[]
c = Tile(s, times)
h = Mul(c, half)
m = MatMul(x, h) transpose_b=true
f = Identity(m)
"""


def test_in_a_main_graph_every_node_keeps_its_value() -> None:
    conversion = engine.convert_graph_def(parse(COPIES), fetches=["f"], device="CPU")
    written = nodes(conversion.graph_def)
    assert (list(written["c"].input)[0].partition("-")[0], written["h"].op) == ("s", "Mul")
    assert not conversion.bodies[""].plan.moves
