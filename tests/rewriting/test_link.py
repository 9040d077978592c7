"""Which functions get new names, which copies are one again, and who calls whom in the end."""

from __future__ import annotations

from typing import Any

from tests.graph_text import functions, nodes, parse
from tfmp import engine
from tfmp.dtypes import DT_HALF

SQUARE = "\nfunction square(a: float) -> (b: float)\n  m = MatMul(a, a)\n  return b = m:product:0\n"
KEEP = "\nfunction keep(a: float) -> (b: float)\n  e = Exp(a)\n  return b = e:y:0\n"


def converted(text: str, **changes: Any) -> Any:
    """Returns the graph that a text becomes on the CPU."""
    return engine.convert_graph_def(parse("x = Placeholder() shape=[4, 4]\n" + text), device="CPU", **changes).graph_def


def called(graph: Any, function: str = "") -> list[str]:
    """Returns the names that the calls in a graph or function have, in node order."""
    return [node.attr["f"].func.name for node in nodes(graph, function).values() if node.op == "PartitionedCall"]


def test_calls_with_the_same_edits_share_one_new_function() -> None:
    calls = "a = PartitionedCall(x) Tout=[float] f=square\nb = PartitionedCall(a) Tout=[float] f=square\n"
    graph = converted(f"{calls}m = MatMul(b, b)\nf = Identity(m)\n{SQUARE}")
    assert called(graph) == ["square_float16", "square_float16"]
    assert list(functions(graph)) == ["square", "square_float16"]


def test_a_caller_of_a_changed_function_changes_with_it() -> None:
    outer = "\nfunction outer(a: float) -> (b: float)\n  c = PartitionedCall(a) Tout=[float] f=square\n  e = Exp(c:output:0)\n  return b = e:y:0\n"
    graph = converted(f"a = PartitionedCall(x) Tout=[float] f=outer\nf = Identity(a)\n{outer}{SQUARE}")
    (name,) = called(graph)
    assert called(graph, name) == ["square_float16"]
    assert functions(graph)["square_float16"].signature.input_arg[0].type == DT_HALF


def test_what_does_not_change_keeps_its_name_and_place() -> None:
    graph = converted(f"a = PartitionedCall(x) Tout=[float] f=keep\nm = MatMul(x, x)\nf = Identity(m)\ng = Identity(a)\n{KEEP}")
    assert called(graph) == ["keep"]
    assert list(functions(graph)) == ["keep"]


def test_a_function_whose_signature_stays_takes_the_place_of_the_old_one() -> None:
    inside = "\nfunction inside(a: float) -> (b: float)\n  e = Exp(a)\n  m = MatMul(e:y:0, e:y:0)\n  s = Exp(m:product:0)\n  return b = s:y:0\n"
    graph = converted(f"a = PartitionedCall(x) Tout=[float] f=inside\nf = Identity(a)\n{inside}")
    assert called(graph) == ["inside"]
    assert list(functions(graph)) == ["inside"]
    assert nodes(graph, "inside")["m"].attr["T"].type == DT_HALF


def test_the_old_function_stays_where_something_else_refers_to_it() -> None:
    other = "d = MapDataset(s) f=square Targuments=[] output_types=[float] output_shapes=[[4, 4]]\n"
    other += "s = TensorSliceDataset(x) Toutput_types=[float] output_shapes=[[4]]\n"
    graph = converted(f"a = PartitionedCall(x) Tout=[float] f=square\ne = Exp(a)\nf = Identity(e)\n{other}{SQUARE}")
    assert nodes(graph)["d"].attr["f"].func.name == "square"
    assert functions(graph)["square"] == functions(parse(SQUARE))["square"]


def test_new_names_avoid_those_that_are_taken() -> None:
    graph = converted(f"a = PartitionedCall(x) Tout=[float] f=square\nm = MatMul(a, a)\nf = Identity(m)\n{SQUARE}{SQUARE.replace('square', 'square_float16')}")
    assert called(graph) == ["square_float16_"]
    assert set(functions(graph)) == {"square", "square_float16", "square_float16_"}


def test_names_say_the_type() -> None:
    text = f"a = PartitionedCall(x) Tout=[float] f=square\nm = MatMul(a, a)\nf = Identity(m)\n{SQUARE}"
    assert called(converted(text, dtype="bfloat16")) == ["square_bfloat16"]
