"""The view of a graph has the types and edges that TensorFlow itself gives its nodes."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.graph_text import functions, parse
from tests.zoo import ZOO, tagged
from tfmp import tf_api
from tfmp.dtypes import DT_BFLOAT16, DT_FLOAT, DT_HALF, REF_OFFSET
from tfmp.graph.body import ARG, RETVAL, Body, plain
from tfmp.graph.edit import GraphEditor
from tfmp.graph.reread import reread
from tfmp.graph.view import library_schemas, read_function, read_graph

SMALL = [case.name for case in tagged("hand")]


def imported(graph_def: tf_api.GraphDef) -> Any:
    """Returns the tf.Graph that TensorFlow makes of `graph_def`."""
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    return graph


@pytest.mark.parametrize("name", SMALL)
def test_types_and_edges_are_tensorflows(name: str) -> None:
    graph_def, _ = ZOO[name].build()
    body = read_graph(graph_def, library_schemas(graph_def.library.function))
    operations = {operation.name: operation for operation in imported(graph_def).get_operations()}
    assert set(body.names) == set(operations)
    for node, node_name in enumerate(body.names):
        operation = operations[node_name]
        given = [body.types[node][slot] for slot in body.layouts[node].outputs]
        assert [plain(dtype) for dtype in given] == [tensor.dtype.base_dtype.as_datatype_enum for tensor in operation.outputs] or "BatchNorm" in operation.type
        edges = [(body.names[source], port) for source, port in body.inputs[node]]
        assert edges == [(tensor.op.name, tensor.value_index) for tensor in operation.inputs]


def test_a_function_and_a_graph_come_out_the_same() -> None:
    graph = parse("a = Placeholder() shape=[4, 4]\naxis = Const() dtype=int32 value=0\ns = Split(axis, a) num_split=2\nm = MatMul(s:1, s)\nr = Relu(m)\n")
    function = parse(
        "function f(a: float) -> (r: float)\n  axis = Const() dtype=int32 value=0\n  s = Split(axis:output:0, a) num_split=2\n"
        "  m = MatMul(s:output:1, s:output:0)\n  r = Relu(m:product:0)\n  return r = r:activations:0\n"
    )
    one, other = read_graph(graph, {}), read_function(functions(function)["f"], {})
    assert other.names == [*one.names, "r"]
    assert other.inputs[:-1] == one.inputs
    assert other.types[:-1] == one.types
    assert (other.ops[0], other.ops[-1], other.inputs[-1]) == (ARG, RETVAL, [(4, 0)])
    assert (list(other.proto_nodes), other.pseudo_nodes) == ([1, 2, 3, 4], [0, 5])


def test_a_result_may_have_the_name_of_a_node() -> None:
    text = "function f(a: float) -> (r: double)\n  r = Relu(a)\n  c = Cast(r:activations:0) DstT=double\n  return r = c:y:0\n"
    body = read_function(functions(parse(text))["f"], {})
    assert body.by_name["r"] == 1
    assert body.inputs[2] == [(1, 0)]


@pytest.mark.parametrize(
    ("edge", "in_graph", "in_function"),
    [((0, 0), "a", "a"), ((2, 0), "s", "s:output:0"), ((2, 1), "s:1", "s:output:1"), ((3, 2), "b:2", "b:batch_variance:0")],
)
def test_tensors_are_written_as_they_are_read(edge: tuple[int, int], in_graph: str, in_function: str) -> None:
    lines = "a = Placeholder() shape=[1, 4, 4, 4]\naxis = Const() dtype=int32 value=0\ns = Split({axis}, a) num_split=1\nb = FusedBatchNormV3(a, a, a, a, a)\n"
    graph = read_graph(parse(lines.format(axis="axis").replace("num_split=1", "num_split=2")), {})
    nodes = lines.format(axis="axis:output:0").replace("num_split=1", "num_split=2").splitlines()[1:]
    function = read_function(functions(parse("function f(a: float) -> ()\n" + "".join(f"  {line}\n" for line in nodes)))["f"], {})
    assert (graph.tensor_name(edge), function.tensor_name(edge)) == (in_graph, in_function)


def test_readers_are_the_edges_turned_round() -> None:
    body = read_graph(parse("a = Placeholder()\ns = Unpack(a) num=3\nb = Relu(s:2)\nc = AddV2(s:2, s)\n"), {})
    assert list(body.readers) == [[[(1, 0)]], [[(3, 1)], [], [(2, 0), (3, 0)]], [[]], [[]]]


def test_old_batch_normalisation_is_read_as_its_newer_version() -> None:
    body = read_graph(parse("a = Placeholder()\nb = FusedBatchNorm(a, a, a, a, a)\n"), {})
    assert body.ops[1] == "FusedBatchNormV2"
    assert [body.types[1][slot] for slot in body.layouts[1].outputs] == [DT_FLOAT] * 5
    assert len({body.layouts[1].slots[slot].attr for slot in body.layouts[1].outputs}) == 2


def test_references_are_of_their_value_type_to_readers() -> None:
    body = read_graph(parse("v = VariableV2() shape=[4]\nr = Relu(v)\n"), {})
    assert (body.types[0], body.types[1]) == ([DT_FLOAT], [DT_FLOAT])
    assert [plain(dtype) for dtype in (DT_FLOAT + REF_OFFSET, DT_FLOAT, DT_BFLOAT16)] == [DT_FLOAT, DT_FLOAT, DT_BFLOAT16]


def test_what_is_left_out_has_the_default_of_the_definition() -> None:
    body = read_graph(parse("a = Placeholder()\nc = Const() dtype=int32 value=[1]\nr = Reshape(a, c) T=absent Tshape=absent\n"), {})
    assert dict(zip(map(str, body.layouts[2].slots), body.types[2], strict=True)) == {"T": 0, "Tshape": 3}


def test_reading_again_sees_what_an_edit_has_changed_and_shares_the_rest() -> None:
    graph = parse("a = Placeholder()\nm = MatMul(a, a)\nr = Relu(m)\n")
    body = read_graph(graph, {})
    editor = GraphEditor(body, graph)
    editor.retype(1, body.layouts[1].slots[0], DT_HALF)
    editor.redirect((2, 0), editor.add_cast("up", "m", "", DT_HALF, DT_FLOAT))
    after = reread(body, editor.finish(), {})
    assert _facts(after) == _facts(read_graph(editor.edited(), {}))
    assert (body.types[1], after.types[1], after.inputs[2]) == ([DT_FLOAT], [DT_HALF], [(3, 0)])
    assert body.names == ["a", "m", "r"]


def _facts(body: Body) -> tuple[object, ...]:
    return body.names, body.ops, body.types, body.inputs, body.layouts


def test_attribute_types_are_sets_with_the_changes_made() -> None:
    body = read_graph(parse("a = Placeholder()\nc = Const() dtype=int32 value=1\nl = IdentityN(a, c, a) T=[float, int32, float]\n"), {})
    assert body.attr_types(2, {}) == {"T": {DT_FLOAT, 3}}
    assert body.attr_types(2, {0: DT_HALF}) == {"T": {DT_HALF, 3, DT_FLOAT}}
