"""Estimates of memory: what a program writes, and what it keeps from the forward for the backward pass.

Nothing of how TensorFlow reuses buffers is known here, so these are sums of tensor sizes. That is what decides the memory that training needs, since what
the backward pass reads cannot be freed before it (Micikevicius et al., "Mixed Precision Training", 2018, section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfmp.dtypes import FLOAT32
from tfmp.graph.body import ARG, RETVAL, Body, Edge
from tfmp.graph.edit import OURS
from tfmp.program.calls import CALLING_OPS
from tfmp.reports.parts import Part
from tfmp.reports.records import Cast, Memory

VIEWS = frozenset({"Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "EnsureShape", "Bitcast"})
"""Ops whose output is the memory of their input."""

HELD = frozenset({ARG, RETVAL, "Const", "ReadVariableOp", "Placeholder", "VariableV2"})
"""Ops whose outputs exist anyway: arguments, constants, weights."""

SOURCES = HELD | frozenset(CALLING_OPS)
"""Ops that write nothing of their own: what they give was there before, or is counted where it is made."""

PUSH = "TensorListPushBack"
"""How a loop saves a tensor of each step for its gradient (`while_v2.py`)."""


def written(part: Part, node: int) -> tuple[float, float]:
    """Returns the bytes that the float32 outputs of `node` have in one run of the program before the rewrite, and after it without casts."""
    if part.body.ops[node] in VIEWS or part.body.ops[node] in SOURCES:
        return 0.0, 0.0
    before = after = 0.0
    for port in part.float_outputs(node):
        size = part.elements(node, port)
        before += 4 * size * (part.runs if _was_written(part, node, port) else 0)
        after += (2 if part.sixteen(node, port) else 4) * size * part.times(node)
    return before, after


def _was_written(part: Part, node: int, port: int) -> bool:
    """Returns whether the program writes an output before the rewrite: of kernels that were put in, what took another op's place."""
    body = part.body
    if node in body.made:
        return not body.names[node].endswith(OURS) and not port
    return node in body.replaced or node not in part.dead


def memory_of(parts: Sequence[Part], casts: Sequence[Cast], roots: int, emulate: bool) -> Memory:
    """Returns the estimates for a whole program.

    Args:
      parts: its instances.
      casts: its casts.
      roots: how many of the instances are roots; the second one is the backward function of the first.
      emulate: whether every tensor stays in float32.
    """
    before = after = 0.0
    for part in parts:
        for node in part.body.proto_nodes:
            old, new = written(part, node)
            before, after = before + old, after + (old if emulate else new)
    after += sum(cast.bytes for cast in casts)
    stored = {(cast.source, cast.port, reader): cast for cast in casts if cast.kind == "cast" for reader in cast.readers}
    saved = [_crossing(part, stored) for part in parts if part.runs] + [_pushed(part) for part in parts] + [_handed_over(part) for part in parts[1:roots]]
    saved_before = sum(old for old, _ in saved)
    return Memory(before, after, saved_before, saved_before if emulate else sum(new for _, new in saved))


def _crossing(part: Part, stored: Mapping[tuple[int, int, int], Cast]) -> tuple[float, float]:
    """What backward nodes of a body read of its forward nodes, before and after: each buffer once, and each form of it that a cast has stored.

    `stored` has the cast that serves (source, port, reader), all of them indices among the program's nodes but for the port.
    """
    body = part.body
    before: dict[Edge, float] = {}
    after: dict[tuple[Edge, int], float] = {}
    for reader in body.proto_nodes:
        if not part.places[reader].gradient or reader in part.dead:
            continue
        for edge in body.inputs[reader]:
            source, port = edge
            if part.places[source].gradient or port not in part.float_outputs(source):
                continue
            buffer, elements = _buffer(body, edge), part.elements(source, port)
            held_anyway = body.ops[buffer[0]] in HELD
            before[buffer] = 0.0 if held_anyway else 4 * elements
            cast = stored.get((part.first + source, port, part.first + reader))
            if cast is not None:
                size = 4 if cast.to == FLOAT32.name else 2
                after[edge, size] = size * elements
            elif not held_anyway:
                size = 2 if part.sixteen(source, port) else 4
                after[buffer, size] = size * elements
    return sum(before.values()), sum(after.values())


def _buffer(body: Body, edge: Edge) -> Edge:
    """Returns the tensor whose memory `edge` is."""
    seen: set[Edge] = set()
    while body.ops[edge[0]] in VIEWS and edge not in seen and body.inputs[edge[0]]:
        seen.add(edge)
        edge = body.inputs[edge[0]][edge[1] if body.ops[edge[0]] == "IdentityN" else 0]
    return edge


def _pushed(part: Part) -> tuple[float, float]:
    """What a loop of the forward pass saves in all its steps."""
    before = after = 0.0
    for node in part.body.proto_nodes:
        if part.body.ops[node] == PUSH and not part.places[node].gradient:
            source, port = part.body.inputs[node][1]
            if port in part.float_outputs(source):
                size = part.times(node) * part.elements(source, port)
                before, after = before + 4 * size, after + (2 if part.sixteen(source, port) else 4) * size
    return before, after


def _handed_over(part: Part) -> tuple[float, float]:
    """What a backward function takes: the tensors that its forward function has saved for it, and gradients."""
    sizes = [(part.elements(node, 0), part.sixteen(node, 0)) for node in range(part.body.arguments) if 0 in part.float_outputs(node)]
    return sum(4 * size for size, _ in sizes), sum((2 if sixteen else 4) * size for size, sixteen in sizes)
