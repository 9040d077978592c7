"""All instances of a program as one body, with the types that must agree across calls, loops and branches."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Iterator, Sequence

from tfmp.errors import GraphError
from tfmp.graph.body import Body
from tfmp.graph.schema import Slot
from tfmp.program.calls import CALLING_OPS, IMPLEMENTS
from tfmp.program.program import Program
from tfmp.program.unfold import Instance

End = tuple[int, int]
"""Node of the union and number of one of its slots."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """One value that a While loop carries: the argument and the result of its body, as nodes of the union."""

    argument: int
    result: int


@dataclasses.dataclass(frozen=True)
class Union:
    """Many instances as one body.

    Attributes:
      body: the bodies of all instances one after the other. `by_name` knows the root's nodes only.
      offsets: instance number to the number of its first node in `body`.
      instances: the instances.
      ties: pairs of slots that have one type: an argument and what is handed to it, a result and what is made of it.
      loops: the values that loops carry.
      fixed: arguments and results whose types must stay although they are tied: those of functions with a stand-in for another device.
    """

    body: Body
    offsets: tuple[int, ...]
    instances: tuple[Instance, ...]
    ties: tuple[tuple[End, End], ...]
    loops: tuple[Loop, ...]
    fixed: frozenset[int] = frozenset()

    @functools.cached_property
    def slots(self) -> Sequence[Slot]:
        """The slots of all kinds of nodes, kind after kind, as `TypeGraph.sort` numbers them."""
        return [slot for kind in self.body.kinds.table for slot in kind.layout.slots]

    def instance_of(self, node: int) -> int:
        """Returns the number of the instance that `node` belongs to."""
        return bisect.bisect_right(self.offsets, node) - 1


def unite(program: Program, instances: Sequence[Instance]) -> Union:
    """Returns the union of `instances`; raises `GraphError` if a call does not fit what it calls."""
    bodies = [program.bodies[instance.function] for instance in instances]
    offsets, total = [], 0
    for body in bodies:
        offsets.append(total)
        total += len(body)
    if len(bodies) == 1 and not instances[0].calls and not program.links:
        return Union(bodies[0], (0,), tuple(instances), (), ())
    union = Body(bodies[0].name, attrs=bodies[0].attrs, by_name=bodies[0].by_name)
    for body, offset in zip(bodies, offsets, strict=True):
        for column in ("names", "ops", "devices", "layouts", "types", "nodes"):
            getattr(union, column).extend(getattr(body, column))
        union.kind_of += map(union.kinds.take_in(body.kinds).__getitem__, body.kind_of)
        union.inputs.extend([(source + offset, port) for source, port in edges] for edges in body.inputs)
        union.shapes.update({node + offset: shapes for node, shapes in body.shapes.items()})
        union.resized.update({node + offset: (source + offset, port) for node, (source, port) in body.resized.items()})
        union.replaced.update({node + offset: kernel + offset for node, kernel in body.replaced.items()})
        union.residual.update(node + offset for node in body.residual)
        union.made.update({node + offset: shapes for node, shapes in body.made.items()})
    roots = [_Target(body, offset) for body, offset in zip(bodies, offsets, strict=True)][: len(program.roots)]
    ties: list[tuple[End, End]] = [((roots[0].result(result), 0), (roots[1].argument(argument), 0)) for result, argument in program.links]
    loops: list[Loop] = []
    for instance, body, offset in zip(instances, bodies, offsets, strict=True):
        for node, callees in instance.calls.items():
            for callee in callees:
                target = _Target(bodies[callee.instance], offsets[callee.instance])
                ties.extend(_ties(body, node, offset, callee.attr, target))
                if callee.attr == "body":
                    loops.extend(Loop(target.argument(i), target.result(i)) for i in range(target.body.arguments))
    swapped = ((body, offset) for body, offset in zip(bodies, offsets, strict=True) if IMPLEMENTS in body.attrs)
    fixed = frozenset(offset + node for body, offset in swapped for node in body.pseudo_nodes)
    return Union(union, tuple(offsets), tuple(instances), tuple(ties), tuple(loops), fixed)


@dataclasses.dataclass(frozen=True)
class _Target:
    """A called body and where it lies in the union."""

    body: Body
    offset: int

    def argument(self, index: int) -> int:
        return self.offset + index

    def result(self, index: int) -> int:
        return self.offset + len(self.body) - self.body.results + index


def _ties(body: Body, node: int, offset: int, attr: str, target: _Target) -> Iterator[tuple[End, End]]:
    row, called = CALLING_OPS[body.ops[node]], target.body
    inputs, outputs = _slots(body, node, row.inputs), _slots(body, node, row.outputs)
    if len(inputs) != called.arguments or (attr not in row.predicates and len(outputs) != called.results):
        raise GraphError(
            f"{body.ops[node]} node {body.names[node]!r} hands over {len(inputs)} values and takes {len(outputs)}, but {called.name!r} takes "
            f"{called.arguments} and gives {called.results}."
        )
    for index, slot in enumerate(inputs):
        yield (offset + node, slot), (target.argument(index), 0)
    for index, slot in enumerate(() if attr in row.predicates else outputs):
        yield (offset + node, slot), (target.result(index), 0)


def _slots(body: Body, node: int, attr: str) -> list[int]:
    """The numbers of the slots of a list(type) attribute, in order."""
    found = [(slot.index, number) for number, slot in enumerate(body.layouts[node].slots) if slot.attr == attr]
    return [number for _, number in sorted(found)]
