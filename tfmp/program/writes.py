"""What may write to a variable, and which reads of one variable therefore see one value.

TensorFlow orders a read and a write only by edges: a read that no path from a write leads to may always be the first thing that happens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from tfmp.dtypes import DT_RESOURCE
from tfmp.graph.schema import registered_schema
from tfmp.graph.view import ARG, RETVAL, Body, Edge
from tfmp.program.calls import CALLING_OPS, call_nodes, callees

READ = "ReadVariableOp"

ONLY_READING = frozenset({READ, "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"})
"""Ops that take the handle of a variable and leave it as it is (`resource_variable_ops.cc`). Any other op that takes a handle may write behind it."""

PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
"""Ops that run a user's Python function, which may do anything."""

OLD_CONTROL_FLOW = frozenset({"Enter", "Merge", "Switch"})
"""In a graph with one of them, not every node runs, or one runs many times, whatever its inputs."""

HANDLES = frozenset({ARG, "VarHandleOp"})
"""What a handle comes from that is there before anything has run."""


def writing_functions(bodies: Mapping[str, Body]) -> frozenset[str]:
    """Returns the functions that may write to a variable, by themselves or by what they call; what is called but not among `bodies` may."""
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


def late_nodes(body: Body, bodies: Mapping[str, Body], writing: frozenset[str]) -> frozenset[int]:
    """Returns the nodes of `body` that a path of tensors or control edges leads to from one that may write to a variable, those included; all nodes
    where control flow of TensorFlow 1 decides what runs.

    Args:
      body: one of `bodies`.
      bodies: the functions of the program.
      writing: what `writing_functions` says of them.
    """
    if not OLD_CONTROL_FLOW.isdisjoint(body.ops):
        return frozenset(range(len(body)))
    return frozenset(_after(body, list(_writers(body, bodies.keys() - writing))))


def _after(body: Body, starts: list[int]) -> set[int]:
    """Returns `starts`, and what a path of tensors or control edges leads to from one of them."""
    todo, found = starts, set(starts)
    readers: dict[int, list[int]] = {}
    for node in range(len(body)) if starts else ():
        for source in _before(body, node):
            readers.setdefault(source, []).append(node)
    while todo:
        for reader in readers.get(todo.pop(), ()):
            if reader not in found:
                found.add(reader)
                todo.append(reader)
    return found


def _before(body: Body, node: int) -> list[int]:
    """The nodes that `node` reads or waits for."""
    return [*(source for source, _ in body.inputs[node]), *body.waits_for(node)]


def writers_behind(body: Body, handle: Edge, bodies: Mapping[str, Body], writing: frozenset[str]) -> tuple[int, ...]:
    """Returns the nodes of `body` that may write to the variable with the handle `handle`; for the other arguments see `late_nodes`."""
    found = []
    for node in _writers(body, bodies.keys() - writing):
        handles = {body.origin(edge) for edge in body.inputs[node] if body.types[edge[0]][body.layouts[edge[0]].outputs[edge[1]]] == DT_RESOURCE}
        known = all(body.ops[source] == ARG or (body.ops[source] == "VarHandleOp" and body.ops[handle[0]] == ARG) for source, _ in handles)
        if handle in handles or not known or not handles:
            found.append(node)
    return tuple(found)


def comes_first(body: Body, read: int, bodies: Mapping[str, Body], writing: frozenset[str]) -> bool:
    """Returns whether all that may write to the variable that the node `read` reads waits for it. In a function that was traced it does, by an edge to the read
    or to another such writer (`auto_control_deps.py`); in a graph that was put together by hand it may not.
    """
    left, waiting = set(writers_behind(body, body.origin(body.inputs[read][0]), bodies, writing)), {read}
    while new := {node for node in left if not waiting.isdisjoint(_before(body, node))}:
        left -= new
        waiting |= new
    return not left or left <= _after(body, [read])


def _writers(body: Body, harmless: AbstractSet[str]) -> Iterator[int]:
    """Yields the nodes that may write to a variable; a call may if it calls a function that is not among the `harmless`."""
    suspects = {op for op in set(body.ops) if _may_write(body, op)}
    for node, op in enumerate(body.ops) if suspects else ():
        if op in suspects and not (op in CALLING_OPS and all(called in harmless for called in callees(body.protos[node]))):
            yield node


def _may_write(body: Body, op: str) -> bool:
    if op in (ARG, RETVAL) or op in ONLY_READING:
        return False
    if op in PYTHON or op in CALLING_OPS or op in body.called_as_ops:
        return True
    schema = registered_schema(op)
    return schema.takes_handles or schema.names_functions


def read_once(body: Body, bodies: Mapping[str, Body], writing: frozenset[str]) -> Body:
    """Returns `body` with every variable that several nodes read before anything is written read by the first of them alone; `body` itself if there is none.

    The other reads stay, with nothing that reads what they give.
    """
    groups: dict[object, list[int]] = {}
    for node in [node for node, op in enumerate(body.ops) if op == READ]:
        handle = body.origin(body.inputs[node][0])
        if body.ops[handle[0]] in HANDLES:
            groups.setdefault((handle, body.types[node][body.layouts[node].outputs[0]], body.devices[node]), []).append(node)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return body
    late = late_nodes(body, bodies, writing)
    first: dict[Edge, Edge] = {}
    for group in several:
        early = [node for node in group if node not in late]
        # One that waits for nothing, so that nothing can come to wait for itself.
        free = next((node for node in early if node not in body.controlled and comes_first(body, node, bodies, writing)), None)
        if free is not None:
            first.update({(node, 0): (free, 0) for node in early if node != free})
    if not first:
        return body
    inputs = [[first.get(edge, edge) for edge in edges] for edges in body.inputs]
    return dataclasses.replace(body, inputs=inputs, dead=None)
