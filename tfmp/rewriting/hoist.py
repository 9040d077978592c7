"""Weights that a loop reads and casts at every step are read and cast once, before the loop.

A loop body that reads a variable gets its handle as a loop-invariant value. Where nothing in the loop writes to any variable, the value is the same at every
step, so it may be read before the loop and handed in, in 16 bit, as one more loop-invariant value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from tfmp import tf_api
from tfmp.dtypes import FloatFormat
from tfmp.graph.schema import registered_schema
from tfmp.graph.view import ARG, RETVAL, Body, Edge
from tfmp.program.program import Program
from tfmp.program.unfold import Instance
from tfmp.rewriting.plan import ExtraArgument, HoistedRead, InsertCast, Plan

WRITE_STEMS = ("Assign", "Resource", "Scatter", "Apply", "Sparse", "VariableV2", "Destroy", "Initialize")
"""First words of the ops that may write to a variable; some that do not (ResourceGather) are among them, which costs a hoist and nothing else."""


def hoist_reads(program: Program, instances: Sequence[Instance], plans: Sequence[Plan]) -> list[Plan]:
    """Returns `plans` with the casts of weights moved out of loops where that cannot be noticed, innermost loops first."""
    result = list(plans)
    callers = _callers(instances)
    bodies = [program.bodies[instance.function] for instance in instances]
    for number in reversed(range(len(instances))):
        for node, callees in instances[number].calls.items():
            inside = {callee.attr: callee.instance for callee in callees}
            if set(inside) == {"cond", "body"} and all(callers[one] == 1 for one in inside.values()):
                loop = _Loop(number, node, inside["cond"], inside["body"])
                if not _writes(instances, bodies, (loop.condition, loop.body)):
                    _hoist(loop, bodies, result)
    return result


@dataclasses.dataclass(frozen=True)
class _Loop:
    """A While node, and the instances it is in and calls."""

    outside: int
    node: int
    condition: int
    body: int


def _callers(instances: Sequence[Instance]) -> list[int]:
    counts = [0] * len(instances)
    for instance in instances:
        for callees in instance.calls.values():
            for callee in callees:
                counts[callee.instance] += 1
    return counts


def _writes(instances: Sequence[Instance], bodies: Sequence[Body], roots: Sequence[int]) -> bool:
    """Returns whether some op in `roots`, or in what they call, may write to a variable, or is a call that cannot be followed."""
    todo, seen = list(roots), set(roots)
    while todo:
        number = todo.pop()
        body, calls = bodies[number], instances[number].calls
        ops = set(body.ops)
        if any(op.startswith(WRITE_STEMS) for op in ops):
            return True
        calling = {op for op in ops if _calls_something(body, op)}
        if any(op in calling and node not in calls for node, op in enumerate(body.ops)):
            return True
        new = {callee.instance for callees in calls.values() for callee in callees} - seen
        seen |= new
        todo += new
    return False


def _calls_something(body: Body, op: str) -> bool:
    return op in body.called_as_ops or (op not in (ARG, RETVAL) and registered_schema(op).names_functions)


@dataclasses.dataclass(frozen=True)
class _Move:
    """One cast of a variable's value that leaves a loop's body: which argument has the handle, what it is cast to, a read to copy, who reads it."""

    argument: int
    target: FloatFormat
    like: tf_api.NodeDef
    readers: tuple[Edge, ...] = ()
    cast: InsertCast | None = None
    read: HoistedRead | None = None


def _moves(body: Body, plan: Plan) -> Iterator[_Move]:
    """Yields the casts of reads in the body itself, and those of reads that were put before its inner loops."""
    for cast in plan.casts:
        like = body.protos[cast.source[0]]
        if _reads_invariant(body, cast) and like is not None:
            yield _Move(body.inputs[cast.source[0]][0][0], cast.target, like, cast.readers, cast=cast)
    for read in plan.reads:
        if not read.argument and _is_invariant(body, read.handle[0]):
            yield _Move(read.handle[0], read.target, read.like, read=read)


def _hoist(loop: _Loop, bodies: Sequence[Body], plans: list[Plan]) -> None:
    """Moves every cast of a variable's value out of the body of `loop`."""
    outer = bodies[loop.outside]
    for move in list(_moves(bodies[loop.body], plans[loop.body])):
        outside, within, condition = plans[loop.outside], plans[loop.body], plans[loop.condition]
        name = f"tfmp_weight_{len(within.arguments)}"
        handle = outer.inputs[loop.node][move.argument]
        read = HoistedRead(loop.node, handle, f"{outer.names[loop.node]}/{name}", move.target, move.like)
        plans[loop.outside] = dataclasses.replace(outside, reads=(*outside.reads, read))
        plans[loop.condition] = dataclasses.replace(condition, arguments=(*condition.arguments, ExtraArgument(name, move.target, (), returned=False)))
        plans[loop.body] = dataclasses.replace(
            within,
            casts=tuple(cast for cast in within.casts if cast is not move.cast),
            reads=tuple(dataclasses.replace(one, argument=name) if one is move.read else one for one in within.reads),
            arguments=(*within.arguments, ExtraArgument(name, move.target, move.readers, returned=True)),
        )


def _reads_invariant(body: Body, cast: InsertCast) -> bool:
    source = cast.source[0]
    return body.ops[source] == "ReadVariableOp" and not cast.constant and not cast.round_trip and _is_invariant(body, body.inputs[source][0][0])


def _is_invariant(body: Body, argument: int) -> bool:
    """Returns whether `argument` is an argument of a loop's body that comes out as it went in."""
    if argument >= body.arguments:
        return False
    return body.origin(body.inputs[len(body) - body.results + argument][0])[0] == argument
