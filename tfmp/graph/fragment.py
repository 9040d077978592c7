"""A part of a main graph, cut out so that it can be converted by itself, and put back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tfmp import tf_api
from tfmp.dtypes import DT_FLOAT

Tensor = tuple[str, int]
"""Name of a node and number of its output."""

PLACE, RESULT = "tfmp_outside", "tfmp_result"
"""What the nodes that stand for the rest of the graph are called, with a number behind."""

PASSING_ON = frozenset({"Identity", "ReadVariableOp"})
"""Ops through which the value of a variable is read. Those outside are copied with the variable: the colouring looks for who reads and writes one."""


@dataclasses.dataclass(frozen=True)
class Fragment:
    """Some nodes of a graph, complete enough to be read as a graph of their own.

    Attributes:
      graph: the nodes; before them copies of nodes outside and placeholders, behind them an Identity for every result.
      outside: name of each placeholder to the tensor outside that it stands for.
      added: names of all nodes that are not part of the fragment.
    """

    graph: tf_api.GraphDef
    outside: Mapping[str, Tensor]
    added: frozenset[str]

    def own(self, nodes: Iterable[tf_api.NodeDef]) -> list[tf_api.NodeDef]:
        """Returns those of `nodes`, the fragment's after a conversion, that belong into the graph."""
        return [node for node in nodes if node.name not in self.added]

    def seen(self, tensor: Tensor) -> Tensor | None:
        """Returns the tensor outside that `tensor`, of the fragment, stands for; None if it is the fragment's own."""
        return self.outside.get(tensor[0], tensor if tensor[0] in self.added else None)


def cut(
    nodes: Sequence[tf_api.NodeDef],
    outside: Callable[[str], tf_api.NodeDef],
    type_of: Callable[[Tensor], int],
    results: Iterable[Tensor],
    functions: Iterable[tf_api.FunctionDef] = (),
) -> Fragment:
    """Returns the fragment of `nodes`.

    Args:
      nodes: the nodes, in any order; none of them is changed.
      outside: name of a node that is not among them to its NodeDef.
      type_of: type number of a tensor outside; of a reference, that of its value.
      results: tensors of `nodes` that somebody outside reads in float32.
      functions: the functions that the nodes may call.
    """
    names = {node.name for node in nodes}
    cutter = _Cutter(outside, type_of)
    own = tf_api.GraphDef()
    for node in nodes:
        copy = own.node.add()
        copy.CopyFrom(node)
        for port, text in enumerate(node.input):
            if not text.startswith("^") and (tensor := parse(text))[0] not in names:
                copy.input[port] = cutter.stand_in(tensor)
    graph = tf_api.GraphDef()
    graph.node.extend([*cutter.nodes.values(), *own.node])
    for number, (name, port) in enumerate(results):
        graph.node.add(name=f"{RESULT}_{number}", op="Identity", input=[f"{name}:{port}"]).attr["T"].type = DT_FLOAT
        cutter.nodes[f"{RESULT}_{number}"] = graph.node[-1]
    graph.library.function.extend(functions)
    return Fragment(graph, cutter.places, frozenset(cutter.nodes))


class _Cutter:
    """Makes what stands for nodes outside."""

    def __init__(self, outside: Callable[[str], tf_api.NodeDef], type_of: Callable[[Tensor], int]) -> None:
        self._outside, self._type_of = outside, type_of
        self.nodes: dict[str, tf_api.NodeDef] = {}
        self.places: dict[str, Tensor] = {}
        self._place_of: dict[Tensor, str] = {}

    def stand_in(self, tensor: Tensor) -> str:
        """Returns how a node writes what stands for `tensor`."""
        name, port = tensor
        if name in self.nodes or self._copy(name):
            return f"{name}:{port}"
        if tensor not in self._place_of:
            place = f"{PLACE}_{len(self._place_of)}"
            node = self.nodes[place] = tf_api.NodeDef(name=place, op="Placeholder")
            node.attr["dtype"].type = self._type_of(tensor)
            self._place_of[tensor], self.places[place] = place, tensor
        return self._place_of[tensor]

    def _copy(self, name: str) -> bool:
        """Copies the node called `name` if it reads nothing, or only passes a variable's value on; returns whether it did."""
        node = self._outside(name)
        sources = [parse(text)[0] for text in node.input if not text.startswith("^")]
        if sources and not (node.op in PASSING_ON and all(source in self.nodes or self._copy(source) for source in sources)):
            return False
        copy = self.nodes[name] = tf_api.NodeDef()
        copy.CopyFrom(node)
        del copy.input[len(sources) :]
        return True


def standing_alone(graph: tf_api.GraphDef, functions: Iterable[tf_api.FunctionDef]) -> tf_api.GraphDef:
    """Returns a copy of a fragment's graph, or of what became of it, with more functions and without control inputs from outside."""
    copy = tf_api.GraphDef()
    copy.CopyFrom(graph)
    copy.library.function.extend(functions)
    names = {node.name for node in copy.node}
    for node in copy.node:
        there = [text for text in node.input if not text.startswith("^") or text[1:] in names]
        if len(there) < len(node.input):
            node.input[:] = there
    return copy


def parse(text: str) -> Tensor:
    """Returns the tensor that a node of a main graph writes as `text`: "name" or "name:port"."""
    name, _, port = text.partition(":")
    return name, int(port or 0)


def reads(nodes: Iterable[tf_api.NodeDef]) -> Iterator[str]:
    """Yields every input of `nodes` as it is written, control inputs ("^name") included."""
    return (text for node in nodes for text in node.input)


def renamed(nodes: Iterable[tf_api.NodeDef], names: Mapping[str, str]) -> list[tf_api.NodeDef]:
    """Returns copies of `nodes` in which what is called by a key of `names` is called by its value, nodes and inputs alike."""
    copies = []
    for node in nodes:
        copy = tf_api.NodeDef()
        copy.CopyFrom(node)
        copy.name = names.get(node.name, node.name)
        for port, text in enumerate(node.input):
            control, name, rest = text[: text.startswith("^")], *_split(text.removeprefix("^"))
            if name in names:
                copy.input[port] = f"{control}{names[name]}{rest}"
        copies.append(copy)
    return copies


def _split(text: str) -> tuple[str, str]:
    name, colon, port = text.partition(":")
    return name, colon + port


def cast_node(name: str, source: Tensor, device: str, origin: int, target: int) -> tf_api.NodeDef:
    """Returns a Cast of `source` from the type numbered `origin` to the one numbered `target`."""
    node = tf_api.NodeDef(name=name, op="Cast", device=device, input=[f"{source[0]}:{source[1]}"])
    node.attr["SrcT"].type, node.attr["DstT"].type = origin, target
    return node


def graph_of(
    nodes: Iterable[tf_api.NodeDef],
    functions: Iterable[tf_api.FunctionDef],
    gradients: Iterable[tf_api.Message] = (),
    versions: tf_api.Message | None = None,
) -> tf_api.GraphDef:
    """Returns a GraphDef of `nodes` with these functions and these gradients of functions in its library."""
    graph = tf_api.GraphDef(versions=versions)
    graph.node.extend(nodes)
    graph.library.function.extend(functions)
    graph.library.gradient.extend(gradients)
    return graph
