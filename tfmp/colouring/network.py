"""The network whose minimum cut is the cheapest choice of types: what ops, casts and saved activations cost, in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from tfmp.colouring.canvas import Canvas
from tfmp.colouring.clusters import READERS, WRITERS
from tfmp.colouring.decisions import DECIDING
from tfmp.colouring.guards import LARGEST_INTEGER, READS
from tfmp.colouring.typegraph import reach
from tfmp.dtypes import DT_FLOAT
from tfmp.graph.view import Edge

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

LARGEST_TOTAL = 2**30
"""Sum of all capacities, so that a flow fits the 32-bit integers of `scipy.sparse.csgraph.maximum_flow`."""

SIXTEEN, FLOAT = 0, 1
"""The terminals of the network."""


def _backward(canvas: Canvas) -> bytearray:
    """Returns vertex to 1 if it computes gradients: those in a scope that says so, and all that read what they make."""
    graph, body = canvas.graph, canvas.graph.body
    found = bytearray(len(graph))
    named = [node for node, name in enumerate(body.names) if any(scope in name for scope in BACKWARD_SCOPES)]
    starts = [graph.stands_for[v] for node in named if body.ops[node] not in SHARING and body.ops[node] != "Const" for v in graph.vertices(node)]
    for vertex, _ in reach(starts, (graph.fanout,), lambda v: True):
        found[vertex] = 1
    return found


class Network:
    """Vertices are those of the type graph that are free, in groups that must agree, and one for each cast that several readers share."""

    def __init__(self, canvas: Canvas, free: Sequence[int], together: Sequence[Sequence[int]]) -> None:
        """Builds the network of the vertices `free`; those of each group in `together` get one colour, float32 unless all of them are free."""
        self._canvas, self._free = canvas, free
        self._leader = self._groups(together)
        is_free = set(free)
        for members in self._members.values():
            if not is_free.issuperset(members):
                is_free.difference_update(members)
        self._number: dict[int, int] = {}
        for vertex in free:
            if vertex in is_free:
                leader = self._leader.get(vertex, vertex)
                self._number.setdefault(leader, 2 + len(self._number))
        self._size = 2 + len(self._number)
        self._capacities: dict[tuple[int, int], float] = {}
        self._implied: set[tuple[int, int]] = set()
        self._place = self._places()
        self._backward = _backward(canvas)
        self._add_ops()
        self._add_tensors()

    def _groups(self, together: Sequence[Sequence[int]]) -> dict[int, int]:
        """Returns vertex to the smallest vertex that must have the same colour, for those that are not alone; fills `_members`."""
        leader: dict[int, int] = {}

        def find(vertex: int) -> int:
            while leader.setdefault(vertex, vertex) != vertex:
                vertex = leader[vertex]
            return vertex

        for group in together:
            smallest = min(map(find, group), default=-1)
            for vertex in group:
                leader[find(vertex)] = smallest
        self._members: dict[int, list[int]] = {}
        for vertex in leader:
            self._members.setdefault(find(vertex), []).append(vertex)
        return {vertex: top for top, members in self._members.items() for vertex in members}

    def _places(self) -> list[int]:
        """Returns vertex to its number in the network, or the terminal that it is bound to."""
        places = [SIXTEEN if allow else FLOAT for allow in self._canvas.allow]
        for vertex in self._free:
            places[vertex] = self._number.get(self._leader.get(vertex, vertex), FLOAT)
        stands_for = self._canvas.graph.stands_for
        return [places[one] for one in stands_for] if self._canvas.graph.tied else places

    def _connect(self, start: int, end: int, capacity: float) -> None:
        if start != end and end != SIXTEEN and start != FLOAT:
            self._capacities[start, end] = self._capacities.get((start, end), 0.0) + capacity

    def _add_ops(self) -> None:
        """Each free vertex costs, if it stays float32, the bytes that 16 bit would have saved."""
        canvas, graph, body, sizes = self._canvas, self._canvas.graph, self._canvas.graph.body, self._canvas.sizes
        target = canvas.rules.format.number
        for vertex in self._free:
            place, node = self._place[vertex], graph.node_of[vertex]
            if place == FLOAT or vertex in graph.tied or body.ops[node] in SHARING or not canvas.weight(node):
                continue
            slot, layout = vertex - graph.first[node], body.layouts[node]
            made = sum(sizes.elements((node, port)) for port, number in enumerate(layout.outputs) if number == slot)
            read = sum(sizes.elements(edge) for edge, number in zip(body.inputs[node], layout.inputs, strict=True) if number == slot)
            elements = made + (min(read, made) if body.ops[node] in LOOKUPS else read)
            removes_a_cast = body.ops[node] == "Cast" and body.types[node][1] == target
            saved: float = elements * (WIDE + NARROW) + PER_CAST if removes_a_cast else elements * (WIDE - NARROW)
            if body.ops[node] in WRITERS or body.ops[node] in READERS:  # what is on a list waits, and lists are what recurrent layers fill memory with
                saved += elements * (WIDE - NARROW) * SAVED + PER_CAST
            self._connect(SIXTEEN, place, saved * canvas.weight(node))

    def _add_tensors(self) -> None:
        canvas, body = self._canvas, self._canvas.graph.body
        first, layouts, place_of, dtype = canvas.graph.first, body.layouts, self._place, canvas.graph.dtype
        maker_of, makers = self._makers(), dict[Edge, int]()
        readers: dict[Edge, set[int]] = {}
        later: dict[Edge, set[int]] = {}
        for node, edges in enumerate(body.inputs):  # the busiest loop of the cut
            start, slots = first[node], layouts[node].inputs
            for edge, slot in zip(edges, slots, strict=True):
                source, port = edge
                made = first[source] + layouts[source].outputs[port]
                maker, reader = maker_of[made], place_of[start + slot]
                if (maker == reader and maker <= FLOAT) or dtype[made] != DT_FLOAT or not canvas.weight(node):
                    continue
                if edge not in makers:
                    makers[edge] = maker
                    readers[edge], later[edge] = set(), set()
                readers[edge].add(reader)
                if self._backward[made] < self._backward[start + slot]:
                    later[edge].add(reader)
                self._imply(edge, maker, node, reader)
        for edge, maker in makers.items():
            op = body.ops[edge[0]]
            if op != "Const" and (maker > FLOAT or max(readers[edge]) > FLOAT):
                self._add_tensor(edge, maker, readers[edge])
                if op not in READS:
                    self._add_saved(edge, later[edge])

    def _makers(self) -> list[int]:
        """Returns vertex to where its tensors come from: what a Cast has made of a 16-bit tensor is that, to who wants 16 bit."""
        graph, target = self._canvas.graph, self._canvas.rules.format.number
        places = list(self._place)
        for node, op in enumerate(graph.body.ops):
            if op == "Cast" and graph.body.types[node][0] == target:
                places[graph.first[node] + graph.body.layouts[node].outputs[0]] = SIXTEEN
        return places

    def _imply(self, edge: Edge, maker: int, node: int, reader: int) -> None:
        """What decides by the last bit is 16 bit only if what it reads is; what a Cast makes of numbers that would be rounded, only if its readers are."""
        body, source = self._canvas.graph.body, edge[0]
        if reader > FLOAT and body.ops[source] != "Const" and (body.ops[node] == "Cast" or body.ops[node] in DECIDING):
            self._implied.add((reader, maker))
        if maker > FLOAT and body.ops[source] == "Cast":
            exact = LARGEST_INTEGER.get(body.types[source][0], math.inf) <= self._canvas.rules.format.largest_integer
            if not exact:
                self._implied.add((maker, reader))

    def _add_tensor(self, edge: Edge, maker: int, places: set[int]) -> None:
        """A cast down is paid if the maker is float32 and a reader is not, a cast up the other way round."""
        is_read = self._canvas.graph.body.ops[edge[0]] in READS  # whose cast will leave the loops it is in (`rewriting.hoist`)
        cost = (self._canvas.sizes.elements(edge) * (WIDE + NARROW) + PER_CAST) * (1 if is_read else self._canvas.weight(edge[0]))
        movable = sorted(place for place in places if place > FLOAT)
        if SIXTEEN in places:
            self._connect(SIXTEEN, maker, cost)
        elif maker != SIXTEEN and movable:
            down = movable[0] if len(movable) == 1 else self._shared()
            for place in movable if len(movable) > 1 else ():
                self._connect(place, down, cost)
            self._connect(down, maker, cost)
        if FLOAT in places:
            self._connect(maker, FLOAT, cost)
        elif maker != FLOAT and movable:
            up = movable[0] if len(movable) == 1 else self._shared()
            for place in movable if len(movable) > 1 else ():
                self._connect(up, place, cost)
            self._connect(maker, up, cost)

    def _add_saved(self, edge: Edge, places: set[int]) -> None:
        """A tensor that backward ops read waits for them, once in each width in which they read it."""
        cost = self._canvas.sizes.elements(edge) * SAVED * self._canvas.weight(edge[0])
        movable = sorted(place for place in places if place > FLOAT)
        for width, terminal in ((WIDE, FLOAT), (NARROW, SIXTEEN)):
            if terminal in places or not movable:
                continue
            one = movable[0] if len(movable) == 1 else self._shared()
            for place in movable if len(movable) > 1 else ():
                self._connect(*((one, place) if terminal == FLOAT else (place, one)), cost * width)
            self._connect(*((SIXTEEN, one) if terminal == FLOAT else (one, FLOAT)), cost * width)

    def _shared(self) -> int:
        self._size += 1
        return self._size - 1

    def sixteen(self) -> Iterator[int]:
        """Yields the free vertices on the 16-bit side."""
        if not self._capacities:
            return
        scale = min(1.0, LARGEST_TOTAL / sum(self._capacities.values()))
        whole = {edge: max(1, round(capacity * scale)) for edge, capacity in self._capacities.items()}
        whole |= dict.fromkeys(self._implied, LARGEST_TOTAL)
        rows, columns = zip(*whole, strict=True)
        capacities = csr_array((np.fromiter(whole.values(), np.int32), (rows, columns)), shape=(self._size, self._size), dtype=np.int32)
        residual = csr_array(capacities - maximum_flow(capacities, SIXTEEN, FLOAT).flow)
        residual.eliminate_zeros()
        reached = set(breadth_first_order(residual, SIXTEEN, directed=True, return_predecessors=False).tolist())
        for vertex in self._free:
            if self._number.get(self._leader.get(vertex, vertex)) in reached:
                yield vertex
