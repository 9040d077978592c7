"""The user's rules: which nodes they cover, and the two passes that carry them out.

Passes see only what is covered (`Wishes`): whatever the level, a user's wish comes before its lists and guards. A node that is forced into 16 bit counts as
one of the allowlist; what has no 16-bit kernel is never forced.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tfmp.dtypes import DT_FLOAT
from tfmp.errors import SettingsError
from tfmp.graph.body import Body
from tfmp.oplists import ALLOW
from tfmp.program.calls import CALLING_OPS
from tfmp.program.program import Program
from tfmp.program.unfold import Instance
from tfmp.program.variables import VariableReaders
from tfmp.user_rules import LAYER_MARK, REGION, UserRule

if TYPE_CHECKING:
    from tfmp.colouring.canvas import Canvas

BINDING = frozenset({"call", "kept by a user rule", "list handle leaves the graph", "no 16-bit form", "no kernel", "quantized", "reads a reference"})
"""Guards that protect what would not run, or run on older values. The others protect numbers or time, which a user may know better."""

NEVER_FORCED = frozenset({"Const", "Placeholder", *CALLING_OPS})
"""Ops that have no arithmetic of their own to force (constants are stored in what their readers want; functions are forced node by node)."""

_DECORATED = re.compile(r"^(?:__(?:inference|forward|backward)_)*(?P<name>.+?)(?:_\d+)*(?:_rewritten|_grad_\d+)?$")
"""A function's name without what TensorFlow adds (`monomorphic_function`'s `_inference_name`, `_forward_name` and `_backward_name`)."""


@dataclasses.dataclass(frozen=True)
class Wishes:
    """Node to the rule that keeps it in float32, and node to the rule that forces it into 16 bit; no node is in both."""

    keep: Mapping[int, UserRule] = dataclasses.field(default_factory=dict)
    force: Mapping[int, UserRule] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        """Returns whether there are any."""
        return bool(self.keep or self.force)


@dataclasses.dataclass(frozen=True)
class Covered:
    """What rules cover in a program: the wishes for each of its instances, and the rules that covered something."""

    wishes: tuple[Wishes, ...]
    used: frozenset[UserRule]

    def of(self, first: int, offsets: Sequence[int]) -> Wishes:
        """Returns the wishes for the instances from number `first` on, whose nodes start at `offsets`, as one."""
        parts = list(zip(self.wishes[first:], offsets, strict=False))
        keep = {node + offset: rule for wishes, offset in parts for node, rule in wishes.keep.items()}
        return Wishes(keep, {node + offset: rule for wishes, offset in parts for node, rule in wishes.force.items()})


def cover(
    program: Program, instances: Sequence[Instance], keep: Sequence[UserRule], force: Sequence[UserRule], names: Mapping[str, Mapping[int, str]]
) -> Covered:
    """Returns what rules, and regions marked in the graph, cover.

    Args:
      program: what is to be coloured.
      instances: its instances.
      keep: rules for what stays in float32.
      force: rules for what becomes 16 bit.
      names: root function to the names of the variables that are handed to it, by argument number.

    Raises:
      SettingsError: a rule of each kind covers one node; the message names both and the node.
    """
    readers = VariableReaders(program, instances, names) if any(rule.kind == "variable" for rule in (*keep, *force)) else None
    used: set[UserRule] = set()
    kept = _spread(program, instances, (*keep, REGION), readers, used)
    forced = _spread(program, instances, force, readers, used) if force else [{} for _ in instances]
    for instance, keeping, forcing in zip(instances, kept, forced, strict=True):
        body = program.bodies[instance.function]
        for node in keeping.keys() & forcing.keys():
            if DT_FLOAT in body.types[node]:
                raise SettingsError(
                    f"node {body.names[node]!r} ({body.ops[node]}) is kept in float32 by {str(keeping[node])!r} and forced into 16 bit by "
                    f"{str(forcing[node])!r}; take one of the two rules away, or make it narrower."
                )
    return Covered(tuple(map(Wishes, kept, forced)), frozenset(used))


def _spread(
    program: Program, instances: Sequence[Instance], rules: Sequence[UserRule], readers: VariableReaders | None, used: set[UserRule]
) -> list[dict[int, UserRule]]:
    """Returns, for each instance, the covered nodes with the first rule that covers each, and adds the rules that cover something to `used`."""
    found: list[dict[int, UserRule]] = [{} for _ in instances]
    whole: set[int] = set()
    by_function = functools.cache(lambda name: list(_matches(program.bodies[name], rules)))
    for instance in instances:
        body = program.bodies[instance.function]
        matches = by_function(instance.function)
        if readers is not None:
            matches = [*matches, *_variable_matches(readers, instance.number, rules)]
        todo = [(instance.number, rule) for rule in rules if rule.kind == "function" and _function_matches(instance.function, rule.pattern)]
        for node, rule in matches:
            found[instance.number].setdefault(node, rule)
            todo += [(callee.instance, rule) for callee in instance.calls.get(node, ())]
        used.update(rule for _, rule in (*matches, *todo))
        while todo:
            number, rule = todo.pop()
            if number not in whole:
                whole.add(number)
                body = program.bodies[instances[number].function]
                found[number].update({node: rule for node in body.proto_nodes if node not in found[number]})
                todo += [(callee.instance, rule) for callees in instances[number].calls.values() for callee in callees]
    return found


def _matches(body: Body, rules: Sequence[UserRule]) -> Iterator[tuple[int, UserRule]]:
    """Yields (node, rule) for every node of `body` that a rule covers by what the node itself says."""
    for rule in rules:
        test = _TESTS.get(rule.kind)
        if test is not None and (rule != REGION or body.marked):
            matches = test(body, rule.pattern)
            yield from ((node, rule) for node in body.proto_nodes if matches(node))


def _op(body: Body, pattern: str) -> Callable[[int], object]:
    wanted = {op for op in set(body.ops) if fnmatch.fnmatchcase(op, pattern)}
    return lambda node: body.ops[node] in wanted


def _name(body: Body, pattern: str) -> Callable[[int], object]:
    match = re.compile(fnmatch.translate(pattern)).match
    return lambda node: match(body.names[node])


def _region(body: Body, pattern: str) -> Callable[[int], object]:
    return body.marked.__contains__


def _layer(body: Body, pattern: str) -> Callable[[int], object]:
    wanted = pattern.split("/")

    @functools.cache
    def inside(path: str, names_of: Callable[[str], Sequence[str]]) -> bool:
        parts = [names_of(part) for part in path.split("/")]
        places = range(len(parts) - len(wanted) + 1)
        return any(all(any(fnmatch.fnmatchcase(name, one) for name in parts[place + i]) for i, one in enumerate(wanted)) for place in places)

    def test(node: int) -> bool:
        mark = body.protos[node].attr.get(LAYER_MARK)
        return inside(body.names[node].rpartition("/")[0], _names_of_scope) if mark is None else inside(mark.s.decode(), _names_of_layer)

    return test


def _names_of_layer(part: str) -> Sequence[str]:
    """A layer's name and its class."""
    return part.split(":")


def _names_of_scope(part: str) -> Sequence[str]:
    """Without marks, a name scope, and what it may be without the number that TensorFlow adds when a scope is entered again (`Graph.unique_name`)."""
    bare, _, number = part.rpartition("_")
    return (part, bare) if number.isdecimal() else (part,)


_TESTS = {"op": _op, "name": _name, "layer": _layer, "region": _region}


def _function_matches(name: str, pattern: str) -> bool:
    bare = _DECORATED.match(name)
    return fnmatch.fnmatchcase(name, pattern) or (bare is not None and fnmatch.fnmatchcase(bare["name"], pattern))


def _variable_matches(readers: VariableReaders, number: int, rules: Iterable[UserRule]) -> Iterator[tuple[int, UserRule]]:
    for node, name in readers.readers(number):
        yield from ((node, rule) for rule in rules if rule.kind == "variable" and fnmatch.fnmatchcase(name, rule.pattern))


def keep_user_rules(canvas: Canvas) -> None:
    """Keeps in float32 what the user's rules and regions say, and takes it out of what may be changed."""
    for node, rule in canvas.rules.wishes.keep.items():
        canvas.keep(node, "kept by a user rule", detail=str(rule))


def force_user_rules(canvas: Canvas) -> None:
    """Puts what the user forces into 16 bit on the allowlist, past lists and numerical guards; what cannot run in 16 bit stays, with that as the reason."""
    graph, granted = canvas.graph, []
    for node, rule in canvas.rules.wishes.force.items():
        vertices = [vertex for vertex in graph.vertices(node) if canvas.is_float32(vertex)]
        if not vertices or graph.body.ops[node] in NEVER_FORCED or not (canvas.processable[node] or _overridable(canvas, vertices)):
            continue
        schema = canvas.schema(vertices[0])
        changed = [vertex for vertex in vertices if canvas.supports_type(vertex)]
        if not changed or schema is None or schema.stateful or schema.has_refs:
            canvas.keep(node, "forced without a 16-bit form", detail=str(rule))
        elif not canvas.kernels_exist(node, (vertex - graph.first[node] for vertex in changed)):
            canvas.keep(node, "forced without a kernel", detail=str(rule))
        else:
            granted.append(node)
            canvas.processable[node] = 1
            for vertex in changed:
                canvas.deny[vertex] = 0
                canvas.paint_allow(vertex, "forced by a user rule", detail=str(rule))
    canvas.put_on_list(granted, ALLOW)


def _overridable(canvas: Canvas, vertices: Iterable[int]) -> bool:
    return any(reason.rule not in BINDING for vertex in vertices if (reason := canvas.reasons.get(vertex)) is not None)
