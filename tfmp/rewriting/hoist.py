"""Weights that are cast more often than once a step are read and cast once, by who calls the functions that need them.

A function gets a variable's handle as an argument. Where nothing that it calls writes to any variable, the value may as well be read by its caller and handed
in, in 16 bit, as one more argument. That is done out of loops, where the value is the same at every step; out of what a loop calls; and out of functions, as
far up as to the first caller of all that cast the same variable.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence

from tfmp import tf_api
from tfmp.dtypes import FloatFormat
from tfmp.graph.body import Body, Edge
from tfmp.program.calls import CALLING_OPS, IMPLEMENTS, argument_ports
from tfmp.program.liveness import dead_nodes
from tfmp.program.program import Program
from tfmp.program.unfold import Callee, Instance
from tfmp.program.writes import HANDLES, READ, Writes
from tfmp.rewriting.plan import ExtraArgument, HoistedRead, InsertCast, Plan


def hoist_reads(program: Program, instances: Sequence[Instance], plans: Sequence[Plan], *, grows: bool = False) -> list[Plan]:
    """Returns `plans` with the casts of weights moved to callers where that saves casts and cannot be noticed, innermost calls first.

    With `grows`, what writes to variables may yet be added to a main graph, and could not be made to wait for a read there: functions share no casts in it.
    """
    if not any(instance.calls for instance in instances):
        return list(plans)
    work = _Work(program, instances, plans, grows)
    for number in reversed(range(len(instances))):
        for node, callees in instances[number].calls.items():
            work.lift_out_of(number, node, callees)
    return work.plans


@dataclasses.dataclass(frozen=True)
class _Move:
    """One cast of a variable's value that leaves a function: which argument has the handle, what it is cast to, a read to copy, who reads it."""

    argument: int
    target: FloatFormat
    like: tf_api.NodeDef
    readers: tuple[Edge, ...] = ()
    cast: InsertCast | None = None
    read: HoistedRead | None = None

    @property
    def name(self) -> str:
        """The name of the cast, by which others may share it."""
        return self.cast.name if self.cast else self.read.cast_name  # type: ignore[union-attr]


Place = tuple[int, int]
"""Number of an instance and of an argument that has a variable's handle, or of the node that the handle comes from."""


class _Work:
    """The plans while casts are moved, and what is known of the program.

    Attributes:
      plans: instance to plan.
    """

    def __init__(self, program: Program, instances: Sequence[Instance], plans: Sequence[Plan], grows: bool) -> None:
        self.plans = list(plans)
        self._instances, self._grows = instances, grows
        self._bodies = [plan.body for plan in plans]
        self._writes = Writes(program.bodies)
        self._callers = self._single_callers()
        self._repeated = self._in_loops()
        self._shared = self._casts_to_share()

    def _single_callers(self) -> dict[int, tuple[int, int, str]]:
        """Returns instance to its caller, calling node and attribute there, for those whose signature may change: called by one node only."""
        found: dict[int, list[tuple[int, int, str]]] = {}
        for instance in self._instances:
            for node, callees in instance.calls.items():
                for callee in callees:
                    found.setdefault(callee.instance, []).append((instance.number, node, callee.attr))
        return {number: callers[0] for number, callers in found.items() if len(callers) == 1 and IMPLEMENTS not in self._bodies[number].attrs}

    def _quiet(self, callees: Sequence[Callee]) -> bool:
        """Returns whether nothing that is called may write to a variable, and all of it may get other arguments."""
        return all(one.instance in self._callers and self._instances[one.instance].function not in self._writes.functions for one in callees)

    def _in_loops(self) -> set[int]:
        """The instances that run once for each step of a loop that writes to no variable."""
        found: set[int] = set()
        for instance in self._instances:
            for callees in instance.calls.values():
                if self._quiet(callees) and (instance.number in found or _is_loop(callees)):
                    found.update(callee.instance for callee in callees if callee.attr != "cond")
        return found

    def _casts_to_share(self) -> set[Place]:
        """The arguments through which the handles come of variables that several functions cast, up to where all of these meet."""
        chains: dict[Place, list[list[Place]]] = {}
        for number, plan in enumerate(self.plans):
            body = plan.body
            for read in (cast.source[0] for cast in _needed_casts_of_reads(plan)):
                handle = body.origin(body.inputs[read][0])[0]
                if body.ops[handle] in HANDLES and self._reads_first(number, read):
                    chain = [(number, handle)]
                    while (above := self._above(chain[-1])) is not None:
                        chain.append(above)
                    chains.setdefault(chain[-1], []).append(chain)
        found: set[Place] = set()
        for ways in (ways for ways in chains.values() if len(ways) > 1):
            passing = collections.Counter(place for way in ways for place in way)
            found |= {place for way in ways for place in way[:-1] if passing[place] < len(ways)}
        return found

    def _above(self, place: Place) -> Place | None:
        """Returns where the handle at an argument comes from in the caller; None if reading there might give another value."""
        number, argument = place
        caller = self._callers.get(number)
        if caller is None or caller[2] != "f" or argument >= self._bodies[number].arguments:
            return None
        outer, node, _ = caller
        body = self._bodies[outer]
        if (self._grows and not body.name) or not self._quiet(self._instances[outer].calls[node]) or node in self._writes.late(body):
            return None
        source = body.origin(body.inputs[node][argument_ports(body, node)[argument]])[0]
        return (outer, source) if body.ops[source] in HANDLES else None

    def _reads_first(self, number: int, node: int) -> bool:
        """Returns whether a read waits for nothing, and whatever writes to its variable waits for it."""
        body = self._bodies[number]
        return node not in body.controlled and self._writes.come_after(body, node)

    def lift_out_of(self, outer: int, node: int, callees: Sequence[Callee]) -> None:
        """Moves the casts of variables' values that are worth it out of what `node` calls."""
        if not self._quiet(callees):
            return
        loop, repeated = _is_loop(callees), outer in self._repeated
        for callee in callees:
            if callee.attr not in CALLING_OPS[self._bodies[outer].ops[node]].predicates:
                for move in list(_moves(self.plans[callee.instance], loop)):
                    if loop or repeated or (callee.instance, move.argument) in self._shared:
                        self._lift(outer, node, callees, callee.instance, move)

    def _lift(self, outer: int, node: int, callees: Sequence[Callee], inner: int, move: _Move) -> None:
        body = self._bodies[outer]
        handle = body.inputs[node][argument_ports(body, node)[move.argument]]
        here = [read for read in self.plans[outer].reads if read.node == node]
        found = next((n for n, read in enumerate(here) if read.target is move.target and body.origin(read.handle) == body.origin(handle)), None)
        name = f"tfmp_weight_{len(here) if found is None else found}"
        if found is None:
            waits = node in self._writes.late(body)
            made = HoistedRead(node, handle, f"{body.names[node]}/{name}", move.target, move.like, waits=waits)
            made = made if waits else dataclasses.replace(made, same_as=self._same(outer, made))
            if made.is_new and not waits:
                made = dataclasses.replace(made, writers=self._writes.behind(body, body.origin(handle)))
            self.plans[outer] = dataclasses.replace(self.plans[outer], reads=(*self.plans[outer].reads, made))
            for one in callees:
                extra = ExtraArgument(name, move.target, (), returned=one.attr == "body")
                self.plans[one.instance] = dataclasses.replace(self.plans[one.instance], arguments=(*self.plans[one.instance].arguments, extra))
        self.plans[inner] = _without(self.plans[inner], move, name)

    def _same(self, outer: int, made: HoistedRead) -> str:
        """Returns the name of a cast in `outer` that gives what `made` would, "" if there is none."""
        plan, body, handle = self.plans[outer], self._bodies[outer], self._bodies[outer].origin(made.handle)
        for cast in _casts_of_reads(plan):
            source = cast.source[0]
            if cast.target is made.target and self._reads_first(outer, source) and body.origin(body.inputs[source][0]) == handle:
                return cast.name
        alike = (read for read in plan.reads if not (read.argument or read.same_as or read.waits) and read.target is made.target)
        return next((read.cast_name for read in alike if body.origin(read.handle) == handle), "")


def _is_loop(callees: Sequence[Callee]) -> bool:
    return {callee.attr for callee in callees} == {"cond", "body"}


def _moves(plan: Plan, loop: bool) -> Iterator[_Move]:
    """Yields the casts of reads in a body itself, and those that its own calls have moved to it; of a loop's body, those of handles that stay what they are."""
    body = plan.body
    for cast in _needed_casts_of_reads(plan):
        handle, like = body.origin(body.inputs[cast.source[0]][0])[0], body.protos[cast.source[0]]
        if like is not None and _is_argument(body, handle, loop):
            yield _Move(handle, cast.target, like, cast.readers, cast=cast)
    for read in plan.reads:
        handle = body.origin(read.handle)[0]
        if not read.argument and not read.same_as and _is_argument(body, handle, loop):
            yield _Move(handle, read.target, read.like, read=read)


def _casts_of_reads(plan: Plan) -> list[InsertCast]:
    """Returns the casts of variables' values."""
    return [cast for cast in plan.casts if plan.body.ops[cast.source[0]] == READ and not (cast.constant or cast.round_trip)]


def _needed_casts_of_reads(plan: Plan) -> list[InsertCast]:
    """Returns the casts of variables' values that TensorFlow will not prune."""
    found = _casts_of_reads(plan)
    dead = frozenset(dead_nodes(plan.body)) if found else frozenset()
    return [cast for cast in found if any(reader not in dead for reader, _ in cast.readers)]


def _is_argument(body: Body, node: int, loop: bool) -> bool:
    """Returns whether `node` is an argument, and in a loop's body one that comes out as it went in."""
    if node >= body.arguments:
        return False
    return not loop or body.origin(body.inputs[len(body) - body.results + node][0])[0] == node


def _without(plan: Plan, move: _Move, argument: str) -> Plan:
    """Returns `plan` with the extra argument of that name in place of a cast of its own, for all that shared it."""
    reads = tuple(
        dataclasses.replace(one, argument=argument, same_as="") if one is move.read or one.same_as == move.name else one for one in plan.reads
    )
    arguments = tuple(dataclasses.replace(one, readers=(*one.readers, *move.readers)) if one.name == argument else one for one in plan.arguments)
    return dataclasses.replace(plan, casts=tuple(cast for cast in plan.casts if cast is not move.cast), reads=reads, arguments=arguments)
