"""A rewrite that would not run never leaves: the verification finds each way to be wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.graph_text import functions, parse
from tfmp import engine, tf_api
from tfmp.dtypes import DT_FLOAT, DT_HALF
from tfmp.errors import RewriteError
from tfmp.graph.schema import Slot
from tfmp.graph.view import read_function, read_graph
from tfmp.rewriting.apply import apply, verify
from tfmp.rewriting.plan import Plan, Retype

TEXT = """
x = Placeholder() shape=[4, 4]
m = MatMul(x, x)
r = Relu(m)
c = Cholesky(r)
f = Identity(c)
"""


def graph_and_plan() -> tuple[tf_api.GraphDef, Plan]:
    """Returns a graph and a sound plan for it."""
    graph = parse(TEXT)
    return graph, engine.convert_graph_def(graph, device="CPU").bodies[""].plan


def test_a_sound_plan_is_carried_out() -> None:
    graph, plan = graph_and_plan()
    after = apply(plan, graph, {}, ("CPU",))
    assert [node.attr["T"].type for node in after.node if node.name in ("m", "r", "c")] == [DT_HALF, DT_HALF, DT_FLOAT]


SABOTAGE: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "a cast is missing": (
        lambda plan: dataclasses.replace(plan, casts=plan.casts[1:]),
        "the main graph: input 0 of MatMul node 'm' wants type 19, but Placeholder node 'x' gives type 1.",
    ),
    "a cast too many": (
        lambda plan: dataclasses.replace(plan, retypes=plan.retypes[1:]),
        "the main graph: input 0 of MatMul node 'm' wants type 1, but Cast node 'x-0-CastToFp16-0-AutoMixedPrecision' gives type 19.",
    ),
    "a cast that only one reader reads": (
        lambda plan: dataclasses.replace(plan, casts=(plan.casts[0]._replace(readers=plan.casts[0].readers[:1]), *plan.casts[1:])),
        "the main graph: input 1 of MatMul node 'm' wants type 19, but Placeholder node 'x' gives type 1.",
    ),
    "a cast to the wrong type": (
        lambda plan: dataclasses.replace(plan, casts=(plan.casts[0]._replace(target=plan.casts[0].origin), *plan.casts[1:])),
        "the main graph: input 0 of MatMul node 'm' wants type 19, but Cast node 'x-0-CastToFp16-0-AutoMixedPrecision' gives type 1.",
    ),
    "a cast of the wrong type": (
        lambda plan: dataclasses.replace(plan, casts=(plan.casts[0], plan.casts[1]._replace(origin=plan.casts[1].target))),
        "the main graph: input 0 of Cast node 'r-0-CastToFp32-0-AutoMixedPrecision' wants type 1, but Relu node 'r' gives type 19.",
    ),
    "a name that is taken": (lambda plan: dataclasses.replace(plan, casts=(plan.casts[0]._replace(name="r"), *plan.casts[1:])), "two nodes"),
    "no kernel": (
        lambda plan: dataclasses.replace(
            plan,
            retypes=(*plan.retypes, Retype(3, Slot("T"), DT_HALF)),
            casts=(plan.casts[0], plan.casts[1]._replace(source=(3, 0), readers=((4, 0),))),
        ),
        "the main graph: Cholesky node 'c' has no kernel on CPU for the types T=19.",
    ),
}


@pytest.mark.parametrize("what", SABOTAGE)
def test_an_unsound_plan_is_refused_and_the_graph_stays(what: str) -> None:
    sabotage, message = SABOTAGE[what]
    graph, plan = graph_and_plan()
    before = graph.SerializeToString(deterministic=True)
    with pytest.raises(RewriteError) as error:
        apply(sabotage(plan), graph, {}, ("CPU",))
    assert message in str(error.value)
    assert graph.SerializeToString(deterministic=True) == before


def test_every_device_needs_the_kernel() -> None:
    text = 'x = Placeholder() dtype={0} shape=[1, 4, 4, 4, 1]\np = AvgPool3D(x) T={0} ksize=[1, 1, 1, 1, 1] strides=[1, 1, 1, 1, 1] padding="SAME"\n'
    bodies = [read_graph(parse(text.format(dtype)), {}) for dtype in ("float", "half")]
    verify(*bodies, ("XLA_CPU_JIT",))
    for devices in (("CPU",), ("XLA_CPU_JIT", "CPU")):
        with pytest.raises(RewriteError, match="AvgPool3D node 'p' has no kernel on CPU"):
            verify(*bodies, devices)


def test_a_signature_may_change_only_where_the_plan_says_so() -> None:
    text = "function f(a: {0}) -> (b: {0})\n  r = Relu(a) T={0}\n  return b = r:activations:0\n"
    before, after = (read_function(functions(parse(text.format(dtype)))["f"], {}) for dtype in ("float", "half"))
    verify(before, after, ("CPU",), frozenset({0, 2}))
    for retyped in (frozenset[int](), frozenset({0})):
        with pytest.raises(RewriteError, match="function 'f': arguments or results changed their types"):
            verify(before, after, ("CPU",), retyped)


def test_a_node_may_have_the_name_of_a_result() -> None:
    """Cholesky has no half kernel, and need not have one: only the Relu, which has the result's name, changes."""
    text = "function f(a: float) -> (r: float)\n  m = MatMul(a, a)\n  r = Relu(m:product:0)\n  c = Cholesky(a)\n  return r = r:activations:0\n"
    graph = parse(f"x = Placeholder() shape=[4, 4]\nk = PartitionedCall(x) Tout=[float] f=f\n\n{text}")
    conversion = engine.convert_graph_def(graph, device="CPU")
    assert [str(retype.slot) for retype in conversion.bodies["f"].plan.retypes if retype.node == 2] == ["T"]


def test_types_that_nobody_gives_are_not_compared() -> None:
    body = read_graph(parse("x = Placeholder()\nr = Relu(x) T=absent\ns = Sqrt(r)\n"), {})
    verify(body, body, ("CPU",))
