"""The graph that is coloured: its vertices are the type attributes of nodes, its edges the tensors between them.

`GraphTypeTopologyView` in TensorFlow's `auto_mixed_precision.cc` is the same graph; plain lists of integers keep it fast in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tfmp.dtypes import REF_OFFSET
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
            self.dtype.extend(types)
        if max(self.dtype, default=0) > REF_OFFSET:
            self.dtype = [plain(dtype) for dtype in self.dtype]
        self.fanin: list[list[int]] = [[] for _ in self.node_of]
        self.fanout: list[list[int]] = [[] for _ in self.node_of]
        first, layouts, fanin, fanout = self.first, body.layouts, self.fanin, self.fanout
        for node, edges in enumerate(body.inputs):
            for (source, output), slot in zip(edges, layouts[node].inputs, strict=True):
                from_vertex, to_vertex = first[source] + layouts[source].outputs[output], first[node] + slot
                fanout[from_vertex].append(to_vertex)  # as `add_edge`, in line: this is the busiest loop of a conversion
                fanin[to_vertex].append(from_vertex)

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


Adjacency = Sequence[Sequence[int]]
"""Vertex to its neighbours in one direction."""


def reach(starts: Iterable[int], directions: Sequence[Adjacency], enter: Callable[[int], bool]) -> list[tuple[int, int]]:
    """Returns `starts`, and everything that a path through entered vertices leads to, once each, with the vertex it was reached from (a start: itself).

    Args:
      starts: vertices that are entered without asking.
      directions: the adjacencies to follow, such as `(graph.fanin,)`.
      enter: whether a vertex that is not a start may be entered.
    """
    found = [(start, start) for start in dict.fromkeys(starts)]
    seen = {start for start, _ in found}
    for vertex, _ in found:  # grows while it is walked
        for adjacency in directions:
            for neighbour in adjacency[vertex]:
                if neighbour not in seen and enter(neighbour):
                    seen.add(neighbour)
                    found.append((neighbour, vertex))
    return found
