"""New ops in a graph, and nodes that become another op."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfmp import tf_api
from tfmp.graph.edit import OURS, GraphEditor, Proto, set_data_inputs
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
        self._constants: dict[Any, str] = {}

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
        node.MergeFromString(_template(op, tuple(attrs.items())))
        _mark(node, like)
        self.shapes[free] = shapes
        return Made(free, op, bool(self.body.name))

    def constant(self, value: Any, dtype: int, name: str, near: int) -> str:
        """Returns how a constant is written: one that is there already on the same device, or a new one, which `near` gives its device."""
        key = (dtype, value.shape, value.tobytes(), self._nodes[near - self.body.arguments].device)
        if key not in self._constants:
            node = self.add("Const", name, (), near, [value.shape])
            self._nodes[-1].MergeFromString(_constant(value.tobytes(), str(value.dtype), value.shape, dtype))
            self._constants[key] = node.output(0)
        return self._constants[key]

    def become(self, number: int, op: str, inputs: Sequence[str], shapes: Sequence[tuple[int | None, ...] | None], **attrs: Any) -> Made:
        """Makes the node `number` be of op `op`; its name, its device, its marks and what it waits for stay. Who reads it is to be told (`named`)."""
        node = self.node(number)
        before = tf_api.NodeDef.FromString(node.SerializeToString())
        node.op = op
        set_data_inputs(node, inputs)
        node.attr.clear()
        node.MergeFromString(_template(op, tuple(attrs.items())))
        _mark(node, before)
        self.shapes[node.name] = shapes
        return Made(node.name, op, bool(self.body.name))

    def sum_instead(self, number: int, inputs: Sequence[str]) -> None:
        """Lets the AddN `number` add up `inputs`."""
        node = self.node(number)
        set_data_inputs(node, inputs)
        node.attr["N"].i = len(inputs)


def _mark(node: tf_api.NodeDef, like: tf_api.NodeDef) -> None:
    """Gives `node` the attributes by which TensorFlow and tfmp have marked `like`, but for shapes."""
    for name, value in like.attr.items():
        if name[0] == "_" and name != "_output_shapes":
            node.attr[name].CopyFrom(value)


FIELDS = {"bool": "b", "float": "f", "int": "i", "string": "s", "type": "type"}
"""Kind of attribute in an op definition to the field of an AttrValue that holds it."""


@functools.lru_cache(maxsize=1024)
def _template(op: str, given: tuple[tuple[str, Any], ...]) -> bytes:
    """Returns the attributes of a node of op `op`, tensors left out, as a serialised NodeDef; those that are not given have their defaults."""
    node, values = tf_api.NodeDef(), dict(given)
    for attr in tf_api.op_def(op).attr:  # type: ignore[union-attr]
        if attr.name in values:
            value = values[attr.name]
            node.attr[attr.name].CopyFrom(tf_api.AttrValue(**{FIELDS[attr.type]: value.encode() if isinstance(value, str) else value}))
        elif attr.HasField("default_value"):
            node.attr[attr.name].CopyFrom(attr.default_value)
    return bytes(node.SerializeToString())


@functools.lru_cache(maxsize=1024)
def _constant(data: bytes, kind: str, shape: tuple[int, ...], dtype: int) -> bytes:
    """Returns the attributes of a Const as a serialised NodeDef."""
    node = tf_api.NodeDef()
    node.attr["dtype"].type = dtype
    node.attr["value"].tensor.CopyFrom(tf_api.make_tensor(np.frombuffer(data, kind).reshape(shape), dtype))
    return bytes(node.SerializeToString())
