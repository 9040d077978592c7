"""Reading and comparing colours, on graphs small enough to check by eye."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.oracle.comparison import ComparisonError, Disagreement, added_nodes, disagreements, reached_functions, type_colours
from tests.zoo import ZOO


@pytest.fixture
def graph_def() -> Any:
    return ZOO["chain/repeated_and_listed"].build()[0]


def edited(graph_def: Any, name: str, dtype: Any, attribute: str = "T") -> Any:
    """Returns a copy of `graph_def` in which the attribute of node `name` is `dtype`, or its list's second entry is."""
    result = type(graph_def).FromString(graph_def.SerializeToString())
    (node,) = (node for node in result.node if node.name == name)
    if node.attr[attribute].WhichOneof("value") == "list":
        node.attr[attribute].list.type[1] = dtype.as_datatype_enum
    else:
        node.attr[attribute].type = dtype.as_datatype_enum
    return result


def test_every_float32_attribute_has_a_colour(graph_def: Any) -> None:
    colours = type_colours(graph_def, graph_def, "float16")
    assert colours == dict.fromkeys(
        [("x", "dtype"), ("a0", "T"), ("c0", "T[0]"), ("c0", "T[1]"), ("c0", "T[2]"), ("i0", "T"), ("a1", "T"), ("fetch_0", "T")], False
    )


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_colour_is_true_where_the_type_turned(graph_def: Any, dtype: Any) -> None:
    colours = type_colours(graph_def, edited(edited(graph_def, "a0", dtype), "c0", dtype), dtype.name)
    assert {key for key, sixteen in colours.items() if sixteen} == {("a0", "T"), ("c0", "T[1]")}


def test_third_type_is_an_error(graph_def: Any) -> None:
    with pytest.raises(ComparisonError, match="T of AddN node 'i0' was float32 and is now 2"):
        type_colours(graph_def, edited(graph_def, "i0", tf.float64), "float16")


def test_lost_node_is_an_error(graph_def: Any) -> None:
    shorter = type(graph_def).FromString(graph_def.SerializeToString())
    del shorter.node[-1]
    with pytest.raises(ComparisonError, match="T of Identity node 'fetch_0' was float32 and is now None"):
        type_colours(graph_def, shorter, "float16")


def test_disagreement_says_where_and_what(graph_def: Any) -> None:
    found = disagreements(graph_def, edited(graph_def, "c0", tf.float16), edited(graph_def, "a1", tf.float16), "float16")
    assert sorted(map(str, found)) == [
        "a1 (MatMul), T: ours float32, TensorFlow's float16",
        "c0 (IdentityN), T[1]: ours float16, TensorFlow's float32",
    ]


def test_renamed_op_is_a_disagreement(graph_def: Any) -> None:
    renamed = type(graph_def).FromString(graph_def.SerializeToString())
    renamed.node[-1].op = "Snapshot"
    assert disagreements(graph_def, graph_def, renamed, "float16") == [Disagreement(("fetch_0", "op"), "Identity", "Identity", "Snapshot")]


def test_added_nodes_are_found(graph_def: Any) -> None:
    longer = type(graph_def).FromString(graph_def.SerializeToString())
    longer.node.add(name="extra", op="NoOp")
    assert added_nodes(graph_def, longer) == {"extra"}
    assert not added_nodes(graph_def, graph_def)


def test_functions_are_reached_by_calls_only() -> None:
    graph_def, _ = ZOO["branch/if_c_g"].build()
    called = {function.signature.name for function in graph_def.library.function}
    assert reached_functions(graph_def) == called
    lonely = graph_def.library.function.add()
    lonely.CopyFrom(graph_def.library.function[0])
    lonely.signature.name = "lonely"
    assert reached_functions(graph_def) == called
    graph_def.library.function[0].node_def.add(name="call", op="lonely")
    assert reached_functions(graph_def) == called | {"lonely"}
