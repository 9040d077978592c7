"""New ops in a function, and nodes that become another op."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfmp import tf_api
from tfmp.graph.body import Body, Edge
from tfmp.graph.edit import OURS, Edited, GraphEditor
from tfmp.graph.schema import registered_schema
from tfmp.graph.wire import debug_info, node_as_written


class Made(NamedTuple):
    """A node of the edited function, by its name and op."""

    name: str
    op: str

    def output(self, port: int) -> str:
        """Returns how output `port` is written, for an op whose outputs do not depend on its attributes."""
        return self.name + _output_name(self.op, port)


@functools.lru_cache(maxsize=1024)
def _output_name(op: str, port: int) -> str:
    return registered_schema(op).layout({}).output_names[port]


class GrowingFunction(GraphEditor):
    """Puts ops in the place of others.

    Attributes:
      named: tensors of the body that are written otherwise now, since their node has become another op.
      shapes: names of the nodes that were made to the shapes of their outputs.
    """

    def __init__(self, body: Body) -> None:
        """Takes a function that was just read."""
        super().__init__(body)
        self.named: dict[Edge, str] = {}
        self.shapes: dict[str, Sequence[tuple[int | None, ...] | None]] = {}
        self._became: set[int] = set()
        self._sums: dict[int, tuple[set[int], list[str]]] = {}
        self._taken = set(body.names)
        self._constants: dict[Any, str] = {}
        self._shared: dict[Any, bytes] = {}

    def text(self, edge: Edge) -> str:
        """Returns how the tensor `edge` of the body is written now."""
        return self.named.get(edge) or self.body.tensor_name(edge)

    def make(self, op: str, name: str, inputs: Iterable[str], near: int, shapes: Sequence[Any], *, attrs: Mapping[str, Any], value: bytes = b"") -> Made:
        """Makes a node.

        Args:
          op: its op type.
          name: its name, to which something is added that keeps it apart.
          inputs: how its data inputs are written.
          near: number of the node whose device it gets, and whose marks (attributes that begin with "_").
          shapes: of its outputs.
          attrs: its attributes; those that are not given have their defaults.
          value: more of them, as a serialised NodeDef that has nothing else.
        """
        free = name + OURS
        while free in self._taken:
            name += "_"
            free = name + OURS
        self._taken.add(free)
        self._added.append(node_as_written(free, inputs, self._common_of(op, near, value, attrs)))
        self.shapes[free] = shapes
        return Made(free, op)

    def _common_of(self, op: str, near: int, value: bytes, attrs: Mapping[str, Any]) -> bytes:
        """Returns what nodes have in common that are alike but for their names and inputs."""
        key = op, value, self.body.kind_of[near], self.body.devices[near], *attrs.items()
        found = self._shared.get(key)
        if found is None:
            node = tf_api.NodeDef(op=op, device=self.body.devices[near])
            node.MergeFromString(_template(op, tuple(attrs.items())) + value)
            for name, mark in self.body.protos[near].attr.items():
                if name[0] == "_" and name != "_output_shapes":
                    node.attr[name].CopyFrom(mark)
            found = self._shared[key] = bytes(node.SerializeToString())
        return found

    def constant(self, value: Any, dtype: int, name: str, near: int) -> str:
        """Returns how a constant is written: one that is there already on the same device, or a new one, which `near` gives its device."""
        key = (dtype, value.shape, value.tobytes(), self.body.devices[near])
        if key not in self._constants:
            held = _constant(value.tobytes(), str(value.dtype), value.shape, dtype)
            self._constants[key] = self.make("Const", name, (), near, [value.shape], attrs={}, value=held).output(0)
        return self._constants[key]

    def become(self, number: int, op: str, inputs: Sequence[str], shapes: Sequence[tuple[int | None, ...] | None], **attrs: Any) -> Made:
        """Makes the node `number` be of op `op`; its name, its device, its marks and what it waits for stay. Who reads it is to be told (`named`)."""
        name, debug = self.body.names[number], debug_info(self.body.nodes[number])  # type: ignore[arg-type]
        waits = [f"^{self.body.names[source]}" for source in self.body.controlled.get(number, ())]
        self.touched[number] = True
        self._became.add(number)
        self._redirected.pop(number, None)
        self._sums.pop(number, None)
        self._written[number] = node_as_written(name, [*inputs, *waits], self._common_of(op, number, b"", attrs)) + debug
        self.shapes[name] = shapes
        return Made(name, op)

    def redirect(self, reader: Edge, text: str) -> None:
        """Does as `GraphEditor.redirect`; what a node has become reads what it was told to."""
        if reader[0] not in self._became:
            super().redirect(reader, text)

    def sum_instead(self, number: int, ports: Iterable[int], text: str) -> None:
        """Lets the AddN `number` add the tensor written `text` in the place of what it reads at `ports`."""
        if number not in self._became:
            self.touched[number] = True
            dropped, others = self._sums.setdefault(number, (set(), []))
            dropped.update(ports)
            others.append(text)
            self._redirected.setdefault(number, {})  # so that `finish` looks at its inputs

    def _rewire(self, number: int, inputs: MutableSequence[str]) -> None:
        super()._rewire(number, inputs)
        if number in self._sums:
            (dropped, others), waits = self._sums[number], len(self.body.inputs[number])
            inputs[:] = [*(text for port, text in enumerate(inputs[:waits]) if port not in dropped), *others, *inputs[waits:]]

    def finish(self) -> Edited:
        """Returns all that was edited and added; to be asked once."""
        for number, (dropped, others) in self._sums.items():
            count = len(self.body.inputs[number]) - len(dropped) + len(others)
            self._set(number, bytes(tf_api.NodeDef(attr={"N": tf_api.AttrValue(i=count)}).SerializeToString()))
        return super().finish()


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
    """Returns the attributes of a Const as a serialised NodeDef; one number that is repeated is written once (the last value stands for the missing ones in
    TensorFlow's `tensor.proto`).
    """
    node, value = tf_api.NodeDef(), np.frombuffer(data, kind)
    node.attr["dtype"].type = dtype
    tensor = node.attr["value"].tensor
    repeated = value.size > 1 and bool(np.all(value == value[0]))
    tensor.CopyFrom(tf_api.make_tensor(value[0] if repeated else value.reshape(shape), dtype))
    if repeated:
        for size in shape:
            tensor.tensor_shape.dim.add(size=size)
    return bytes(node.SerializeToString())
