"""Graph protos as they are written, for what looks at very many nodes and needs little of each.

TensorFlow's own message classes make something of every attribute of every node. The ones here have the same field numbers, and declare as bytes what they
only hand on (protobuf's encoding guide: a message is written as its length and its bytes).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tfmp import tf_api

Field = descriptor_pb2.FieldDescriptorProto
BYTES, STRING, MAP = Field.TYPE_BYTES, Field.TYPE_STRING, "map"

NODE = (("name", 1, STRING), ("op", 2, STRING), ("input", 3, STRING), ("device", 4, STRING), ("attr", 5, MAP))

FIELDS: Mapping[str, Sequence[tuple[str, int, Any]]] = {
    "Node": NODE,
    "Function": (("node", 3, "Node"),),
    "Attributes": (("op", 2, STRING), ("attr", 5, BYTES)),
    "FunctionOfAttributes": (("node", 3, "Attributes"),),
    "FunctionOfBytes": (("node", 3, BYTES),),
    "GraphOfAttributes": (("node", 1, "Attributes"),),
    "GraphOfBytes": (("node", 1, BYTES),),
    "Beginning": NODE[:1] + NODE[2:3],
    "Debug": (("info", 6, BYTES),),
    "Head": (("signature", 1, BYTES),),
}
"""Message to its fields, numbered as in TensorFlow's `node_def.proto`, `function.proto` and `graph.proto`. Fields that are left out survive as they are, until
they are discarded.
"""

SINGLE = frozenset({"name", "op", "device", "info", "signature"})
"""Fields that are there once; the others are repeated, but for the attributes of a node, which are a map."""


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


Node = tf_api.NodeDef | bytes
"""A node, or a node in its serialised form."""


Proto = tf_api.FunctionDef | tf_api.GraphDef

Original = Proto | bytes
"""A function or a main graph, or a function in its serialised form."""


def as_proto(original: Original) -> Proto:
    """Returns `original`, or what it is the serialised form of."""
    return tf_api.FunctionDef.FromString(original) if isinstance(original, bytes) else original


def node_def(node: Node) -> tf_api.NodeDef:
    """Returns `node` as TensorFlow reads it."""
    return tf_api.NodeDef.FromString(node) if isinstance(node, bytes) else node


def serialise(message: tf_api.Message) -> bytes:
    """Returns `message`, serialised; attributes come in the order of their names, so that the bytes are the same where they are."""
    return bytes(message.SerializeToString(deterministic=True))


def node_as_written(name: str, inputs: Iterable[str], common: bytes) -> bytes:
    """Returns a node, serialised, that has a name and inputs of its own, and all else as a serialised NodeDef without those says."""
    return bytes(_messages()["Beginning"](name=name, input=inputs).SerializeToString()) + common


def debug_info(node: bytes) -> bytes:
    """Returns what a serialised node says of where it comes from (`experimental_debug_info`), as a serialised node that says nothing else."""
    debug = _messages()["Debug"].FromString(node)
    debug.DiscardUnknownFields()
    return bytes(debug.SerializeToString())


def signature_of(serialised: bytes) -> tf_api.OpDef:
    """Returns the signature of a serialised function."""
    return tf_api.OpDef.FromString(_messages()["Head"].FromString(serialised).signature)


class Columns(NamedTuple):
    """Nodes, column by column.

    Attributes:
      names, devices: of each.
      inputs: how each input of each is written.
      attributes: op and attributes of each as they are written, which are the same for nodes that are alike.
      nodes: each of them.
    """

    names: Sequence[str]
    devices: Sequence[str]
    inputs: Sequence[Sequence[str]]
    attributes: Sequence[bytes]
    nodes: Sequence[Node]

    def parted(self, number: int) -> tuple[Columns, Columns]:
        """Returns the first `number` nodes, and the others."""
        first, others = ([column[part] for column in self] for part in (slice(number), slice(number, None)))
        return Columns._make(first), Columns._make(others)


def joined(nodes: Iterable[bytes], rest: bytes) -> bytes:
    """Returns the function that consists of serialised nodes and of `rest`, all else of it serialised; serialised (which order fields come in does not
    matter).
    """
    return rest + bytes(_messages()["FunctionOfBytes"](node=nodes).SerializeToString())


def columns_of(serialised: bytes, edits: Iterable[Callable[[Any], None]] = ()) -> tuple[Columns, bytes]:
    """Returns the nodes of a serialised function, with their attributes in the order of their names, and all else of it, serialised.

    Each of `edits` may first change one of its nodes, in their order, as a NodeDef whose attributes are serialised.
    """
    messages = _messages()
    read = messages["Function"].FromString(serialised)
    nodes = list(read.node)
    for node, edit in zip(nodes, edits, strict=False):
        edit(node)
    in_order = read.SerializeToString(deterministic=True)
    columns = Columns(
        [node.name for node in nodes],
        [node.device for node in nodes],
        [node.input[:] for node in nodes],
        _attributes("FunctionOfAttributes", "FunctionOfBytes", in_order),
        list(messages["FunctionOfBytes"].FromString(in_order).node),
    )
    read.ClearField("node")
    return columns, bytes(read.SerializeToString())


def _attributes(message: str, of_bytes: str, serialised: bytes) -> Sequence[bytes]:
    """Returns op and attributes of each node of a serialised graph or function, as they are written."""
    read = _messages()[message].FromString(serialised)
    read.DiscardUnknownFields()
    return list(_messages()[of_bytes].FromString(read.SerializeToString()).node)


def columns_of_nodes(nodes: Iterable[Node], edits: Iterable[Callable[[Any], None]] = ()) -> Columns:
    """Returns the columns of `nodes`; `edits` is as for `columns_of`."""
    serialised = [node if isinstance(node, bytes) else node.SerializeToString() for node in nodes]
    return columns_of(joined(serialised, b""), edits)[0]


def columns_of_graph(graph: tf_api.GraphDef) -> Columns:
    """Returns the nodes of `graph`, which stay the messages that they are."""
    nodes = list(graph.node)
    attributes = _attributes("GraphOfAttributes", "GraphOfBytes", serialise(graph))
    return Columns([node.name for node in nodes], [node.device for node in nodes], [node.input[:] for node in nodes], attributes, nodes)
