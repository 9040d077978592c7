"""Which weights of a file are stored in 16 bit, and why the others are not.

A variable is stored in 16 bit if everything that reads it either computes in 16 bit or means the same with a rounded weight (products, rows that are looked
up), nothing but a saver or an initializer ever writes to it, and its values are fit for it. So optimizer slots, counters, moving averages that a training
function updates, and scales and offsets that are added in float32 stay as they are. The same holds for constants.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from tfmp import tf_api
from tfmp.colouring.constants import overflows, rounds_badly
from tfmp.dtypes import DT_FLOAT, FloatFormat
from tfmp.files.bundle import Bundle
from tfmp.files.flows import LOOPS, MAKERS, REFERENCES, Flow, Place, Touch, follow_constants, follow_handles, is_argument
from tfmp.files.savers import SaverSlot, link_checkpoint, restores, saver_slots
from tfmp.files.uses import SHORTEST_ROW, Use, Uses
from tfmp.files.views import GraphView
from tfmp.graph import constants, kernels
from tfmp.graph.body import Body
from tfmp.graph.schema import Slot
from tfmp.oplists import OpLists
from tfmp.program.calls import CALLING_OPS
from tfmp.rewriting.retype import End

READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
"""Ops that read a variable through its handle."""

TYPED = {"AssignVariableOp": Slot("dtype"), "Assign": Slot("T"), "Identity": Slot("T"), **dict.fromkeys(READS | MAKERS, Slot("dtype"))}
"""Ops that take or are a variable, to the slot that has its type."""

NEUTRAL = frozenset({"VariableShape", "VarIsInitializedOp", "DestroyResourceOp", "DisableCopyOnRead", "IsVariableInitialized"})
"""Ops that take a variable and do nothing with its value."""

FEWEST = 256
"""Constants with fewer elements are no weights, and stay as they are. Our own choice."""

Where: TypeAlias = tuple[int, str]
"""Number of the file's graph and name of the body."""

KeepRule: TypeAlias = Callable[[Iterable[str]], str]
"""Names of one weight to the user's rule that keeps it in float32, or ""."""

KeepOp: TypeAlias = Callable[[str, str], bool]
"""Op type and node name to whether a rule of the user, or a guard of numbers, keeps it in float32."""


@dataclasses.dataclass(frozen=True)
class Weight:
    """One stored tensor.

    Attributes:
      name: the variable's key in the checkpoint, or the name of the constant, behind that of its function.
      kind: "variable" or "constant".
      shape: its shape.
      sixteen: whether it is stored in 16 bit.
      reason: why it is not, as a clause, or "".
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    sixteen: bool
    reason: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclasses.dataclass
class Storage:
    """What has to change for weights to be stored in 16 bit.

    Attributes:
      weights: what was decided for each.
      ends: the slots that change their type.
      handles: arguments of functions that are handles of variables which change their type.
      constants: Const nodes that change their type, each with its copies.
      casts: Const nodes whose copies become casts, with those.
      variables: (number of the file's graph, number of the object) of variables that change their type.
      keys: keys of the checkpoint whose tensors change their type.
    """

    weights: list[Weight] = dataclasses.field(default_factory=list)
    ends: dict[Where, set[End]] = dataclasses.field(default_factory=lambda: collections.defaultdict(set))
    handles: dict[Where, set[int]] = dataclasses.field(default_factory=lambda: collections.defaultdict(set))
    constants: dict[Where, dict[int, list[int]]] = dataclasses.field(default_factory=lambda: collections.defaultdict(dict))
    casts: dict[Where, dict[int, list[int]]] = dataclasses.field(default_factory=lambda: collections.defaultdict(dict))
    variables: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    keys: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Target:
    """What weights are stored as.

    Attributes:
      format: the 16-bit type.
      devices: device types on which what reads weights must have a kernel.
      lists: the op lists in force.
      kept: the user's rules for weights.
      kept_op: the user's rules, and the guards of numbers, for what reads them.
      keep_all: weights stay as they are.
    """

    format: FloatFormat
    devices: tuple[str, ...]
    lists: OpLists
    kept: KeepRule
    kept_op: KeepOp
    keep_all: bool


def plan_storage(views: Sequence[GraphView], bundle: Bundle | None, target: Target) -> Storage:
    """Returns how the weights of a file are stored.

    Args:
      views: the converted graphs of the file.
      bundle: its checkpoint, or None if it has none.
      target: what weights are stored as.

    Raises:
      FileError: the checkpoint is damaged.
    """
    storage, uses = Storage(), Uses(views, target.format, target.lists, target.kept_op)
    if bundle is not None:
        _Variables(views, bundle, target, uses, storage).plan()
    _Constants(views, target, uses, storage).plan()
    return storage


class _Variables:
    """Decides about variables."""

    def __init__(self, views: Sequence[GraphView], bundle: Bundle, target: Target, uses: Uses, storage: Storage) -> None:
        self._views, self._bundle, self._target, self._uses, self._storage = views, bundle, target, uses, storage
        found = [slot for view in views for slot in saver_slots(view)]
        self._mute = next((slot for slot in found if isinstance(slot, str)), "")
        self._slots: dict[str, list[SaverSlot]] = collections.defaultdict(list)
        for slot in found:
            if not isinstance(slot, str):
                self._slots[slot.key].append(slot)

    def plan(self) -> None:
        """Fills the storage."""
        joined = follow_handles(self._views)
        link_checkpoint(joined, self._views, [slot for slots in self._slots.values() for slot in slots], self._bundle)
        for flow in joined.flows():
            makers = [place for place in flow.places if self._op(place) in MAKERS]
            if makers and all(_held(self._body(place), place.node) == DT_FLOAT for place in makers):
                reason = next(self._obstacles(flow, makers), "")
                keys = sorted(key for key in flow.keys if key in self._bundle.shapes)
                self._storage.weights += [Weight(_short(key), "variable", self._bundle.shapes[key], not reason, reason) for key in keys]
                if not reason:
                    self._store(flow, makers)

    def _obstacles(self, flow: Flow, makers: Sequence[Place]) -> Iterator[str]:
        """Yields whatever speaks against storing the variable in 16 bit, as clauses, what is quick to find first."""
        if self._target.keep_all:
            yield "weights are kept"
        names = [self._body(place).names[place.node] for place in makers] + [_short(key) for key in flow.keys]
        names += [self._views[graph].objects.variables.get(number, "") for graph, number in flow.objects]
        if rule := self._target.kept(filter(None, names)):
            yield kept_by(rule)
        yield from flow.unknown
        yield from self._object_obstacles(flow)
        yield from self._key_obstacles(flow)
        for touch in flow.touches:
            yield from self._touch_obstacles(touch)
        uses = list(self._all_uses(flow, makers))
        yield from _use_obstacles(uses)
        values = (self._bundle.value(key) for key in flow.keys)
        yield from (problem for value in values if (problem := unfit(value, self._target.format, all(use.sixteen for use in uses))))

    def _object_obstacles(self, flow: Flow) -> Iterator[str]:
        for graph, number in flow.objects:
            objects = self._views[graph].objects
            if number not in objects.variables:
                yield "it is bound to something that is no variable"
            if number in objects.slots:
                yield "it is an optimizer's slot"
            if number in objects.saved_by_functions:
                yield "functions of its own save it"

    def _key_obstacles(self, flow: Flow) -> Iterator[str]:
        if self._mute:
            yield self._mute
        if not flow.keys:
            yield "nothing restores it from the checkpoint"
        for key in flow.keys:
            if self._bundle.dtypes.get(key) != DT_FLOAT:
                yield "the checkpoint has it in another type, or not at all"
            if any(slot.part for slot in self._slots[key]):
                yield "it is stored in parts"

    def _touch_obstacles(self, touch: Touch) -> Iterator[str]:
        view = self._views[touch.graph]
        body = view.bodies[touch.body]
        op, name = body.ops[touch.node], body.names[touch.node]
        if body.ops[body.inputs[touch.node][touch.port][0]] in REFERENCES and not _takes_reference(op, touch.port):
            return
        if op in NEUTRAL:
            return
        if op not in TYPED:
            yield f"{op} node {name!r} may change it"
        elif op in ("AssignVariableOp", "Assign") and not _only_at_first(view, touch):
            yield f"{op} node {name!r} changes it"
        else:
            slot = body.layouts[touch.node].number[TYPED[op]]
            for device in self._target.devices:
                if not kernels.has_kernel(op, device, body.attr_types(touch.node, {slot: self._target.format.number})):
                    yield f"{op}, which reads it, has no 16-bit kernel on {device}"

    def _all_uses(self, flow: Flow, makers: Sequence[Place]) -> Iterator[Use]:
        shape = next((self._bundle.shapes[key] for key in flow.keys), ())
        for touch in flow.touches:
            body = self._views[touch.graph].bodies[touch.body]
            if body.ops[touch.node] in READS:
                op, name = body.ops[touch.node], body.names[touch.node]
                lookup = op != "ReadVariableOp" and len(shape) > 1 and shape[-1] >= SHORTEST_ROW and not self._target.kept_op(op, name)
                found = self._uses.of(Place(touch.graph, touch.body, touch.node), shape)
                yield from (dataclasses.replace(use, tolerant=use.tolerant or lookup) for use in found)
        for place in makers:
            if self._op(place) in REFERENCES:
                yield from self._uses.of(place, shape)

    def _store(self, flow: Flow, makers: Sequence[Place]) -> None:
        ends = self._storage.ends
        for place in makers:
            ends[place.graph, place.body].add((place.node, Slot("dtype")))
        for touch in flow.touches:
            body = self._views[touch.graph].bodies[touch.body]
            if body.ops[touch.node] in TYPED and touch.port == 0:
                ends[touch.graph, touch.body].add((touch.node, TYPED[body.ops[touch.node]]))
        for key in flow.keys:
            for slot in self._slots[key]:
                ends[slot.graph, slot.body].add((slot.node, Slot("dtypes", slot.index)))
        for place in flow.places:
            if is_argument(self._views[place.graph], place):
                self._storage.handles[place.graph, place.body].add(place.node)
        self._storage.variables |= set(flow.objects)
        self._storage.keys |= set(flow.keys)

    def _body(self, place: Place) -> Body:
        return self._views[place.graph].bodies[place.body]

    def _op(self, place: Place) -> str:
        return self._body(place).ops[place.node]


class _Constants:
    """Decides about constants: those that functions capture, and those that stand where they are read."""

    def __init__(self, views: Sequence[GraphView], target: Target, uses: Uses, storage: Storage) -> None:
        self._views, self._target, self._uses, self._storage = views, target, uses, storage

    def plan(self) -> None:
        """Fills the storage."""
        captured: dict[Place, Flow] = {}
        for flow in follow_constants(self._views).flows():
            captured.update({place: flow for place in flow.places if not place.body and self._body(place).ops[place.node] == "Const"})
        done: set[Place] = set()
        for view in self._views:
            for name, body in view.bodies.items():
                twins = constants.copies(body, self._target.format)
                for node in body.proto_nodes:
                    place = Place(view.number, name, node)
                    flow = captured.get(place, Flow([place]))
                    if body.ops[node] == "Const" and body.types[node] == [DT_FLOAT] and place not in done:
                        done.update(flow.places)
                        self._plan(flow, place, twins.get(node, []))

    def _plan(self, flow: Flow, place: Place, twins: list[int]) -> None:
        body, view = self._body(place), self._views[place.graph]
        name = body.names[place.node]
        shape = _shape(body, place.node)
        size = int(np.prod(shape, dtype=np.int64))
        if size < FEWEST and (not twins or self._uses.readers(place) or name in view.named):
            return
        where = (place.graph, place.body)
        reason = next(self._obstacles(flow, place, twins, shape), "") if size >= FEWEST else ""
        if size >= FEWEST:
            self._storage.weights.append(Weight(f"{place.body}/{name}".lstrip("/"), "constant", shape, not reason, reason))
        if reason:
            if twins:
                self._storage.casts[where][place.node] = twins
            return
        for one in flow.places:
            here = self._body(one)
            if here.ops[one.node] == "Const" and here.nodes[one.node] is not None:
                found = twins if one == place else constants.copies(here, self._target.format).get(one.node, [])
                self._storage.constants[one.graph, one.body][one.node] = found
                self._storage.ends[one.graph, one.body].add((one.node, Slot("dtype")))
            elif is_argument(self._views[one.graph], one):
                self._storage.ends[one.graph, one.body].add((one.node, Slot("T")))
            if len(flow.places) > 1:
                self._storage.ends[one.graph, one.body] |= set(self._handed_over(one))

    def _obstacles(self, flow: Flow, place: Place, twins: Sequence[int], shape: tuple[int, ...]) -> Iterator[str]:
        body, view = self._body(place), self._views[place.graph]
        name = body.names[place.node]
        if self._target.keep_all:
            yield "weights are kept"
        if rule := self._target.kept([name, f"{place.body}/{name}"]):
            yield kept_by(rule)
        if not place.body and name in view.named:
            yield "its type is seen from outside"
        if len(flow.places) > 1:
            yield from flow.unknown
        uses = [use for one in flow.places for use in self._uses.of(one, shape)]
        uses += [Use(sixteen=True, op="Const", node=body.names[twin], tolerant=True) for twin in twins]
        yield from _use_obstacles(uses)
        proto = body.protos[place.node]
        value = np.asarray(tf_api.read_tensor(proto.attr["value"].tensor)) if proto is not None else np.zeros(0)
        yield from filter(None, [unfit(value, self._target.format, all(use.sixteen for use in uses))])

    def _handed_over(self, place: Place) -> Iterator[End]:
        """Yields the slots of calling nodes, other than loops, that hand over the value at `place`."""
        body = self._body(place)
        for reader, port in self._uses.readers(place):
            row = CALLING_OPS.get(body.ops[reader])
            slot = body.layouts[reader].slots[body.layouts[reader].inputs[port]]
            if row is not None and slot.attr == row.inputs and body.ops[reader] not in LOOPS:
                yield reader, slot

    def _body(self, place: Place) -> Body:
        return self._views[place.graph].bodies[place.body]


def kept_by(rule: str) -> str:
    """Returns the reason of a weight that a user's rule keeps in float32."""
    return f"rule {rule!r} keeps it"


def _use_obstacles(uses: Sequence[Use]) -> Iterator[str]:
    if not uses:
        yield "nothing computes with it"
    yield from (f"{use.op} node {use.node!r} reads it in float32" for use in uses if not use.sixteen and not use.tolerant)


def unfit(values: np.ndarray, target: FloatFormat, sixteen: bool) -> str:
    """Returns why float32 `values` are not fit to be stored in `target`, as a clause, or "". `sixteen`: everything that reads them computes in `target`."""
    if overflows(values, target):
        return f"it has values that {target.name} cannot hold"
    if sixteen or not values.size:
        return ""
    largest = float(np.max(np.abs(values)))
    if largest > target.largest_integer and bool(np.all(values == np.rint(values))):
        return f"it has whole numbers that {target.name} would round"
    if 0 < largest < target.smallest_normal:
        return f"its values are too small for {target.name}"
    return f"it has a value that {target.name} would falsify" if rounds_badly(values, target) else ""


def _held(body: Body, maker: int) -> int:
    """Returns the type of what a variable holds."""
    return body.types[maker][body.layouts[maker].number[Slot("dtype")]]


def _only_at_first(view: GraphView, touch: Touch) -> bool:
    """Returns whether an assignment restores a variable, gives it its first value, or is never run by anything that is named outside the graph."""
    if restores(view, touch.body, touch.node):
        return True
    return not touch.body and (view.bodies[""].names[touch.node] in view.initializers or not view.run[touch.node])


def _takes_reference(op: str, port: int) -> bool:
    return port == 0 and (op in NEUTRAL or op in TYPED or op.startswith(("Assign", "Scatter", "Apply", "Sparse", "CountUpTo", "Ref", "StridedSliceAssign")))


def _shape(body: Body, node: int) -> tuple[int, ...]:
    proto = body.protos[node]
    return tuple(dim.size for dim in proto.attr["value"].tensor.tensor_shape.dim) if proto is not None else ()


def _short(key: str) -> str:
    return key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
