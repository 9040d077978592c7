"""Who is connected to whom in a type graph, in one direction: as lists for walks over few vertices, as arrays for those over many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from tfmp.colouring.painted import first_of_each
from tfmp.graph.edges import Array


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
        self._flat: list[int] = self._neighbours.tolist()
        self._bounds: list[int] = self._starts.tolist()
        self._added: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """Returns the number of vertices."""
        return self._size

    def __getitem__(self, vertex: Any) -> Any:
        """Returns the neighbours of a vertex."""
        found = self._flat[self._bounds[vertex] : self._bounds[vertex + 1]]
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
