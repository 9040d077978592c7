"""The network whose minimum cut is the cheapest choice of types: what ops, casts and saved activations cost, in bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from tfmp.colouring.canvas import Canvas
from tfmp.colouring.clusters import READERS, WRITERS
from tfmp.colouring.decisions import DECIDING
from tfmp.colouring.flow import least_side
from tfmp.colouring.guards import LARGEST_INTEGER, READS
from tfmp.graph.edges import Array, distinct, starts_of

SHARING = frozenset({
    "CheckNumerics", "EnsureShape", "Enter", "Exit", "ExpandDims", "Identity", "IdentityN", "LoopCond", "Merge", "NextIteration", "PreventGradient", "Reshape",
    "Shape", "ShapeN", "Size", "Rank", "Snapshot", "Squeeze", "StopGradient", "Switch",
})  # fmt: skip
"""Ops that hand on their input's buffer, or look at its shape only: they move no bytes."""

LOOKUPS = frozenset({"Gather", "GatherNd", "GatherV2", "Slice", "StridedSlice"})
"""Ops that read of their first input no more than they write."""

WIDE, NARROW = 4, 2
"""Bytes of a float32 and of a 16-bit number."""

SAVED = 2.0
"""What a byte that waits for the backward part costs, in bytes moved. Our own choice: memory is what limits the batch."""

BACKWARD_SCOPES = ("gradient_tape/", "gradients/")
"""Name scopes in which a tape and `tf.gradients` compute gradients (`backprop.py`, `gradients_util.py`). A guess at what is saved for later, for costs only."""

PER_CAST = 4096
"""Bytes that a cast costs beyond those that it moves, so that small tensors are not cast to and fro. Our own choice; a kernel launch costs more on every
device, but compilers fuse most casts into what reads or makes their tensors.
"""

SIXTEEN, FLOAT = 0, 1
"""The terminals of the network."""


def _backward(canvas: Canvas) -> Array:
    """Returns vertex to whether it computes gradients: those in a scope that says so, and all that read what they make."""
    graph, body = canvas.graph, canvas.graph.body
    tape, v1 = BACKWARD_SCOPES
    names, computes = body.names, ~graph.nodes_are_of(SHARING | {"Const"})
    computes[computes] = [tape in names[node] or v1 in names[node] for node in np.flatnonzero(computes).tolist()]
    return graph.fanout.reached(graph.flags(graph.stand_ins[computes[graph.nodes]]))


class Network:
    """Vertices are those of the type graph that are free, in groups that must agree, and one for each cast that several readers share.

    Everything is worked out for all vertices, tensors or inputs at once, as arrays that are numbered as in `graph.edges`.
    """

    def __init__(self, canvas: Canvas, free: Array, together: Sequence[Sequence[int]]) -> None:
        """Builds the network of the vertices `free`; those of each group in `together` get one colour, float32 unless all of them are free."""
        self._canvas, self._free = canvas, free
        self._edges = canvas.graph.body.edges
        self._size = 2
        self._place = self._places(together)
        self._maker, self._reader = self._makers(), self._place[canvas.graph.read]
        self._arcs: list[tuple[Array, Array, Array]] = []
        self._implied = np.empty((0, 2), np.int32)
        self._weight = canvas.weights
        self._elements = np.zeros(len(self._maker))
        self._add_ops()
        self._add_tensors()

    def _places(self, together: Sequence[Sequence[int]]) -> Array:
        """Returns vertex to its number in the network, or the terminal that it is bound to."""
        graph, leader = self._canvas.graph, np.arange(len(self._canvas.graph))
        is_free = np.zeros(len(graph), bool)
        is_free[self._free] = True
        for members in _united(together):
            leader[members] = min(members)
            is_free[members] &= is_free[members].all()
        places = np.where(self._canvas.allowed, SIXTEEN, FLOAT)
        movable = self._free[is_free[self._free]]
        places[self._free] = FLOAT
        leaders = distinct(leader[movable])
        places[movable] = self._new(len(leaders))[np.searchsorted(leaders, leader[movable])]
        return places[graph.stand_ins]

    def _makers(self) -> Array:
        """Returns tensor to where it comes from: what a Cast has made of a 16-bit tensor is that, to who wants 16 bit."""
        graph, target = self._canvas.graph, self._canvas.rules.format.number
        places = self._place[graph.made]
        places[self._edges.first[self._casts(lambda types: types[0] == target)]] = SIXTEEN
        return places

    def _casts(self, test: Callable[[list[int]], bool]) -> Array:
        """Returns node to whether it is a Cast of whose types, from and to, `test` says yes."""
        body = self._canvas.graph.body
        return body.kinds.which(lambda kind: test(kind.types), {"Cast"})[body.kind_array]

    def _new(self, number: int) -> Array:
        """Returns so many new vertices of the network."""
        self._size += number
        return np.arange(self._size - number, self._size)

    def _connect(self, starts: Array | int, ends: Array | int, capacities: Array) -> None:
        """Adds arcs; those that can never be cut, since a terminal is on the wrong side, are left out."""
        starts, ends = np.broadcast_to(starts, capacities.shape), np.broadcast_to(ends, capacities.shape)
        counts = (starts != ends) & (ends != SIXTEEN) & (starts != FLOAT)
        self._arcs.append((starts[counts], ends[counts], capacities[counts]))

    def _nodes_of(self, ops: Collection[str]) -> Array:
        """Returns node to whether it is of one of these op types."""
        return self._canvas.graph.nodes_are_of(ops)

    def _count(self, tensors: Array) -> None:
        """Looks up the elements of these tensors (a flag for each), unless they are known."""
        edges, sizes = self._edges, self._canvas.sizes
        (asked,) = np.nonzero(tensors & (self._elements == 0))
        makers = edges.maker[asked]
        self._elements[asked] = sizes.all_elements([*zip(makers.tolist(), (asked - edges.first[makers]).tolist(), strict=True)])

    def _add_ops(self) -> None:
        """Each free vertex costs, if it stays float32, the bytes that 16 bit would have saved."""
        canvas, graph, edges = self._canvas, self._canvas.graph, self._edges
        node_of = graph.nodes
        counts = np.zeros(len(graph), bool)
        counts[self._free] = self._place[self._free] != FLOAT
        counts &= ~graph.is_tied
        counts &= ~self._nodes_of(SHARING)[node_of] & (self._weight[node_of] != 0)
        tensors = counts[graph.made]
        tensors[edges.tensor[counts[graph.read]]] = True
        self._count(tensors)
        (vertices,) = np.nonzero(counts)
        nodes = node_of[vertices]
        made = np.bincount(graph.made, self._elements, len(graph))[vertices]
        read = np.bincount(graph.read, self._elements[edges.tensor], len(graph))[vertices]
        elements = made + np.where(self._nodes_of(LOOKUPS)[nodes], np.minimum(read, made), read)
        saved = elements * (WIDE - NARROW)
        removes_a_cast = self._casts(lambda types: types[1] == canvas.rules.format.number)[nodes]
        saved[removes_a_cast] = elements[removes_a_cast] * (WIDE + NARROW) + PER_CAST
        on_lists = self._nodes_of(WRITERS | READERS)[nodes]  # what is on a list waits, and lists are what recurrent layers fill memory with
        saved[on_lists] += elements[on_lists] * (WIDE - NARROW) * SAVED + PER_CAST
        self._connect(SIXTEEN, self._place[vertices], saved * self._weight[nodes])

    def _add_tensors(self) -> None:
        """A tensor costs a cast where its maker and a reader differ, and room where it waits for the backward part."""
        graph, edges = self._canvas.graph, self._edges
        maker, reader = self._maker[edges.tensor], self._reader
        is_float = graph.is_float32[graph.made]
        (inputs,) = np.nonzero(is_float[edges.tensor] & ((maker > FLOAT) | (maker != reader)) & (self._weight[edges.reader] != 0))
        self._imply(inputs)
        costs = _flags(edges.tensor[inputs[(maker > FLOAT)[inputs] | (reader > FLOAT)[inputs]]], len(self._maker)) & ~self._nodes_of(["Const"])[edges.maker]
        self._count(costs)
        inputs = inputs[costs[edges.tensor[inputs]]]
        self._add_casts(costs, inputs)
        backward = _backward(self._canvas)
        later = backward[graph.read[inputs]] & ~backward[graph.made[edges.tensor[inputs]]]
        self._add_saved(costs & ~self._nodes_of(READS)[edges.maker], inputs[later])

    def _imply(self, inputs: Array) -> None:
        """What decides by the last bit is 16 bit only if what it reads is; what a Cast makes of numbers that would be rounded, only if its readers are."""
        edges = self._edges
        source, maker, reader = edges.source[inputs], self._maker[edges.tensor[inputs]], self._reader[inputs]
        deciding = (reader > FLOAT) & self._nodes_of(DECIDING | {"Cast"})[edges.reader[inputs]] & ~self._nodes_of(["Const"])[source]
        exact = self._canvas.rules.format.largest_integer
        rounding = (maker > FLOAT) & self._casts(lambda types: LARGEST_INTEGER.get(types[0], math.inf) > exact)[source]
        pairs = [np.stack([reader, maker], 1)[deciding], np.stack([maker, reader], 1)[rounding]]
        numbers = distinct(np.concatenate(pairs) @ np.array([self._size, 1], np.int64))
        self._implied = np.stack(np.divmod(numbers, self._size), 1)

    def _add_casts(self, costs: Array, inputs: Array) -> None:
        """A cast down is paid if the maker is float32 and a reader is not, a cast up the other way round."""
        edges = self._edges
        # The cast of a variable's value will leave the loops it is in (`rewriting.hoist`).
        times = np.where(self._nodes_of(READS)[edges.maker], 1.0, self._weight[edges.maker])
        cost = (self._elements * (WIDE + NARROW) + PER_CAST) * times
        read_in = {terminal: _flags(edges.tensor[inputs[self._reader[inputs] == terminal]], len(cost)) for terminal in (SIXTEEN, FLOAT)}
        down, up = costs & read_in[SIXTEEN], costs & read_in[FLOAT]
        self._connect(SIXTEEN, self._maker[down], cost[down])
        self._connect(self._maker[up], FLOAT, cost[up])
        movable = inputs[self._reader[inputs] > FLOAT]
        down, up = (costs & ~read_in[terminal] & (self._maker != terminal) for terminal in (SIXTEEN, FLOAT))
        tensors, meeting = self._meet(down, movable, cost, downwards=True)
        self._connect(meeting, self._maker[tensors], cost[tensors])
        tensors, meeting = self._meet(up, movable, cost, downwards=False)
        self._connect(self._maker[tensors], meeting, cost[tensors])

    def _add_saved(self, costs: Array, later: Array) -> None:
        """A tensor that backward ops read (the inputs `later`) waits for them, once in each width in which they read it."""
        edges = self._edges
        cost = self._elements * SAVED * self._weight[edges.maker]
        movable = later[self._reader[later] > FLOAT]
        for width, terminal in ((WIDE, FLOAT), (NARROW, SIXTEEN)):
            waits_anyway = _flags(edges.tensor[later[self._reader[later] == terminal]], len(cost))
            tensors, meeting = self._meet(costs & ~waits_anyway, movable, cost * width, downwards=terminal == SIXTEEN)
            starts, ends = (SIXTEEN, meeting) if terminal == FLOAT else (meeting, FLOAT)
            self._connect(starts, ends, cost[tensors] * width)

    def _meet(self, tensors: Array, inputs: Array, cost: Array, *, downwards: bool) -> tuple[Array, Array]:
        """Returns those of `tensors` (a flag for each) that some of `inputs` read, and for each of them where its readers meet, so that all of them together
        pay once: at the only reader, or in a new vertex that is connected to all.
        """
        edges = self._edges
        inputs = inputs[tensors[edges.tensor[inputs]]]
        read, readers = np.divmod(distinct(edges.tensor[inputs].astype(np.int64) * self._size + self._reader[inputs]), self._size)
        index = starts_of(read)
        counts = np.diff(index, append=len(read))
        found, meeting, several = read[index], readers[index], counts > 1
        meeting[several] = self._new(int(np.count_nonzero(several)))
        shared = np.repeat(several, counts)
        readers, hubs = readers[shared], np.repeat(meeting, counts)[shared]
        self._connect(readers if downwards else hubs, hubs if downwards else readers, cost[read[shared]])
        return found, meeting

    def sixteen(self) -> Array:
        """Returns the free vertices on the 16-bit side."""
        arcs = [np.concatenate(column) for column in zip(*self._arcs, strict=True)]
        if not len(arcs[0]):
            return self._free[:0]
        places = self._place[self._free]
        return self._free[(places > FLOAT) & least_side(self._size, (SIXTEEN, FLOAT), arcs, self._implied)[places]]


def _flags(numbers: Array, size: int) -> Array:
    """Returns for each number below `size` whether it is among `numbers`."""
    found = np.zeros(size, bool)
    found[numbers] = True
    return found


def _united(groups: Iterable[Sequence[int]]) -> list[list[int]]:
    """Returns the groups with those that share a vertex made one."""
    group_of: dict[int, list[int]] = {}
    for group in groups:
        merged = list(dict.fromkeys(vertex for member in group for vertex in group_of.get(member, [member])))
        group_of.update(dict.fromkeys(merged, merged))
    return list({id(group): group for group in group_of.values()}.values())
