"""The type graph and the one search on it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph_text import parse
from tfmp.colouring.typegraph import TypeGraph, reach
from tfmp.errors import GraphError
from tfmp.graph.schema import Slot
from tfmp.graph.view import read_graph

TEXT = "x = Placeholder()\ni = Const() dtype=int32 value=1\nl = IdentityN(x, i, x) T=[float, int32, float]\nm = MatMul(l, l:2)\nc = Cast(m) DstT=double\n"


def type_graph(text: str = TEXT) -> TypeGraph:
    """Returns the type graph of a text."""
    return TypeGraph(read_graph(parse(text), {}))


def named(graph: TypeGraph, vertices: list[int]) -> list[str]:
    """Returns "node slot" for each vertex."""
    return [f"{graph.body.names[graph.node_of[vertex]]} {graph.slot(vertex)}" for vertex in vertices]


def test_vertices_are_type_attributes_in_node_order() -> None:
    graph = type_graph()
    assert named(graph, list(range(len(graph)))) == ["x dtype", "i dtype", "l T[0]", "l T[1]", "l T[2]", "m T", "c SrcT", "c DstT"]
    assert graph.dtype == [1, 3, 1, 3, 1, 1, 1, 2]
    assert [list(graph.vertices(node)) for node in range(5)] == [[0], [1], [2, 3, 4], [5], [6, 7]]


def test_edges_are_tensors() -> None:
    graph = type_graph()
    assert {name: named(graph, graph.fanin[vertex]) for vertex, name in enumerate(named(graph, list(range(len(graph)))))} == {
        "x dtype": [], "i dtype": [], "l T[0]": ["x dtype"], "l T[1]": ["i dtype"], "l T[2]": ["x dtype"],
        "m T": ["l T[0]", "l T[2]"], "c SrcT": ["m T"], "c DstT": [],
    }  # fmt: skip
    assert sorted((s, r) for s, readers in enumerate(graph.fanout) for r in readers) == sorted((s, r) for r, sources in enumerate(graph.fanin) for s in sources)


def test_a_slot_that_is_not_there_has_no_vertex() -> None:
    graph = type_graph()
    assert (graph.vertex(3, Slot("T")), graph.vertex(3, Slot("U"))) == (5, None)


def test_tied_slots_are_one_vertex() -> None:
    body = read_graph(parse("x = Placeholder()\na = Relu(x)\nb = Neg(x)\nc = Abs(b)\n"), {})
    graph = TypeGraph(body, [((1, 0), (2, 0)), ((2, 0), (3, 0))])
    assert list(graph.stands_for) == [0, 1, 1, 1]
    assert graph.tied == {1}
    assert (graph.fanout[0], graph.fanin[1], graph.fanin[2]) == ([1, 1], [0, 0, 1], [])


def test_tied_slots_of_two_types_are_an_error() -> None:
    body = read_graph(parse("x = Placeholder()\na = Relu(x)\nc = Cast(x) DstT=double\n"), {})
    with pytest.raises(GraphError, match="Relu 'a' and Cast 'c' share a value, but have the types 1 and 2"):
        TypeGraph(body, [((1, 0), (2, 1))])


@st.composite
def searches(draw: st.DrawFn) -> tuple[list[list[int]], set[int], set[int]]:
    """Draws an adjacency, where a search starts, and what it may enter."""
    size = draw(st.integers(1, 12))
    vertices = st.integers(0, size - 1)
    return draw(st.lists(st.lists(vertices, max_size=4), min_size=size, max_size=size)), draw(st.sets(vertices)), draw(st.sets(vertices))


@given(searches())
@settings(max_examples=300, deadline=None, database=None, derandomize=True)
def test_reach_finds_what_paths_through_entered_vertices_lead_to(drawn: tuple[list[list[int]], set[int], set[int]]) -> None:
    adjacency, starts, allowed = drawn
    found = reach(starts, (adjacency,), allowed.__contains__)
    closure = set(starts)
    while new := {w for v in closure for w in adjacency[v] if w in allowed} - closure:
        closure |= new
    assert {vertex for vertex, _ in found} == closure
    assert len(found) == len(closure)
    for vertex, origin in found:
        assert vertex in starts and origin == vertex or vertex in adjacency[origin]
