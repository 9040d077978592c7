"""What has to change for a body to have the colours it was given, as a list of frozen edits.

One cast per tensor and direction, shared by every reader that needs it (`ChangeTypeAttrsAndAddCasts` in `auto_mixed_precision.cc`). A constant is not cast
at run time but stored once more in 16 bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tfmp.colouring.passes import Colouring
from tfmp.dtypes import DT_FLOAT, FLOAT32, FloatFormat
from tfmp.graph.schema import Slot
from tfmp.graph.view import Body, Edge


@dataclasses.dataclass(frozen=True)
class Retype:
    """Slot `slot` of node number `node` becomes `dtype`."""

    node: int
    slot: Slot
    dtype: int


@dataclasses.dataclass(frozen=True)
class InsertCast:
    """A Cast of the tensor `source` to `target`, called `name`, that the input ports `readers` read instead of `source`.

    With `round_trip` a second Cast back to float32 follows, and the readers read that (emulation). With `constant` no Cast but a Const of type
    `target` with the rounded value is made.
    """

    name: str
    source: Edge
    origin: FloatFormat
    target: FloatFormat
    readers: tuple[Edge, ...]
    constant: bool = False
    round_trip: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """The edits of one body, in node order."""

    body: Body
    retypes: tuple[Retype, ...]
    casts: tuple[InsertCast, ...]

    @property
    def empty(self) -> bool:
        """Whether nothing changes."""
        return not self.retypes and not self.casts

    @property
    def run_time_casts(self) -> int:
        """Number of Cast nodes that will run."""
        return sum(1 + cast.round_trip for cast in self.casts if not cast.constant)

    def __str__(self) -> str:
        """Returns one line an edit."""
        names = self.body.names
        lines = [f"retype {names[r.node]} {r.slot} -> {r.dtype}" for r in self.retypes]
        for cast in self.casts:
            verb = "store" if cast.constant else "round" if cast.round_trip else "cast"
            readers = ", ".join(f"{names[node]}[{port}]" for node, port in cast.readers)
            lines.append(f"{verb} {names[cast.source[0]]}:{cast.source[1]} {cast.origin.name} -> {cast.target.name} for {readers}")
        return "\n".join(lines)


def make_plan(colouring: Colouring, target: FloatFormat, *, store_constants: bool, emulate: bool) -> Plan:
    """Returns the edits that give a body the colours of `colouring`.

    Args:
      colouring: the colours.
      target: the 16-bit type.
      store_constants: store a 16-bit copy of a constant rather than cast it at run time.
      emulate: change no type; round what flows into and out of 16-bit vertices instead.
    """
    if not any(colouring.sixteen):
        return Plan(colouring.graph.body, (), ())
    retypes = () if emulate else tuple(_retypes(colouring, target))
    names = _FreeNames(colouring.graph.body)
    return Plan(colouring.graph.body, retypes, tuple(_casts(colouring, target, names, store_constants, emulate)))


def _retypes(colouring: Colouring, target: FloatFormat) -> Iterator[Retype]:
    graph = colouring.graph
    for vertex, sixteen in enumerate(colouring.sixteen):
        if sixteen:
            yield Retype(graph.node_of[vertex], graph.slot(vertex), target.number)


def _casts(colouring: Colouring, target: FloatFormat, names: _FreeNames, store_constants: bool, emulate: bool) -> Iterator[InsertCast]:
    graph, sixteen = colouring.graph, colouring.sixteen
    body = graph.body
    for node, ports in enumerate(body.readers()):
        for port, readers in enumerate(ports):
            source = graph.first[node] + body.layouts[node].outputs[port]
            if graph.dtype[source] != DT_FLOAT or not readers:
                continue
            wanting = tuple(r for r in readers if (sixteen[_vertex(colouring, r)] != sixteen[source]) or (emulate and sixteen[source]))
            if wanting and emulate:
                yield InsertCast(names.take(body.names[node], port, target), (node, port), FLOAT32, target, wanting, round_trip=True)
            elif wanting:
                origin, end = (target, FLOAT32) if sixteen[source] else (FLOAT32, target)
                constant = store_constants and body.ops[node] == "Const" and end is target
                yield InsertCast(names.take(body.names[node], port, end), (node, port), origin, end, wanting, constant)


def _vertex(colouring: Colouring, reader: Edge) -> int:
    node, port = reader
    return colouring.graph.first[node] + colouring.graph.body.layouts[node].inputs[port]


class _FreeNames:
    """Names for casts that no node of the body has, in TensorFlow's form: `<source>-<port>-CastToFp16-<id>-AutoMixedPrecision`."""

    def __init__(self, body: Body) -> None:
        self._taken = set(body.names)

    def take(self, source: str, port: int, target: FloatFormat) -> str:
        number = 0
        while (name := f"{source}-{port}-{target.cast_name}-{number}-AutoMixedPrecision") in self._taken:
            number += 1
        self._taken.add(name)
        return name
