"""Graph protos as they are written, for what looks at very many nodes and needs little of each.

TensorFlow's own message classes make something of every attribute of every node. The ones here have the same field numbers, and declare as bytes what they
only hand on (protobuf's encoding guide: a message, or an entry of a map, is written as its length and its bytes).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tfmp import tf_api

Field = descriptor_pb2.FieldDescriptorProto

FIELDS: Mapping[str, Sequence[tuple[str, int, int]]] = {
    "Node": (("op", 2, Field.TYPE_STRING), ("attr", 5, Field.TYPE_BYTES)),
    "Function": (("node", 3, Field.TYPE_MESSAGE),),
    "Graph": (("node", 1, Field.TYPE_MESSAGE),),
    "FunctionOfBytes": (("node", 3, Field.TYPE_BYTES),),
    "GraphOfBytes": (("node", 1, Field.TYPE_BYTES),),
    "Beginning": (("name", 1, Field.TYPE_STRING), ("input", 3, Field.TYPE_STRING)),
}
"""Message to its fields, numbered as in TensorFlow's `node_def.proto`, `function.proto` and `graph.proto`. Fields that are left out survive as they are, until
they are discarded.
"""

SINGLE = frozenset({"name", "op"})
"""Fields that are there once; the others are repeated."""


@functools.cache
def _messages() -> Mapping[str, Any]:
    """Returns the message classes of `FIELDS`."""
    file = descriptor_pb2.FileDescriptorProto(name="tfmp/graph/wire.proto", package="tfmp", syntax="proto3")
    for message, fields in FIELDS.items():
        declared = file.message_type.add(name=message)
        for name, number, kind in fields:
            one = declared.field.add(name=name, number=number, type=kind, label=Field.LABEL_OPTIONAL if name in SINGLE else Field.LABEL_REPEATED)
            if kind == Field.TYPE_MESSAGE:
                one.type_name = ".tfmp.Node"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = {message: pool.FindMessageTypeByName(f"tfmp.{message}") for message in FIELDS}
    make = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(pool).GetPrototype  # the second before protobuf 4.22
    return {message: make(descriptor) for message, descriptor in descriptors.items()}


def serialise(message: tf_api.Message) -> bytes:
    """Returns `message`, serialised; attributes come in the order of their names, so that the bytes are the same where they are."""
    return bytes(message.SerializeToString(deterministic=True))


def _message(proto: tf_api.FunctionDef | tf_api.GraphDef) -> str:
    return "Function" if isinstance(proto, tf_api.FunctionDef) else "Graph"


def node_as_written(name: str, inputs: Iterable[str], common: bytes) -> bytes:
    """Returns a node, serialised, that has a name and inputs of its own, and all else as a serialised NodeDef without those says."""
    return bytes(_messages()["Beginning"](name=name, input=inputs).SerializeToString()) + common


class FunctionParts(NamedTuple):
    """A serialised function in parts.

    Attributes:
      nodes: each of its nodes, serialised.
      rest: all else.
    """

    nodes: Sequence[bytes]
    rest: bytes

    @classmethod
    def of(cls, serialised: bytes) -> FunctionParts:
        """Takes a serialised function apart."""
        read = _messages()["FunctionOfBytes"].FromString(serialised)
        nodes = list(read.node)
        read.ClearField("node")
        return cls(nodes, bytes(read.SerializeToString()))

    def joined(self) -> bytes:
        """Returns the function, serialised (which order fields come in does not matter)."""
        return self.rest + bytes(_messages()["FunctionOfBytes"](node=self.nodes).SerializeToString())


def written(proto: tf_api.FunctionDef | tf_api.GraphDef, serialised: bytes = b"") -> Sequence[bytes]:
    """Returns for each node of `proto` its op and attributes as they are written, which are the same for nodes that are alike; no name, input or device.

    `serialised` is what `serialise` makes of `proto`, if that is at hand.
    """
    message = _message(proto)
    read = _messages()[message].FromString(serialised or serialise(proto))
    read.DiscardUnknownFields()
    return _messages()[f"{message}OfBytes"].FromString(read.SerializeToString()).node


def written_one(node: tf_api.NodeDef) -> bytes:
    """Returns the same of one node."""
    read = _messages()["Node"].FromString(serialise(node))
    read.DiscardUnknownFields()
    return bytes(read.SerializeToString())
