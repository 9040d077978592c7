"""A program unfolded into instances: one copy of a function for each place that calls it, so that every call may have a colouring of its own.

Copies that turn out alike are one function again when the program is written (`hooks/conversion.py`, `engine.py`).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping

from tfmp.program.calls import CALLING_OPS, call_nodes
from tfmp.program.program import Program

GROWTH, SLACK = 2, 2000
"""Unfolding stops when it has made `GROWTH` times the program's nodes plus `SLACK`; from then on calls share the first instance of a function. Calls that
double at every level would otherwise grow exponentially. Our own choice."""


@dataclasses.dataclass(frozen=True)
class Callee:
    """What one function attribute of a calling node leads to.

    Attributes:
      attr: the attribute ("f", "body", "branches").
      position: position in a list(func) attribute, else 0.
      instance: number of the instance that is called.
    """

    attr: str
    position: int
    instance: int


@dataclasses.dataclass(frozen=True)
class Instance:
    """One copy of a function in one place.

    Attributes:
      number: position among the instances; the root has 0.
      function: name of the function.
      calls: calling node to what it calls. A node that calls something outside the program (a template) is left out.
    """

    number: int
    function: str
    calls: Mapping[int, tuple[Callee, ...]]


@dataclasses.dataclass
class _Draft:
    function: str
    ancestors: Mapping[str, int]
    calls: dict[int, tuple[Callee, ...]] = dataclasses.field(default_factory=dict)


def unfold(program: Program, share: bool = False) -> tuple[Instance, ...]:
    """Returns the instances of `program`, callers before what they are the first to call, the roots first.

    A recursive call leads back to the instance it is in. Every call of a function leads to an instance of its own as long as the sizes add up to no more
    than `GROWTH` times the program's plus `SLACK`; with `share`, every function has one instance only.
    """
    drafts = [_Draft(root, {root: number}) for number, root in enumerate(program.roots)]
    first = {root: number for number, root in enumerate(program.roots)}
    budget = 0 if share else GROWTH * program.size + SLACK - sum(len(program.bodies[root]) for root in program.roots)
    todo = collections.deque(range(len(drafts)))
    while todo:
        number = todo.popleft()
        caller = drafts[number]
        for node, attr, position, name in _calls(program, caller.function):
            shared = caller.ancestors.get(name, first.get(name) if budget < len(program.bodies[name]) else None)
            if shared is None:
                shared = len(drafts)
                drafts.append(_Draft(name, {**caller.ancestors, name: shared}))
                first.setdefault(name, shared)
                budget -= len(program.bodies[name])
                todo.append(shared)
            caller.calls[node] = (*caller.calls.get(node, ()), Callee(attr, position, shared))
    return tuple(Instance(number, draft.function, draft.calls) for number, draft in enumerate(drafts))


def _calls(program: Program, function: str) -> Iterator[tuple[int, str, int, str]]:
    """Yields (node, function attribute, position in it, callee) for every call that stays inside the program."""
    body = program.bodies[function]
    for node, names in call_nodes(body):
        if all(name in program.bodies for name in names):
            for attr in CALLING_OPS[body.ops[node]].function_attrs:
                value = body.protos[node].attr[attr]
                for position, function_attr in enumerate([value.func] if value.HasField("func") else value.list.func):
                    yield node, attr, position, function_attr.name
