"""A body that kernels were put into is what reading the function again gives."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.fusion.running import FusedFunction, agree
from tests.fusion.test_norms import SPELLINGS, traced
from tests.graph_text import functions, parse
from tfmp import tf_api
from tfmp.graph.grow import GrowingFunction
from tfmp.graph.view import read_function
from tfmp.graph.wire import node_as_written


@pytest.mark.parametrize("batch", [3, None], ids=["batch known", "batch unknown"])
@pytest.mark.parametrize("spelling", ["Keras", "beside a shortcut", "Keras rows", "rows beside a shortcut", "bare rows"])
def test_what_has_grown_is_what_is_read(spelling: str, batch: int | None) -> None:
    assert spelling in SPELLINGS
    _is_what_is_read(traced(spelling, batch))


def test_controlled_nodes_and_marks_stay() -> None:
    counter = tf.Variable(0.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.xla.experimental.jit_scope():
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            with tf.control_dependencies([counter.assign_add(1.0)]):
                return tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)

    function = FusedFunction(step, tf.TensorSpec([4, 16]))
    _is_what_is_read(function)
    body = function.body
    assert body.controlled
    for node in body.made:
        assert body.protos[node].attr["_XlaCompile"].b and body.protos[node].attr["_XlaScope"].s, body.names[node]


def _is_what_is_read(function: FusedFunction) -> None:
    assert function.found
    own, read = function.body, read_function(function.body.joined(), {})
    for column in ("names", "ops", "devices", "layouts", "types", "inputs", "arguments", "results", "by_name", "controlled", "marked", "tensors"):
        assert getattr(own, column) == getattr(read, column), column
    assert list(own.protos) == list(read.protos)
    assert tf_api.FunctionDef.FromString(own.rest) == tf_api.FunctionDef.FromString(read.rest)
    for node, number in enumerate(own.kind_of):
        kind = own.kinds.table[number]
        assert (kind.op, kind.layout, kind.types) == (own.ops[node], own.layouts[node], own.types[node])
        assert kind.is_pseudo if own.protos[node] is None else kind.node.attr == own.protos[node].attr, own.names[node]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 16383, 16384, 70000])
def test_fields_of_any_length_are_read_as_they_were_written(size: int) -> None:
    name = "n" * size
    assert tf_api.NodeDef.FromString(node_as_written(name, ["x:y:0"], b"")) == tf_api.NodeDef(name=name, input=["x:y:0"])


def test_a_function_does_not_grow_with_its_rows() -> None:
    """What has a 1 or a 0 for each row takes no more bytes for more rows."""

    def normalised(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, None, tf.ones([16]), 1e-3)

    few, many = (FusedFunction(normalised, tf.TensorSpec([rows, 16])) for rows in (3, 300_000))
    sizes = [len(function.body.joined()) for function in (few, many)]
    assert sizes[1] < sizes[0] + 100
    x = np.random.default_rng(1).normal(size=(3, 16)).astype(np.float32)
    agree(few(x), few.before(x))


@pytest.mark.parametrize("becomes_first", [True, False])
def test_what_becomes_another_op_is_no_sum_any_more(becomes_first: bool) -> None:
    function = functions(parse("function f(a: float) -> (r: float)\n  s = AddN(a, a)\n  return r = s:sum:0\n"))["f"]
    growing = GrowingFunction(read_function(function, {}))
    for edit in (1, 0) if becomes_first else (0, 1):
        if edit:
            growing.become(1, "Relu", ["a"], [()], T=1)
        else:
            growing.sum_instead(1, [0], "a")
    (node,) = growing.edited().node_def
    assert (node.op, list(node.input), dict(node.attr)) == ("Relu", ["a"], {"T": tf_api.AttrValue(type=1)})
