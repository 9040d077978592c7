"""Large tensors that need not be made: what is done to every copy of a statistic is done once, before it is copied; arithmetic that changes nothing is passed
by.

Gradients of means and sums copy a statistic to the size of the data (Tile, BroadcastTo) and divide the copies by a count; dropout scales its random numbers
by 1 and adds 0; gradients of broadcasts sum over no axes. Moving those ops changes no bit of any result, since each element is computed from the same numbers
in the same order. It saves their traffic in any type, and it brings a sum back to the size of the data before 16 bit has to hold it.
"""

from __future__ import annotations

import functools

import numpy as np

from tfmp.dtypes import DT_FLOAT
from tfmp.graph.body import Body, Edge
from tfmp.graph.edges import Array
from tfmp.graph.kinds import Kind
from tfmp.program.ranges import ANYTHING, Ranges, constant
from tfmp.program.shapes import Shape, Sizes
from tfmp.program.sizes import SameSizes

COPIES = frozenset({"BroadcastTo", "Tile"})
"""Ops that only repeat the elements of their first input."""

SCALINGS = {"Div": (0,), "Mul": (0, 1), "RealDiv": (0,)}
"""Ops that do the same to each element if their other input is a scalar, to the inputs that may be the copies."""

BROADCASTING = frozenset({"Add", "AddV2", "Div", "Maximum", "Minimum", "Mul", "RealDiv", "SquaredDifference", "Sub"})
"""Elementwise ops that repeat a smaller input by themselves."""

NEUTRAL = {"Add": 0.0, "AddV2": 0.0, "Sub": 0.0, "Mul": 1.0, "RealDiv": 1.0, "Div": 1.0}
"""Elementwise ops to the scalar that changes nothing; for Sub and divisions as second input only."""

COMMUTATIVE = frozenset({"Add", "AddV2", "Mul"})
REDUCTIONS = frozenset({"Mean", "Sum"})
PASSED_BY = REDUCTIONS | NEUTRAL.keys()
"""Ops that may change nothing; every op of `SCALINGS` is among them."""

RANDOM = frozenset({"RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2"})
"""Ops behind which neutral arithmetic is found; elsewhere it is rare, and not looked for."""


def rearranged(body: Body, sizes: Sizes) -> Body:
    """Returns `body` with such ops moved or passed by; `body` itself if there are none. In a main graph, where any node may be fetched, each keeps its value.

    Args:
      body: not changed.
      sizes: the shapes of its tensors.
    """
    if not body.nodes_of(COPIES | REDUCTIONS | RANDOM):
        return body
    work = _Work(body, sizes)
    copies = bool(body.nodes_of(COPIES))
    for node in body.nodes_of(PASSED_BY):
        if work.is_worth_asking[node] and body.types[node][0] == DT_FLOAT and node not in body.controlled:
            work.pass_by(node)
            if copies and body.ops[node] in SCALINGS and body.name:
                work.scale_before_copying(node)
    for node in body.nodes_of(BROADCASTING) if copies else ():
        if work.is_worth_asking[node]:
            work.skip_copies(node)
    return body.with_inputs(work.inputs, work.resized) if work.changed else body


class _Shapes:
    """The shapes of a body's tensors while edges are being moved. (By itself, so that nobody who asks for shapes holds who moves: that would be a cycle.)

    Attributes:
      resized: as `Body.resized`.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self.resized: dict[int, Edge] = {}

    def __call__(self, edge: Edge) -> Shape:
        return self(self.resized[edge[0]]) if edge[0] in self.resized else self._sizes.shape(edge)


class _Work:
    """The edges of a body while they are being moved.

    Attributes:
      is_worth_asking: node to whether anything may be done about it: reductions, what reads a scalar or copies, and what has been made to read something else.
    """

    def __init__(self, body: Body, sizes: Sizes) -> None:
        self.body, self._shape, self._ranges = body, _Shapes(sizes), Ranges(body)
        self.inputs = list(body.inputs)
        self._same_sizes = SameSizes(body, self.inputs, self._shape)
        self.resized = self._shape.resized
        self.changed = False
        self._known_readers: dict[Edge, list[Edge]] = {}
        broadcasting, reductions = (body.kinds.are_of(ops)[body.kind_array] for ops in (BROADCASTING, REDUCTIONS))
        sized = self._reading(body.kinds.are_of(COPIES)) & broadcasting | reductions
        sizes.shapes([edge for node in np.flatnonzero(sized).tolist() for edge in ((node, 0), *body.inputs[node])])  # together is cheaper
        self._is_scalar = body.kinds.which(_may_be_neutral, MAY_BE_NEUTRAL)
        self.is_worth_asking = bytearray(sized | self._reading(self._is_scalar))

    def _reading(self, kinds: Array) -> Array:
        """Returns node to whether it reads what a node of one of `kinds`, a flag for each, makes."""
        body, found = self.body, np.zeros(len(self.body), bool)
        found[body.edges.reader[kinds[body.kind_array[body.edges.source]]]] = True
        return found

    @functools.cached_property
    def _waited_for(self) -> set[int]:
        """The nodes that some node waits for."""
        return {source for sources in self.body.controlled.values() for source in sources}

    def _readers(self, edge: Edge) -> list[Edge]:
        found = self._known_readers.get(edge)
        if found is None:
            found = self._known_readers[edge] = self.body.readers[edge[0]][edge[1]]
        return found

    def _redirect(self, reader: Edge, source: Edge) -> None:
        node, port = reader
        self._readers(self.inputs[node][port]).remove(reader)
        self._readers(source).append(reader)
        self.inputs[node] = [source if number == port else edge for number, edge in enumerate(self.inputs[node])]
        self.is_worth_asking[node] = 1
        self.changed = True

    def _same_known_shape(self, *edges: Edge) -> bool:
        first = self._shape(edges[0])
        return first is not None and None not in first and all(self._shape(edge) == first for edge in edges[1:])

    def pass_by(self, node: int) -> None:
        """Lets what reads `node` read its input, if that is the same."""
        source = self._same_as(node)
        if source is not None:
            for reader in list(self._readers((node, 0))):
                self._redirect(reader, source)

    def _same_as(self, node: int) -> Edge | None:
        op, inputs = self.body.ops[node], self.inputs[node]
        if op in REDUCTIONS:
            return inputs[0] if self._same_known_shape(inputs[0], (node, 0)) or self._sums_over_nothing(node) else None
        for value, other in [(0, 1), (1, 0)] if op in COMMUTATIVE else [(0, 1)] if op in NEUTRAL else []:
            is_neutral = self._is_scalar[self.body.kind_of[inputs[other][0]]] and self._ranges.of(inputs[other]) == (NEUTRAL[op], NEUTRAL[op])
            if is_neutral and self._same_known_shape(inputs[value], (node, 0)):
                signless = NEUTRAL[op] == 1.0 or self._ranges.of(inputs[value])[0] >= 0  # -0 + 0 is 0
                return inputs[value] if signless else None
        return None

    def _sums_over_nothing(self, node: int) -> bool:
        """Returns whether a sum in the gradient of a broadcast is over no axes, or over axes of size 1, whatever the sizes that are not known, and is reshaped.

        That is so for the larger operand: where the other one has no axis, or one of size 1, this one is not repeated (`BCast` in TensorFlow's `bcast.h`).
        """
        body = self.body
        if body.ops[node] != "Sum" or any(body.ops[reader] != "Reshape" or port for reader, port in self._readers((node, 0))):
            return False
        axes, number = self.inputs[node][1]
        if body.ops[axes] != "BroadcastGradientArgs":
            return False
        own, other = (self._same_sizes.in_vector(self.inputs[axes][one]) for one in (number, 1 - number))
        if own is None or other is None or len(other) > len(own):
            return False
        return all(size in (1, mine) for mine, size in zip(reversed(own), reversed(other), strict=False))

    def scale_before_copying(self, node: int) -> None:
        """Turns (copies of s) times c, where c is a scalar and nobody else reads the copies, into copies of (s times c).

        Nor may anyone wait for the copies: c may, and would wait for itself. (TensorFlow's gradients of gradients let their constants wait for what comes in.)
        """
        for port in SCALINGS.get(self.body.ops[node], ()):
            copy, output = self.inputs[node][port]
            if self.body.ops[copy] not in COPIES or output or copy in self.body.controlled or copy in self._waited_for:
                continue
            if self._readers((copy, 0)) == [(node, port)] and self._shape(self.inputs[node][1 - port]) == ():
                source = self.inputs[copy][0]
                readers = list(self._readers((node, 0)))
                self._redirect((node, port), source)
                self._redirect((copy, 0), (node, 0))
                for reader in readers:
                    self._redirect(reader, (copy, 0))
                self.resized[node] = source
                return

    def skip_copies(self, node: int) -> None:
        """Lets an elementwise op read a statistic itself in place of copies of it."""
        for port, other in ((0, 1), (1, 0)):
            copy, output = self.inputs[node][port]
            if self.body.ops[copy] in COPIES and not output and self._same_known_shape((copy, 0), self.inputs[node][other], (node, 0)):
                source = self.inputs[copy][0]
                if _repeats(self._shape(source), self._shape((copy, 0))):
                    self._redirect((node, port), source)


MAY_BE_NEUTRAL = frozenset({"Const", "Sub"})
"""Ops that may make a neutral scalar: a constant is one, or not; a difference may be the width of the range of random numbers."""


def _may_be_neutral(kind: Kind) -> bool:
    """Returns whether a node of `MAY_BE_NEUTRAL` may make a neutral scalar."""
    if kind.op != "Const":
        return True
    low, high = constant(kind) if kind.types == [DT_FLOAT] else ANYTHING
    return low == high and low in (0.0, 1.0)


def _repeats(small: Shape, large: Shape) -> bool:
    """Returns whether broadcasting, and not tiling, makes the shape `large` of `small`."""
    if small is None or large is None or len(small) > len(large):
        return False
    return all(one in (1, size) for one, size in zip(reversed(small), reversed(large), strict=False))
