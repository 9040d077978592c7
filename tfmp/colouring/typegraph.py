"""The graph that is coloured: its vertices are the type attributes of nodes, its edges the tensors between them.

`GraphTypeTopologyView` in TensorFlow's `auto_mixed_precision.cc` is the same graph; plain lists of integers keep it fast in Python.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tfmp.dtypes import DT_FLOAT, REF_OFFSET
from tfmp.errors import GraphError
from tfmp.graph.edges import Array, grouped, laid_out
from tfmp.graph.schema import Slot
from tfmp.graph.view import Body, plain
from tfmp.program.union import End


class TypeGraph:
    """The type graph of one body, or of the united bodies of a whole program. Built once; passes add only the implicit edges between writers and readers
    of tensor lists.

    Where slots are tied (an argument and what is handed to it), one vertex stands for all of them: `vertex` and every edge lead to it, and it has no
    effect of its own, like a clearlist op.

    Attributes:
      body: what it was built from.
      first: node to its first vertex; a node's vertices are consecutive, one a slot.
      node_of: vertex to its node.
      dtype: vertex to its type number (of the value, for a reference).
      fanin, fanout: vertex to its neighbours; one that is connected twice is there twice.
      stands_for: vertex to the one that stands for it, mostly itself.
      tied: the vertices that stand for several.
    """

    def __init__(self, body: Body, ties: Sequence[tuple[End, End]] = ()) -> None:
        """Builds the vertices and edges of `body`; raises `GraphError` if tied slots have different types."""
        self.body = body
        starts, nodes = laid_out(body.types)
        self.first: list[int] = starts.tolist()
        self.node_of: list[int] = nodes.tolist()
        self.dtype: list[int] = list(itertools.chain.from_iterable(body.types))
        if max(self.dtype, default=0) > REF_OFFSET:
            self.dtype = [plain(dtype) for dtype in self.dtype]
        self.stands_for, self.tied = self._tie(ties)
        self._arrows = self._between(self.made[body.edges.tensor], self.read)
        sources, readers = self._arrows
        self.fanin, self.fanout = grouped(readers, sources, len(self)), grouped(sources, readers, len(self))
        self._added: list[tuple[int, int]] = []

    @functools.cached_property
    def nodes(self) -> Array:
        """Vertex to its node."""
        return np.array(self.node_of, np.int32)

    @functools.cached_property
    def is_float32(self) -> Array:
        """Vertex to whether its type is float32."""
        return np.array(self.dtype, np.int32) == DT_FLOAT

    @functools.cached_property
    def made(self) -> Array:
        """Tensor, as numbered in `body.edges`, to the vertex of its type."""
        return np.array(self.first, np.int32)[self.body.edges.maker] + self.body.edges.maker_slot

    @functools.cached_property
    def read(self) -> Array:
        """Input, as numbered in `body.edges`, to the vertex of its type."""
        return np.array(self.first, np.int32)[self.body.edges.reader] + self.body.edges.reader_slot

    def _between(self, sources: Array, readers: Array) -> tuple[Array, Array]:
        if not self.tied:
            return sources, readers
        stands_for = np.array(self.stands_for, np.int32)
        return stands_for[sources], stands_for[readers]

    @property
    def arrows(self) -> tuple[Array, Array]:
        """The edges as two arrays: what they come from and what they lead to."""
        if not self._added:
            return self._arrows
        added = np.array(self._added, np.int32).T
        return np.concatenate([self._arrows[0], added[0]]), np.concatenate([self._arrows[1], added[1]])

    def _tie(self, ties: Sequence[tuple[End, End]]) -> tuple[Sequence[int], frozenset[int]]:
        if not ties:
            return range(len(self.node_of)), frozenset()
        pairs = [(self.first[a] + slot_a, self.first[b] + slot_b) for (a, slot_a), (b, slot_b) in ties]
        for a, b in pairs:
            if self.dtype[a] != self.dtype[b]:
                names = [f"{self.op(v)} {self.body.names[self.node_of[v]]!r}" for v in (a, b)]
                raise GraphError(f"{names[0]} and {names[1]} share a value, but have the types {self.dtype[a]} and {self.dtype[b]}.")
        rows, columns = zip(*pairs, strict=True)
        size = len(self.node_of)
        labels = connected_components(coo_array(([1] * len(pairs), (rows, columns)), shape=(size, size)), directed=False)[1].tolist()
        smallest: dict[int, int] = {}
        stands_for = [smallest.setdefault(label, vertex) for vertex, label in enumerate(labels)]
        return stands_for, frozenset(stands_for[a] for a, _ in pairs)

    def __len__(self) -> int:
        """Returns the number of vertices, those that another stands for included."""
        return len(self.node_of)

    def part(self, body: Body, first_node: int) -> TypeGraph:
        """Returns the vertices, without edges and ties, of the nodes of `body`, whose first one is `first_node` here."""
        if body is self.body:
            return self
        part = TypeGraph.__new__(TypeGraph)
        start = self.first[first_node] if len(body) else 0
        end = start + sum(map(len, body.types))
        part.body, part.fanin, part.fanout = body, [], []
        part.first = [vertex - start for vertex in self.first[first_node : first_node + len(body)]]
        part.node_of = [node - first_node for node in self.node_of[start:end]]
        part.dtype = self.dtype[start:end]
        part.stands_for, part.tied = range(end - start), frozenset()
        return part

    def are_of(self, ops: Iterable[str]) -> Array:
        """Returns vertex to whether its node is of one of these op types."""
        found = np.zeros(len(self.body), bool)
        found[self.body.nodes_of(ops)] = True
        return found[self.nodes]

    def flags(self, vertices: Iterable[int] | Array) -> Array:
        """Returns vertex to whether it is among `vertices`."""
        found = np.zeros(len(self), bool)
        found[vertices if isinstance(vertices, np.ndarray) else list(vertices)] = True
        return found

    def add_edge(self, source: int, reader: int) -> None:
        """Adds an edge; one that is there twice does no harm, and looking for it would cost quadratic time at a tensor with many readers."""
        self.fanout[source].append(reader)
        self.fanin[reader].append(source)
        self._added.append((source, reader))

    def vertices(self, node: int) -> range:
        """Returns the vertices of `node`."""
        return range(self.first[node], self.first[node] + len(self.body.types[node]))

    def vertex(self, node: int, slot: Slot) -> int | None:
        """Returns the vertex that stands for one slot of `node`, or None if the node has no such slot."""
        number = self.body.layouts[node].number.get(slot)
        return None if number is None else self.stands_for[self.first[node] + number]

    def slot(self, vertex: int) -> Slot:
        """Returns which slot of its node `vertex` is."""
        node = self.node_of[vertex]
        return self.body.layouts[node].slots[vertex - self.first[node]]

    def op(self, vertex: int) -> str:
        """Returns the op type of the node of `vertex`."""
        return self.body.ops[self.node_of[vertex]]


Adjacency = Sequence[Sequence[int]]
"""Vertex to its neighbours in one direction."""


def reach(starts: Iterable[int], directions: Sequence[Adjacency], enter: Callable[[int], object]) -> list[tuple[int, int]]:
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
