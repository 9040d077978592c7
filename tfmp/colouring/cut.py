"""Which of the ops that may go either way are 16 bit: the choice with the least traffic, found as a minimum cut.

What must be 16 bit is on one side of the cut and what must stay float32 on the other; every other type attribute costs the bytes that it reads and writes at
its width, and a tensor whose two ends differ costs a cast, once for each direction however many read it. A minimum cut is the cheapest choice there is, and
of several the one with the fewest 16-bit vertices is taken, which is unique: the result does not hang on the order of nodes (Picard and Queyranne, "On the
structure of all minimum cuts in a network", 1980).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tfmp.colouring import dangers
from tfmp.colouring.canvas import Canvas
from tfmp.colouring.clusters import Clusters, loop_edges
from tfmp.colouring.network import Network
from tfmp.colouring.spread import reads_reference_variable
from tfmp.graph.edges import Array
from tfmp.oplists import CLEAR, INFER


def cut_casts(canvas: Canvas, lists: Clusters) -> None:
    """Paints allow: the free vertices on the 16-bit side of the minimum cut. Free are clear ops, tensor lists, existing casts, and infer ops that 16-bit values
    reach or that stand beside a product.
    """
    edges = loop_edges(canvas)
    if not any(canvas.allow):
        return  # nothing asks for 16 bit
    together = [*lists, *([vertex, *merges] for vertex, merges in edges)]
    free = _free(canvas, lists, together)
    canvas.paint_all(canvas.allowed, Network(canvas, free, together).sixteen(), "cheapest in 16 bit")
    canvas.reasons.set_all_first(free[~canvas.allowed[free]], "cheapest in float32")


def _free(canvas: Canvas, lists: Clusters, together: list[list[int]]) -> Array:
    """Returns the vertices that may go either way; adds to `together` those of a node that has kernels only if all of them change."""
    graph = canvas.graph
    possible = _possible(canvas, lists, together)
    waits = possible & canvas.kinds_at({INFER})
    starts = canvas.allowed | (possible & graph.flags(_beside_products(canvas)))
    reached = graph.fanout.reached(starts, possible)
    expanding = list(dangers.expansions(canvas, np.flatnonzero(waits & ~reached).tolist()))
    if expanding:
        reached = graph.fanout.reached(starts | graph.flags(expanding), possible)
    return np.flatnonzero(possible & (reached | ~waits))


def _possible(canvas: Canvas, lists: Clusters, together: list[list[int]]) -> Array:
    """Returns vertex to whether it may change at all, for those that nothing has decided yet."""
    graph, body = canvas.graph, canvas.graph.body
    casts = body.kinds.which(lambda kind: kind.types[0] != canvas.rules.format.number, {"Cast"})[body.kind_array]
    candidates = np.flatnonzero(_undecided(canvas) & (canvas.kinds_at({CLEAR, INFER}) | casts[graph.nodes]))
    if body.nodes_of(["Variable", "VariableV2"]):
        loops = {vertex for vertex, merges in loop_edges(canvas) for vertex in (vertex, *merges)}
        kept = [vertex not in loops and reads_reference_variable(canvas, graph.node_of[vertex]) for vertex in candidates.tolist()]
        candidates = candidates[~np.array(kept, bool)]
    possible = np.zeros(len(graph), bool)
    possible[candidates] = canvas.told(canvas.supports, candidates)
    others = candidates[~possible[candidates]]
    unsupported: dict[int, list[int]] = {}
    for vertex in others[canvas.told(canvas.supports_type, others)].tolist():
        unsupported.setdefault(graph.node_of[vertex], []).append(vertex)
    for node, vertices in unsupported.items():
        if len(vertices) > 1 and canvas.kernels_exist(node, [vertex - graph.first[node] for vertex in vertices]):
            together.append(vertices)
            possible[vertices] = True
    for vertex in (vertex for cluster in lists for vertex in cluster):
        possible[vertex] = not canvas.deny[vertex] and canvas.processable[graph.node_of[vertex]]
    return possible


def _undecided(canvas: Canvas) -> Array:
    """Returns vertex to whether it is float32, undecided, and of a node that may be changed or of several that are tied."""
    graph = canvas.graph
    alone = canvas.may_change[graph.nodes] & (graph.stand_ins == np.arange(len(graph)))
    return graph.is_float32 & ~(canvas.denied | canvas.allowed) & (alone | graph.is_tied)


def _beside_products(canvas: Canvas) -> Iterator[int]:
    """Yields the gradients of biases that read what the gradient of a kernel reads in 16 bit: both sum the same numbers over the batch."""
    graph = canvas.graph
    for node in graph.body.nodes_of(["BiasAddGrad"]):
        vertex = graph.first[node]
        if canvas.list_of(node) == INFER and any(canvas.allow[reader] for made in graph.fanin[vertex] for reader in graph.fanout[made]):
            yield vertex
