"""The shapes of a program's tensors, as TensorFlow's own shape functions found them while it was traced or imported."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfmp import tf_api
from tfmp.dtypes import DT_FLOAT, SIXTEEN_BIT
from tfmp.graph.body import Body, Edge
from tfmp.program.unfold import Instance
from tfmp.program.union import Union

Shape = tuple[int | None, ...] | None
"""One entry a dimension, None where it is not known; None as a whole if not even the rank is."""

Graphs = Callable[[str], Any]
"""Name of a function ("" for a main graph) to the Python graph that has its nodes, or None."""

UNKNOWN_DIMENSION = 32
"""Stands for a dimension that is not known before the program runs, mostly that of the batch. Our own choice: what it must be is neither 0 nor 1, so that
whatever has a batch dimension weighs more than what has none.
"""

UNKNOWN_ELEMENTS = 1024
"""Stands for the elements of a tensor of unknown rank where its neighbours do not tell more."""


DISTANCE = 64
"""How many ops back such a neighbour is looked for. Our own choice, so that a chain of thousands costs no more than it must."""

FLOATS = frozenset({DT_FLOAT, *(format.number for format in SIXTEEN_BIT.values())})


def unknown(function: str) -> None:
    """The `Graphs` of a program of which no shape is known."""


@functools.lru_cache(maxsize=4096)
def _product(shape: tuple[int | None, ...]) -> int:
    """The elements of a tensor of that shape, of which a graph has few different ones."""
    return max(1, math.prod(UNKNOWN_DIMENSION if size is None else size for size in shape))


def hand_over(before: Body, after: Body) -> None:
    """Tells `after` the shapes that were looked up for `before`: it has the nodes of `before`, some of them changed (`Body.made`), and more of its own."""
    nodes = before.proto_nodes.stop
    after.shapes.update({node: shapes for node, shapes in before.shapes.items() if node < nodes and node not in after.made})


class Sizes:
    """The shapes and element counts of the tensors of a union, looked up when they are asked for."""

    def __init__(self, union: Union, graphs: Graphs) -> None:
        """Looks nothing up yet."""
        self._union, self._graphs = union, graphs
        self._known = union.body.shapes
        self._counted: dict[Edge, int] = {}
        self._graph_of: dict[int, Any] = {}

    @classmethod
    def of_body(cls, body: Body, graphs: Graphs) -> Sizes:
        """Returns the sizes of one body by itself."""
        return cls(Union(body, (0,), (Instance(0, body.name, {}),), (), ()), graphs)

    def shape(self, edge: Edge) -> Shape:
        """Returns the shape of the tensor that comes out of a node's port."""
        node, port = edge
        if node in self._union.body.resized:
            return self.shape(self._union.body.resized[node])
        shapes = self._known.get(node)
        if shapes is None:
            shapes = self._known[node] = self._look_up(node)
        return shapes[port] if port < len(shapes) else None

    def shapes(self, edges: Sequence[Edge]) -> list[Shape]:
        """Returns the shapes of several tensors; those that are not known yet are looked up together, which takes half the time."""
        known, resized = self._known, self._union.body.resized
        missing = dict.fromkeys(node for node, _ in edges if node not in known and node not in resized)
        if missing:
            self._look_up_all(missing)
        return [self.shape(edge) if edge[0] in resized else row[edge[1]] if edge[1] < len(row := known[edge[0]]) else None for edge in edges]

    def _look_up_all(self, nodes: Iterable[int]) -> None:
        """Makes the shapes of `nodes` known."""
        body, known = self._union.body, self._known
        named = [node for node in nodes if node not in body.made and body.nodes[node] is not None]
        for number, group in itertools.groupby(named, self._union.instance_of):
            graph, numbers = self._graph(number), list(group)
            if graph is not None:
                known.update(zip(numbers, tf_api.output_shapes_of(graph, [body.names[node] for node in numbers]), strict=True))
        known.update((node, self._look_up(node)) for node in nodes if node not in known)

    def elements(self, edge: Edge) -> int:
        """Returns how many elements the tensor has, at least 1, unknown dimensions estimated."""
        found = self._counted.get(edge)
        if found is None:
            found = self._counted[edge] = self._count(edge)
        return found

    def _count(self, edge: Edge) -> int:
        """Of a tensor of unknown rank: as many as the first float tensor of known rank that it is made of."""
        for _ in range(DISTANCE):
            shape = self.shape(edge)
            if shape is not None:
                return _product(shape)
            sources = [source for source in self._union.body.inputs[edge[0]] if self._dtype(source) in FLOATS]
            if not sources:
                break
            edge = sources[0]
        return UNKNOWN_ELEMENTS

    def all_elements(self, edges: Sequence[Edge]) -> list[int]:
        """Returns the elements of several tensors."""
        return [_product(shape) if shape is not None else self.elements(edge) for edge, shape in zip(edges, self.shapes(edges), strict=True)]

    def _dtype(self, edge: Edge) -> int:
        body, (node, port) = self._union.body, edge
        return body.types[node][body.layouts[node].outputs[port]]

    def _graph(self, number: int) -> Any:
        """Returns the Python graph of the instance `number`, if there is one."""
        if number not in self._graph_of:
            self._graph_of[number] = self._graphs(self._union.instances[number].function)
        return self._graph_of[number]

    def _look_up(self, node: int) -> Sequence[Shape]:
        number = self._union.instance_of(node)
        graph = self._graph(number)
        if graph is None:
            return ()
        body, offset = self._union.body, self._union.offsets[number]
        if node in body.made:
            return body.made[node]
        if body.nodes[node] is None:
            return tf_api.input_shapes(graph, node - offset)
        return tf_api.output_shapes(graph, body.names[node])
