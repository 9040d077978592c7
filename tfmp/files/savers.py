"""The ops that save and restore variables: which key of the checkpoint each of their slots has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from tfmp import tf_api
from tfmp.files.bundle import Bundle
from tfmp.files.flows import REFERENCES, Joined, Key, Object, Place, is_handle
from tfmp.files.views import GraphView
from tfmp.graph.body import Body
from tfmp.graph.objects import checkpoint_keys

SAVE, RESTORE = "SaveV2", "RestoreV2"
NAMES, SLICES, FIRST_TENSOR = 1, 2, 3
"""Inputs of both ops: keys, slices, and for SaveV2 the first tensor (`io_ops.cc`)."""

ASSIGNMENTS = {"AssignVariableOp": 1, "Assign": 1}
"""Ops that give a variable a new value, to the input that has it."""


@dataclasses.dataclass(frozen=True)
class SaverSlot:
    """One tensor that a saver saves or restores: number of the file's graph, body, node, position, key, and which slice of it ("" for all)."""

    graph: int
    body: str
    node: int
    index: int
    key: str
    part: str


def saver_slots(view: GraphView) -> Iterator[SaverSlot | str]:
    """Yields what every saver of `view` saves or restores; a string says which saver does not tell."""
    for name, body in view.bodies.items():
        for node in body.proto_nodes:
            if body.ops[node] in (SAVE, RESTORE):
                keys, parts = (_strings(body, body.origin(body.inputs[node][port])[0]) for port in (NAMES, SLICES))
                if keys is None or parts is None or len(keys) != len(parts):
                    yield f"{body.ops[node]} node {body.names[node]!r} does not say which keys it has"
                else:
                    yield from (SaverSlot(view.number, name, node, index, key, part) for index, (key, part) in enumerate(zip(keys, parts, strict=True)))


def _strings(body: Body, node: int) -> list[str] | None:
    proto = body.protos[node]
    if proto is None or proto.op != "Const":
        return None
    return [value.decode(errors="surrogateescape") for value in tf_api.read_tensor(proto.attr["value"].tensor).ravel()]


def link_checkpoint(joined: Joined, views: Sequence[GraphView], slots: Sequence[SaverSlot], bundle: Bundle) -> None:
    """Joins variables with the keys of `bundle` that are restored into them: by a saver in a graph, or by the loader through the object graph."""
    key_of = {Place(slot.graph, slot.body, slot.node, slot.index): slot.key for slot in slots if views[slot.graph].bodies[slot.body].ops[slot.node] == RESTORE}
    for view in views:
        for name, body in view.bodies.items():
            for node, port in assignments(body):
                source, output = body.origin(body.inputs[node][port])
                restored = key_of.get(Place(view.number, name, source, output))
                variable, out = body.inputs[node][0]
                if restored is not None and is_handle(body, variable, out):
                    joined.join(Place(view.number, name, variable, out), Key(restored))
        graph = view.object_graph
        if bundle.objects and graph is not None:
            for number, keys in checkpoint_keys(graph, bundle.objects).items():
                for key in keys if number in view.objects.variables else ():
                    joined.join(Object(view.number, number), Key(key))


def assignments(body: Body) -> Iterator[tuple[int, int]]:
    """Yields the nodes that give a variable a new value, with the input that has it."""
    for node in body.proto_nodes:
        port = ASSIGNMENTS.get(body.ops[node])
        if port is not None:
            yield node, port


def restores(view: GraphView, name: str, node: int) -> bool:
    """Returns whether an assignment gives a variable what a saver has restored."""
    body = view.bodies[name]
    source, _ = body.origin(body.inputs[node][ASSIGNMENTS[body.ops[node]]])
    return body.ops[source] == RESTORE


def is_reference(view: GraphView, place: Place) -> bool:
    """Returns whether `place` is a reference to a variable rather than a handle."""
    return view.bodies[place.body].ops[place.node] in REFERENCES
