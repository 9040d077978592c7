"""The passes that spread colours along edges: allow seeds, deny downstream, allow between allow ops, after them, and through clear ops.

Facts and order are those of `auto_mixed_precision.cc` (TensorFlow 2.21): `AddAllowlistOps`, `PropagateDenyFwdThroughClearAndInfer`,
`AddClearAndInferToAllowIfBetweenAllow`, `AddInferToAllowIfFollowAllow`, `PropagateAllowThroughClear`, `RemoveAllowsetWithFp32`.
"""

from __future__ import annotations

import numpy as np

from tfmp.colouring.canvas import Canvas
from tfmp.colouring.typegraph import reach
from tfmp.dtypes import QUANTIZED
from tfmp.graph.edges import distinct
from tfmp.oplists import ALLOW, CLEAR, DENY, INFER
from tfmp.program.calls import CALLING_OPS

SPREADING = frozenset({"constant out of range"})
"""Rules of guards whose deny spreads downstream, as the denylist's does."""


def seed_allow(canvas: Canvas) -> None:
    """Paints every type attribute of every allowlist node allow, and with `force` of every node that may be forced."""
    canvas.paint_all(canvas.allowed, canvas.processable_allow_ops(), "allowlist")
    if canvas.rules.force:
        for node in canvas.graph.body.proto_nodes:
            if canvas.processable[node] and _may_be_forced(canvas, node):
                for vertex in canvas.graph.vertices(node):
                    if canvas.is_float32(vertex) and canvas.supports(vertex):
                        canvas.paint_allow(vertex, "forced")


def _may_be_forced(canvas: Canvas, node: int) -> bool:
    """`CanForceFP16`: not a constant, not the fused softmax loss (it has float32 inside), not stateful, no references; and neither what is fed nor a call,
    whose functions keep their signatures.
    """
    op = canvas.graph.body.ops[node]
    first = canvas.graph.first[node]
    schema = canvas.schema(first) if canvas.graph.body.types[node] else None
    excluded = op in ("Const", "Placeholder", "SoftmaxCrossEntropyWithLogits") or op in CALLING_OPS
    return schema is not None and not excluded and not schema.stateful and not schema.has_refs


def spread_deny(canvas: Canvas) -> None:
    """Paints deny: denylist ops, and what lies on a path from one, through clear and infer ops, to a deny or infer op."""
    if canvas.rules.force:
        return
    graph = canvas.graph
    towards = reach(canvas.on_lists({DENY, INFER}), (graph.fanin,), canvas.clear.__getitem__)
    before_danger = {vertex for vertex, _ in towards}
    guarded = [v for v in canvas.reasons.of_rules(SPREADING) if canvas.deny[v] and canvas.kind_at(v) != ALLOW]
    for vertex, origin in reach([*canvas.on_lists({DENY}), *guarded], (graph.fanout,), lambda v: v in before_danger and not canvas.deny[v]):
        canvas.paint_deny(vertex, *(("denylist",) if vertex == origin else ("downstream of deny", origin)))


def allow_between(canvas: Canvas) -> None:
    """Paints clear and infer vertices allow that lie between two allowlist ops, with nothing denied or unsupported on the way."""
    graph, roots = canvas.graph, canvas.processable_allow_ops().tolist()

    def enter(vertex: int) -> bool:
        return (
            canvas.kind_at(vertex) in (CLEAR, INFER)
            and not canvas.deny[vertex]
            and bool(canvas.processable[graph.node_of[vertex]])
            and canvas.is_float32(vertex)
            and canvas.supports(vertex)
        )

    after = {vertex for vertex, _ in reach(roots, (graph.fanout,), enter)}
    for vertex, origin in reach(roots, (graph.fanin,), after.__contains__):
        canvas.paint_allow(vertex, "between allow ops", origin)


def allow_after(canvas: Canvas) -> None:
    """Paints an infer vertex allow if something allow feeds it and nothing denied does, in one sweep in node order."""
    for vertex in _infer_vertices(canvas):
        _follow(canvas, vertex)


def _infer_vertices(canvas: Canvas) -> list[int]:
    return [
        v
        for v in canvas.on_lists({INFER})
        if canvas.processable[canvas.graph.node_of[v]] and not canvas.deny[v] and canvas.is_float32(v) and canvas.supports_type(v)
    ]


def _follow(canvas: Canvas, vertex: int) -> bool:
    """Paints one infer vertex if it follows allow; returns whether it did."""
    fanin = canvas.graph.fanin[vertex]
    if canvas.allow[vertex] or any(canvas.deny[source] for source in fanin):
        return False
    causes = [source for source in fanin if canvas.allow[source]]
    if causes:
        canvas.paint_allow(vertex, "directly after an allow op", causes[0])
    return bool(causes)


def allow_through_clear(canvas: Canvas) -> None:
    """Paints clear vertices allow that are connected to an allow vertex through clear ones, upwards or downwards."""
    graph = canvas.graph

    def enter(vertex: int) -> bool:
        node = graph.node_of[vertex]
        return (
            canvas.kind_at(vertex) == CLEAR
            and not canvas.allow[vertex]
            and not canvas.deny[vertex]
            and bool(canvas.processable[node])
            and canvas.is_float32(vertex)
            and canvas.supports(vertex)
            and not reads_reference_variable(canvas, node)
        )

    starts = [v for v in range(len(graph)) if canvas.allow[v] and canvas.processable[graph.node_of[v]]]
    for vertex, origin in reach(starts, (graph.fanin, graph.fanout), enter):
        canvas.paint_allow(vertex, "next to an allow op", origin)


def reads_reference_variable(canvas: Canvas, node: int) -> bool:
    """Returns whether `node` is the Identity that reads a v1 variable, or the Enter that takes such a read into a loop.

    TensorFlow leaves those alone (`NodeImplicitlyReadsNonResourceVariable`): a cast between a reference and its read would break loops.
    """
    body = canvas.graph.body
    passed: set[int] = set()
    while body.ops[node] == "Enter" and body.inputs[node] and node not in passed:
        passed.add(node)
        node = body.inputs[node][0][0]
    return body.ops[node] == "Identity" and bool(body.inputs[node]) and body.ops[body.inputs[node][0][0]] in ("Variable", "VariableV2")


def drop_unsupported(canvas: Canvas) -> None:
    """Takes allow off the attributes of allowlist nodes that their op definition does not let be 16 bit, and off quantized nodes."""
    graph, kinds = canvas.graph, canvas.graph.body.kinds
    painted = np.flatnonzero(canvas.are_on({ALLOW}) & canvas.allowed)
    kind_of = graph.body.kind_array[graph.nodes[painted]]
    ops = {kinds.table[kind].op for kind in distinct(kind_of).tolist()}
    is_quantized = kinds.which(lambda kind: QUANTIZED.intersection(kind.types), ops)[kind_of]
    for vertex in painted[~canvas.told(canvas.supports_type, painted) | is_quantized].tolist():
        canvas.unpaint_allow(vertex, "quantized" if canvas.supports_type(vertex) else "no 16-bit form")
