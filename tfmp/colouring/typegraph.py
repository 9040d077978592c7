"""The graph that is coloured: its vertices are the type attributes of nodes, its edges the tensors between them.

`GraphTypeTopologyView` in TensorFlow's `auto_mixed_precision.cc` is the same graph. Walks over few vertices go by plain lists of integers, those over many by
arrays (`graph.neighbours`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tfmp.dtypes import DT_FLOAT
from tfmp.errors import GraphError
from tfmp.graph.body import Body, plain
from tfmp.graph.edges import Array, laid_out
from tfmp.graph.neighbours import Neighbours
from tfmp.graph.schema import Slot
from tfmp.program.union import End


class TypeGraph:
    """The type graph of one body, or of the united bodies of a whole program. Built once; passes add only the implicit edges between writers and readers
    of tensor lists.

    Where slots are tied (an argument and what is handed to it), one vertex stands for all of them: `vertex` and every edge lead to it, and it has no
    effect of its own, like a clearlist op.

    Attributes:
      body: what it was built from.
      first: node to its first vertex; a node's vertices are consecutive, one a slot. `first_array` is the same.
      node_of: vertex to its node. `nodes` is the same, as an array.
      dtype: vertex to its type number (of the value, for a reference).
      is_float32: vertex to whether that is float32.
      sort: vertex to a number that is the same for the same slot of nodes of one kind.
      fanin, fanout: vertex to its neighbours; one that is connected twice is there twice.
      stands_for: vertex to the one that stands for it, mostly itself.
      tied: the vertices that stand for several.
    """

    def __init__(self, body: Body, ties: Sequence[tuple[End, End]] = ()) -> None:
        """Builds the vertices and edges of `body`; raises `GraphError` if tied slots have different types."""
        self.body = body
        types = [kind.types for kind in body.kinds.table]
        starts, _ = laid_out(types)
        lengths = np.fromiter(map(len, types), np.int32, len(types))[body.kind_array]
        first = np.cumsum(lengths, dtype=np.int32) - lengths
        self.nodes = np.repeat(np.arange(len(body), dtype=np.int32), lengths)
        self.sort = np.repeat(starts[body.kind_array] - first, lengths) + np.arange(len(self.nodes), dtype=np.int32)
        dtype = np.array([plain(dtype) for kind in types for dtype in kind], np.int32)[self.sort]
        self.is_float32 = dtype == DT_FLOAT
        self.first_array = first
        self.first: list[int] = first.tolist()
        self.node_of: list[int] = self.nodes.tolist()
        self.dtype: list[int] = dtype.tolist()
        self.stands_for, self.tied = self._tie(ties)
        sources, readers = self._between(self.made[body.edges.tensor], self.read)
        self.fanin, self.fanout = Neighbours(readers, sources, len(self)), Neighbours(sources, readers, len(self))

    @functools.cached_property
    def made(self) -> Array:
        """Tensor, as numbered in `body.edges`, to the vertex of its type."""
        return self.first_array[self.body.edges.maker] + self.body.edges.maker_slot

    @functools.cached_property
    def read(self) -> Array:
        """Input, as numbered in `body.edges`, to the vertex of its type."""
        return self.first_array[self.body.edges.reader] + self.body.edges.reader_slot

    @functools.cached_property
    def is_tied(self) -> Array:
        """Vertex to whether it stands for several."""
        return self.flags(self.tied)

    def _between(self, sources: Array, readers: Array) -> tuple[Array, Array]:
        return (self.stand_ins[sources], self.stand_ins[readers]) if self.tied else (sources, readers)

    @functools.cached_property
    def stand_ins(self) -> Array:
        """`stands_for` as an array."""
        return np.array(self.stands_for, np.int32) if self.tied else np.arange(len(self), dtype=np.int32)

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
        nodes, vertices = slice(first_node, first_node + len(body)), slice(start, end)
        nothing = np.empty(0, np.int32)
        part.body, part.fanin, part.fanout = body, Neighbours(nothing, nothing, end - start), Neighbours(nothing, nothing, end - start)
        part.nodes, part.first_array = self.nodes[vertices] - np.int32(first_node), self.first_array[nodes] - np.int32(start)
        part.first, part.node_of = part.first_array.tolist(), part.nodes.tolist()
        part.dtype, part.is_float32, part.sort = self.dtype[vertices], self.is_float32[vertices], self.sort[vertices]
        part.stands_for, part.tied = range(end - start), frozenset()
        return part

    def are_of(self, ops: Collection[str]) -> Array:
        """Returns vertex to whether its node is of one of these op types."""
        return self.nodes_are_of(ops)[self.nodes]

    def nodes_are_of(self, ops: Collection[str]) -> Array:
        """Returns node to whether it is of one of these op types."""
        return self.body.kinds.are_of(ops)[self.body.kind_array]

    def flags(self, vertices: Iterable[int] | Array) -> Array:
        """Returns vertex to whether it is among `vertices`."""
        found = np.zeros(len(self), bool)
        found[vertices if isinstance(vertices, np.ndarray) else list(vertices)] = True
        return found

    def add_edge(self, source: int, reader: int) -> None:
        """Adds an edge; one that is there twice does no harm, and looking for it would cost quadratic time at a tensor with many readers."""
        self.fanout.add(source, reader)
        self.fanin.add(reader, source)

    def vertices_of(self, nodes: Array) -> tuple[Array, Array]:
        """Returns the vertices of `nodes`, in that order, and for each the position of its node there; a node that is there twice has them twice."""
        ends = np.append(self.first_array, np.int32(len(self)))
        lengths = ends[nodes + 1] - ends[nodes]
        position = np.repeat(np.arange(len(nodes)), lengths)
        return ends[nodes][position] + np.arange(len(position)) - (np.cumsum(lengths) - lengths)[position], position

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
