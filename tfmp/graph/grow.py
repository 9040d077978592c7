"""New ops in a graph, and nodes that become another op."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfmp import tf_api
from tfmp.graph.body import Body, Edge
from tfmp.graph.edit import OURS, GraphEditor, Original, Proto, set_data_inputs
from tfmp.graph.schema import registered_schema
from tfmp.graph.wire import add_written, node_as_written


class Made(NamedTuple):
    """A node of the edited graph, by its name and op, and how it is written: in a function, or in a main graph."""

    name: str
    op: str
    in_function: bool

    def output(self, port: int) -> str:
        """Returns how output `port` is written, for an op whose outputs do not depend on its attributes."""
        if not self.in_function:
            return f"{self.name}:{port}" if port else self.name
        return self.name + _output_name(self.op, port)


@functools.lru_cache(maxsize=1024)
def _output_name(op: str, port: int) -> str:
    return registered_schema(op).layout({}).output_names[port]


class GrowingGraph(GraphEditor):
    """Edits a copy of one body's proto by putting ops in the place of others.

    Attributes:
      named: tensors of the body that are written otherwise now, since their node has become another op.
      shapes: names of the nodes that were made to the shapes of their outputs.
      added: of each node that was added, the bytes of what it has in common with others, as `grown` takes them; `proto` has them once `finish` was called.
    """

    def __init__(self, body: Body, original: Original) -> None:
        """Copies `original`, the proto that `body` was read from."""
        super().__init__(body, original)
        self.named: dict[Edge, str] = {}
        self.shapes: dict[str, Sequence[tuple[int | None, ...] | None]] = {}
        self.added: list[bytes] = []
        self._taken = set(body.names)
        self._constants: dict[Any, str] = {}
        self._common: dict[Any, bytes] = {}
        self._written: list[bytes] = []

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
        return self._add(op, name, inputs, near, shapes, b"", attrs)

    def _add(self, op: str, name: str, inputs: Sequence[str], near: int, shapes: Sequence[Any], value: bytes, attrs: Mapping[str, Any]) -> Made:
        free = name + OURS
        while free in self._taken:
            name += "_"
            free = name + OURS
        self._taken.add(free)
        common = self._shared(op, near, value, attrs)
        self._written.append(node_as_written(free, inputs, common))
        self.added.append(common)
        self.shapes[free] = shapes
        return Made(free, op, bool(self.body.name))

    def _shared(self, op: str, near: int, value: bytes, attrs: Mapping[str, Any]) -> bytes:
        """Returns what nodes have in common that are alike but for their names and inputs."""
        key = op, value, self.body.kind_of[near], self.body.devices[near], *attrs.items()
        found = self._common.get(key)
        if found is None:
            node = tf_api.NodeDef(op=op, device=self.body.devices[near])
            node.MergeFromString(_template(op, tuple(attrs.items())) + value)
            for name, mark in self.body.protos[near].attr.items():  # type: ignore[union-attr]
                if name[0] == "_" and name != "_output_shapes":
                    node.attr[name].CopyFrom(mark)
            found = self._common[key] = bytes(node.SerializeToString())
        return found

    def constant(self, value: Any, dtype: int, name: str, near: int) -> str:
        """Returns how a constant is written: one that is there already on the same device, or a new one, which `near` gives its device."""
        key = (dtype, value.shape, value.tobytes(), self.body.devices[near])
        if key not in self._constants:
            held = _constant(value.tobytes(), str(value.dtype), value.shape, dtype)
            self._constants[key] = self._add("Const", name, (), near, [value.shape], held, {}).output(0)
        return self._constants[key]

    def become(self, number: int, op: str, inputs: Sequence[str], shapes: Sequence[tuple[int | None, ...] | None], **attrs: Any) -> Made:
        """Makes the node `number` be of op `op`; its name, its device, its marks and what it waits for stay. Who reads it is to be told (`named`)."""
        node, name = self.node(number), self.body.names[number]
        set_data_inputs(node, inputs)
        node.attr.clear()
        node.MergeFromString(self._shared(op, number, b"", attrs))
        self.shapes[name] = shapes
        return Made(name, op, bool(self.body.name))

    def finish(self) -> Proto:
        """Puts the nodes that were added since it was last called into `proto`; returns that."""
        add_written(self.proto, self._written)
        self._written.clear()
        return self.proto

    def sum_instead(self, number: int, inputs: Sequence[str]) -> None:
        """Lets the AddN `number` add up `inputs`."""
        node = self.node(number)
        set_data_inputs(node, inputs)
        node.attr["N"].i = len(inputs)


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
