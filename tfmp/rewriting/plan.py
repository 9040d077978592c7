"""What has to change for a body to have the colours it was given, as a list of frozen edits.

One cast per tensor and direction, shared by every reader that needs it (`ChangeTypeAttrsAndAddCasts` in `auto_mixed_precision.cc`). A constant is not cast
at run time but stored once more in 16 bit, and what an existing Cast has made of a 16-bit tensor is not cast back: that tensor is read instead.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from tfmp import tf_api
from tfmp.colouring.passes import Colouring
from tfmp.dtypes import DT_FLOAT, FLOAT32, FloatFormat
from tfmp.graph.body import Body, Edge
from tfmp.graph.schema import Slot
from tfmp.program.liveness import dead_nodes
from tfmp.program.rearrange import COPIES


class Retype(NamedTuple):
    """Slot `slot` of node number `node` becomes `dtype`. A tuple, since there is one for every type that changes and they are made in no time."""

    node: int
    slot: Slot
    dtype: int


class InsertCast(NamedTuple):
    """A Cast of the tensor `source` to `target`, called `name`, that the input ports `readers` read instead of `source`. A tuple, as `Retype` is.

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
class Shortcut:
    """The input ports `readers` read `source`, a 16-bit tensor, instead of what an existing Cast made of it."""

    source: Edge
    readers: tuple[Edge, ...]


class Move(NamedTuple):
    """The input port `reader` reads `source`, as the body says, and no longer what the original proto says (`program.rearrange`)."""

    reader: Edge
    source: Edge


@dataclasses.dataclass(frozen=True)
class ExtraArgument:
    """The function gets one more argument, called `name`, of type `target`, that the input ports `readers` read; `returned`: and returns it."""

    name: str
    target: FloatFormat
    readers: tuple[Edge, ...]
    returned: bool


@dataclasses.dataclass(frozen=True)
class HoistedRead:
    """The calling node number `node` hands over one more value: the variable with the handle `handle`, read and cast to `target` before it is called.

    The nodes for that are called after `name`; the read is a copy of the node `like`. With `waits` it comes after all that `node` waits for; else it is the
    first thing that happens, and the nodes `writers` wait for it. With `argument`, the extra argument of that name is handed in instead, and with `same_as`
    what the Cast of that name has made.
    """

    node: int
    handle: Edge
    name: str
    target: FloatFormat
    like: tf_api.NodeDef = dataclasses.field(hash=False, compare=False)
    argument: str = ""
    same_as: str = ""
    waits: bool = False
    writers: tuple[int, ...] = ()

    @property
    def cast_name(self) -> str:
        """The name of the Cast that follows the read."""
        return f"{self.name}-0-{self.target.cast_name}-0-AutoMixedPrecision"

    @property
    def is_new(self) -> bool:
        """Whether a read and a Cast are made for it."""
        return not (self.argument or self.same_as)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The edits of one body, in node order."""

    body: Body
    retypes: tuple[Retype, ...]
    casts: tuple[InsertCast, ...]
    shortcuts: tuple[Shortcut, ...] = ()
    arguments: tuple[ExtraArgument, ...] = ()
    reads: tuple[HoistedRead, ...] = ()
    moves: tuple[Move, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing changes."""
        return not (self.retypes or self.casts or self.shortcuts or self.arguments or self.reads)

    @functools.cached_property
    def run_time_casts(self) -> int:
        """Number of Cast nodes that will run."""
        dead = frozenset(dead_nodes(self.body)) if self.casts else frozenset()
        running = (cast for cast in self.casts if not (cast.constant or self.is_pruned(cast, dead)))
        return sum(1 + cast.round_trip for cast in running) + sum(read.is_new for read in self.reads)

    def is_pruned(self, cast: InsertCast, dead: Collection[int]) -> bool:
        """Returns whether TensorFlow prunes a cast, since it prunes all that read it (`dead`), and no call is handed the result."""
        return all(node in dead for node, _ in cast.readers) and not any(read.same_as == cast.name for read in self.reads)

    @property
    def other_results(self) -> frozenset[str]:
        """Names of the nodes that compute something else than before, since what they read was moved: a scaled statistic, and the copies of it."""
        resized = self.body.resized if self.moves else {}
        copies = (move.reader[0] for move in self.moves if move.source[0] in resized and self.body.ops[move.reader[0]] in COPIES)
        return frozenset(self.body.names[node] for node in (*resized, *copies))

    @property
    def edits(self) -> tuple[object, ...]:
        """Everything that changes, to compare plans of one body by."""
        return (self.retypes, self.casts, self.shortcuts, self.arguments, self.reads, self.moves)

    def __str__(self) -> str:
        """Returns one line an edit."""
        names = self.body.names
        lines = [f"move {names[m.reader[0]]}[{m.reader[1]}] to {names[m.source[0]]}:{m.source[1]}" for m in self.moves]
        lines += [f"retype {names[r.node]} {r.slot} -> {r.dtype}" for r in self.retypes]
        for cast in self.casts:
            verb = "store" if cast.constant else "round" if cast.round_trip else "cast"
            readers = ", ".join(f"{names[node]}[{port}]" for node, port in cast.readers)
            lines.append(f"{verb} {names[cast.source[0]]}:{cast.source[1]} {cast.origin.name} -> {cast.target.name} for {readers}")
        for shortcut in self.shortcuts:
            readers = ", ".join(f"{names[node]}[{port}]" for node, port in shortcut.readers)
            lines.append(f"read {names[shortcut.source[0]]}:{shortcut.source[1]} in {readers}")
        for argument in self.arguments:
            readers = ", ".join(f"{names[node]}[{port}]" for node, port in argument.readers)
            lines.append(f"take {argument.name} {argument.target.name} for {readers or 'nothing'}{', return it' if argument.returned else ''}")
        for read in self.reads:
            source = read.argument or read.same_as or f"{names[read.handle[0]]}:{read.handle[1]}, read and cast to {read.target.name}"
            lines.append(f"hand {source} to {names[read.node]}")
        return "\n".join(lines)


def make_plan(colouring: Colouring, target: FloatFormat, *, exact: bool, emulate: bool) -> Plan:
    """Returns the edits that give a body the colours of `colouring`.

    Args:
      colouring: the colours.
      target: the 16-bit type.
      exact: cast wherever TensorFlow does; else constants are stored and existing casts are not undone by new ones.
      emulate: change no type; round what flows into and out of 16-bit vertices instead, unless it has just been rounded or will be at once.
    """
    body = colouring.graph.body
    if not any(colouring.sixteen):
        return Plan(body, (), ())
    if emulate:
        return Plan(body, (), tuple(_round_trips(colouring, target)))
    casts, shortcuts = [], []
    for cast in _casts(colouring, target, store_constants=not exact):
        if not exact and cast.target is target and _casts_from(body, cast.source[0], target):
            shortcuts.append(Shortcut(body.inputs[cast.source[0]][0], cast.readers))
        else:
            casts.append(cast)
    return Plan(body, tuple(_retypes(colouring, target)), tuple(casts), tuple(shortcuts))


def _retypes(colouring: Colouring, target: FloatFormat) -> Iterator[Retype]:
    graph, vertices = colouring.graph, np.flatnonzero(np.frombuffer(colouring.sixteen, bool))
    slots = map(colouring.union.slots.__getitem__, graph.sort[vertices].tolist())
    return map(Retype, graph.nodes[vertices].tolist(), slots, itertools.repeat(target.number))


def _mismatches(colouring: Colouring) -> dict[Edge, list[Edge]]:
    """Returns each float32 tensor that a vertex of the other colour reads, with those readers, in node order."""
    graph, edges = colouring.graph, colouring.graph.body.edges
    sixteen = np.frombuffer(colouring.sixteen, bool)
    made = graph.made[edges.tensor]
    mismatches = np.flatnonzero(graph.is_float32[made] & (sixteen[made] != sixteen[graph.read]))
    numbers = mismatches[np.argsort(edges.tensor[mismatches], kind="stable")]
    sources = edges.source[numbers]
    columns = (sources, edges.tensor[numbers] - edges.first[sources], edges.reader[numbers], edges.port[numbers])
    found: dict[Edge, list[Edge]] = {}
    for source, output, reader, port in zip(*(column.tolist() for column in columns), strict=True):
        found.setdefault((source, output), []).append((reader, port))
    return found


def _casts(colouring: Colouring, target: FloatFormat, store_constants: bool) -> Iterator[InsertCast]:
    graph, names = colouring.graph, FreeNames(colouring.graph.body)
    for edge, readers in _mismatches(colouring).items():
        node, port = edge
        from_sixteen = colouring.sixteen[graph.first[node] + graph.body.layouts[node].outputs[port]]
        origin, end = (target, FLOAT32) if from_sixteen else (FLOAT32, target)
        constant = store_constants and graph.body.ops[node] == "Const" and end is target
        yield InsertCast(names.take(graph.body.names[node], port, end), edge, origin, end, tuple(readers), constant)


def _round_trips(colouring: Colouring, target: FloatFormat) -> Iterator[InsertCast]:
    graph, sixteen, names = colouring.graph, colouring.sixteen, FreeNames(colouring.graph.body)
    body = graph.body
    for node, ports in enumerate(body.readers):
        for port, readers in enumerate(ports):
            vertex = graph.first[node] + body.layouts[node].outputs[port]
            if graph.dtype[vertex] == DT_FLOAT and not _casts_from(body, node, target):
                wanting = (reader for reader in readers if sixteen[vertex] or sixteen[_vertex(colouring, reader)])
                rounded = tuple(reader for reader in wanting if not _casts_to(body, reader[0], target))
                if rounded:
                    yield InsertCast(names.take(body.names[node], port, target), (node, port), FLOAT32, target, rounded, round_trip=True)


def _casts_from(body: Body, node: int, target: FloatFormat) -> bool:
    return body.ops[node] == "Cast" and body.types[node][body.layouts[node].number[Slot("SrcT")]] == target.number


def _casts_to(body: Body, node: int, target: FloatFormat) -> bool:
    return body.ops[node] == "Cast" and body.types[node][body.layouts[node].number[Slot("DstT")]] == target.number


def _vertex(colouring: Colouring, reader: Edge) -> int:
    node, port = reader
    return colouring.graph.first[node] + colouring.graph.body.layouts[node].inputs[port]


class FreeNames:
    """Names for casts that no node of the body has, in TensorFlow's form: `<source>-<port>-CastToFp16-<id>-AutoMixedPrecision`."""

    def __init__(self, body: Body) -> None:
        """Names are to be free in `body`."""
        self._taken = set(body.names)

    def take(self, source: str, port: int, target: FloatFormat) -> str:
        """Returns a name for a cast of output `port` of the node called `source` to `target`, which is taken from now on."""
        number = 0
        while (name := f"{source}-{port}-{target.cast_name}-{number}-AutoMixedPrecision") in self._taken:
            number += 1
        self._taken.add(name)
        return name
