"""Graph protos as they are written, for what looks at very many nodes and needs little of each.

TensorFlow's own message classes make something of every attribute of every node. The ones here have the same field numbers, and declare as bytes what they
only hand on (protobuf's encoding guide: a message is written as its length and its bytes).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tfmp import tf_api
from tfmp.errors import GraphError

Proto = tf_api.FunctionDef | tf_api.GraphDef

Original = Proto | bytes
"""A function or a main graph, or a function in its serialised form."""

Node = tf_api.NodeDef | bytes
"""A node, or a node in its serialised form."""

Field = descriptor_pb2.FieldDescriptorProto
BYTES, STRING, MAP = Field.TYPE_BYTES, Field.TYPE_STRING, "map"

FIELDS: Mapping[str, Sequence[tuple[str, int, Any]]] = {
    "Attributes": (("op", 2, STRING), ("attr", 5, MAP)),
    "Inputs": (("name", 1, STRING), ("input", 3, STRING)),
    "Texts": (("names", 1, STRING), ("input", 3, STRING), ("devices", 4, STRING)),
    "Debug": (("info", 6, BYTES),),
    "FunctionOfAttributes": (("node", 3, "Attributes"),),
    "FunctionOfInputs": (("node", 3, "Inputs"),),
    "FunctionOfBytes": (("node", 3, BYTES),),
    "GraphOfBytes": (("node", 1, BYTES),),
    "Signature": (("signature", 1, BYTES),),
}
"""Message to its fields, numbered as in TensorFlow's `node_def.proto`, `function.proto` and `graph.proto`. Fields that are left out survive as they are, until
they are discarded.
"""

SINGLE = frozenset({"name", "op", "info"})
"""Fields that are there once; the others are repeated."""


@functools.cache
def _messages() -> Mapping[str, Any]:
    """Returns the message classes of `FIELDS`."""
    file = descriptor_pb2.FileDescriptorProto(name="tfmp/graph/wire.proto", package="tfmp", syntax="proto3")
    for message, fields in FIELDS.items():
        declared = file.message_type.add(name=message)
        for name, number, kind in fields:
            one = declared.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL if name in SINGLE else Field.LABEL_REPEATED)
            if kind == MAP:
                _declare_map(declared, one)
            elif isinstance(kind, str):
                one.type, one.type_name = Field.TYPE_MESSAGE, f".tfmp.{kind}"
            else:
                one.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = {message: pool.FindMessageTypeByName(f"tfmp.{message}") for message in FIELDS}
    make = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(pool).GetPrototype  # the second before protobuf 4.22
    return {message: make(descriptor) for message, descriptor in descriptors.items()}


def _declare_map(message: Any, field: Any) -> None:
    """Declares `field` of `message` as a map from names to bytes: an entry for each, as the encoding guide says."""
    entry = message.nested_type.add(name=f"{field.name.capitalize()}Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=STRING, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=BYTES, label=Field.LABEL_OPTIONAL)
    field.type, field.type_name = Field.TYPE_MESSAGE, f".tfmp.{message.name}.{entry.name}"


def as_proto(original: Original) -> Proto:
    """Returns `original`, or what it is the serialised form of."""
    return tf_api.FunctionDef.FromString(original) if isinstance(original, bytes) else original


def copy_of(original: Original) -> Proto:
    """Returns a new proto that says what `original` does."""
    if isinstance(original, bytes):
        return as_proto(original)
    copy = type(original)()
    copy.CopyFrom(original)
    return copy


def node_def(node: Node) -> tf_api.NodeDef:
    """Returns `node` as TensorFlow reads it."""
    return tf_api.NodeDef.FromString(node) if isinstance(node, bytes) else node


class Protos:
    """Nodes as TensorFlow reads them, None for pseudo nodes; each is read when it is first asked for. Never written to."""

    def __init__(self, nodes: Sequence[Node | None]) -> None:
        """Takes nodes that may be serialised."""
        self._nodes = nodes
        self._read: dict[int, tf_api.NodeDef] = {}

    def __len__(self) -> int:
        """Returns the number of nodes."""
        return len(self._nodes)

    def __iter__(self) -> Iterator[Any]:
        """Yields all of them."""
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> Any:
        """Returns one node: a NodeDef, or None."""
        node = self._nodes[number]
        if not isinstance(node, bytes):
            return node
        found = self._read.get(number)
        if found is None:
            found = self._read[number] = node_def(node)
        return found


def as_bytes(message: Original | Node) -> bytes:
    """Returns `message`, serialised."""
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


def serialise(message: tf_api.Message) -> bytes:
    """Returns `message`, serialised; attributes come in the order of their names, so that the bytes are the same where they are."""
    return bytes(message.SerializeToString(deterministic=True))


@functools.cache
def doubles() -> bool:
    """Returns whether this protobuf writes an attribute twice that it has read twice. The last one counts all the same, but protobuf 3.20, where it is in C++,
    complains of each such node on stderr.
    """
    attribute = tf_api.NodeDef(attr={"T": tf_api.AttrValue(type=1)}).SerializeToString()
    return bool(tf_api.NodeDef.FromString(attribute + attribute).SerializeToString() != attribute)


def node_as_written(name: str, inputs: Iterable[str], common: bytes) -> bytes:
    """Returns a node, serialised, that has a name and inputs of its own, and all else as a serialised NodeDef without those says."""
    return bytes(_messages()["Inputs"](name=name, input=inputs).SerializeToString()) + common


def debug_info(node: bytes) -> bytes:
    """Returns what a serialised node says of where it comes from (`experimental_debug_info`), as a serialised node that says nothing else."""
    debug = _messages()["Debug"].FromString(node)
    debug.DiscardUnknownFields()
    return bytes(debug.SerializeToString())


def signature(function: Original) -> tf_api.OpDef:
    """Returns the signature of a function; what a serialised one says in parts, as `Renamed` does, is taken together."""
    if not isinstance(function, bytes):
        return function.signature
    return tf_api.OpDef.FromString(b"".join(_messages()["Signature"].FromString(function).signature))


def parted(function: bytes) -> tuple[list[bytes], bytes]:
    """Returns the nodes of a serialised function, each serialised, and all else of it."""
    read = _messages()["FunctionOfBytes"].FromString(function)
    nodes = list(read.node)
    read.ClearField("node")
    return nodes, bytes(read.SerializeToString())


def joined(nodes: Iterable[bytes], rest: bytes) -> bytes:
    """Returns the function that consists of serialised nodes and of `rest`, all else of it serialised (which order fields come in does not matter)."""
    return rest + bytes(_messages()["FunctionOfBytes"](node=nodes).SerializeToString())


def with_inputs(nodes: Iterable[bytes], edits: Iterable[Callable[[MutableSequence[str]], None]]) -> list[bytes]:
    """Returns serialised nodes with other inputs; each of `edits` changes how those of one of the nodes are written."""
    read = _messages()["FunctionOfInputs"].FromString(joined(nodes, b""))
    for node, edit in zip(read.node, edits, strict=True):
        edit(node.input)
    return parted(read.SerializeToString())[0]


END = ""
"""What ends the inputs of one node in `Columns.inputs`. No input is written so."""


class Columns(NamedTuple):
    """Nodes, column by column.

    Attributes:
      names, devices: of each.
      inputs: how each input of each is written, node after node, with `END` after those of each.
      attributes: op and attributes of each, written alike for nodes that are alike: attributes are in the order of their names.
      nodes: each of them.
    """

    names: Sequence[str]
    devices: Sequence[str]
    inputs: Sequence[str]
    attributes: Sequence[bytes]
    nodes: Sequence[Node]


BETWEEN = b"\x1a\x00\x22\x00"
"""An input (field 3) and a device (field 4) that are written as nothing, as those of no node are."""


def columns_of(nodes: Sequence[bytes], function: bytes = b"", where: str = "") -> Columns:
    """Returns the columns of serialised nodes; raises `GraphError` if one has no name, or an input without one. `function` is a serialised function that has
    just these nodes, if there is one at hand, and `where` tells the user which one they are in.

    Names, inputs and devices are read as if all nodes were one that has many of each (protobuf's encoding guide: messages that are written one after the other
    are read as one).
    """
    texts = _messages()["Texts"].FromString(BETWEEN.join([*nodes, b""]))
    names, inputs, devices = texts.names[:], texts.input[:], texts.devices[:]
    if len(names) != len(nodes):
        number, op = next((number, node.op) for number, node in enumerate(map(node_def, nodes)) if not node.name)
        raise GraphError(f"{op} node number {number}{where} has no name; give it one.")
    if inputs.count(END) != len(nodes):
        reader = next(name for name, node in zip(names, nodes, strict=True) if END in _messages()["Inputs"].FromString(node).input)
        raise GraphError(f"node {reader!r}{where} reads '', which is not there.")
    placed = [""] * len(nodes) if len(devices) == len(nodes) else list(_devices(devices))
    return Columns(names, placed, inputs, _attributes(function or joined(nodes, b"")), nodes)


def _devices(texts: Iterable[str]) -> Iterator[str]:
    """Yields the device of each node, of texts among which each node is followed by an empty one."""
    device = ""
    for text in texts:
        if not text:
            yield device
        device = text


def _attributes(function: bytes) -> Sequence[bytes]:
    """Returns op and attributes of each node of a serialised function as `Columns` has them."""
    read = _messages()["FunctionOfAttributes"].FromString(function)
    read.DiscardUnknownFields()
    return parted(read.SerializeToString(deterministic=True))[0]


def columns_of_graph(graph: tf_api.GraphDef) -> Columns:
    """Returns the nodes of `graph`, which stay the messages that they are; raises `GraphError` as `columns_of` does."""
    return columns_of(_messages()["GraphOfBytes"].FromString(graph.SerializeToString()).node)._replace(nodes=list(graph.node))
