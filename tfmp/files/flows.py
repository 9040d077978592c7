"""Where stored weights go: from variables and captured constants, through calls, loops and branches, to the ops that read them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Iterator, Sequence

from scipy.cluster.hierarchy import DisjointSet

from tfmp.dtypes import DT_FLOAT, DT_RESOURCE
from tfmp.files.views import GraphView
from tfmp.graph.body import ARG, RETVAL, Body
from tfmp.program.calls import CALLING_OPS, callees

REFERENCES = frozenset({"VariableV2", "Variable"})
"""Variables of early graphs, whose output is a reference to the value rather than a handle."""

MAKERS = REFERENCES | {"VarHandleOp"}
"""Ops that are variables; the attribute `dtype` has the type of what they hold."""

HANDED_ON = frozenset({"Identity", "Switch", "Merge", "Enter", "Exit", "NextIteration"})
"""Ops whose outputs are the handle that they read first."""

LOOPS = frozenset({"While", "StatelessWhile"})


@dataclasses.dataclass(frozen=True)
class Place:
    """An output of a node: number of the file's graph, name of the body, node and port."""

    graph: int
    body: str
    node: int
    port: int = 0


@dataclasses.dataclass(frozen=True)
class Touch:
    """An input of a node that reads a handle: number of the file's graph, name of the body, node and input port."""

    graph: int
    body: str
    node: int
    port: int


@dataclasses.dataclass
class Flow:
    """One variable or captured constant, or several that some function takes in the same place, with everything that it flows to.

    Attributes:
      places: where the handle, the reference or the constant's value is.
      touches: what reads it there.
      objects: (number of the file's graph, number of the object) of what is bound to it.
      keys: the checkpoint keys that are restored into it.
      unknown: where it comes from, or goes to, something that cannot be followed, each as a clause.
    """

    places: list[Place] = dataclasses.field(default_factory=list)
    touches: list[Touch] = dataclasses.field(default_factory=list)
    objects: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    keys: list[str] = dataclasses.field(default_factory=list)
    unknown: list[str] = dataclasses.field(default_factory=list)


class Joined:
    """Places, objects, keys and names that are one weight."""

    def __init__(self) -> None:
        """Starts empty."""
        self._set: DisjointSet = DisjointSet()
        self._touches: list[tuple[Place, Touch]] = []
        self._unknown: list[tuple[Place, str]] = []

    def join(self, *elements: Hashable) -> None:
        """Says that `elements` are one weight."""
        for element in elements:
            self._set.add(element)
            self._set.merge(elements[0], element)

    def touch(self, place: Place, touch: Touch) -> None:
        """Says what reads a place."""
        self.join(place)
        self._touches.append((place, touch))

    def lose(self, place: Place, why: str) -> None:
        """Says that a place cannot be followed further, and why, as a clause."""
        self.join(place)
        self._unknown.append((place, why))

    def flows(self) -> list[Flow]:
        """Returns what has been joined, in the order in which it was found."""
        found: dict[Hashable, Flow] = collections.defaultdict(Flow)
        for element in self._set:
            flow = found[self._set[element]]
            if isinstance(element, Place):
                flow.places.append(element)
            elif isinstance(element, Object):
                flow.objects.append((element.graph, element.number))
            elif isinstance(element, Key):
                flow.keys.append(element.name)
        for place, touch in self._touches:
            found[self._set[place]].touches.append(touch)
        for place, why in self._unknown:
            found[self._set[place]].unknown.append(why)
        return list(found.values())


@dataclasses.dataclass(frozen=True)
class Object:
    """An object of an object graph: number of the file's graph, number of the object."""

    graph: int
    number: int


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of the checkpoint."""

    name: str


@dataclasses.dataclass(frozen=True)
class _Name:
    """Container and shared name of a variable's handle: what has both is one variable (`ResourceHandle`)."""

    container: str
    name: str


def follow_handles(views: Sequence[GraphView]) -> Joined:
    """Returns the handles and references of all variables, joined by calls, bound inputs and shared names."""
    joined = Joined()
    for view in views:
        for name, body in view.bodies.items():
            for node, op in enumerate(body.ops):
                if op in MAKERS:
                    joined.join(Place(view.number, name, node), _shared_name(view, name, node))
                for port, (source, output) in enumerate(body.inputs[node]):
                    if is_handle(body, source, output):
                        _follow_handle(joined, view, name, node, port)
            for inner, outer in _results(view, name):
                joined.join(inner, outer)
            _follow_signature(joined, view, name)
    return joined


def _follow_handle(joined: Joined, view: GraphView, name: str, node: int, port: int) -> None:
    """Follows a handle into the input `port` of a node."""
    body = view.bodies[name]
    source, output = body.inputs[node][port]
    place, op = Place(view.number, name, source, output), body.ops[node]
    if op == RETVAL:
        joined.join(place)
    elif body.ops[source] in REFERENCES:
        joined.touch(place, Touch(view.number, name, node, port))
    elif op in CALLING_OPS:
        for end in arguments(view, name, node, port):
            if isinstance(end, str):
                joined.lose(place, end)
            else:
                joined.join(place, end)
        if op in LOOPS:
            joined.join(place, Place(view.number, name, node, port))
    elif op in HANDED_ON:
        joined.join(place, *(Place(view.number, name, node, out) for out in range(len(body.layouts[node].outputs)) if is_handle(body, node, out)))
    elif op == "IdentityN":
        joined.join(place, Place(view.number, name, node, port))
    else:
        joined.touch(place, Touch(view.number, name, node, port))


def _follow_signature(joined: Joined, view: GraphView, name: str) -> None:
    """Joins the arguments of a function that the object graph names with what is bound to them; others come from whoever calls it, and results go there."""
    bound = view.objects.bound.get(name)
    if bound is None:
        return
    body = view.bodies[name]
    for argument in range(body.arguments):
        place, number = Place(view.number, name, argument), argument - (body.arguments - len(bound))
        if is_handle(body, argument, 0):
            if number >= 0:
                joined.join(place, Object(view.number, bound[number]))
            else:
                joined.lose(place, f"function {name!r} takes it from whoever calls it")
    for result in range(len(body) - body.results, len(body)):
        source, output = body.inputs[result][0]
        if is_handle(body, source, output):
            joined.lose(Place(view.number, name, source, output), f"function {name!r} returns it")


def follow_constants(views: Sequence[GraphView]) -> Joined:
    """Returns the float32 constants of the main graphs that are handed to functions, joined with the arguments that have their values.

    An argument that anything else may be handed to is lost, and with it the constant.
    """
    joined = Joined()
    for view in views:
        opaque = _functions_called_otherwise(view)
        for name, body in view.bodies.items():
            for node in body.proto_nodes:
                if body.ops[node] in CALLING_OPS and body.ops[node] not in LOOPS:
                    _follow_values(joined, view, name, node)
            if not name:
                continue
            bound = view.objects.bound.get(name, ())
            for argument in range(body.arguments):
                place, number = Place(view.number, name, argument), argument - (body.arguments - len(bound))
                if body.types[argument] != [DT_FLOAT]:
                    continue
                if name in opaque:
                    joined.lose(place, f"function {name!r} is also called by an op whose calls are not followed")
                elif name in view.objects.named and number < 0:
                    joined.lose(place, f"function {name!r} takes it from whoever calls it")
                elif number >= 0 and bound[number] in view.objects.constants:
                    constant = view.bodies[""].by_name.get(view.objects.constants[bound[number]], -1)
                    joined.join(place, Object(view.number, bound[number]), *([Place(view.number, "", constant)] if constant >= 0 else ()))
                elif number >= 0:
                    joined.lose(place, f"function {name!r} captures something else there")
    return joined


def _follow_values(joined: Joined, view: GraphView, name: str, node: int) -> None:
    body = view.bodies[name]
    for port, (source, output) in enumerate(body.inputs[node]):
        if body.types[source][body.layouts[source].outputs[output]] == DT_FLOAT:
            place = Place(view.number, name, source, output)
            for end in arguments(view, name, node, port):
                if isinstance(end, str):
                    joined.lose(place, end)
                else:
                    joined.join(place, end)
            if body.nodes[source] is not None and (name or body.ops[source] != "Const"):
                joined.lose(place, f"{body.ops[source]} node {body.names[source]!r} is handed over in the same place")


def _functions_called_otherwise(view: GraphView) -> frozenset[str]:
    """Functions that a loop runs, whose values change from step to step, or an op that is not in `CALLING_OPS`, or a gradient."""
    found = {gradient.function_name for gradient in view.graph.library.gradient} | {gradient.gradient_func for gradient in view.graph.library.gradient}
    found |= {gradient.gradient_func for gradient in view.graph.library.registered_gradients}
    for nodes in (view.graph.node, *(function.node_def for function in view.graph.library.function)):
        for node in nodes:
            if node.op not in CALLING_OPS or node.op in LOOPS:
                found.add(node.op)
                for value in node.attr.values():
                    found |= {f.name for f in ([value.func] if value.HasField("func") else value.list.func)}
    return frozenset(found)


def arguments(view: GraphView, name: str, node: int, port: int) -> Iterator[Place | str]:
    """Yields the arguments of what a calling node calls that hold what its input `port` hands over; a string says what cannot be followed."""
    body = view.bodies[name]
    row, proto = CALLING_OPS[body.ops[node]], body.protos[node]
    slot = body.layouts[node].slots[body.layouts[node].inputs[port]]
    for callee in callees(proto) if proto is not None and slot.attr == row.inputs else ():
        if callee not in view.bodies:
            yield f"function {callee!r}, which it is handed to, cannot be read"
        elif slot.index >= view.bodies[callee].arguments:
            yield f"function {callee!r} takes fewer arguments than it is handed"
        else:
            yield Place(view.number, callee, slot.index)


def _results(view: GraphView, name: str) -> Iterator[tuple[Place, Place]]:
    """Yields (what a called function returns, the output of the calling node that has it) for every handle that a call in the body `name` returns."""
    body = view.bodies[name]
    for node in body.proto_nodes:
        row, proto = CALLING_OPS.get(body.ops[node]), body.protos[node]
        for port, number in enumerate(body.layouts[node].outputs) if row is not None and proto is not None else ():
            slot = body.layouts[node].slots[number]
            if slot.attr != row.outputs or not is_handle(body, node, port):  # type: ignore[union-attr]
                continue
            for callee in callees(proto):
                inner = view.bodies.get(callee)
                if inner is not None and slot.index < inner.results:
                    source, output = inner.inputs[len(inner) - inner.results + slot.index][0]
                    if is_handle(inner, source, output):
                        yield Place(view.number, callee, source, output), Place(view.number, name, node, port)


def is_handle(body: Body, node: int, port: int) -> bool:
    """Returns whether an output is a handle, or a reference to a variable."""
    return body.ops[node] in REFERENCES or body.types[node][body.layouts[node].outputs[port]] == DT_RESOURCE


def _shared_name(view: GraphView, name: str, node: int) -> _Name:
    body = view.bodies[name]
    proto = body.protos[node]
    shared, container = (proto.attr[key].s.decode(errors="replace") if proto is not None and key in proto.attr else "" for key in ("shared_name", "container"))
    return _Name(container, shared or f"{view.number} {name} {body.names[node]}")


def is_argument(view: GraphView, place: Place) -> bool:
    """Returns whether `place` is an argument of a function."""
    body = view.bodies[place.body]
    return body.ops[place.node] == ARG and body.nodes[place.node] is None
