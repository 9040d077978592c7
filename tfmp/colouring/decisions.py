"""The guards for decisions: what compares, counts or makes integers of numbers whose last bit it depends on."""

from __future__ import annotations

from tfmp.colouring.canvas import Canvas
from tfmp.colouring.constants import answer, holds_exactly
from tfmp.colouring.guards import CARRIERS, INTEGERS, Filtered, float_ends_of_casts
from tfmp.colouring.typegraph import reach
from tfmp.graph.schema import Slot
from tfmp.oplists import CLEAR, INFER

DECIDING = frozenset({
    "ArgMax", "ArgMin", "Ceil", "Equal", "Floor", "Greater", "GreaterEqual", "IsFinite", "IsInf", "IsNan", "Less", "LessEqual", "NotEqual", "OneHot", "Round",
    "Sign", "TopK", "TopKV2", "Where",
})  # fmt: skip
"""Ops whose result jumps with the last bit of what they read: they take 16-bit numbers as they come, but nothing is rounded for their sake. So does a Cast,
and what a Cast makes of numbers that 16 bit would round is 16 bit only if all its readers are.
"""


def keep_fine_decisions(canvas: Canvas) -> None:
    """Keeps in float32 what compares with a constant that 16 bit would round (the thresholds of a metric, the rate of a dropout)."""
    graph, body = canvas.graph, canvas.graph.body
    for node in body.nodes_of(DECIDING):
        if canvas.processable[node]:
            starts = [graph.stands_for[v] for v in graph.vertices(node) if canvas.is_float32(v)]
            onwards = Filtered(graph.fanin, lambda v, own=node: graph.node_of[v] == own or graph.op(v) in CARRIERS)  # type: ignore[misc]
            for vertex, origin in reach(starts, (onwards,), lambda v: graph.op(v) == "Const" or graph.op(v) in CARRIERS):
                if graph.op(vertex) == "Const" and not answer(holds_exactly, body, body.kind_of[graph.node_of[vertex]], canvas.rules.format):
                    canvas.leave(node, "decides by a constant", vertex if origin != vertex else -1)
                    break


def keep_what_only_decides(canvas: Canvas) -> None:
    """Keeps inferlist arithmetic in float32 of which nothing comes but decisions and integers: a metric's scores and buckets. It is small, and rounding it
    flips what is counted.
    """
    graph, body = canvas.graph, canvas.graph.body
    deciding = {v for node in body.nodes_of(DECIDING) for v in graph.vertices(node) if canvas.is_float32(v)}
    deciding |= set(float_ends_of_casts(canvas, Slot("SrcT"), Slot("DstT"), INTEGERS.__contains__).tolist())
    upstream = reach(deciding, (graph.fanin,), lambda v: canvas.is_float32(v) and canvas.kind_at(v) in (CLEAR, INFER))
    only = {vertex for vertex, _ in upstream}
    todo = list(only)
    while todo:
        vertex = todo.pop()
        if vertex in only and vertex not in deciding and not all(reader in only for reader in graph.fanout[vertex] if canvas.is_float32(reader)):
            only.remove(vertex)
            todo += graph.fanin[vertex]
    for vertex in sorted(only - deciding):
        if canvas.kind_at(vertex) == INFER and graph.fanout[vertex]:
            canvas.leave(graph.node_of[vertex], "only decides")
