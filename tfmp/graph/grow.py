"""New ops in a graph, and nodes that become another op."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfmp import tf_api
from tfmp.graph.edit import OURS, GraphEditor, Proto
from tfmp.graph.schema import registered_schema
from tfmp.graph.view import Body, Edge


@dataclasses.dataclass(frozen=True)
class Made:
    """A node of the edited graph, by its name and op, and how it is written: in a function, or in a main graph."""

    name: str
    op: str
    in_function: bool

    def output(self, port: int) -> str:
        """Returns how output `port` is written, for an op whose outputs do not depend on its attributes."""
        if not self.in_function:
            return f"{self.name}:{port}" if port else self.name
        return self.name + registered_schema(self.op).layout({}).output_name(port)


class GrowingGraph(GraphEditor):
    """Edits a copy of one body's proto by putting ops in the place of others.

    Attributes:
      named: tensors of the body that are written otherwise now, since their node has become another op.
      shapes: names of the nodes that were made to the shapes of their outputs.
    """

    def __init__(self, body: Body, original: Proto) -> None:
        """Copies `original`, the proto that `body` was read from."""
        super().__init__(body, original)
        self.named: dict[Edge, str] = {}
        self.shapes: dict[str, Sequence[tuple[int | None, ...] | None]] = {}
        self._taken = set(body.names)

    def text(self, edge: Edge) -> str:
        """Returns how the tensor `edge` of the body is written now."""
        return self.named.get(edge) or self.body.tensor_name(edge)

    def add(self, op: str, name: str, inputs: Sequence[str], near: int, shapes: Sequence[tuple[int | None, ...] | None], **attrs: Any) -> Made:
        """Adds a node.

        Args:
          op: its op type.
          name: its name, to which something is added that keeps it apart.
          inputs: how its data inputs are written.
          near: number of the node whose device it gets, and whose marks (attributes that begin with "_").
          shapes: of its outputs.
          **attrs: its attributes; those that are not given have their defaults.
        """
        free = name + OURS
        while free in self._taken:
            name += "_"
            free = name + OURS
        self._taken.add(free)
        like = self._nodes[near - self.body.arguments]
        node = self._nodes.add(name=free, op=op, device=like.device)
        node.input.extend(inputs)
        _set_attributes(node, {**_marks(like), **_attributes(op, attrs)})
        self.shapes[free] = shapes
        return Made(free, op, bool(self.body.name))

    def become(self, number: int, op: str, inputs: Sequence[str], shapes: Sequence[tuple[int | None, ...] | None], **attrs: Any) -> Made:
        """Makes the node `number` be of op `op`; its name, its device, its marks and what it waits for stay. Who reads it is to be told (`named`)."""
        node = self.node(number)
        waits = [text for text in node.input if text.startswith("^")]
        node.op = op
        node.input[:] = [*inputs, *waits]
        _set_attributes(node, {**_marks(node), **_attributes(op, attrs)})
        self.shapes[node.name] = shapes
        return Made(node.name, op, bool(self.body.name))

    def sum_instead(self, number: int, inputs: Sequence[str]) -> None:
        """Lets the AddN `number` add up `inputs`."""
        node = self.node(number)
        waits = [text for text in node.input if text.startswith("^")]
        node.input[:] = [*inputs, *waits]
        node.attr["N"].i = len(inputs)


def _marks(node: tf_api.NodeDef) -> dict[str, tf_api.AttrValue]:
    """Copies of the attributes by which TensorFlow and tfmp mark nodes, but for shapes."""
    return {name: tf_api.AttrValue.FromString(value.SerializeToString()) for name, value in node.attr.items() if name[0] == "_" and name != "_output_shapes"}


def _set_attributes(node: tf_api.NodeDef, attrs: Mapping[str, tf_api.AttrValue]) -> None:
    node.attr.clear()
    for name, value in attrs.items():
        node.attr[name].CopyFrom(value)


FIELDS = {"bool": "b", "float": "f", "int": "i", "string": "s", "type": "type"}
"""Kind of attribute in an op definition to the field of an AttrValue that holds it."""


def _attributes(op: str, given: Mapping[str, Any]) -> dict[str, tf_api.AttrValue]:
    """Returns all attributes of a node of op `op`; `given` are Python values, a pair (value, type number) for a tensor."""
    found: dict[str, tf_api.AttrValue] = {}
    for attr in tf_api.op_def(op).attr:  # type: ignore[union-attr]
        if attr.name not in given:
            found[attr.name] = attr.default_value
        elif attr.type == "tensor":
            found[attr.name] = tf_api.AttrValue(tensor=tf_api.make_tensor(*given[attr.name]))
        else:
            value = given[attr.name]
            found[attr.name] = tf_api.AttrValue(**{FIELDS[attr.type]: value.encode() if isinstance(value, str) else value})
    return found
