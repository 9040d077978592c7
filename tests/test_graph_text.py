"""The text form of graphs says what the graph says, both ways."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from tests.graph_text import functions, nodes, parse, render
from tfmp import tf_api

EVERYTHING = """\
w = Const() value=[[1.0, 2.0], [3.0, 4.0]]
x = Const() value=0.1 shape=[2, 2]
axis = Const() dtype=int32 value=1
empty = Const() value=[] shape=[0]
word = Const() dtype=string value="a \\"b\\""
p = Placeholder() shape=[2, ?]
q = Placeholder()
v = VariableV2() shape=[2, 2]
y = MatMul(x, w) T=half transpose_a=true @/device:CPU:0
z = Relu(y, ^x) T=absent
c = ConcatV2(x, w, axis)
s = Split(axis, c) num_split=2
n = IdentityN(x, axis) T=[float, int32] _kernel="host" _output_shapes=[[2, 2]]
k = Cast(axis) SrcT=int32
call = PartitionedCall(x) Tout=[float] f=f
direct = f(x, x)

function f(a: float, h: resource) -> (out: float) _XlaMustCompile=true
  r = Relu(a)
  return out = r:activations:0
  control effect = r
gradient f = g
"""


def test_rendering_a_parsed_text_gives_the_text_back() -> None:
    assert render(parse(EVERYTHING)) == EVERYTHING


def test_parsing_a_rendered_graph_gives_the_graph_back() -> None:
    @tf.function
    def step(x: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
        while n > 0:
            x, n = tf.concat([tf.matmul(x, x)[:, :2], x[:, 2:]], 1), n - 1
        return tf.cond(n > 1, lambda: x, lambda: tf.nn.softmax(x))

    graph = step.get_concrete_function(tf.TensorSpec([4, 4]), tf.TensorSpec([], tf.int32)).graph.as_graph_def()
    again = parse(render(graph))
    assert [_plain(node) for node in again.node] == [_plain(node) for node in graph.node]
    for before, after in zip(graph.library.function, again.library.function, strict=True):
        assert [_plain(node) for node in before.node_def] == [_plain(node) for node in after.node_def]
        assert (before.signature.input_arg, before.ret) == (after.signature.input_arg, after.ret)


def _plain(node: tf_api.NodeDef) -> tf_api.NodeDef:
    """Returns `node` without debug info, which the text leaves out, and with its constant stored in one of the ways that protos allow."""
    node.ClearField("experimental_debug_info")
    if node.op == "Const":
        tensor = node.attr["value"].tensor
        tensor.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(tensor)))
    return node


def test_what_is_not_written_is_filled_in_from_the_op_definition() -> None:
    node = nodes(parse("c = ConcatV2(a, b, axis)"))["c"]
    assert {name: value.WhichOneof("value") for name, value in node.attr.items()} == {"N": "i", "T": "type", "Tidx": "type"}
    assert (node.attr["N"].i, node.attr["T"].type, node.attr["Tidx"].type) == (2, types_pb2.DT_FLOAT, types_pb2.DT_INT32)


def test_lists_of_types_have_one_float_for_each_input() -> None:
    assert list(nodes(parse("n = IdentityN(a, b, ^c)"))["n"].attr["T"].list.type) == [types_pb2.DT_FLOAT] * 2


def test_absent_attributes_are_left_out() -> None:
    assert "T" not in nodes(parse("r = Relu(x) T=absent"))["r"].attr


def test_functions_have_their_signature_results_and_attributes() -> None:
    function = functions(parse(EVERYTHING))["f"]
    assert [(arg.name, arg.type) for arg in function.signature.input_arg] == [("a", types_pb2.DT_FLOAT), ("h", types_pb2.DT_RESOURCE)]
    assert dict(function.ret) == {"out": "r:activations:0"}
    assert dict(function.control_ret) == {"effect": "r"}
    assert function.attr["_XlaMustCompile"].b


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = Const", "not a node, function, return, control or gradient: 'x = Const'"),
        ("x = Relu(y) T=flaot", 'Enum DataType has no value defined for name .DT_FLAOT'),
        ("return out = r:y:0", "outside of a function: 'return out = r:y:0'"),
        ("x = IdentityN(y) T=[float", "a list has no end"),
    ],
)
def test_what_cannot_be_read_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)
