"""Which port has which type attribute: what the op definitions say, for ops of every form."""

from __future__ import annotations

import pytest

from tests.graph_text import nodes, parse
from tests.test_oplists import registered_ops
from tfmp import tf_api
from tfmp.errors import GraphError
from tfmp.graph.schema import OpSchema, Slot, registered_schema


def ports(line: str) -> tuple[list[str], list[str]]:
    """Returns the slot of each input and of each output of the node on `line`."""
    node = nodes(parse(line))["n"]
    layout = registered_schema(node.op).layout(node.attr)
    return tuple([str(layout.slots[slot]) for slot in found] for found in (layout.inputs, layout.outputs))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("line", "inputs", "outputs"),
    [
        ("n = MatMul(a, b)", ["T", "T"], ["T"]),
        ("n = Cast(a) DstT=half", ["SrcT"], ["DstT"]),
        ("n = FusedBatchNormV3(x, s, o, m, v)", ["T", "U", "U", "U", "U"], ["T", "U", "U", "U", "U", "U"]),
        ("n = IdentityN(a, b) T=[float, int32]", ["T[0]", "T[1]"], ["T[0]", "T[1]"]),
        ("n = AddN(a, b, c)", ["T", "T", "T"], ["T"]),
        ("n = Split(i, a) num_split=3", ["fixed 3", "T"], ["T", "T", "T"]),
        ("n = TensorListPushBack(l, a) element_dtype=float", ["fixed 21", "element_dtype"], ["fixed 21"]),
        ("n = PartitionedCall(a, b) Tin=[float, half] Tout=[int32]", ["Tin[0]", "Tin[1]"], ["Tout[0]"]),
        ("n = PartitionedCall() Tin=[] Tout=[]", [], []),
        ("n = ShapeN(a, b) out_type=int64", ["T", "T"], ["out_type", "out_type"]),
        ("n = NoOp()", [], []),
    ],
)
def test_ports_have_the_slots_of_the_definition(line: str, inputs: list[str], outputs: list[str]) -> None:
    assert ports(line) == (inputs, outputs)


def test_attributes_without_a_port_are_slots_as_well() -> None:
    node = nodes(parse("n = VarHandleOp() dtype=float"))["n"]
    layout = registered_schema("VarHandleOp").layout(node.attr)
    assert [str(slot) for slot in layout.slots] == ["fixed 20", "dtype"]
    assert layout.number == {Slot("", fixed=20): 0, Slot("dtype"): 1}


def test_nodes_with_lists_of_one_length_share_a_layout() -> None:
    schema = registered_schema("IdentityN")
    one, other, longer = (schema.layout(nodes(parse(f"n = IdentityN({args})"))["n"].attr) for args in ("a, b", "c, d", "a, b, c"))
    assert one is other
    assert len(longer.slots) == 3


@pytest.mark.parametrize(
    ("line", "port", "written"),
    [("n = FusedBatchNormV3(x, s, o, m, v)", 3, ":reserve_space_1:0"), ("n = Split(i, a) num_split=3", 2, ":output:2")],
)
def test_outputs_are_named_by_argument_and_index(line: str, port: int, written: str) -> None:
    node = nodes(parse(line))["n"]
    assert registered_schema(node.op).layout(node.attr).output_names[port] == written


def test_allowed_types_are_those_of_the_definition() -> None:
    schema = registered_schema("FusedBatchNormV3")
    assert [schema.allows(Slot(attr), 19) for attr in ("T", "U")] == [True, False]
    assert registered_schema("Identity").allows(Slot("T"), 19)
    assert [registered_schema("Split").allows(Slot("", fixed=3), number) for number in (3, 19)] == [True, False]


def test_state_and_references_are_known() -> None:
    assert [(registered_schema(op).stateful, registered_schema(op).has_refs) for op in ("Relu", "RandomUniform", "AssignAdd")] == [
        (False, False),
        (True, False),
        (False, True),
    ]


def test_every_registered_op_has_a_schema_whose_slots_cover_its_ports() -> None:
    for op in registered_ops():
        definition = tf_api.op_def(op)
        layout = OpSchema(definition).layout({})
        assert set(layout.inputs) | set(layout.outputs) <= set(range(len(layout.slots))), op
        plain = [arg for arg in definition.input_arg if not arg.type_list_attr and not arg.number_attr]
        assert len(layout.inputs) >= len(plain), op


def test_an_unknown_op_is_asked_for_again() -> None:
    for _ in range(2):
        with pytest.raises(GraphError, match="op 'Nonesuch' is not registered in this process; load the library that defines it before converting"):
            registered_schema("Nonesuch")
