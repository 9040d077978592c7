"""What was found around one tensor is found again around the next that is spelled alike, without being worked out again.

A model has one normalisation many times, in its training step and in its evaluation, and whether something is one, and which node plays which part, hangs on
nothing but what was looked at: ops with their types and constants, what they read, who reads them, shapes, and which of two nodes comes first. So whatever is
looked at is noted, in nodes that are numbered as they were come across, and where all of that is the same elsewhere, so is the result. (A build system trusts
such notes likewise: "verifying traces" in Mokhov, Mitchell and Peyton Jones, "Build systems à la carte", 2018.)
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tfmp.fusion.counts import Constants
from tfmp.graph.body import Body, Edge
from tfmp.graph.kinds import Kind
from tfmp.program.shapes import Shape, Sizes

Readers = Sequence[Sequence[Sequence[Edge]]]
"""`Body.readers()`."""

VARIANTS = 8
"""How many spellings are remembered that begin alike. Our own choice: the layers of a model are spelled in two or three ways."""


MOST = 1000
"""How many kinds of starts, and hundred times as many kinds of nodes, are remembered at most; then all is forgotten. A process has a few dozen mostly."""

SMALL = 64
"""Bytes of a serialised constant up to which it is compared. Our own choice: axes and counts take less."""


class Renumbered(Protocol):
    """Something that names nodes."""

    def renumbered(self, number: Callable[[int], int]) -> Any:
        """Returns the same of other nodes; `number` tells of each which."""


Found = TypeVar("Found", bound=Renumbered)


def numbered() -> Mapping[Any, int]:
    """Returns a mapping that gives whatever it is asked for a number of its own. Two threads may number one thing twice, but never two things alike."""
    return collections.defaultdict(itertools.count().__next__)


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What may be looked at to tell what is computed around a tensor.

    Attributes:
      body: a function; nothing of it but ops, types, layouts, inputs and the values of constants.
      sizes: the shapes of its tensors.
      readers: `body.readers()`; nothing of it but the nodes.
      constants: the values of its constants, as far as they were read.
      numbers: what kinds of nodes are like, to its number (`likeness`); of one `Memory`, or of this body alone.
    """

    body: Body
    sizes: Sizes
    readers: Readers
    constants: Constants = dataclasses.field(default_factory=dict)
    numbers: Mapping[Any, int] = dataclasses.field(default_factory=numbered)

    @functools.cached_property
    def likeness(self) -> Sequence[int]:
        """Node to a number that is the same for nodes of one op with the same types and ports, and, if they are constants, the same value."""
        of_kind = [self.numbers[_like(kind)] for kind in self.body.kinds.table]
        return [*map(of_kind.__getitem__, self.body.kind_of)]


def _like(kind: Kind) -> Any:
    """Returns what is the same for kinds of one op with the same types and ports, and, if they are constants, the same value; a large value is no other's."""
    value: Any = None
    if kind.op == "Const":
        tensor = kind.proto.attr["value"].tensor  # type: ignore[union-attr]
        value = tensor.SerializeToString() if tensor.ByteSize() <= SMALL else object()
    layout = kind.layout
    return kind.op, layout.keys, layout.inputs, layout.outputs, *kind.types, value


class Memory(Generic[Found]):
    """What was found around tensors of any number of bodies. Holds nothing of those.

    Attributes:
      numbers: what kinds of nodes are like, to its number.
      known: start of a search to what is known of such.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.numbers = numbered()
        self.known: dict[Any, list[_Spelling[Found]]] = {}

    @property
    def is_full(self) -> bool:
        """Whether there is too much of it, so that a new one should be begun."""
        return len(self.known) > MOST or len(self.numbers) > 100 * MOST


class Repeats(Generic[Found]):
    """What was found around tensors of one body, and of others that share its memory."""

    def __init__(self, around: Surroundings, memory: Memory[Found]) -> None:
        """Adds to `memory`, whose numbers those of `around` must be."""
        self._around, self._known = around, memory.known

    def find(self, data: Edge, key: Any, look: Callable[[Surroundings], Found | None]) -> Found | None:
        """Returns what `look` finds around the tensor `data`; None if that is nothing.

        Args:
          data: where it starts: whatever it looks at, it is to reach from there, through what nodes read and who reads them.
          key: equal for those starts for which `look` does the same, as long as it sees the same.
          look: finds something in the surroundings that it is given.
        """
        known = self._known.setdefault((data[1], len(self._around.readers[data[0]]), key), [])
        for spelling in known:
            nodes = spelling.nodes_at(data[0], self._around)
            if nodes is not None:
                return spelling.found.renumbered(nodes.__getitem__) if spelling.found is not None else None
        notes = _Notes(self._around)
        found = look(notes.surroundings)
        known.insert(0, _Spelling.of(notes, data[0], found))
        del known[VARIANTS:]
        return found


class _Noted:
    """A column of a body that notes of which nodes it was asked."""

    def __init__(self, column: Any, asked: dict[Any, None], way: str = "") -> None:
        self._column, self._asked, self._way = column, asked, way

    def __getitem__(self, node: int) -> Any:
        self._asked[(self._way, node) if self._way else node] = None
        return self._column[node]


class _NotedReaders(_Noted):
    """Who reads the outputs of nodes, and of which nodes that was asked. At which of their inputs is nothing that may be looked at."""

    def __getitem__(self, node: int) -> list[list[Edge]]:
        return [[(reader, -1) for reader, _ in edges] for edges in super().__getitem__(node)]


class _NotedSizes:
    """Shapes, and of which tensors they were asked."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self.asked: dict[Edge, Shape] = {}

    def shape(self, edge: Edge) -> Shape:
        found = self.asked[edge] = self._sizes.shape(edge)
        return found


INPUTS, READERS = "inputs", "readers"


class _Notes:
    """What was looked at in surroundings.

    Attributes:
      around: the surroundings.
      surroundings: the same, but what is looked at in them is noted.
      kinds: the nodes whose op, types, layout or value were looked at.
      ways: of which nodes it was asked what they read, or who reads them, in the order in which that was.
      sizes: the shapes that were looked at.
    """

    def __init__(self, around: Surroundings) -> None:
        body = around.body
        self.around, self.kinds, self.ways, self.sizes = around, dict[int, None](), dict[tuple[str, int], None](), _NotedSizes(around.sizes)
        columns: dict[str, Any] = {name: _Noted(getattr(body, name), self.kinds) for name in ("ops", "types", "layouts", "kind_of", "protos")}
        watched = Body(body.name, inputs=_Noted(body.inputs, self.ways, INPUTS), **columns)  # type: ignore[arg-type]  # and no other column
        readers: Any = _NotedReaders(around.readers, self.ways, READERS)
        self.surroundings = Surroundings(watched, self.sizes, readers, around.constants)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class _Edges:
    """Edges one after the other: the nodes of all, and the ports of all."""

    nodes: Sequence[int]
    ports: Sequence[int]

    @classmethod
    def of(cls, edges: Iterable[Edge], number: Callable[[int], int]) -> _Edges:
        """Returns `edges` with their nodes renumbered."""
        listed = list(edges)
        return cls([number(node) for node, _ in listed], [port for _, port in listed])

    def at(self, nodes: Sequence[int]) -> list[Edge]:
        """Returns the edges of a body whose nodes are `nodes`, by their numbers here."""
        return [*zip(map(nodes.__getitem__, self.nodes), self.ports)]  # noqa: B905  (one port a node)


@dataclasses.dataclass(frozen=True)
class _Spelling(Generic[Found]):
    """What was looked at, and what was found. Nodes are numbered in the order in which they were come across, from 0 for the start.

    Attributes:
      steps: for each node but the start where it was come across: whether that is among the readers of a node or among what it reads, that node, its output if
        it is among the readers, and at which place.
      order: the nodes that were come across as readers, in the order of their numbers in the body: it tells which of them is looked at first.
      asked, likeness: the nodes whose kind was looked at, and what these are like.
      reading, read: the nodes of which it was asked what they read, and all that.
      read_by, counts, readers: the nodes of which it was asked who reads them, how many read each of their outputs, and all those nodes.
      sized, shapes: the tensors whose shapes were looked at, and these.
      found: what was found, if anything was.
    """

    steps: Sequence[tuple[bool, int, int, int]]
    order: Sequence[int]
    asked: Sequence[int]
    likeness: Sequence[int]
    reading: Sequence[int]
    read: _Edges
    read_by: Sequence[int]
    counts: Sequence[int]
    readers: Sequence[int]
    sized: _Edges
    shapes: Sequence[Shape]
    found: Found | None

    @classmethod
    def of(cls, notes: _Notes, start: int, found: Found | None) -> _Spelling[Found]:
        """Returns what was noted when `found` was found around an output of the node `start`."""
        inputs, readers = notes.around.body.inputs, notes.around.readers
        number, steps, after = {start: 0}, [], set()
        for way, node in notes.ways:
            for port, edges in enumerate(readers[node] if way == READERS else [inputs[node]]):
                for place, (other, _) in enumerate(edges):
                    if other not in number:
                        number[other] = len(number)
                        steps.append((way == READERS, number[node], port, place))
                    if way == READERS:
                        after.add(other)
        local = number.__getitem__
        reading, read_by = ([node for one, node in notes.ways if one == way] for way in (INPUTS, READERS))
        return cls(
            steps=steps,
            order=[*map(local, sorted(after))],
            asked=[*map(local, notes.kinds)],
            likeness=[notes.around.likeness[node] for node in notes.kinds],
            reading=[*map(local, reading)],
            read=_Edges.of(_all(inputs[node] for node in reading), local),
            read_by=[*map(local, read_by)],
            counts=[len(edges) for node in read_by for edges in readers[node]],
            readers=[local(reader) for node in read_by for edges in readers[node] for reader, _ in edges],
            sized=_Edges.of(notes.sizes.asked, local),
            shapes=[*notes.sizes.asked.values()],
            found=found.renumbered(local) if found is not None else None,
        )

    def nodes_at(self, start: int, around: Surroundings) -> Sequence[int] | None:
        """Returns the nodes of a body, by their numbers here, if what was looked at is the same from the node `start`; else None."""
        inputs, readers, likeness = around.body.inputs, around.readers, around.likeness
        nodes = [start]
        try:
            for from_readers, node, port, place in self.steps:
                nodes.append((readers[nodes[node]][port] if from_readers else inputs[nodes[node]])[place][0])
        except IndexError:
            return None
        node_of = nodes.__getitem__
        after, read_by = [*map(node_of, self.order)], [*_all(map(readers.__getitem__, map(node_of, self.read_by)))]
        alike = (
            [likeness[node_of(node)] for node in self.asked] == self.likeness
            and [*map(len, read_by)] == self.counts
            and [reader for reader, _ in _all(read_by)] == [*map(node_of, self.readers)]
            and [*_all(map(inputs.__getitem__, map(node_of, self.reading)))] == self.read.at(nodes)
            and len(set(nodes)) == len(nodes)
            and after == sorted(after)
            and around.sizes.shapes(self.sized.at(nodes)) == self.shapes
        )
        return nodes if alike else None


_all = itertools.chain.from_iterable
