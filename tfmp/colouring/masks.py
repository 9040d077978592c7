"""The guard for attention masks that a function is handed, whose values nobody can see: they are added to the scores in float32, up to the softmax."""

from __future__ import annotations

from collections.abc import Callable

from tfmp.colouring.canvas import Canvas
from tfmp.colouring.guards import ADDITIONS, CARRIERS, ELEMENTWISE, Filtered
from tfmp.colouring.typegraph import reach
from tfmp.graph.body import ARG

FORGIVING = frozenset({"Exp", "LogSoftmax", "Softmax"})
"""Ops that make nothing of numbers far below the largest one, so that masks may be as low as float32 goes."""

GIVEN = frozenset({ARG, "Placeholder"})


def keep_given_masks(canvas: Canvas) -> None:
    """Keeps in float32 what adds something that the function is handed to what an exponential or a softmax reads, and all that lies between.

    Such a mask may say -65504 or float32's lowest number, as the Transformers library's do: two of them, or one and a low score, are -inf in 16 bit, and a row
    of nothing but -inf has no softmax. Masks that are made of constants are seen (`guards.keep_constant_readers`).
    """
    graph, body = canvas.graph, canvas.graph.body
    ends = [graph.stands_for[v] for node in body.nodes_of(FORGIVING) for v in graph.vertices(node) if canvas.is_float32(v)]
    if not ends:
        return
    before = {vertex for vertex, _ in reach(ends, (graph.fanin,), lambda v: v in graph.tied or graph.op(v) in ADDITIONS or graph.op(v) in CARRIERS)}
    is_given = _given(canvas)
    sums = [v for v in sorted(before) if v not in graph.tied and graph.op(v) in ADDITIONS and any(map(is_given, graph.fanin[v]))]
    last = frozenset(ends)
    onwards = Filtered(graph.fanout, lambda v: v not in last)
    for vertex, origin in reach(sums, (onwards,), before.__contains__):
        if vertex not in graph.tied:
            canvas.keep(graph.node_of[vertex], "mask of unknown size", origin if origin != vertex else -1)


def _given(canvas: Canvas) -> Callable[[int], bool]:
    """Returns what tells whether a vertex hands on nothing but arguments, scaled and shifted by constants."""
    graph = canvas.graph
    steps = ELEMENTWISE | CARRIERS
    known: dict[int, bool] = {}

    def given(vertex: int) -> bool:
        if vertex not in known:
            found = [v for v, _ in reach([vertex], (Filtered(graph.fanin, lambda v: graph.op(v) in steps or v in graph.tied),), lambda v: True)]
            sources = {graph.op(v) for v in found if not (graph.op(v) in steps or (v in graph.tied and graph.fanin[v]))}
            known[vertex] = bool(sources & GIVEN) and sources <= GIVEN | {"Const"}
        return known[vertex]

    return given
