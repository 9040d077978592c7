"""How far the danger of the denylist reaches at the default level.

TensorFlow's pass lets it spread through every infer and clear op up to the next allow op. Normalisation, softmax and their gradients are written with sums and
means, so that it takes the activations with it ("Mixed Precision Training", section 3.1, keeps the statistics in float32, not what they are applied to). What
makes the difference is size: a statistic has one element where the data has many. Danger spreads among tensors as large as the one that it came from, and
ends where a statistic of harmless size meets the data.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import numpy as np

from tfmp.colouring.canvas import Canvas
from tfmp.colouring.guards import ROOTS
from tfmp.colouring.spread import SPREADING
from tfmp.oplists import ALLOW, CLEAR, DENY, INFER

STATISTIC = 8
"""So many times smaller than the data is what is taken for a statistic of it. Our own choice: a mean over fewer values saves little."""

FORGETTING = frozenset({"Softmax"})
"""Ops that make numbers between 0 and 1 of whatever they read, so that danger ends behind them: of a mask of -1e9, a softmax leaves zeros."""


DIVISIONS = frozenset({"Div", "DivNoNan", "RealDiv"})


class Danger(enum.IntEnum):
    """What is dangerous about a tensor, the worse the larger.

    NONE: nothing. SIZE: it was computed in float32 for its accuracy, but its values are as harmless as the data's (a mean). RANGE: its values may be beyond
    the 16-bit type (a sum, an exponential, a constant out of range).
    """

    NONE = 0
    SIZE = 1
    RANGE = 2


def spread_danger(canvas: Canvas) -> None:
    """Paints deny: denylist ops, and what lies on a path from one, through clear and infer ops, to a deny or infer op, as far as the danger reaches."""
    _free_forgotten_squares(canvas)
    graph = canvas.graph
    before_danger = graph.fanin.reached(canvas.are_on({DENY, INFER}), np.frombuffer(canvas.clear, bool))
    onwards = graph.fanout.among(before_danger & canvas.kinds_at({CLEAR, INFER}))
    dangers: dict[int, Danger] = {}
    todo: list[int] = []
    downstream: dict[int, int] = {}

    def mark(vertex: int, danger: Danger) -> None:
        if danger > dangers.get(vertex, Danger.NONE):
            dangers[vertex] = danger
            todo.append(vertex)

    for vertex in canvas.reasons.of_rules(SPREADING):
        if canvas.deny[vertex] and canvas.kind_at(vertex) != ALLOW:
            node = graph.node_of[vertex]
            is_small_enough = graph.body.ops[node] in ROOTS and _fits(canvas, canvas.ranges.of((node, 0)))  # the root of an epsilon, not the epsilon
            mark(vertex, Danger.NONE if is_small_enough or graph.body.ops[node] in FORGETTING else Danger.RANGE)
    denylist = np.flatnonzero(canvas.are_on({DENY}))
    canvas.paint_all(canvas.denied, denylist, "denylist")
    for vertex in denylist[onwards.degrees[denylist] > 0].tolist():
        mark(vertex, _source_danger(canvas, vertex))
    while todo:
        vertex = todo.pop()
        for reader in onwards[vertex]:
            danger = _carried(canvas, vertex, reader, dangers[vertex])
            if danger:
                downstream.setdefault(reader, vertex)
                if graph.op(reader) not in FORGETTING:
                    mark(reader, danger)
    found, causes = np.array(list(downstream), np.int32), np.array(list(downstream.values()), np.int32)
    canvas.paint_all(canvas.denied, found, "downstream of deny", causes)


def _source_danger(canvas: Canvas, vertex: int) -> Danger:
    """Returns how dangerous the result of a denylist op is."""
    node = canvas.graph.node_of[vertex]
    op = canvas.graph.body.ops[node]
    if op == "Mean" or (op == "Sum" and _is_average(canvas, node)):
        return Danger.SIZE
    if op == "Sum":
        low, high = canvas.ranges.of(canvas.graph.body.inputs[node][0])
        count = canvas.sizes.elements(canvas.graph.body.inputs[node][0])
        return Danger.NONE if _fits(canvas, (low * count, high * count)) else Danger.RANGE
    return Danger.NONE if _fits(canvas, canvas.ranges.of((node, 0))) else Danger.RANGE


def _fits(canvas: Canvas, interval: tuple[float, float]) -> bool:
    return max(map(abs, interval)) <= canvas.rules.format.largest


def _is_average(canvas: Canvas, node: int) -> bool:
    """Returns whether a Sum is over something times a softmax, so that its result is an average (the gradient of a softmax)."""
    body = canvas.graph.body
    product = body.origin(body.inputs[node][0])[0]
    return body.ops[product] == "Mul" and any(body.ops[body.origin(factor)[0]] == "Softmax" for factor in body.inputs[product])


def _carried(canvas: Canvas, vertex: int, reader: int, danger: Danger) -> Danger:
    """Returns the danger of `reader`'s result that comes from `vertex`."""
    graph, body = canvas.graph, canvas.graph.body
    node = graph.node_of[reader]
    if (danger == Danger.RANGE and body.ops[node] not in DIVISIONS) or vertex in graph.tied or reader in graph.tied:
        return danger
    if danger == Danger.RANGE and _divides_by_a_count(canvas, node, vertex):
        return Danger.SIZE
    if danger == Danger.SIZE and _is_expansion(canvas, vertex, node):
        return Danger.NONE
    return danger


def _divides_by_a_count(canvas: Canvas, node: int, vertex: int) -> bool:
    """Returns whether `node` divides what it has from `vertex` by a scalar that is a constant of at least `STATISTIC`, or an integer that was cast."""
    body = canvas.graph.body
    numerator, divisor = body.inputs[node]
    if canvas.graph.node_of[vertex] != numerator[0] or (body.ops[divisor[0]] != "Cast" and canvas.ranges.of(divisor)[0] < STATISTIC):
        return False
    return canvas.sizes.shape(divisor) == ()  # last, since it takes longest to tell


def _is_expansion(canvas: Canvas, vertex: int, node: int) -> bool:
    """Returns whether the result of `node` has many elements for each that comes from `vertex`."""
    graph, body, sizes = canvas.graph, canvas.graph.body, canvas.sizes
    source = graph.node_of[vertex]
    ports = [edge for edge in body.inputs[node] if edge[0] == source]
    return bool(ports) and sizes.elements((node, 0)) >= STATISTIC * max(map(sizes.elements, ports))


def expansions(canvas: Canvas, vertices: Iterable[int]) -> Iterator[int]:
    """Yields those of `vertices` whose ops make something large of small tensors only, such as the product of two statistics."""
    graph, body, sizes = canvas.graph, canvas.graph.body, canvas.sizes
    for vertex in vertices:
        node = graph.node_of[vertex]
        if body.inputs[node]:
            largest = sizes.elements((node, 0))
            if largest >= STATISTIC * STATISTIC and all(largest >= STATISTIC * sizes.elements(edge) for edge in body.inputs[node]):
                yield vertex


def _free_forgotten_squares(canvas: Canvas) -> None:
    """Treats a Square as if it were on the inferlist if all that is computed from it is exp(-x * x), as in the gradients of Erf and GELU: what is beyond 16 bit
    becomes infinite or zero there and 0 or 1 in the exponential, which is what float32 makes of it up to 16-bit rounding. The Exp itself stays float32.
    """
    graph, body = canvas.graph, canvas.graph.body
    found = []
    for node in body.nodes_of(["Exp"]):
        if body.ops[negated := body.inputs[node][0][0]] == "Neg":
            square = body.inputs[negated][0][0]
            readers = [graph.fanout[graph.first[one]] for one in (square, negated)]
            forgets = body.ops[square] == "Square" and readers == [[graph.first[negated]], [graph.first[node]]]
            if forgets and canvas.list_of(square) is None and canvas.processable[square]:
                found.append(square)
    if found:
        canvas.put_on_list(found, INFER)
