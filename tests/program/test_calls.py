"""The table of calling ops fits TensorFlow's op definitions, and calls are found where they are."""

from __future__ import annotations

import pytest

from tests.graph_text import nodes, parse
from tests.test_oplists import registered_ops
from tfmp import tf_api
from tfmp.graph.view import read_graph
from tfmp.program.calls import CALLING_OPS, CallingOp, call_nodes, callees, is_compiled


@pytest.mark.parametrize("row", CALLING_OPS.values(), ids=lambda row: row.op)
def test_attributes_are_those_of_the_definition(row: CallingOp) -> None:
    kinds = {attr.name: attr.type for attr in tf_api.op_def(row.op).attr}
    assert {kinds[attr] for attr in row.function_attrs} <= {"func", "list(func)"}
    assert {name for name, kind in kinds.items() if kind in ("func", "list(func)")} == set(row.function_attrs)
    assert (kinds[row.inputs], kinds[row.outputs]) == ("list(type)", "list(type)")
    definition = tf_api.op_def(row.op)
    assert [arg.type_list_attr for arg in definition.input_arg if arg.type_list_attr] == [row.inputs]
    assert [arg.type_list_attr for arg in definition.output_arg] == [row.outputs]
    assert set(row.predicates) <= set(row.function_attrs)


def test_every_control_flow_op_with_functions_is_in_the_table() -> None:
    for op in registered_ops():
        plain = op.removeprefix("Stateless").removeprefix("Stateful")
        if plain in ("If", "While", "Case", "PartitionedCall") and any(attr.type in ("func", "list(func)") for attr in tf_api.op_def(op).attr):
            assert op in CALLING_OPS


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("n = PartitionedCall(x) Tout=[float] f=one", ["one"]),
        ("n = StatelessWhile(x) T=[float] cond=one body=two", ["one", "two"]),
        ("n = If(x, x) Tout=[float] then_branch=one else_branch=two", ["one", "two"]),
        ("n = Case(x, x) Tout=[float] branches=[one, two, one]", ["one", "two", "one"]),
        ("n = Case(x, x) Tout=[float] branches=[]", []),
        ("n = MapDataset(x) f=one Targuments=[]", []),
        ("n = SymbolicGradient(x) Tout=[float] f=one", []),
        ("n = Relu(x)", []),
    ],
)
def test_callees_come_in_the_order_of_the_table(line: str, names: list[str]) -> None:
    assert list(callees(nodes(parse(line))["n"])) == names


def test_calls_of_a_body_are_found_with_their_numbers() -> None:
    text = "x = Placeholder()\na = Relu(x)\nb = PartitionedCall(a) Tout=[float] f=one\nc = StatefulPartitionedCall(b) Tout=[float] f=two\n"
    assert list(call_nodes(read_graph(parse(text), {}))) == [(2, ["one"]), (3, ["two"])]


@pytest.mark.parametrize(("words", "compiled"), [("", False), ("_XlaMustCompile=true", True), ("_XlaMustCompile=false", False)])
def test_compilation_is_asked_for_by_an_attribute(words: str, compiled: bool) -> None:
    assert is_compiled(nodes(parse(f"n = PartitionedCall(x) Tout=[float] f=one {words}"))["n"].attr) is compiled
