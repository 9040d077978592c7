"""Why each vertex has its colour, as arrays: there is a reason for most vertices, and somebody reads them once in a while only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tfmp.graph.edges import Array
from tfmp.graph.neighbours import first_of_each


class Reason(NamedTuple):
    """Why a vertex has its colour.

    Attributes:
      rule: what decided, a key of `reasons.WORDS`.
      cause: the vertex that brought it (the deny op upstream, the sibling in a tensor list), or -1.
      detail: the user's rule, where one decided.
    """

    rule: str
    cause: int = -1
    detail: str = ""


class Reasons(Mapping[int, Reason]):
    """Vertex to its reason, in the order in which vertices were given their first ones."""

    def __init__(self, size: int) -> None:
        """Starts with none for `size` vertices."""
        self._rule, self._cause = np.zeros(size, np.int16), np.zeros(size, np.int32)
        self._place = np.zeros(size, np.int32)
        self._rules, self._details, self._given = {"": 0}, dict[int, str](), 0

    def __len__(self) -> int:
        """Returns how many vertices have a reason."""
        return self._given

    def __iter__(self) -> Iterator[int]:
        """Yields the vertices that have a reason."""
        return iter(self._in_order(self._rule > 0))

    def __getitem__(self, vertex: int) -> Reason:
        """Returns the reason of a vertex; raises `KeyError` if it has none."""
        rule = self._rule[vertex] if 0 <= vertex < len(self._rule) else 0
        if not rule:
            raise KeyError(vertex)
        return Reason(list(self._rules)[rule], int(self._cause[vertex]), self._details.get(vertex, ""))

    def of_rules(self, rules: Iterable[str]) -> list[int]:
        """Returns the vertices whose reason is one of `rules`."""
        return self._in_order(np.isin(self._rule, [self._rules[rule] for rule in rules if rule in self._rules]))

    def _in_order(self, flags: Array) -> list[int]:
        vertices = np.flatnonzero(flags)
        return vertices[np.argsort(self._place[vertices])].tolist()

    def set(self, vertex: int, rule: str, cause: int = -1, detail: str = "") -> None:
        """Gives a vertex a reason in place of what it had."""
        if not self._rule[vertex]:
            self._place[vertex] = self._given
            self._given += 1
        self._rule[vertex], self._cause[vertex] = self._number(rule), cause
        if self._details or detail:
            self._details[vertex] = detail

    def set_first(self, vertex: int, rule: str, cause: int = -1) -> None:
        """Gives a vertex a reason unless it has one."""
        if not self._rule[vertex]:
            self.set(vertex, rule, cause)

    def set_all(self, vertices: Array, rule: str, causes: Array | int = -1) -> None:
        """Does what `set` does to each of `vertices`, which are different ones; `causes` has one for each, or one for all."""
        new = vertices[self._rule[vertices] == 0]
        self._place[new] = np.arange(self._given, self._given + len(new))
        self._given += len(new)
        self._rule[vertices], self._cause[vertices] = self._number(rule), causes
        if self._details:
            self._details.update(dict.fromkeys(vertices.tolist(), ""))

    def set_all_first(self, vertices: Array, rule: str, causes: Array | int = -1) -> None:
        """Does what `set_first` does to each of `vertices`, one after the other."""
        vertices, positions = first_of_each(vertices)
        new = self._rule[vertices] == 0
        self.set_all(vertices[new], rule, causes if isinstance(causes, int) else causes[positions][new])

    def _number(self, rule: str) -> int:
        return self._rules.setdefault(rule, len(self._rules))
