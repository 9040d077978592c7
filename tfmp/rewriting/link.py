"""Rewritten instances to functions with names of their own: who keeps its name, which copies are one again, and who calls whom."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence

from tfmp.graph.retarget import Renamed, Retarget, retargeted
from tfmp.graph.wire import Original, Proto
from tfmp.program.unfold import Instance
from tfmp.rewriting.plan import Plan


@dataclasses.dataclass(frozen=True)
class Written:
    """One instance after its plan was carried out: the edits, and its definition, which still calls the old functions."""

    plan: Plan
    definition: Original


@dataclasses.dataclass(frozen=True)
class Linked:
    """One function of the new program.

    Attributes:
      instance: number of the first instance that it serves.
      name: its name; the old one if nothing changed.
      source: its definition under the old name, calling the old functions.
      retargets: which of its calls go where.
    """

    instance: int
    name: str
    source: Original
    retargets: tuple[Retarget, ...]

    @functools.cached_property
    def proto(self) -> Proto:
        """Its definition, complete with the names of what it calls."""
        return retargeted(self.source, self.name, self.retargets)

    @property
    def message(self) -> Proto | Renamed:
        """What to register it by: `proto`, or something that serialises to the same function and costs no copy."""
        return self.proto if self.retargets else Renamed(self.source, self.name)


def link(instances: Sequence[Instance], written: Sequence[Written], roots: int, new_name: Callable[[str, int], str]) -> list[Linked]:
    """Returns the functions of the program that differ from the original ones, after the `roots` roots, which come first even if they do not.

    An instance that is unchanged and calls only unchanged ones keeps being the old function. Instances of one function with the same edits and the same
    callees become one function.

    Args:
      instances: the instances, callers before what they are the first to call.
      written: what became of each.
      roots: how many of the first instances are roots.
      new_name: (old name, how many new versions of it there are already) to the name of a new function.
    """
    changed = _changed(instances, written)
    twin = _twins(instances, written)
    versions: dict[str, int] = {}
    names: dict[int, str] = {}
    for number, instance in enumerate(instances):
        if number in changed and (twin[number] == number or number < roots):
            names[number] = new_name(instance.function, versions.get(instance.function, 0))
            versions[instance.function] = versions.get(instance.function, 0) + 1
    result = []
    for number, instance in enumerate(instances):
        if number in names or number < roots:
            names_of = written[number].plan.body.names
            retargets = [
                Retarget(names_of[node], callee.attr, callee.position, names[twin[callee.instance]])
                for node, callees in instance.calls.items()
                for callee in callees
                if callee.instance in changed
            ]
            name = names.get(number, instance.function)
            result.append(Linked(number, name, written[number].definition, tuple(retargets)))
    return result


def _changed(instances: Sequence[Instance], written: Sequence[Written]) -> set[int]:
    """The instances that have edits or call, directly or not, one that has."""
    callers: dict[int, list[int]] = {}
    for number, instance in enumerate(instances):
        for callees in instance.calls.values():
            for callee in callees:
                callers.setdefault(callee.instance, []).append(number)
    todo = [number for number, one in enumerate(written) if not one.plan.empty]
    changed = set(todo)
    while todo:
        new = set(callers.get(todo.pop(), ())) - changed
        changed |= new
        todo += new
    return changed


def _twins(instances: Sequence[Instance], written: Sequence[Written]) -> list[int]:
    """Instance to the first one that is the same function with the same edits and callees. One that takes part in a recursion is its own."""
    first: dict[object, int] = {}
    twin = list(range(len(instances)))
    copies = collections.Counter(instance.function for instance in instances)
    for number in reversed(range(len(instances))):
        instance, plan = instances[number], written[number].plan
        if copies[instance.function] == 1:
            continue
        callees = tuple((node, c.attr, c.position, twin[c.instance]) for node, found in sorted(instance.calls.items()) for c in found)
        recursive = any(callee[3] <= number for callee in callees)
        key = (instance.function, plan.edits, callees, number if recursive else -1)
        twin[number] = first.setdefault(key, number)
    return twin
