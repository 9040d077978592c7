"""Edits go into a copy, in the form of the proto that is edited."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graph_text import functions, parse, render
from tfmp import tf_api
from tfmp.dtypes import DT_FLOAT, DT_HALF
from tfmp.graph import wire
from tfmp.graph.edit import GraphEditor
from tfmp.graph.retarget import Retarget, retargeted
from tfmp.graph.schema import Slot
from tfmp.graph.view import read_function, read_graph

GRAPH = """\
x = Placeholder() shape=[4, 4]
k = Const() value=[0.1, 0.25]
m = MatMul(x, x, ^k)
l = IdentityN(x, m)
"""
FUNCTION = """
function f(a: float, b: float) -> (y: float, z: float)
  k = Const() value=0.1
  m = MatMul(a, b)
  return y = m:product:0
  return z = a
"""


def graph_editor() -> GraphEditor:
    """Returns an editor of GRAPH."""
    graph = parse(GRAPH)
    return GraphEditor(read_graph(graph, {}), graph)


def function_editor() -> GraphEditor:
    """Returns an editor of FUNCTION."""
    function = functions(parse(FUNCTION))["f"]
    return GraphEditor(read_function(function, {}), function)


def text(proto: tf_api.FunctionDef | tf_api.GraphDef) -> str:
    """Returns the text of a graph or of a function."""
    graph = proto if isinstance(proto, tf_api.GraphDef) else tf_api.GraphDef()
    if graph is not proto:
        graph.library.function.add().CopyFrom(proto)
    return render(graph)


def test_the_original_stays() -> None:
    graph = parse(GRAPH)
    editor = GraphEditor(read_graph(graph, {}), graph)
    editor.retype(2, Slot("T"), DT_HALF)
    editor.add_cast("c", "x", "", DT_FLOAT, DT_HALF)
    editor.redirect((2, 1), "c")
    assert render(graph) == GRAPH
    assert editor.touched == {2: True}


def test_types_are_set_one_by_one() -> None:
    editor = graph_editor()
    editor.retype(2, Slot("T"), DT_HALF)
    editor.retype(3, Slot("T", 1), DT_HALF)
    assert text(editor.edited()) == GRAPH.replace("^k)", "^k) T=half").replace("(x, m)", "(x, m) T=[float, half]")


def test_arguments_and_results_have_types_in_the_signature() -> None:
    editor = function_editor()
    editor.retype(1, Slot("T"), DT_HALF)
    editor.retype(5, Slot("T"), DT_HALF)
    assert text(editor.edited()) == FUNCTION.replace("b: float)", "b: half)").replace("z: float)", "z: half)")


def test_a_cast_is_written_as_the_proto_wants_it() -> None:
    assert graph_editor().add_cast("c", "x", "", DT_FLOAT, DT_HALF) == "c"
    editor = function_editor()
    assert editor.add_cast("c", "m:product:0", "/device:CPU:0", DT_HALF, DT_FLOAT) == "c:y:0"
    assert "  c = Cast(m:product:0) SrcT=half @/device:CPU:0\n" in text(editor.edited())


def test_a_constant_is_copied_and_rounded() -> None:
    editor = graph_editor()
    assert editor.add_constant("h", 1, DT_HALF) == "h"
    value = tf_api.read_tensor(editor.edited().node[-1].attr["value"].tensor)
    assert value.dtype == np.float16
    assert list(value) == [np.float16(0.1), np.float16(0.25)]
    assert function_editor().add_constant("h", 2, DT_HALF) == "h:output:0"


def test_inputs_and_results_are_redirected_and_control_inputs_stay() -> None:
    editor = graph_editor()
    editor.redirect((2, 1), "k")
    assert list(editor.edited().node[2].input) == ["x", "k", "^k"]
    other = function_editor()
    other.redirect((4, 0), "k:output:0")
    other.redirect((3, 0), "b")
    assert text(other.edited()) == FUNCTION.replace("y = m:product:0", "y = k:output:0").replace("MatMul(a, b)", "MatMul(b, b)")


def test_an_old_batch_normalisation_becomes_the_newer_one_when_its_type_is_set() -> None:
    graph = parse("x = Placeholder()\nb = FusedBatchNorm(x, x, x, x, x)\n")
    editor = GraphEditor(read_graph(graph, {}), graph)
    editor.retype(1, Slot("T"), DT_HALF)
    assert text(editor.edited()) == "x = Placeholder()\nb = FusedBatchNormV2(x, x, x, x, x) T=half\n"


@pytest.mark.parametrize(
    ("node", "retarget", "expected"),
    [
        ("c = PartitionedCall(x) Tout=[float] f=old", Retarget("c", "f", 0, "new"), "f=new"),
        ("c = Case(i, x) Tout=[float] branches=[a, b]", Retarget("c", "branches", 1, "new"), "branches=[a, new]"),
    ],
)
def test_calls_are_retargeted_in_a_copy(node: str, retarget: Retarget, expected: str) -> None:
    graph = parse(f"x = Placeholder()\n{node}\n")
    assert expected in render(retargeted(graph, "ignored", [retarget]))
    assert expected not in render(graph)


def test_a_retargeted_function_has_its_new_name() -> None:
    function = functions(parse(FUNCTION))["f"]
    assert retargeted(function, "g", []).signature.name == "g"
    assert function.signature.name == "f"


EDITS = st.one_of(
    st.tuples(st.just("type"), st.sampled_from([DT_HALF, DT_FLOAT])),
    st.tuples(st.just("entry"), st.sampled_from([DT_HALF, DT_FLOAT])),
    st.tuples(st.just("read"), st.tuples(st.integers(0, 1), st.sampled_from(["x", "k"]))),
    st.tuples(st.just("rename"), st.sampled_from([("x", "k"), ("k", "x"), ("x", "z"), ("z", "x")])),
    st.tuples(st.just("wait"), st.sampled_from(["x", "k"])),
    st.tuples(st.just("mark"), st.binary(max_size=3)),
    st.tuples(st.just("forget"), st.none()),
    st.tuples(st.just("look"), st.none()),
)


@given(st.lists(EDITS), st.sampled_from(["bytes", "message", "graph"]))
def test_edits_in_any_order_come_to_what_they_do_to_a_message(edits: list[tuple[str, Any]], form: str) -> None:
    """As bytes where that is enough, as messages where it is not: nobody sees a difference."""
    lines = ["x = Placeholder()", "k = Const() value=0.1", "m = MatMul(x, x, ^k)", "l = IdentityN(x, x)"]
    function = functions(parse("function f(x: float) -> (r: float)\n" + "".join(f"  {line}\n" for line in lines[1:]) + "  return r = m:product:0\n"))["f"]
    original: Any = parse("\n".join(lines) + "\n") if form == "graph" else function
    for node in (original.node if form == "graph" else original.node_def)[1:]:
        node.attr["_output_shapes"].list.shape.add(unknown_rank=True)
    body = read_graph(original, {}) if form == "graph" else read_function(original.SerializeToString(), {})
    editor, before = GraphEditor(body, None if form == "bytes" else original), original.SerializeToString(deterministic=True)
    expected = type(original)()
    expected.CopyFrom(original)
    product, identity = (expected.node if form == "graph" else expected.node_def)[-2:]
    for kind, value in edits:
        if kind == "type":
            editor.retype(2, Slot("T"), value)
            product.attr["T"].type = value
        elif kind == "entry":
            editor.retype(3, Slot("T", 1), value)
            identity.attr["T"].list.type[1] = value
        elif kind == "read":
            port, source = value
            editor.redirect((2, port), source)
            product.input[port] = source
        elif kind == "rename":
            old, new = value
            editor.rename_inputs(2, old, new)
            product.input[:] = [{old: new, f"^{old}": f"^{new}"}.get(text, text) for text in product.input]
        elif kind == "wait":
            editor.wait_for(2, value)
            product.input.append(f"^{value}")
        elif kind == "mark":
            editor.node(2).attr["_mark"].s = value
            product.attr["_mark"].s = value
        elif kind == "forget":
            editor.forget_shapes(2)
            product.attr.pop("_output_shapes", None)
        else:
            assert editor.edited() == expected
    assert editor.edited() == expected
    assert original.SerializeToString(deterministic=True) == before


@given(st.lists(EDITS), st.sampled_from(["bytes", "message", "graph"]))
def test_edits_come_to_the_same_where_protobuf_keeps_both(edits: list[tuple[str, Any]], form: str) -> None:
    with mock.patch.object(wire, "doubles", lambda: True):
        test_edits_in_any_order_come_to_what_they_do_to_a_message.hypothesis.inner_test(edits, form)  # type: ignore[attr-defined]


def test_no_attribute_is_there_twice_where_protobuf_keeps_both() -> None:
    function = functions(parse(FUNCTION))["f"]
    for doubles in (False, True) if not wire.doubles() else (True,):
        editor = GraphEditor(read_function(function.SerializeToString(), {}))
        with mock.patch.object(wire, "doubles", lambda doubles=doubles: doubles):
            editor.redirect((3, 1), "a")
            editor.retype(3, Slot("T"), DT_HALF)
            editor.redirect((3, 0), "b")
            node = wire.parted(editor.definition(editor.finish()))[0][1]
        assert list(tf_api.NodeDef.FromString(node).input) == ["b", "a"]
        types = [tf_api.AttrValue(type=dtype).SerializeToString() for dtype in (DT_FLOAT, DT_HALF)]
        written = [node.count(b"\x0a\x01T\x12" + bytes([len(value)]) + value) for value in types]
        assert written == ([0, 1] if doubles else [1, 1])


def test_a_main_graph_is_not_edited_without_its_proto() -> None:
    with pytest.raises(ValueError, match="together with its GraphDef"):
        GraphEditor(read_graph(parse(GRAPH), {}))
