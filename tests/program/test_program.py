"""A program is its root and whatever that reaches, each with the ways in which it runs."""

from __future__ import annotations

import pytest

from tests.graph_text import functions, parse
from tfmp.errors import GraphError
from tfmp.program.program import from_function, from_graph

CHAIN = """
x = Placeholder()
a = PartitionedCall(x) Tout=[float] f=outer {outer}
b = StatelessIf(p, a) Tcond=bool Tout=[float] then_branch=left else_branch=right
p = Placeholder() dtype=bool
d = MapDataset(s) f=mapped Targuments=[] output_types=[float] output_shapes=[[]]
s = TensorSliceDataset(x) Toutput_types=[float] output_shapes=[[]]

function outer(a: float) -> (b: float)
  c = PartitionedCall(a) Tout=[float] f=inner {inner}
  return b = c:output:0

function inner(a: float) -> (b: float) {own}
  r = Relu(a)
  return b = r:activations:0

function left(a: float) -> (b: float)
  c = PartitionedCall(a) Tout=[float] f=inner
  return b = c:output:0

function right(a: float) -> (b: float)
  return b = a

function mapped(a: float) -> (b: float)
  m = MatMul(a, a)
  return b = m:product:0

function unused(a: float) -> (b: float)
  n = Frobnicate(a)
  return b = n:out:0
"""
COMPILED = "_XlaMustCompile=true"


def text(outer: str = "", inner: str = "", own: str = "") -> str:
    """Returns CHAIN with words added."""
    return CHAIN.format(outer=outer, inner=inner, own=own)


def test_functions_that_are_reached_are_read_once_and_others_not_at_all() -> None:
    program = from_graph(parse(text()))
    assert next(iter(program.bodies)) == ""
    assert set(program.bodies) == {"", "outer", "inner", "left", "right"}
    assert program.size == sum(map(len, program.bodies.values()))
    assert program.roots == ("",)


@pytest.mark.parametrize(
    ("words", "compiled", "interpreted"),
    [
        ({}, set(), {"", "outer", "inner", "left", "right"}),
        ({"outer": COMPILED}, {"outer", "inner"}, {"", "inner", "left", "right"}),
        ({"inner": COMPILED}, {"inner"}, {"", "outer", "inner", "left", "right"}),
        ({"own": COMPILED}, {"inner"}, {"", "outer", "left", "right"}),
    ],
)
def test_what_a_compiled_call_reaches_is_compiled(words: dict[str, str], compiled: set[str], interpreted: set[str]) -> None:
    program = from_graph(parse(text(**words)))
    assert (program.compiled, program.interpreted) == (compiled, interpreted)


def test_a_program_may_start_at_a_function() -> None:
    library = functions(parse(text()))
    program = from_function("outer", library.__getitem__)
    assert list(program.bodies) == ["outer", "inner"]
    assert program.definitions["inner"] is library["inner"]


def test_recursion_ends() -> None:
    text = "x = Placeholder()\na = PartitionedCall(x) Tout=[float] f=f\n\nfunction f(a: float) -> (b: float)\n"
    text += "  c = PartitionedCall(a) Tout=[float] f=f\n  return b = c:output:0\n"
    assert list(from_graph(parse(text)).bodies) == ["", "f"]


def test_a_missing_function_is_named() -> None:
    graph = parse(text())
    del graph.library.function[1]
    with pytest.raises(GraphError) as error:
        from_graph(graph)
    assert str(error.value) == "function 'inner' is called, but is not in the graph's library, which has 5 functions."


def test_templates_are_left_out() -> None:
    graph = parse(text())
    graph.library.function[1].signature.attr.add(name="T", type="type")
    assert "inner" not in from_graph(graph).bodies
