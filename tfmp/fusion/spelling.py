"""How something is spelled around a tensor: what was looked at to find it, in nodes that are numbered as they were come across.

That is ops with their types and constants, what they read, who reads them, shapes, and which of two nodes comes first.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tfmp import tf_api
from tfmp.fusion.broadcast import broadcast
from tfmp.fusion.surroundings import Surroundings
from tfmp.graph.body import Body, Edge
from tfmp.program.shapes import Shape, Sizes
from tfmp.program.sizes import ALIKE


class Renumbered(Protocol):
    """Something that names nodes."""

    def renumbered(self, number: Callable[[int], int]) -> Any:
        """Returns the same of other nodes; `number` tells of each which."""


Found = TypeVar("Found", bound=Renumbered)


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

SHAPED = frozenset({"Reshape", "Tile"})
"""Ops whose second operand tells the shape of the result, or how often it is as large as the first."""


class Notes:
    """What was looked at in surroundings.

    Attributes:
      around: the surroundings.
      surroundings: the same, but what is looked at in them is noted.
      kinds: the nodes whose op, types, layout or value were looked at.
      ways: of which nodes it was asked what they read, or who reads them, in the order in which that was.
      sizes: the shapes that were looked at.
    """

    def __init__(self, around: Surroundings) -> None:
        """Nothing was looked at yet."""
        body = around.body
        self.around, self.kinds, self.ways, self.sizes = around, dict[int, None](), dict[tuple[str, int], None](), _NotedSizes(around.sizes)
        columns: dict[str, Any] = {name: _Noted(getattr(body, name), self.kinds) for name in ("ops", "types", "layouts", "kind_of", "nodes")}
        watched = Body(body.name, inputs=_Noted(body.inputs, self.ways, INPUTS), **columns)  # type: ignore[arg-type]  # and no other column
        readers: Any = _NotedReaders(around.readers, self.ways, READERS)
        self.surroundings = Surroundings(watched, self.sizes, readers, around.constants)  # type: ignore[arg-type]


class Implied:
    """Shapes that follow from others that were noted, and from ops, constants and inputs that were: where those are the same elsewhere, so are these, and to
    look them up takes longer than all the rest.
    """

    def __init__(self, notes: Notes) -> None:
        """Nothing is worked out yet; constants that tell a shape are added to `notes`."""
        self._notes, self._body, self._asked = notes, notes.around.body, notes.sizes.asked
        self._known: dict[Edge, Shape] = {}

    def others(self, start: int) -> list[Edge]:
        """Returns the tensors whose shapes were looked at and do not follow, and those that the node `start` makes: these begin it all."""
        return [edge for edge, shape in self._asked.items() if edge[0] == start or shape is None or self._following(edge) != shape]

    def _shape(self, edge: Edge) -> Shape:
        """Returns the shape of a tensor if it follows or was looked at, else None."""
        found = self._following(edge)
        return self._asked.get(edge) if found is None else found

    def _following(self, edge: Edge) -> Shape:
        if edge not in self._known:
            self._known[edge] = self._follow(edge[0])
        return self._known[edge]

    def _follow(self, node: int) -> Shape:
        body, op, was_looked_at = self._body, self._body.ops[node], node in self._notes.kinds
        if op == "Const" and was_looked_at:
            return tuple(size.size for size in body.protos[node].attr["value"].tensor.tensor_shape.dim)
        if not was_looked_at or (INPUTS, node) not in self._notes.ways:
            return None
        inputs = body.inputs[node]
        if op in ALIKE:
            shapes = [self._shape(one) for one in inputs]
            return None if None in shapes else broadcast(op, shapes)
        if op in SHAPED and body.ops[inputs[1][0]] == "Const":
            return self._shaped(op, *inputs)
        return None

    def _shaped(self, op: str, data: Edge, by: Edge) -> Shape:
        """Returns the shape that a constant gives to data, or that data repeated so often have."""
        value = tf_api.read_tensor(self._body.protos[by[0]].attr["value"].tensor).tolist()
        before = self._shape(data)
        if (op == "Reshape" and -1 in value) or (op == "Tile" and (before is None or None in before)):
            return None
        self._notes.kinds[by[0]] = None
        return tuple(value if op == "Reshape" else map(operator.mul, before or (), value))


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
class Spelling(Generic[Found]):
    """What was looked at, and what was found. Nodes are numbered in the order in which they were come across, from 0 for the start.

    Attributes:
      steps: for each node but the start where it was come across: whether that is among the readers of a node or among what it reads, that node, its output if
        it is among the readers, and at which place.
      order: the nodes that were come across as readers, in the order of their numbers in the body: it tells which of them is looked at first.
      asked, likeness: the nodes whose kind was looked at, and what these are like.
      reading, read: the nodes of which it was asked what they read, and all that.
      read_by, counts, readers: the nodes of which it was asked who reads them, how many read each of their outputs, and all those nodes.
      sized, shapes: the tensors whose shapes were looked at and do not follow from the rest, and these.
      found: what was found.
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
    found: Found

    @classmethod
    def of(cls, notes: Notes, start: int, found: Found) -> Spelling[Found]:
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
        local, sized = number.__getitem__, Implied(notes).others(start)
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
            sized=_Edges.of(sized, local),
            shapes=[notes.sizes.asked[edge] for edge in sized],
            found=found.renumbered(local),
        )

    def nodes_at(self, start: int, around: Surroundings) -> Sequence[int] | None:
        """Returns the nodes of a body, by their numbers here, if what was looked at is the same from the node `start`; else None."""
        inputs, readers, likeness = around.body.inputs, around.readers, around.likeness
        reading, starts, first, nodes = readers.nodes, readers.starts, readers.first, [start]
        try:
            for from_readers, node, port, place in self.steps:
                near = nodes[node]
                nodes.append(reading[starts[first[near] + port] + place] if from_readers else inputs[near][place][0])
        except IndexError:
            return None
        node_of = nodes.__getitem__
        after, read_by = [*map(node_of, self.order)], [starts[first[node] : first[node + 1] + 1] for node in map(node_of, self.read_by)]
        alike = (
            [likeness[node_of(node)] for node in self.asked] == self.likeness
            and [end - start for tensors in read_by for start, end in itertools.pairwise(tensors)] == self.counts
            and [*_all(reading[tensors[0] : tensors[-1]] for tensors in read_by)] == [*map(node_of, self.readers)]
            and [*_all(map(inputs.__getitem__, map(node_of, self.reading)))] == self.read.at(nodes)
            and len(set(nodes)) == len(nodes)
            and after == sorted(after)
            and around.sizes.shapes(self.sized.at(nodes)) == self.shapes
        )
        return nodes if alike else None


_all = itertools.chain.from_iterable
