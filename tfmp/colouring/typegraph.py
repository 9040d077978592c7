"""The graph that is coloured: its vertices are the type attributes of nodes, its edges the tensors between them.

`GraphTypeTopologyView` in TensorFlow's `auto_mixed_precision.cc` is the same graph; plain lists of integers keep it fast in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tfmp.graph.schema import Slot
from tfmp.graph.view import Body, plain


class TypeGraph:
    """The type graph of one body. Built once; passes add only the implicit edges between writers and readers of tensor lists.

    Attributes:
      body: what it was built from.
      first: node to its first vertex; a node's vertices are consecutive, one a slot.
      node_of: vertex to its node.
      dtype: vertex to its type number (of the value, for a reference).
      fanin, fanout: vertex to its neighbours; one that is connected twice is there twice.
    """

    def __init__(self, body: Body) -> None:
        """Builds the vertices and edges of `body`."""
        self.body = body
        self.first: list[int] = []
        self.node_of: list[int] = []
        self.dtype: list[int] = []
        for node, types in enumerate(body.types):
            self.first.append(len(self.node_of))
            self.node_of.extend([node] * len(types))
            self.dtype.extend(map(plain, types))
        self.fanin: list[list[int]] = [[] for _ in self.node_of]
        self.fanout: list[list[int]] = [[] for _ in self.node_of]
        for node, edges in enumerate(body.inputs):
            base, slots = self.first[node], body.layouts[node].inputs
            for port, (source, output) in enumerate(edges):
                self.add_edge(self.first[source] + body.layouts[source].outputs[output], base + slots[port])

    def __len__(self) -> int:
        """Returns the number of vertices."""
        return len(self.node_of)

    def add_edge(self, source: int, reader: int) -> None:
        """Adds an edge; one that is there twice does no harm, and looking for it would cost quadratic time at a tensor with many readers."""
        self.fanout[source].append(reader)
        self.fanin[reader].append(source)

    def vertices(self, node: int) -> range:
        """Returns the vertices of `node`."""
        return range(self.first[node], self.first[node] + len(self.body.types[node]))

    def vertex(self, node: int, slot: Slot) -> int | None:
        """Returns the vertex of one slot of `node`, or None if the node has no such slot."""
        number = self.body.layouts[node].number.get(slot)
        return None if number is None else self.first[node] + number

    def slot(self, vertex: int) -> Slot:
        """Returns which slot of its node `vertex` is."""
        node = self.node_of[vertex]
        return self.body.layouts[node].slots[vertex - self.first[node]]

    def op(self, vertex: int) -> str:
        """Returns the op type of the node of `vertex`."""
        return self.body.ops[self.node_of[vertex]]


def reach(starts: Iterable[int], neighbours: Callable[[int], Iterable[int]], enter: Callable[[int], bool], visit: Callable[[int, int], None]) -> None:
    """Visits `starts`, and everything that a path through entered vertices leads to, once each.

    Args:
      starts: vertices that are entered without asking.
      neighbours: the vertices next to one.
      enter: whether a vertex that is not a start may be entered. Asked before `visit`, so it may depend on what `visit` has recorded.
      visit: called with each vertex and the vertex it was reached from (itself, for a start).
    """
    stack = [(start, start) for start in starts]
    seen = {start for start, _ in stack}
    while stack:
        vertex, origin = stack.pop()
        visit(vertex, origin)
        for neighbour in neighbours(vertex):
            if neighbour not in seen and enter(neighbour):
                seen.add(neighbour)
                stack.append((neighbour, vertex))
