"""The boxes of the picture of a program: name scopes and called functions, nested, each with few enough parts to be drawn and read.

Only nodes with float types are drawn: constants, integers and handles would hide them.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from tfmp.graph.body import ARG, RETVAL
from tfmp.program.calls import CALLING_OPS
from tfmp.reports.records import OTHER, Details, Node

SCOPE, CALL, RUN = "scope", "call", "run"
"""What a box stands for: a name scope, a node that calls functions (or one of them), a run of neighbours in a box that had too many."""

MOST, RUN_LENGTH, LOOSE = 40, 24, 5
"""How many parts a box may have, how many make a run in one that has more, and from how many neighbouring nodes on between boxes they are put into a run.
Our own choice: some 40 boxes can be read at a glance."""

HIDDEN = frozenset({"Const", ARG, RETVAL})
"""Ops that are never drawn."""


@dataclasses.dataclass
class Box:
    """One box: its name, the index of the box it is in (-1: none), its kind, and the index of the node that it is (a call), or -1."""

    name: str
    parent: int
    kind: str
    node: int = -1


def boxes_of(details: Details) -> tuple[list[Box], list[int]]:
    """Returns the boxes of a program, the outermost first, and for each node the index of its box, -1 if it is not drawn.

    A call's own node is in its own box.
    """
    boxes = [Box(details.functions[0].name or "graph", -1, SCOPE)]
    homes = [-1] * len(details.nodes)
    members: dict[int, list[int]] = {}
    for index, node in enumerate(details.nodes):
        members.setdefault(node.function, []).append(index)
    base: dict[int, tuple[int, str]] = {}
    for number in range(len(details.functions)):
        place = _Place(boxes, *base.get(number, (0, "")))
        for index in members.get(number, ()):
            node = details.nodes[index]
            if node.calls:
                homes[index] = place.call(node, index)
                _enter_calls(boxes, base, node, homes[index])
            elif node.colour != OTHER and node.op not in HIDDEN:
                homes[index] = place.scope(node.name.split("/")[:-1])
    _without_single_parts(boxes, homes)
    return _in_runs(details, boxes, homes)


def _enter_calls(boxes: list[Box], base: dict[int, tuple[int, str]], node: Node, home: int) -> None:
    """Notes in which box each function that `node` is the first to call is drawn; of several, each has a box of its own."""
    attrs = CALLING_OPS[node.op].function_attrs
    for position, callee in enumerate(node.calls):
        if callee and callee not in base:
            inside = home
            if len(node.calls) > 1:
                inside = len(boxes)
                boxes.append(Box(attrs[position] if len(attrs) == len(node.calls) else f"branch {position}", home, CALL))
            base[callee] = inside, node.name


class _Place:
    """Finds and makes the boxes of one function's scopes, inside the box that the function is drawn in."""

    def __init__(self, boxes: list[Box], base: int, caller: str) -> None:
        """`caller` is the name of the node that calls the function; Keras 3's loops repeat it in the names of their nodes."""
        self._boxes, self._base = boxes, base
        self._prefix = caller.split("/") if caller else []
        self._known: dict[tuple[str, ...], int] = {(): base}

    def scope(self, path: Sequence[str]) -> int:
        """Returns the box of a scope, made with those around it if it is not there."""
        if self._prefix and list(path[: len(self._prefix)]) == self._prefix:
            path = path[len(self._prefix) :]
        key = tuple(path)
        if key not in self._known:
            parent = self.scope([*self._prefix, *key[:-1]])
            self._known[key] = len(self._boxes)
            self._boxes.append(Box(key[-1], parent, SCOPE))
        return self._known[key]

    def call(self, node: Node, index: int) -> int:
        """Returns the box of a calling node: that of the scope with its name."""
        found = self.scope(node.name.split("/"))
        self._boxes[found].kind, self._boxes[found].node = CALL, index
        return found


def _without_single_parts(boxes: list[Box], homes: list[int]) -> None:
    """Takes a node out of a scope in which it is alone, and makes one box of a scope that holds nothing but another box."""
    nodes: list[list[int]] = [[] for _ in boxes]
    inside: list[list[int]] = [[] for _ in boxes]
    for index, home in enumerate(homes):
        if home >= 0 and boxes[home].node != index:
            nodes[home].append(index)
    for number in range(len(boxes) - 1, 0, -1):  # what is in a box has a higher number
        box, outer = boxes[number], boxes[number].parent
        if box.kind == SCOPE and len(nodes[number]) == 1 and not inside[number]:
            nodes[outer] += nodes[number]
            homes[nodes[number][0]] = outer
        elif nodes[number] or inside[number] or box.node >= 0:
            inside[outer].append(number)
    for number in range(1, len(boxes)):
        box, outer = boxes[number], boxes[number].parent
        if outer and boxes[outer].kind == SCOPE and not nodes[outer] and inside[outer] == [number]:
            box.name, box.parent = f"{boxes[outer].name}/{box.name}", boxes[outer].parent


Part = tuple[int, bool, int]
"""One part of a box: the first node in it, whether it is a node itself, and its index among nodes or boxes."""


def _in_runs(details: Details, boxes: list[Box], homes: list[int]) -> tuple[list[Box], list[int]]:
    """Puts neighbours into runs where a box has too many parts, or many nodes between boxes, and leaves out empty boxes."""
    children: list[list[Part]] = [[] for _ in boxes]
    first = [len(homes)] * len(boxes)
    for index, home in enumerate(homes):
        if home >= 0:
            if boxes[home].node != index:
                children[home].append((index, True, index))
            box = home
            while box >= 0 and first[box] > index:
                first[box] = index
                box = boxes[box].parent
    for number in range(1, len(boxes)):
        if first[number] < len(homes):
            children[boxes[number].parent].append((first[number], False, number))
    runs = _Runs(details, boxes, homes)
    for number in range(len(children)):
        runs.divide(sorted(children[number]), number)
    return _without_empty(boxes, homes)


class _Runs:
    """Divides the parts of boxes into runs."""

    def __init__(self, details: Details, boxes: list[Box], homes: list[int]) -> None:
        self._details, self._boxes, self._homes = details, boxes, homes

    def divide(self, parts: list[Part], parent: int) -> None:
        """Puts `parts`, which are in the order of their first nodes, into the box `parent`."""
        if any(is_node for _, is_node, _ in parts) and not all(is_node for _, is_node, _ in parts):
            parts = [one for run in self._alike(parts) for one in ([self._run(run, parent)] if len(run) >= LOOSE and run[0][1] else run)]
        while len(parts) > MOST:
            parts = [self._run(parts[start : start + RUN_LENGTH], parent) for start in range(0, len(parts), RUN_LENGTH)]
        for _, is_node, index in parts:
            if is_node:
                self._homes[index] = parent
            else:
                self._boxes[index].parent = parent

    def _alike(self, parts: list[Part]) -> Iterator[list[Part]]:
        """Yields neighbours that all are nodes, or all boxes."""
        for _, run in itertools.groupby(parts, key=lambda part: part[1]):
            yield list(run)

    def _run(self, parts: list[Part], parent: int) -> Part:
        """Returns a new box with `parts` in it, named after what is in it."""
        number = len(self._boxes)
        self._boxes.append(Box(self._name(parts), parent, RUN))
        self.divide(parts, number)
        return parts[0][0], False, number

    def _name(self, parts: list[Part]) -> str:
        if all(is_node for _, is_node, _ in parts):
            ops = collections.Counter(self._details.nodes[index].op for _, _, index in parts).most_common(3)
            return f"{', '.join(op for op, _ in ops[:2])}{' ...' if len(ops) > 2 else ''} ({len(parts)})"
        names = [self._boxes[index].name for _, is_node, index in parts if not is_node]
        return f"{names[0]} \u2013 {names[-1]}"


def _without_empty(boxes: list[Box], homes: list[int]) -> tuple[list[Box], list[int]]:
    """Returns boxes and homes without boxes in which nothing is drawn, parents before what is in them."""
    used = [False] * len(boxes)
    used[0] = True
    for home in homes:
        while home >= 0 and not used[home]:
            used[home] = True
            home = boxes[home].parent
    inside: dict[int, list[int]] = {}
    for number, box in enumerate(boxes):
        if used[number]:
            inside.setdefault(box.parent, []).append(number)
    order = [0]
    for number in order:  # grows while it is walked
        order += inside.get(number, ())
    new = {number: position for position, number in enumerate(order)}
    kept = [dataclasses.replace(boxes[number], parent=new.get(boxes[number].parent, -1)) for number in order]
    return kept, [new[home] if home >= 0 else -1 for home in homes]
