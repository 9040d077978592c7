"""What may write to a variable, and which reads of one variable therefore see one value.

TensorFlow orders a read and a write only by edges: a read that no path from a write leads to may always be the first thing that happens.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from tfmp.dtypes import DT_RESOURCE
from tfmp.graph.body import ARG, RETVAL, Body, Edge
from tfmp.graph.edges import distinct
from tfmp.graph.neighbours import Neighbours
from tfmp.graph.schema import registered_schema
from tfmp.program.calls import CALLING_OPS, call_nodes, callees
from tfmp.program.liveness import arrows

READ = "ReadVariableOp"

ONLY_READING = frozenset({READ, "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"})
"""Ops that take the handle of a variable and leave it as it is (`resource_variable_ops.cc`). Any other op that takes a handle may write behind it."""

PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
"""Ops that run a user's Python function, which may do anything."""

OLD_CONTROL_FLOW = frozenset({"Enter", "Merge", "Switch"})
"""In a graph with one of them, not every node runs, or one runs many times, whatever its inputs."""

HANDLES = frozenset({ARG, "VarHandleOp"})
"""What a handle comes from that is there before anything has run."""


class Writes:
    """What may write to variables in a program.

    Attributes:
      functions: the functions that may, by themselves or by what they call. What is called but not among the program's bodies may.
    """

    def __init__(self, bodies: Mapping[str, Body]) -> None:
        """Takes name to body; all bodies that are asked about later call no others."""
        self.functions = _writing_functions(bodies)
        self._harmless = bodies.keys() - self.functions
        self._known: dict[int, _Writers] = {}

    def _of(self, body: Body) -> _Writers:
        found = self._known.get(id(body))
        if found is None:
            found = self._known[id(body)] = _Writers(body, list(_writers(body, self._harmless)))
        return found

    def late(self, body: Body) -> frozenset[int]:
        """Returns the nodes that a path of tensors or control edges leads to from one that may write to a variable, those included; all nodes where control
        flow of TensorFlow 1 decides what runs.
        """
        return self._of(body).late

    def behind(self, body: Body, handle: Edge) -> tuple[int, ...]:
        """Returns the nodes of `body` that may write to the variable with the handle `handle`."""
        found = self._of(body)
        return (*found.by_variable.get(_variable(body, handle), ()), *found.anywhere)

    def come_after(self, body: Body, read: int) -> bool:
        """Returns whether all that may write to the variable that the node `read` reads waits for it. In a function that was traced it does, by an edge to the
        read or to another such writer (`auto_control_deps.py`); in a graph that was put together by hand it may not.
        """
        left, waiting = set(self.behind(body, body.origin(body.inputs[read][0]))), {read}
        while new := {node for node in left if not waiting.isdisjoint(_before(body, node))}:
            left -= new
            waiting |= new
        return not left or left <= _after(body, [read])


@dataclasses.dataclass(frozen=True)
class _Writers:
    """The nodes of one body that may write to variables."""

    body: Body
    nodes: list[int]

    @functools.cached_property
    def late(self) -> frozenset[int]:
        if not OLD_CONTROL_FLOW.isdisjoint(self.body.by_op):
            return frozenset(range(len(self.body)))
        return _after(self.body, self.nodes)

    @functools.cached_property
    def by_variable(self) -> Mapping[object, list[int]]:
        """Variable to its writers; what writes who knows where is with the variable None."""
        found: dict[object, list[int]] = {}
        for node in self.nodes:
            handles = {edge for edge in self.body.inputs[node] if self.body.types[edge[0]][self.body.layouts[edge[0]].outputs[edge[1]]] == DT_RESOURCE}
            for variable in {_variable(self.body, self.body.origin(edge)) for edge in handles} or {None}:
                found.setdefault(variable, []).append(node)
        return found

    @property
    def anywhere(self) -> Sequence[int]:
        return self.by_variable.get(None, ())


def _variable(body: Body, handle: Edge) -> object:
    """Returns what is the same for all handles of one variable, None if that is not known; arguments are different variables."""
    node, op = handle[0], body.ops[handle[0]]
    if op == "VarHandleOp":
        attrs = body.protos[node].attr
        return (attrs["shared_name"].s if "shared_name" in attrs else b"") or body.names[node]
    return handle if op == ARG else None


def _writing_functions(bodies: Mapping[str, Body]) -> frozenset[str]:
    found = {name for name, body in bodies.items() if any(True for _ in _writers(body, bodies.keys()))}
    callers: dict[str, set[str]] = {}
    for name, body in bodies.items():
        for _, names in call_nodes(body):
            for called in names:
                callers.setdefault(called, set()).add(name)
    todo = list(found)
    while todo:
        new = callers.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return frozenset(found)


def _after(body: Body, starts: Sequence[int]) -> frozenset[int]:
    """Returns `starts`, and what a path of tensors or control edges leads to from one of them."""
    if not starts:
        return frozenset()
    readers, sources = arrows(body)
    return frozenset(Neighbours(sources, readers, len(body)).walk(np.array(starts))[0].tolist())


def _before(body: Body, node: int) -> list[int]:
    """The nodes that `node` reads or waits for."""
    return [*(source for source, _ in body.inputs[node]), *body.controlled.get(node, ())]


def _writers(body: Body, harmless: AbstractSet[str]) -> Iterator[int]:
    """Yields the nodes that may write to a variable; a call may if it calls a function that is not among the `harmless`."""
    for node in body.nodes_of(op for op in body.by_op if _may_write(body, op)):
        if not (body.ops[node] in CALLING_OPS and all(called in harmless for called in callees(body.protos[node]))):
            yield node


def _may_write(body: Body, op: str) -> bool:
    if op in (ARG, RETVAL) or op in ONLY_READING:
        return False
    if op in PYTHON or op in CALLING_OPS or op in body.called_as_ops:
        return True
    schema = registered_schema(op)
    return schema.takes_handles or schema.names_functions


def read_once(body: Body, writes: Writes) -> Body:
    """Returns `body` with every variable that several nodes read before anything is written read by the first of them alone; `body` itself if there is none.

    The other reads stay, with nothing that reads what they give.
    """
    groups: dict[object, list[int]] = {}
    for node in body.nodes_of([READ]):
        handle = body.origin(body.inputs[node][0])
        if body.ops[handle[0]] in HANDLES:
            groups.setdefault((handle, body.types[node][body.layouts[node].outputs[0]], body.devices[node]), []).append(node)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return body
    late = writes.late(body)
    first: dict[Edge, Edge] = {}
    for group in several:
        early = [node for node in group if node not in late]
        # One that waits for nothing, so that nothing can come to wait for itself.
        free = next((node for node in early if node not in body.controlled and writes.come_after(body, node)), None)
        if free is not None:
            first.update({(node, 0): (free, 0) for node in early if node != free})
    if not first:
        return body
    inputs = list(body.inputs)
    is_moved = np.zeros(len(body), bool)
    is_moved[[node for node, _ in first]] = True
    for node in map(int, distinct(body.edges.reader[is_moved[body.edges.source]])):
        inputs[node] = [first.get(edge, edge) for edge in inputs[node]]
    return body.with_inputs(inputs, {})
