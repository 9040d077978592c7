"""Who is connected to whom in a graph, in one direction: as lists for walks over few vertices, as arrays for those over many."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from tfmp.graph.edges import Array

FEW = 150
"""Vertices up to which a walk goes by lists. (Measured: it takes 0.3 us a vertex there, and 60 us to set up arrays for any walk.)"""


class Neighbours(Sequence[list[int]]):
    """Vertex to its neighbours in one direction, in the order in which the connections were given; one that is connected twice is there twice."""

    def __init__(self, vertices: Array, neighbours: Array, size: int) -> None:
        """Takes the two ends of each connection, and the number of vertices."""
        self._size = size
        self._put(vertices, neighbours)

    def _put(self, vertices: Array, neighbours: Array) -> None:
        order = np.argsort(vertices, kind="stable")
        self._vertices, self._neighbours = vertices[order], neighbours[order]
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(vertices, minlength=self._size))])
        self._added: dict[int, list[int]] = {}
        self.__dict__.pop("_lists", None)

    @functools.cached_property
    def _lists(self) -> tuple[list[int], list[int]]:
        """The neighbours of all vertices, one after the other, and where those of each begin."""
        return self._neighbours.tolist(), self._starts.tolist()

    @property
    def degrees(self) -> Array:
        """Vertex to the number of its neighbours."""
        self._take_in_added()
        return np.diff(self._starts)

    def __len__(self) -> int:
        """Returns the number of vertices."""
        return self._size

    def __getitem__(self, vertex: Any) -> Any:
        """Returns the neighbours of a vertex."""
        flat, bounds = self._lists
        found = flat[bounds[vertex] : bounds[vertex + 1]]
        return [*found, *self._added[vertex]] if vertex in self._added else found

    def add(self, vertex: int, neighbour: int) -> None:
        """Adds a connection, after those that the vertex has."""
        self._added.setdefault(vertex, []).append(neighbour)

    def _take_in_added(self) -> None:
        if self._added:
            added = np.array([(vertex, neighbour) for vertex, found in self._added.items() for neighbour in found])
            self._put(np.concatenate([self._vertices, added[:, 0]]), np.concatenate([self._neighbours, added[:, 1]]))

    def among(self, vertices: Array) -> Neighbours:
        """Returns the connections with those neighbours of which `vertices` says so."""
        self._take_in_added()
        is_open = vertices[self._neighbours]
        return Neighbours(self._vertices[is_open], self._neighbours[is_open], self._size)

    def walk(self, starts: Array, enter: Array | None = None, leave: Array | None = None) -> tuple[Array, Array]:
        """Returns `starts` and everything that a path leads to, as `typegraph.reach` does: the vertices, once each, in the order in which they are found,
        and for each the one that it was reached from.

        Args:
          starts: vertices that are entered without asking.
          enter: vertex to whether it may be entered if it is no start; all may, if it is left out.
          leave: vertex to whether its neighbours are looked at; those of all are, if it is left out.
        """
        if not len(starts):
            return np.empty(0, np.int32), np.empty(0, np.int32)
        self._take_in_added()
        return (self._walk_few(starts.tolist(), enter, leave) if len(starts) <= FEW else None) or self._walk_many(starts, enter, leave)

    def _walk_few(self, starts: list[int], enter: Array | None, leave: Array | None) -> tuple[Array, Array] | None:
        """Does what `walk` does; returns None if more than `FEW` vertices are found."""
        (flat, bounds), found = self._lists, list(dict.fromkeys(starts))
        origins, is_closed = found.copy(), bytearray(self._size if enter is None else (~enter).tobytes())
        leaves = None if leave is None else leave.tobytes()
        for start in found:
            is_closed[start] = 1
        for vertex in found:  # grows while it is walked
            if leaves is None or leaves[vertex]:
                for neighbour in flat[bounds[vertex] : bounds[vertex + 1]]:
                    if not is_closed[neighbour]:
                        is_closed[neighbour] = 1
                        found.append(neighbour)
                        origins.append(vertex)
                if len(found) > FEW:
                    return None
        return np.array(found, np.int32), np.array(origins, np.int32)

    def _walk_many(self, starts: Array, enter: Array | None, leave: Array | None) -> tuple[Array, Array]:
        """Does what `walk` does."""
        vertices, neighbours, bounds = self._vertices, self._neighbours, self._starts
        if enter is not None or leave is not None:
            is_open = np.ones(len(neighbours), bool) if enter is None else enter[neighbours]
            if leave is not None:
                is_open &= leave[vertices]
            if not is_open.any():
                return (found := first_of_each(starts)[0]), found
            neighbours = neighbours[is_open]
            bounds = np.concatenate([[0], np.cumsum(is_open)])[bounds]
        size = self._size  # also the number of a vertex before all starts
        steps = csr_array(
            (np.ones(len(neighbours) + len(starts)), np.concatenate([neighbours, starts]), np.append(bounds, len(neighbours) + len(starts))),
            shape=(size + 1, size + 1),
        )
        found, origins = breadth_first_order(steps, size)
        found = found[1:]
        return found, np.where(origins[found] == size, found, origins[found])

    def reached(self, starts: Array, enter: Array | None = None) -> Array:
        """Returns vertex to whether `walk` finds it; `starts` says of each vertex whether it is one."""
        found = np.zeros(len(self), bool)
        found[self.walk(np.flatnonzero(starts), enter)[0]] = True
        return found


def first_of_each(numbers: Array) -> tuple[Array, Array]:
    """Returns `numbers` (natural ones, none of them large), each where it comes first, and those positions."""
    positions = np.arange(len(numbers))
    first = np.empty(numbers.max(initial=-1) + 1, np.int64)
    first[numbers[::-1]] = positions[::-1]  # of what is there twice, the last one that is written stays
    positions = positions[first[numbers] == positions]
    return numbers[positions], positions
