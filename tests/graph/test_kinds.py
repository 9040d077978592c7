"""Nodes are of one kind only if they have one op and the same attributes."""

from __future__ import annotations

import copy

import pytest

from tests.graph_text import functions, parse
from tests.zoo import ZOO, tagged
from tfmp import tf_api
from tfmp.dtypes import DT_FLOAT, DT_HALF
from tfmp.errors import GraphError
from tfmp.graph.kinds import Kinds
from tfmp.graph.schema import registered_schema
from tfmp.graph.view import library_schemas, read_function, read_graph
from tfmp.graph.wire import columns_of, columns_of_graph, joined, parted
from tfmp.user_rules import FLOAT32_MARK

GRAPH = "a = Placeholder()\nm = MatMul(a, a)\nn = MatMul(m, a)\nt = MatMul(a, n) transpose_a=True\nc = Const() value=1.0\nd = Const() value=2.0\n"


@pytest.mark.parametrize("name", [case.name for case in tagged("hand")])
def test_nodes_of_one_kind_are_alike_and_are_read_as_each_by_itself_would_be(name: str) -> None:
    graph, _ = ZOO[name].build()
    body = read_graph(graph, library_schemas(graph.library.function))
    by_kind: dict[int, dict[str, bytes]] = {}
    for node, kind in enumerate(body.kind_of):
        proto = body.protos[node]
        assert proto is not None
        attrs = {key: value.SerializeToString(deterministic=True) for key, value in proto.attr.items()}
        assert by_kind.setdefault(kind, attrs) == attrs
        one = body.kinds.table[kind]
        assert (one.op, one.layout, one.types) == (body.ops[node], body.layouts[node], body.types[node])
        if one.op == proto.op and tf_api.op_def(one.op) is not None:
            assert (one.layout, one.types) == registered_schema(proto.op).read(proto.attr)


def test_an_attribute_tells_kinds_apart() -> None:
    body = read_graph(parse(GRAPH), {})
    placeholder, first, second, transposed, one, two = body.kind_of
    assert first == second
    assert len({placeholder, first, transposed, one, two}) == 5
    assert [kind.op for kind in body.kinds.table] == ["Placeholder", "MatMul", "MatMul", "Const", "Const"]
    assert body.by_op == {"Placeholder": [0], "MatMul": [1, 2, 3], "Const": [4, 5]}


def test_names_inputs_and_devices_do_not() -> None:
    graph = parse(GRAPH)
    graph.node[2].device = "/device:CPU:0"
    assert len(set(read_graph(graph, {}).kind_of[1:3])) == 1


def test_the_bytes_are_op_and_attributes_and_nothing_else() -> None:
    graph = parse(GRAPH)
    graph.node[1].device = "/device:CPU:0"
    columns = columns_of_graph(graph)
    for attributes, proto in zip(columns.attributes, graph.node, strict=True):
        assert tf_api.NodeDef.FromString(attributes) == tf_api.NodeDef(op=proto.op, attr=proto.attr)
    serialised = [node.SerializeToString() for node in graph.node]
    assert columns_of(serialised) == columns._replace(nodes=serialised)


def test_functions_are_read_as_graphs_are() -> None:
    function = functions(parse("function f(a: float) -> (r: float)\n  m = Add(a, a)\n  return r = m:z:0\n"))["f"]
    function.node_def[0].experimental_debug_info.original_node_names.append("somewhere")
    nodes, rest = parted(function.SerializeToString())
    alone = tf_api.NodeDef(name="m", op="Add", attr=function.node_def[0].attr)
    assert columns_of(nodes).attributes == columns_of([alone.SerializeToString()]).attributes
    assert [tf_api.NodeDef.FromString(node) for node in nodes] == list(function.node_def)
    assert tf_api.FunctionDef.FromString(joined(nodes, rest)) == function
    del function.node_def[:]
    assert tf_api.FunctionDef.FromString(rest) == function


def test_arguments_and_results_are_of_one_kind_a_type() -> None:
    function = functions(parse("function f(a: float, b: float, c: half) -> (r: float)\n  m = Add(a, b)\n  return r = m:z:0\n"))["f"]
    body = read_function(function, {})
    assert body.kind_of[0] == body.kind_of[1]
    assert len(set(body.kind_of)) == 4
    assert [body.types[node] for node in (0, 2, 4)] == [[DT_FLOAT], [DT_HALF], [DT_FLOAT]]


def test_marks_hold_for_the_marked_nodes_only() -> None:
    graph = parse(GRAPH)
    graph.node[2].attr[FLOAT32_MARK].s = b"here"
    assert read_graph(graph, {}).marked == {2}


def test_a_copy_takes_more_kinds_and_the_first_one_does_not_know_of_it() -> None:
    graph, other = parse(GRAPH), parse("m = MatMul(a, a)\nr = Relu(m)\na = Placeholder()\n")
    kinds = Kinds()
    first = kinds.read(columns_of_graph(graph).attributes, {})
    more = copy.copy(kinds)
    assert more.read(columns_of_graph(other).attributes, {}) == [first[1], 5, first[0]]
    assert (len(kinds.table), len(more.table)) == (5, 6)
    assert kinds.read(columns_of_graph(graph).attributes, {}) == first


def test_another_bodys_kinds_are_taken_in_once() -> None:
    body, kinds = read_graph(parse(GRAPH), {}), Kinds()
    numbers = kinds.take_in(body.kinds)
    assert [kinds.table[number] for number in numbers] == body.kinds.table
    assert kinds.take_in(body.kinds) == numbers


def test_an_op_that_is_not_registered_is_named() -> None:
    graph = tf_api.GraphDef()
    graph.node.add(name="a", op="Relu").attr["T"].type = DT_FLOAT
    graph.node.add(name="b", op="NoSuchOp")
    with pytest.raises(GraphError, match="'NoSuchOp' is not registered"):
        read_graph(graph, {})
