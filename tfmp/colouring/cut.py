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
from tfmp.graph.edges import Array, reachable
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
    network = Network(canvas, free, together)
    for vertex in network.sixteen():
        canvas.paint_allow(vertex, "cheapest in 16 bit")
    canvas.explain((vertex for vertex in free if not canvas.allow[vertex]), "cheapest in float32")


def _free(canvas: Canvas, lists: Clusters, together: list[list[int]]) -> list[int]:
    """Returns the vertices that may go either way; adds to `together` those of a node that has kernels only if all of them change."""
    graph = canvas.graph
    possible, tied = _possible(canvas, lists, together), graph.flags(graph.tied)
    waits = possible & canvas.are_on({INFER}) & ~tied
    starts = np.frombuffer(canvas.allow, bool) | (possible & graph.flags(_beside_products(canvas)))
    reached = reachable(graph.arrows, starts, possible)
    expanding = list(dangers.expansions(canvas, np.nonzero(waits & ~reached)[0].tolist()))
    if expanding:
        reached = reachable(graph.arrows, starts | graph.flags(expanding), possible)
    return np.nonzero(possible & (reached | ~waits))[0].tolist()


def _possible(canvas: Canvas, lists: Clusters, together: list[list[int]]) -> Array:
    """Returns vertex to whether it may change at all, for those that nothing has decided yet."""
    graph, body = canvas.graph, canvas.graph.body
    loops = {vertex for vertex, merges in loop_edges(canvas) for vertex in (vertex, *merges)}
    casts = (v for node in body.nodes_of(["Cast"]) if body.types[node][0] != canvas.rules.format.number for v in graph.vertices(node))
    candidates = _may_change(canvas) & (canvas.are_on({CLEAR, INFER}) | graph.flags((*graph.tied, *casts)))
    possible = np.zeros(len(graph), bool)
    unsupported: dict[int, list[int]] = {}
    has_references = bool(body.nodes_of(["Variable", "VariableV2"]))
    for vertex in np.nonzero(candidates)[0].tolist():
        if not has_references or vertex in loops or not reads_reference_variable(canvas, graph.node_of[vertex]):
            possible[vertex] = canvas.supports(vertex)
            if not possible[vertex] and canvas.supports_type(vertex):
                unsupported.setdefault(graph.node_of[vertex], []).append(vertex)
    for node, vertices in unsupported.items():
        if len(vertices) > 1 and canvas.kernels_exist(node, [vertex - graph.first[node] for vertex in vertices]):
            together.append(vertices)
            possible[vertices] = True
    for vertex in (vertex for cluster in lists for vertex in cluster):
        possible[vertex] = not canvas.deny[vertex] and canvas.processable[graph.node_of[vertex]]
    return possible


def _may_change(canvas: Canvas) -> Array:
    """Returns vertex to whether it is float32, undecided, and of a node that may be changed or of several that are tied."""
    graph = canvas.graph
    decided = np.frombuffer(canvas.deny, bool) | np.frombuffer(canvas.allow, bool)
    alone = np.frombuffer(canvas.processable, bool)[graph.nodes] & (np.array(graph.stands_for) == np.arange(len(graph)))
    return graph.is_float32 & ~decided & (alone | graph.flags(graph.tied))


def _beside_products(canvas: Canvas) -> Iterator[int]:
    """Yields the gradients of biases that read what the gradient of a kernel reads in 16 bit: both sum the same numbers over the batch."""
    graph = canvas.graph
    for node in graph.body.nodes_of(["BiasAddGrad"]):
        vertex = graph.first[node]
        if canvas.kind[node] == INFER and any(canvas.allow[reader] for made in graph.fanin[vertex] for reader in graph.fanout[made]):
            yield vertex
