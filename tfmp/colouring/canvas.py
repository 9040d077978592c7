"""What the passes paint on: a type graph, the op lists, what may be painted at all, and the colours with their reasons."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfmp.colouring.typegraph import TypeGraph
from tfmp.colouring.user_rules import Wishes
from tfmp.dtypes import DT_FLOAT, FloatFormat
from tfmp.errors import GraphError
from tfmp.graph import kernels
from tfmp.graph.edges import Array
from tfmp.graph.schema import OpSchema, registered_schema
from tfmp.graph.view import ARG, RETVAL, Body
from tfmp.measured.rules import Measured
from tfmp.oplists import ALLOW, CLEAR, DENY, INFER, OpLists
from tfmp.program.calls import CALLING_OPS
from tfmp.program.ranges import Ranges
from tfmp.program.shapes import Graphs, Sizes, unknown
from tfmp.program.union import Union

_NUMBERS: dict[str | None, int] = {kind: number for number, kind in enumerate((None, ALLOW, DENY, INFER, CLEAR))}

Devices = tuple[str, ...]
"""The device types whose kernels must all exist: "GPU", "CPU", "XLA_CPU_JIT", "XLA_GPU_JIT"."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """What one colouring goes by.

    Attributes:
      format: the 16-bit type.
      lists: op lists in force.
      device: where nodes without a device run, and which nodes are converted: "GPU" or "CPU".
      force: paint everything that may be forced (TensorFlow's UNSAFE_FORCE_ALL).
      follow_handles: follow list handles that are elements of other lists, and optionals (TensorFlow's pass does neither).
      fetches: names of nodes whose types must stay (`NodesToPreserve` in TensorFlow).
      wishes: what the user's rules cover.
      slow: op type to the reason why its 16-bit kernel is slow on `device`.
      slow_filter: why depthwise convolutions with filters that cuDNN does not take are slow there; "" if they are not.
      measured: the nodes that measured ranges keep in float32 or free.
    """

    format: FloatFormat
    lists: OpLists
    device: str
    force: bool = False
    follow_handles: bool = True
    fetches: frozenset[str] = frozenset()
    wishes: Wishes = Wishes()
    slow: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slow_filter: str = ""
    measured: Measured = Measured()


class Reason(NamedTuple):
    """Why a vertex has its colour. A tuple, since there is one for most vertices.

    Attributes:
      rule: what decided, a key of `reasons.WORDS`.
      cause: the vertex that brought it (the deny op upstream, the sibling in a tensor list), or -1.
      detail: the user's rule, where one decided.
    """

    rule: str
    cause: int = -1
    detail: str = ""


class Canvas:
    """One body being coloured. Mutable, and known to `colouring` only; `result` hands out what came of it.

    A vertex is 16 bit in the end if it is in `allow` and its type is float32. `deny` keeps it out of the passes that spread `allow`.

    Attributes:
      union: what is coloured.
      graph: its type graph.
      sizes: the shapes and element counts of its tensors.
      ranges: between which values they lie.
      rules: what the colouring goes by.
      kind: node to the list its op is on, or None.
      processable: node to whether its types may be changed at all (1) or not (0).
      weights: node to how often it runs in one run of the program (`weight`).
      allow, deny: vertex to 1 if it has that colour.
      reasons: vertex to the reason of its colour, for every vertex that some pass painted or kept.
    """

    def __init__(self, union: Union, rules: Rules, devices: Sequence[Devices], graphs: Graphs = unknown, weights: Sequence[int] = ()) -> None:
        """Starts with nothing painted.

        Args:
          union: what is coloured.
          rules: what to go by.
          devices: the devices of each instance.
          graphs: where shapes come from.
          weights: how often each node runs (0: never); once, if they are left out.
        """
        body = union.body
        self.graph = TypeGraph(body, union.ties)
        self.union = union
        self.rules = rules
        self.sizes = Sizes(union, graphs)
        self.ranges = Ranges(body)
        self._devices, self.weights = tuple(devices), weights or [1] * len(body)
        self.kind = [rules.lists.kind_of.get(op) for op in body.ops]
        self.processable = self._processable(body)
        self.allow = bytearray(len(self.graph))
        self.deny = bytearray(len(self.graph))
        self.reasons: dict[int, Reason] = {}
        for ends in union.ties:
            if not all(self.processable[node] for node, _ in ends):
                node, slot = ends[0]
                self.paint_deny(self.graph.stands_for[self.graph.first[node] + slot], "call")
        self._lists = np.zeros(len(body), np.uint8)
        for op, nodes in body.by_op.items():
            self._lists[nodes] = _NUMBERS[rules.lists.kind_of.get(op)]
        self._supports: dict[tuple[object, ...], bool] = {}

    def _processable(self, body: Body) -> bytearray:
        """Not fetched, and on the device that is converted (`ShouldProcess` in TensorFlow); a node without a device runs on the target."""
        on_target = {device: self.rules.device.startswith(_device_type(device)) for device in set(body.devices)}
        found = bytearray(on_target[device] for device in body.devices)
        tied = {end[0] for tie in self.union.ties for end in tie} - self.union.fixed
        untied = (node for node in body.pseudo_nodes if node not in tied)
        for node in (*untied, *(body.by_name[name] for name in self.rules.fetches if name in body.by_name)):
            found[node] = 0
        if not self.rules.follow_handles:
            # Bodies coloured apart keep their signatures, and so what calls them; TensorFlow's pass retypes While in bfloat16, and the result does not run.
            for node, op in enumerate(body.ops):
                if op in CALLING_OPS:
                    found[node] = 0
        return found

    def paint_allow(self, vertex: int, rule: str, cause: int = -1, detail: str = "") -> None:
        """Paints `vertex` allow; the first reason stays."""
        if not self.allow[vertex]:
            self.allow[vertex] = 1
            self.reasons[vertex] = Reason(rule, cause, detail)

    def unpaint_allow(self, vertex: int, rule: str, cause: int = -1) -> None:
        """Takes allow off `vertex`."""
        if self.allow[vertex]:
            self.allow[vertex] = 0
            self.reasons[vertex] = Reason(rule, cause)

    def paint_deny(self, vertex: int, rule: str, cause: int = -1, detail: str = "") -> None:
        """Paints `vertex` deny; the first reason stays."""
        if not self.deny[vertex]:
            self.deny[vertex] = 1
            self.reasons[vertex] = Reason(rule, cause, detail)

    def put_on_list(self, nodes: Collection[int], kind: str | None) -> None:
        """Treats `nodes` from now on as if their ops were on the list `kind`, or on none."""
        for node in nodes:
            self.kind[node], self._lists[node] = kind, _NUMBERS[kind]

    def explain(self, vertices: Iterable[int], rule: str) -> None:
        """Gives each of `vertices` a reason for staying float32, unless it has one."""
        reason = Reason(rule)
        for vertex in vertices:
            self.reasons.setdefault(vertex, reason)

    def keep(self, node: int, rule: str, cause: int = -1, detail: str = "") -> None:
        """Denies every float32 vertex of `node` and takes the node out of what may be changed."""
        self.processable[node] = 0
        for vertex in self.graph.vertices(node):
            if self.is_float32(vertex):
                self.paint_deny(self.graph.stands_for[vertex], rule, cause, detail)

    def leave(self, node: int, rule: str, cause: int = -1) -> None:
        """Takes `node` out of what may be changed, but denies nothing: what reads it may still be 16 bit."""
        self.processable[node] = 0
        for vertex in self.graph.vertices(node):
            if self.is_float32(vertex):
                self.reasons.setdefault(vertex, Reason(rule, cause))

    def is_float32(self, vertex: int) -> bool:
        """Returns whether the type of `vertex` is float32: only those are ever changed."""
        return self.graph.dtype[vertex] == DT_FLOAT

    def kind_at(self, vertex: int) -> str | None:
        """Returns the list that the op of `vertex` is on, or None. What stands for tied slots hands values on unchanged, as clearlist ops do."""
        return CLEAR if vertex in self.graph.tied else self.kind[self.graph.node_of[vertex]]

    def devices(self, node: int) -> Devices:
        """Returns the device types whose kernels must exist for `node`."""
        return self._devices[self.union.instance_of(node) if len(self._devices) > 1 else 0]

    def weight(self, node: int) -> int:
        """Returns how often `node` runs in one run of the program, as far as the graph tells; 0 if TensorFlow prunes it."""
        return self.weights[node]

    @functools.cached_property
    def clear(self) -> bytearray:
        """Vertex to 1 if `kind_at` is "clear": asked at every step of the longest walks."""
        return bytearray((self.are_on({CLEAR}) | self.graph.flags(self.graph.tied)).tobytes())

    def are_on(self, kinds: Iterable[str]) -> Array:
        """Returns vertex to whether the op of its node is on one of the lists `kinds`."""
        asked = np.zeros(len(_NUMBERS), bool)
        asked[[_NUMBERS[kind] for kind in kinds]] = True
        return asked[self._lists][self.graph.nodes]

    def on_lists(self, kinds: Iterable[str]) -> list[int]:
        """Returns the vertices of every node whose op is on one of the lists `kinds`, in vertex order."""
        return np.flatnonzero(self.are_on(kinds)).tolist()

    def processable_allow_ops(self) -> list[int]:
        """Returns the vertices of every allowlist node that may be changed."""
        return [v for v in self.on_lists({ALLOW}) if self.processable[self.graph.node_of[v]]]

    def schema(self, vertex: int) -> OpSchema | None:
        """Returns the schema of the op of `vertex`; None for pseudo nodes and for calls of library functions by op name."""
        op = self.graph.op(vertex)
        if op in (ARG, RETVAL):
            return None
        try:
            return registered_schema(op)
        except GraphError:
            return None

    def supports_type(self, vertex: int) -> bool:
        """Returns whether the op definition lets `vertex` be 16 bit (`SupportsF16DataType`), and nothing but the node knows its type; calls and loops take
        any type.
        """
        if vertex in self.graph.tied:
            return True
        schema = self.schema(vertex)
        return schema is not None and not schema.bound and schema.allows(self.graph.slot(vertex), self.rules.format.number)

    def supports(self, vertex: int) -> bool:
        """Returns whether the op definition lets `vertex` be 16 bit and kernels for that exist on every device that runs it (`SupportsF16`)."""
        if vertex in self.graph.tied:
            return True
        node = self.graph.node_of[vertex]
        body, devices = self.graph.body, self.devices(node)
        number = vertex - self.graph.first[node]
        key = (body.ops[node], id(body.layouts[node]), number, tuple(body.types[node]), devices)  # alike nodes share a layout
        known = self._supports.get(key)
        if known is None:
            attr, index, _ = body.layouts[node].keys[number]
            types, new = body.attr_types(node, {}), {self.rules.format.number}
            changed = {**types, attr: frozenset(types[attr] | new if index >= 0 else new)} if attr else {}  # the other entries of a list keep their types
            known = self._supports[key] = bool(attr) and self.supports_type(vertex) and _has_kernels(body.ops[node], changed, devices)
        return known

    def kernels_exist(self, node: int, changed: Iterable[int]) -> bool:
        """Returns whether, with the slots numbered `changed` made 16 bit, `node` has a kernel on every device that runs it."""
        body = self.graph.body
        return _has_kernels(body.ops[node], body.attr_types(node, dict.fromkeys(changed, self.rules.format.number)), self.devices(node))


def _has_kernels(op: str, types: kernels.Types, devices: Devices) -> bool:
    return all(kernels.has_kernel(op, device, types) for device in devices)


def _device_type(device: str) -> str:
    """Returns "GPU" for "/job:localhost/replica:0/task:0/device:GPU:0" and for the "/gpu:0" of old graphs, "" for no device at all."""
    return device.rpartition("/")[2].removeprefix("device:").partition(":")[0].upper()
