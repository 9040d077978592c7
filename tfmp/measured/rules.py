"""What the setting `ranges` holds: the names of nodes that measured ranges keep in float32 or free, for each 16-bit type."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tfmp.dtypes import SIXTEEN_BIT, FloatFormat
from tfmp.measured import risk
from tfmp.measured.files import load
from tfmp.measured.record import OpRange, Ranges


@dataclasses.dataclass(frozen=True)
class Names:
    """Names of nodes: `known` were measured, `keep` stay in float32 since their ranges do not fit ("node:port" is one output of a call, loop or branch),
    and `free` need not, although their op is on the denylist.
    """

    known: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Measured:
    """What follows for one 16-bit type: by the nodes' names, and by their aliases (`naming.aliases`) for a program in which names are numbered otherwise."""

    names: Names = Names()
    aliases: Names = Names()

    def __bool__(self) -> bool:
        """Returns whether there is anything."""
        return any(names.keep or names.free for names in (self.names, self.aliases))

    def fitting(self, names: Collection[str], aliases: Collection[str]) -> tuple[Names, float]:
        """Returns the names, or the aliases, whichever are more of those that a program has; and the share (0 to 1) of what was measured that it has."""
        shares = [len(one.known.intersection(here)) / max(len(one.known), 1) for one, here in ((self.names, names), (self.aliases, aliases))]
        return (self.names, shares[0]) if shares[0] >= shares[1] else (self.aliases, shares[1])


@dataclasses.dataclass(frozen=True)
class RangeRules:
    """What follows from a file of ranges. Prints as its path.

    Attributes:
      path: where the ranges came from; "" if there are none.
      by_type: name of each 16-bit type to what follows for it.
    """

    path: str = ""
    by_type: Mapping[str, Measured] = dataclasses.field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        """Returns the path."""
        return self.path

    @property
    def rule(self) -> str:
        """How a report names it among the user's rules."""
        return f"ranges:{self.path}"

    def of(self, dtype: str) -> Measured:
        """Returns what follows for a 16-bit type."""
        return self.by_type.get(dtype, Measured())


def range_rules(source: str | os.PathLike[str] | Ranges | RangeRules) -> RangeRules:
    """Returns what follows from ranges, or from a file of them; "" is none. Raises `SettingsError` as `files.load` does."""
    if isinstance(source, RangeRules) or source == "":
        return source if isinstance(source, RangeRules) else RangeRules()
    ranges = source if isinstance(source, Ranges) else load(source)
    path = "(ranges in memory)" if isinstance(source, Ranges) else os.fspath(source)
    return RangeRules(path, {name: measured(ranges, target) for name, target in SIXTEEN_BIT.items()})


def measured(ranges: Ranges, target: FloatFormat) -> Measured:
    """Returns what follows from ranges for one 16-bit type. A node that occurs in several places is kept for one of them, and freed for all."""
    risks, safe = risk.at_risk(ranges, target), {one.key for one in risk.proved_safe(ranges, target)}
    candidates = [one for one in ranges if one.op in risk.DENIED_FOR_RANGE]

    def names(name: Callable[[Any], str]) -> Names:
        unsafe = {name(one) for one in candidates if one.key not in safe}
        return Names(frozenset(map(name, ranges)), frozenset(map(name, risks)), frozenset(name(one) for one in candidates if one.key in safe) - unsafe)

    return Measured(names(lambda one: one.node if isinstance(one, OpRange) else one.name), names(lambda one: one.alias))
