"""What was found around one tensor is found again around the next that is spelled alike, without being worked out again.

A model has one normalisation many times, and whether something is one, and which node plays which part, hangs on nothing but what was looked at: ops with
their types and constants, what they read, who reads them, shapes, and which of two nodes comes first. So whatever is looked at is noted, in nodes that are
numbered as they were come across, and where all of that is the same elsewhere, so is the result. (A build system trusts such notes likewise: "verifying
traces" in Mokhov, Mitchell and Peyton Jones, "Build systems à la carte", 2018.)
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tfmp.fusion.counts import Constants, held
from tfmp.graph.view import Body, Edge
from tfmp.program.shapes import Shape, Sizes

Readers = Sequence[Sequence[Sequence[Edge]]]
"""`Body.readers()`."""

VARIANTS = 8
"""How many spellings are remembered that begin alike. Our own choice: the layers of a model are spelled in two or three ways."""


class Renumbered(Protocol):
    """Something that names nodes."""

    def renumbered(self, number: Callable[[int], int]) -> Any:
        """Returns the same of other nodes; `number` tells of each which."""


Found = TypeVar("Found", bound=Renumbered)


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What may be looked at to tell what is computed around a tensor.

    Attributes:
      body: a function; nothing of it but ops, types, layouts, inputs and the values of constants.
      sizes: the shapes of its tensors.
      readers: `body.readers()`.
      constants: the values of its constants, as far as they were read.
    """

    body: Body
    sizes: Sizes
    readers: Readers
    constants: Constants = dataclasses.field(default_factory=dict)


class Repeats(Generic[Found]):
    """What was found around tensors of one body."""

    def __init__(self, around: Surroundings) -> None:
        """Nothing yet."""
        self._around = around
        self._known: dict[Any, list[_Spelling[Found]]] = {}

    def find(self, data: Edge, key: Any, look: Callable[[Surroundings], Found | None]) -> Found | None:
        """Returns what `look` finds around the tensor `data`; None if that is nothing.

        Args:
          data: where it starts: whatever it looks at, it is to reach from there, through what nodes read and who reads them.
          key: equal for those starts for which `look` does the same, as long as it sees the same.
          look: finds something in the surroundings that it is given.
        """
        known = self._known.setdefault((data[1], key), [])
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

    def __init__(self, column: Any, asked: dict[Any, None], mark: tuple[str, ...] = ()) -> None:
        self._column, self._asked, self._mark = column, asked, mark

    def __getitem__(self, node: int) -> Any:
        self._asked[(*self._mark, node) if self._mark else node] = None
        return self._column[node]


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
      kinds: the nodes whose op, types or value were looked at.
      ways: of which nodes it was asked what they read, or who reads them, in the order in which that was.
      sizes: the shapes that were looked at.
    """

    def __init__(self, around: Surroundings) -> None:
        body = around.body
        self.around, self.kinds, self.ways, self.sizes = around, dict[int, None](), dict[tuple[str, int], None](), _NotedSizes(around.sizes)
        columns: dict[str, Any] = {name: _Noted(getattr(body, name), self.kinds) for name in ("ops", "types", "layouts", "protos")}
        watched = Body(body.name, inputs=_Noted(body.inputs, self.ways, (INPUTS,)), **columns)  # type: ignore[arg-type]  # and no other column
        readers: Any = _Noted(around.readers, self.ways, (READERS,))
        self.surroundings = Surroundings(watched, self.sizes, readers, around.constants)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class _Spelling(Generic[Found]):
    """What was looked at, and what was found. Nodes are numbered in the order in which they were come across, from 0 for the start.

    Attributes:
      steps: for each node but the start where it was come across: whether that is among the readers of a node or among what it reads, that node, its output if
        it is among the readers, and at which place.
      order: the nodes that were come across as readers, in the order of their numbers in the body: it tells which of them is looked at first.
      asked: the nodes whose kind was looked at.
      ops, layouts, types: of those.
      constants: those whose values are known, and these.
      reading: the nodes of which it was asked what they read.
      read: that, one after the other.
      lengths: of how many readers each output is of the nodes of which it was asked who reads them.
      read_by: those nodes.
      readers: their readers, one after the other.
      sized: the tensors whose shapes were looked at.
      shapes: of those.
      found: what was found, if anything was.
    """

    steps: Sequence[tuple[bool, int, int, int]]
    order: Sequence[int]
    asked: Sequence[int]
    ops: Sequence[str]
    layouts: Sequence[Any]
    types: Sequence[Sequence[int]]
    constants: Sequence[tuple[int, Any]]
    reading: Sequence[int]
    read: Sequence[Edge]
    lengths: Sequence[Sequence[int]]
    read_by: Sequence[int]
    readers: Sequence[Edge]
    sized: Sequence[Edge]
    shapes: Sequence[Shape]
    found: Found | None

    @classmethod
    def of(cls, notes: _Notes, start: int, found: Found | None) -> _Spelling[Found]:
        around = notes.around
        body, readers = around.body, around.readers
        number, steps, after = {start: 0}, [], {}
        for way, node in notes.ways:
            for port, edges in enumerate(readers[node] if way == READERS else [body.inputs[node]]):
                for place, (other, _) in enumerate(edges):
                    if other not in number:
                        number[other] = len(number)
                        steps.append((way == READERS, number[node], port, place))
                    if way == READERS:
                        after[other] = number[other]
        reading = [node for way, node in notes.ways if way == INPUTS]
        read_by = [node for way, node in notes.ways if way == READERS]
        local = number.__getitem__
        return cls(
            steps,
            [after[node] for node in sorted(after)],
            [*map(local, notes.kinds)],
            [body.ops[node] for node in notes.kinds],
            [body.layouts[node] for node in notes.kinds],
            [body.types[node] for node in notes.kinds],
            [(local(node), around.constants[node]) for node in notes.kinds if node in around.constants],
            [*map(local, reading)],
            [(local(source), port) for node in reading for source, port in body.inputs[node]],
            [[*map(len, readers[node])] for node in read_by],
            [*map(local, read_by)],
            [(local(reader), port) for node in read_by for edges in readers[node] for reader, port in edges],
            [(local(node), port) for node, port in notes.sizes.asked],
            [*notes.sizes.asked.values()],
            found.renumbered(local) if found is not None else None,
        )

    def nodes_at(self, start: int, around: Surroundings) -> Sequence[int] | None:
        """Returns the nodes of a body, in the order of this spelling, if what was looked at is the same from `start`; else None."""
        body, readers = around.body, around.readers
        nodes, inputs = [start], body.inputs
        try:
            for from_readers, node, port, place in self.steps:
                nodes.append((readers[nodes[node]][port] if from_readers else inputs[nodes[node]])[place][0])
        except IndexError:
            return None
        asked, after = [nodes[node] for node in self.asked], [nodes[node] for node in self.order]
        beside = [readers[nodes[node]] for node in self.read_by]
        alike = (
            [body.ops[node] for node in asked] == self.ops
            and [[*map(len, one)] for one in beside] == self.lengths
            and [(nodes[node], port) for node, port in self.readers] == [edge for one in beside for edges in one for edge in edges]
            and [(nodes[node], port) for node, port in self.read] == [*itertools.chain.from_iterable(inputs[nodes[node]] for node in self.reading)]
            and len(set(nodes)) == len(nodes)
            and after == sorted(after)
            and [body.types[node] for node in asked] == self.types
            and [body.layouts[node] for node in asked] == self.layouts
            and all(held(body, nodes[node], around.constants) is value for node, value in self.constants)
            and [around.sizes.shape((nodes[node], port)) for node, port in self.sized] == self.shapes
        )
        return nodes if alike else None
