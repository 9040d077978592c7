"""What the setting `ranges` holds: the names of nodes that measured ranges keep in float32 or free, for each 16-bit type."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from tfmp.dtypes import SIXTEEN_BIT, FloatFormat
from tfmp.measured import risk
from tfmp.measured.files import load
from tfmp.measured.record import Ranges


@dataclasses.dataclass(frozen=True)
class Measured:
    """Names of nodes: `keep` stay in float32 since their ranges do not fit ("node:port" is one output of a call, loop or branch); `free` need not, although
    their op is on the denylist.
    """

    keep: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Returns whether there are any."""
        return bool(self.keep or self.free)


@dataclasses.dataclass(frozen=True)
class RangeRules:
    """What follows from a file of ranges. Prints as its path.

    Attributes:
      path: where the ranges came from; "" if there are none.
      nodes: names of all nodes that were measured.
      by_type: name of each 16-bit type to what follows for it.
    """

    path: str = ""
    nodes: frozenset[str] = frozenset()
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
    by_type = {name: _measured(ranges, target) for name, target in SIXTEEN_BIT.items()}
    return RangeRules(path, frozenset(one.node for one in ranges), by_type)


def _measured(ranges: Ranges, target: FloatFormat) -> Measured:
    return Measured(frozenset(risk.nodes_at_risk(ranges, target)), frozenset(risk.nodes_proved_safe(ranges, target)))
