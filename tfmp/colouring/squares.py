"""The guards for squares and other terms of sums, which leave the range of 16 bit although neither what they are made of nor the sum's mean does."""

from __future__ import annotations

from tfmp.colouring.canvas import Canvas
from tfmp.colouring.guards import ELEMENTWISE, Filtered
from tfmp.colouring.typegraph import reach
from tfmp.dtypes import FLOAT32
from tfmp.graph.body import Body, Edge
from tfmp.oplists import CLEAR, DENY

FACTORS = 3
"""How many steps back two factors may be made alike and still be taken for one. Our own choice."""


def keep_summed_squares(canvas: Canvas) -> None:
    """Keeps in float32 the products of a tensor with itself that nothing but denylist ops read, such as those of a norm or a mean squared error; Square and
    SquaredDifference are on no list in float16.

    There a square overflows above 256 and is 0 below 2e-4, while the tensor that is squared and the root of the sum are well within range. A type with
    float32's range has no such trouble. What it costs is small: the sum reads its terms in float32 in any case.
    """
    if canvas.rules.format.largest >= FLOAT32.largest / 2:
        return
    graph, body = canvas.graph, canvas.graph.body
    onwards = Filtered(graph.fanout, lambda v: canvas.kind_at(v) == CLEAR)
    for node in body.nodes_of(["Mul"]):
        if canvas.processable[node] and _is_square(body, node):
            found = reach(graph.fanout[graph.stands_for[graph.first[node]]], (onwards,), lambda v: True)
            readers = {canvas.kind_at(v) for v, _ in found if v in graph.tied or canvas.kind_at(v) != CLEAR}
            if readers == {DENY}:
                canvas.leave(node, "square that is summed")


def _is_square(body: Body, node: int) -> bool:
    left, right = body.inputs[node]
    return _same(body, left, right, FACTORS)


def _same(body: Body, left: Edge, right: Edge, depth: int) -> bool:
    """Returns whether two tensors are one, or are made alike of the same tensors and constants (`(3 * x) * (3 * x)`)."""
    left, right = body.origin(left), body.origin(right)
    if left == right:
        return True
    (one, _), (other, _) = left, right
    if not depth or left[1] != right[1] or body.ops[one] != body.ops[other] or body.ops[one] not in ELEMENTWISE | {"Const"}:
        return False
    if body.ops[one] == "Const":
        return bool(body.protos[one].attr["value"] == body.protos[other].attr["value"])
    return all(_same(body, a, b, depth - 1) for a, b in zip(body.inputs[one], body.inputs[other], strict=True))


def keep_sums_of_one_operand(canvas: Canvas) -> None:
    """Keeps in float32 every Einsum of one operand that adds something up: it multiplies nothing, so that the allowlist does not mean it."""
    body = canvas.graph.body
    for node in body.nodes_of(["Einsum"]):
        if len(body.inputs[node]) == 1 and canvas.processable[node]:
            read, _, made = body.protos[node].attr["equation"].s.decode().partition("->")
            if not set(read) <= set(made):
                canvas.leave(node, "sum of one operand")
