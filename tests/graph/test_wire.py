"""Nodes that are read column by column are what TensorFlow's own messages say they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graph_text import functions, parse
from tfmp import tf_api
from tfmp.errors import GraphError
from tfmp.graph.retarget import Renamed
from tfmp.graph.wire import END, columns_of, columns_of_graph, debug_info, joined, node_def, parted, signature, with_inputs

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
DEVICES = st.sampled_from(["", "/device:GPU:0", "/job:worker/replica:0/task:0/device:CPU:0", "é"])


@st.composite
def nodes(draw: st.DrawFn) -> tf_api.NodeDef:
    node = tf_api.NodeDef(name=draw(NAMES), op=draw(st.sampled_from(["", "MatMul", "Const"])), device=draw(DEVICES))
    node.input.extend(draw(st.lists(NAMES, max_size=4)))
    node.input.extend(f"^{name}" for name in draw(st.lists(NAMES, max_size=2)))
    for name in draw(st.lists(st.sampled_from(["T", "N", "value", "_mark"]), unique=True)):
        node.attr[name].s = draw(st.binary(max_size=300))
    if draw(st.booleans()):
        node.experimental_debug_info.original_node_names.append(draw(NAMES))
    return node


@given(st.lists(nodes(), max_size=6))
def test_each_column_is_what_its_message_says(protos: list[tf_api.NodeDef]) -> None:
    columns = columns_of([node.SerializeToString() for node in protos])
    assert columns.names == [node.name for node in protos]
    assert columns.devices == [node.device for node in protos]
    assert columns.inputs == [text for node in protos for text in (*node.input, END)]
    assert [tf_api.NodeDef.FromString(one) for one in columns.attributes] == [tf_api.NodeDef(op=node.op, attr=node.attr) for node in protos]
    assert list(map(node_def, columns.nodes)) == protos
    graph = columns_of_graph(tf_api.GraphDef(node=protos))
    assert graph._replace(nodes=[]) == columns._replace(nodes=[])
    assert graph.nodes == protos


@given(nodes(), st.randoms(use_true_random=False))
def test_nodes_that_are_alike_are_written_alike(node: tf_api.NodeDef, random: Any) -> None:
    names = list(node.attr)
    random.shuffle(names)
    parts = [tf_api.NodeDef(op=node.op), *(tf_api.NodeDef(attr={name: node.attr[name]}) for name in names), tf_api.NodeDef(name="other", input=["x"])]
    other = b"".join(part.SerializeToString() for part in parts)  # the same attributes in another order
    assert len(set(columns_of([node.SerializeToString(), other]).attributes)) == 1


def test_of_an_attribute_that_is_there_twice_the_last_one_counts() -> None:
    first, second = (tf_api.NodeDef(name=name, attr={"T": tf_api.AttrValue(type=dtype)}).SerializeToString() for name, dtype in (("n", 1), ("", 19)))
    (attributes,) = columns_of([first + second]).attributes
    assert tf_api.NodeDef.FromString(attributes).attr["T"].type == tf_api.NodeDef.FromString(first + second).attr["T"].type == 19


@given(st.lists(nodes(), max_size=4))
def test_a_function_in_parts_is_the_function(protos: list[tf_api.NodeDef]) -> None:
    function = functions(parse("function f(a: float) -> (r: float)\n  m = Neg(a)\n  return r = m:y:0\n"))["f"]
    function.node_def.extend(protos)
    function.attr["_mark"].s = b"here"
    function.control_ret["m"] = "m"
    parts, rest = parted(function.SerializeToString())
    assert list(map(node_def, parts)) == list(function.node_def)
    assert tf_api.FunctionDef.FromString(joined(parts, rest)) == function
    assert signature(function.SerializeToString()) == function.signature
    renamed = signature(Renamed(function, "g").SerializeToString())
    assert (renamed.name, renamed.input_arg) == ("g", function.signature.input_arg)
    del function.node_def[:]
    assert tf_api.FunctionDef.FromString(rest) == function


@given(nodes(), nodes())
def test_with_other_inputs_all_else_stays(one: tf_api.NodeDef, other: tf_api.NodeDef) -> None:
    edited = with_inputs([one.SerializeToString(), other.SerializeToString()], [lambda inputs: inputs.append("z"), lambda inputs: None])
    one.input.append("z")
    assert list(map(node_def, edited)) == [one, other]


@given(nodes())
def test_where_a_node_comes_from_is_told_apart(node: tf_api.NodeDef) -> None:
    expected = tf_api.NodeDef()
    if node.HasField("experimental_debug_info"):
        expected.experimental_debug_info.CopyFrom(node.experimental_debug_info)
    assert tf_api.NodeDef.FromString(debug_info(node.SerializeToString())) == expected


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (tf_api.NodeDef(op="Neg"), "Neg node number 1 has no name; give it one"),
        (tf_api.NodeDef(name="n", input=["x", ""]), "node 'n' reads '', which is not there"),
    ],
)
def test_nodes_that_no_reader_could_find_are_errors(node: tf_api.NodeDef, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        columns_of([tf_api.NodeDef(name="m", input=["x"]).SerializeToString(), node.SerializeToString()])
