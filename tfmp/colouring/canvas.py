"""What the passes paint on: a type graph, the op lists, what may be painted at all, and the colours with their reasons."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from tfmp.colouring.painted import Reasons
from tfmp.colouring.rules import Devices, Rules
from tfmp.colouring.typegraph import TypeGraph
from tfmp.dtypes import DT_FLOAT
from tfmp.errors import GraphError
from tfmp.graph import kernels
from tfmp.graph.body import ARG, RETVAL, Body
from tfmp.graph.edges import Array
from tfmp.graph.neighbours import first_of_each
from tfmp.graph.schema import OpSchema, registered_schema
from tfmp.oplists import ALLOW, CLEAR, DENY, INFER
from tfmp.program.calls import CALLING_OPS
from tfmp.program.ranges import Ranges
from tfmp.program.shapes import Graphs, Sizes, unknown
from tfmp.program.union import Union

LISTS = (None, ALLOW, DENY, INFER, CLEAR)
"""What a node may be on, by the number under which that is noted."""

_NUMBERS: dict[str | None, int] = {kind: number for number, kind in enumerate(LISTS)}


class Canvas:
    """One body being coloured. Mutable, and known to `colouring` only; `result` hands out what came of it.

    A vertex is 16 bit in the end if it is in `allow` and its type is float32. `deny` keeps it out of the passes that spread `allow`.

    Attributes:
      union: what is coloured.
      graph: its type graph.
      sizes: the shapes and element counts of its tensors.
      ranges: between which values they lie.
      rules: what the colouring goes by.
      lists: node to the number in `LISTS` of the list that its op is on.
      processable: node to whether its types may be changed at all (1) or not (0).
      weights: node to how often it runs in one run of the program (`weight`).
      allow, deny: vertex to 1 if it has that colour; `allowed` and `denied` are the same as arrays.
      reasons: vertex to the reason of its colour, for every vertex that some pass painted or kept.
    """

    def __init__(self, union: Union, rules: Rules, devices: Sequence[Devices], graphs: Graphs = unknown, weights: Array | None = None) -> None:
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
        self._devices, self.weights = tuple(devices), np.ones(len(body)) if weights is None else weights
        self.lists = np.array([_NUMBERS[rules.lists.kind_of.get(kind.op)] for kind in body.kinds.table], np.uint8)[body.kind_array]
        self._list_of = memoryview(self.lists)  # single entries of which are read fast
        self.processable = self._processable(body)
        self.allow = bytearray(len(self.graph))
        self.deny = bytearray(len(self.graph))
        self.reasons = Reasons(len(self.graph))
        for ends in union.ties:
            if not all(self.processable[node] for node, _ in ends):
                node, slot = ends[0]
                self.paint_deny(self.graph.stands_for[self.graph.first[node] + slot], "call")
        self._supports: dict[int, bool] = {}

    def _processable(self, body: Body) -> bytearray:
        """Not fetched, and on the device that is converted (`ShouldProcess` in TensorFlow); a node without a device runs on the target."""
        on_target = {device: self.rules.device.startswith(_device_type(device)) for device in set(body.devices)}
        found = bytearray(map(on_target.__getitem__, body.devices))
        tied = {end[0] for tie in self.union.ties for end in tie} - self.union.fixed
        untied = (node for node in body.pseudo_nodes if node not in tied)
        for node in (*untied, *(body.by_name[name] for name in self.rules.fetches if name in body.by_name)):
            found[node] = 0
        if not self.rules.follow_handles:
            # Bodies coloured apart keep their signatures, and so what calls them; TensorFlow's pass retypes While in bfloat16, and the result does not run.
            for node in body.nodes_of(CALLING_OPS):
                found[node] = 0
        return found

    @functools.cached_property
    def allowed(self) -> Array:
        """`allow` as an array, which changes with it."""
        return np.frombuffer(self.allow, bool)

    @functools.cached_property
    def denied(self) -> Array:
        """`deny` as an array, which changes with it."""
        return np.frombuffer(self.deny, bool)

    @functools.cached_property
    def may_change(self) -> Array:
        """`processable` as an array, which changes with it."""
        return np.frombuffer(self.processable, bool)

    def paint_allow(self, vertex: int, rule: str, cause: int = -1, detail: str = "") -> None:
        """Paints `vertex` allow; the first reason stays."""
        if not self.allow[vertex]:
            self.allow[vertex] = 1
            self.reasons.set(vertex, rule, cause, detail)

    def unpaint_allow(self, vertex: int, rule: str, cause: int = -1) -> None:
        """Takes allow off `vertex`."""
        if self.allow[vertex]:
            self.allow[vertex] = 0
            self.reasons.set(vertex, rule, cause)

    def paint_deny(self, vertex: int, rule: str, cause: int = -1, detail: str = "") -> None:
        """Paints `vertex` deny; the first reason stays."""
        if not self.deny[vertex]:
            self.deny[vertex] = 1
            self.reasons.set(vertex, rule, cause, detail)

    def paint_all(self, colour: Array, vertices: Array, rule: str, causes: Array | int = -1) -> None:
        """Paints `vertices`, one after the other, the colour `allowed` or `denied`; `causes` has one for each, or one for all."""
        vertices, positions = first_of_each(vertices)
        new = ~colour[vertices]
        colour[vertices] = True
        self.reasons.set_all(vertices[new], rule, causes if isinstance(causes, int) else causes[positions][new])

    def put_on_list(self, nodes: Collection[int], kind: str | None) -> None:
        """Treats `nodes` from now on as if their ops were on the list `kind`, or on none."""
        self.lists[list(nodes)] = _NUMBERS[kind]

    def keep(self, node: int, rule: str, cause: int = -1, detail: str = "") -> None:
        """Denies every float32 vertex of `node` and takes the node out of what may be changed."""
        self.processable[node] = 0
        for vertex in self.graph.vertices(node):
            if self.is_float32(vertex):
                self.paint_deny(self.graph.stands_for[vertex], rule, cause, detail)

    def keep_all(self, nodes: Array, rule: str, causes: Array) -> None:
        """Keeps `nodes`, one after the other; `causes` has one for each."""
        if not len(nodes):
            return
        self.may_change[nodes] = False
        vertices, causes = self._float32_of(nodes, causes)
        self.paint_all(self.denied, self.graph.stand_ins[vertices], rule, causes)

    def leave(self, node: int, rule: str, cause: int = -1) -> None:
        """Takes `node` out of what may be changed, but denies nothing: what reads it may still be 16 bit."""
        self.processable[node] = 0
        for vertex in self.graph.vertices(node):
            if self.is_float32(vertex):
                self.reasons.set_first(vertex, rule, cause)

    def leave_all(self, nodes: Array, rule: str, causes: Array) -> None:
        """Leaves `nodes`, one after the other; `causes` has one for each."""
        if not len(nodes):
            return
        self.may_change[nodes] = False
        vertices, causes = self._float32_of(nodes, causes)
        self.reasons.set_all_first(vertices, rule, causes)

    def _float32_of(self, nodes: Array, causes: Array) -> tuple[Array, Array]:
        """Returns the float32 vertices of `nodes`, and for each the cause that comes with its node."""
        vertices, position = self.graph.vertices_of(nodes)
        is_float32 = self.graph.is_float32[vertices]
        return vertices[is_float32], causes[position[is_float32]]

    def is_float32(self, vertex: int) -> bool:
        """Returns whether the type of `vertex` is float32: only those are ever changed."""
        return self.graph.dtype[vertex] == DT_FLOAT

    def kind_at(self, vertex: int) -> str | None:
        """Returns the list that the op of `vertex` is on, or None. What stands for tied slots hands values on unchanged, as clearlist ops do."""
        return CLEAR if vertex in self.graph.tied else self.list_of(self.graph.node_of[vertex])

    def list_of(self, node: int) -> str | None:
        """Returns the list that the op of `node` is on, or None."""
        return LISTS[self._list_of[node]]

    def devices(self, node: int) -> Devices:
        """Returns the device types whose kernels must exist for `node`."""
        return self._devices[self.union.instance_of(node) if len(self._devices) > 1 else 0]

    def weight(self, node: int) -> float:
        """Returns how often `node` runs in one run of the program, as far as the graph tells; 0 if TensorFlow prunes it."""
        return float(self.weights[node])

    @functools.cached_property
    def clear(self) -> bytearray:
        """Vertex to 1 if `kind_at` is "clear": asked at every step of the longest walks."""
        return bytearray(self.kinds_at({CLEAR}))

    def kinds_at(self, kinds: Collection[str]) -> Array:
        """Returns vertex to whether `kind_at` is one of `kinds`."""
        on_lists, is_tied = self.are_on(kinds), self.graph.is_tied
        return on_lists | is_tied if CLEAR in kinds else on_lists & ~is_tied

    def are_on(self, kinds: Iterable[str]) -> Array:
        """Returns vertex to whether the op of its node is on one of the lists `kinds`."""
        asked = np.zeros(len(_NUMBERS), bool)
        asked[[_NUMBERS[kind] for kind in kinds]] = True
        return asked[self.lists][self.graph.nodes]

    def on_lists(self, kinds: Iterable[str]) -> list[int]:
        """Returns the vertices of every node whose op is on one of the lists `kinds`, in vertex order."""
        return np.flatnonzero(self.are_on(kinds)).tolist()

    def processable_allow_ops(self) -> Array:
        """Returns the vertices of every allowlist node that may be changed, in vertex order."""
        return np.flatnonzero(self.are_on({ALLOW}) & self.may_change[self.graph.nodes])

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
        sort = int(self.sorts[vertex])
        known = self._supports.get(sort)
        if known is None:
            known = self._supports[sort] = vertex in self.graph.tied or (self.supports_type(vertex) and self._has_kernel_with(vertex))
        return known

    def _has_kernel_with(self, vertex: int) -> bool:
        """Returns whether there are kernels for `vertex` in 16 bit; the other entries of a list keep their types."""
        body, node = self.graph.body, self.graph.node_of[vertex]
        attr, index, _ = body.layouts[node].keys[vertex - self.graph.first[node]]
        types, new = body.attr_types(node, {}), {self.rules.format.number}
        return bool(attr) and _has_kernels(body.ops[node], {**types, attr: frozenset(types[attr] | new if index >= 0 else new)}, self.devices(node))

    @functools.cached_property
    def sorts(self) -> Array:
        """Vertex to a number that is the same for the same attribute, whichever entry of a list, of nodes of one kind on the same devices; all that are tied
        have one of their own.
        """
        graph, numbers = self.graph, collections.defaultdict[tuple[int, str, int], int](itertools.count().__next__)
        table = [numbers[kind, attr, fixed] for kind, one in enumerate(graph.body.kinds.table) for attr, _, fixed in one.layout.keys]
        different = list(dict.fromkeys(self._devices))
        of_instance = np.array([different.index(devices) for devices in self._devices])
        lengths = np.diff(np.append(self.union.offsets, len(graph.body)))
        on = np.repeat(of_instance, lengths) if len(different) > 1 else np.zeros(len(graph.body), np.int32)
        return np.where(graph.is_tied, -1, np.array(table, np.int32)[graph.sort] * len(different) + on[graph.nodes])

    def told(self, question: Callable[[int], bool], vertices: Array) -> Array:
        """Returns what `question` answers to each of `vertices`, asked once for all of one sort: as `supports` and `supports_type` may be."""
        sorts = self.sorts[vertices] + 1
        different, first = first_of_each(sorts)
        answers = np.zeros(sorts.max(initial=0) + 1, bool)
        answers[different] = [question(vertex) for vertex in vertices[first].tolist()]
        return answers[sorts]

    def kernels_exist(self, node: int, changed: Iterable[int]) -> bool:
        """Returns whether, with the slots numbered `changed` made 16 bit, `node` has a kernel on every device that runs it."""
        body = self.graph.body
        return _has_kernels(body.ops[node], body.attr_types(node, dict.fromkeys(changed, self.rules.format.number)), self.devices(node))


def _has_kernels(op: str, types: kernels.Types, devices: Devices) -> bool:
    return all(kernels.has_kernel(op, device, types) for device in devices)


def _device_type(device: str) -> str:
    """Returns "GPU" for "/job:localhost/replica:0/task:0/device:GPU:0" and for the "/gpu:0" of old graphs, "" for no device at all."""
    return device.rpartition("/")[2].removeprefix("device:").partition(":")[0].upper()
