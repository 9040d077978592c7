"""How often each part of a program runs in one run of the whole, where the graph tells.

The graph tells it of a While that counts from a constant up to a constant in equal steps, which is how `tf.while_loop` writes `maximum_iterations` and how
Python's `range` comes out of AutoGraph; the gradient of such a loop goes round as often as the loop has counted. Of two limits the smaller one counts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence

from tfmp import tf_api
from tfmp.graph.body import RETVAL, Body, Edge
from tfmp.program.program import Program
from tfmp.program.unfold import Instance

ADDITIONS = ("AddV2", "Add")

ARITHMETIC: dict[str, Callable[..., int]] = {
    "AddV2": operator.add,
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Maximum": max,
    "Minimum": min,
    "Cast": int,
    "Neg": operator.neg,
}
"""Integer ops with which AutoGraph works out the length of a range, to what they do (TensorFlow's floor division and modulo are Python's)."""

DIVISIONS = ("FloorDiv", "FloorMod")


def runs(program: Program, instances: Sequence[Instance], untold: int = 1) -> list[int]:
    """Returns how often each instance runs when the root runs once. A loop whose steps cannot be told counts as `untold` steps, a branch as taken.

    An instance that several places share is counted for each of them; recursion is not followed.
    """
    counts = [0] * len(instances)
    counts[: len(program.roots)] = [1] * len(program.roots)
    bodies = [program.bodies[instance.function] for instance in instances]
    for number, instance in enumerate(instances):
        loops = _Loops(bodies, number, instance)
        for node, callees in instance.calls.items():
            steps = loops.steps(node)
            steps = untold if steps is None else steps or 1
            for callee in callees:
                if callee.instance > number:
                    counts[callee.instance] += counts[number] * (steps if callee.attr == "body" else steps + 1 if callee.attr == "cond" else 1)
    return counts


class _Loops:
    """The loops of one instance."""

    def __init__(self, bodies: Sequence[Body], number: int, instance: Instance) -> None:
        self._outer, self._bodies, self._calls = bodies[number], bodies, instance.calls
        self._known: dict[int, int | None] = {}

    def steps(self, node: int) -> int | None:
        """Returns the number of steps of the loop at `node`, or None if it is no loop or does not tell."""
        if node not in self._known:
            self._known[node] = None  # for a loop that depends on itself through what it carries
            inside = {callee.attr: self._bodies[callee.instance] for callee in self._calls.get(node, ())}
            if set(inside) == {"cond", "body"}:
                self._known[node] = min((limit for limit in self._limits(node, inside["cond"], inside["body"]) if limit >= 0), default=None)
        return self._known[node]

    def _limits(self, node: int, condition: Body, body: Body) -> Iterator[int]:
        for less in _conjuncts(condition, _result(condition, 0)):
            (counter, _), (bound, _) = condition.inputs[less]
            limit = self._invariant(node, condition, body, bound)
            if limit is not None and counter < condition.arguments:
                start, stride = self._value(self._outer.inputs[node][counter]), self._stride(node, body, counter)
                if start is not None and stride > 0:
                    yield -((start - limit) // stride)  # rounded up

    def _stride(self, node: int, body: Body, argument: int) -> int:
        """Returns by how much `argument` grows at every step of the loop at `node`, or 0 if that cannot be told."""
        source = _result(body, argument)
        if body.ops[source] not in ADDITIONS:
            return 0
        terms = [_source(body, term) for term, _ in body.inputs[source]]
        if argument not in terms:
            return 0
        terms.remove(argument)
        return self._invariant(node, body, body, terms[0]) or 0

    def _invariant(self, node: int, inside: Body, body: Body, source: int) -> int | None:
        """Returns the integer that `source` is in `inside` at every step: a constant, or what the loop carries unchanged."""
        source = _source(inside, source)
        if source < inside.arguments:
            return self._value(self._outer.inputs[node][source]) if _result(body, source) == source else None
        return _constant(inside, source)

    def _value(self, edge: Edge) -> int | None:
        """Returns the integer that a tensor of the instance has: a constant, or what another loop has counted up to."""
        source, port = self._outer.origin(edge)
        if source not in self._calls:
            return _constant(self._outer, source)
        steps = self.steps(source)
        body = next((self._bodies[callee.instance] for callee in self._calls[source] if callee.attr == "body"), None)
        if steps is None or body is None:
            return None
        start, stride = self._value(self._outer.inputs[source][port]), self._stride(source, body, port)
        return start + steps * stride if start is not None and stride else None


def _conjuncts(body: Body, node: int) -> Iterator[int]:
    """Yields the Less nodes that must all hold for `node` to hold."""
    node = _source(body, node)
    if body.ops[node] == "Less":
        yield node
    elif body.ops[node] == "LogicalAnd":
        for part, _ in body.inputs[node]:
            yield from _conjuncts(body, part)


def _result(body: Body, index: int) -> int:
    return _source(body, len(body) - body.results + index)


def _source(body: Body, node: int) -> int:
    """Returns what `node`, if it only hands on a value, has it from."""
    return body.origin(body.inputs[node][0] if body.ops[node] == RETVAL and body.inputs[node] else (node, 0))[0]


def _constant(body: Body, node: int) -> int | None:
    """Returns the value of an integer scalar that is a constant or `ARITHMETIC` on constants, or None."""
    node = _source(body, node)
    proto, op = body.protos[node], body.ops[node]
    if proto is not None and op == "Const":
        value = tf_api.read_tensor(proto.attr["value"].tensor)
        return int(value) if value.ndim == 0 and value.dtype.kind in "iu" else None
    if op not in ARITHMETIC:
        return None
    operands = [_constant(body, operand) for operand, _ in body.inputs[node]]
    known = [operand for operand in operands if operand is not None]
    return ARITHMETIC[op](*known) if len(known) == len(operands) and (op not in DIVISIONS or known[1]) else None


DEEPEST = 4
"""Loops in loops that are told apart: a node in more counts as being in so many."""


def frames(body: Body) -> dict[int, int]:
    """Returns, for the nodes inside loops of Enter, Merge, Switch, NextIteration and Exit, how many such loops they are in, at most `DEEPEST`
    (`control_flow_ops.py`).
    """
    depth: dict[int, int] = {}
    entered = body.nodes_of(("Enter", "RefEnter"))
    if not entered:
        return depth
    readers: dict[int, list[int]] = {}
    for node, edges in enumerate(body.inputs):
        for source, _ in edges:
            readers.setdefault(source, []).append(node)
    todo = [(node, 1) for node in entered]
    while todo:
        node, at_least = todo.pop()
        if min(at_least, DEEPEST) > depth.get(node, 0):
            at_least = depth[node] = min(at_least, DEEPEST)
            inside = at_least - (body.ops[node] in ("Exit", "RefExit"))
            todo += [(reader, inside + (body.ops[reader] in ("Enter", "RefEnter"))) for reader in readers.get(node, ())]
    return {node: level - (body.ops[node] in ("Exit", "RefExit")) for node, level in depth.items()}
