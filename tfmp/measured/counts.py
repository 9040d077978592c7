"""The magnitudes of one tensor as exact counts that add up over runs."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

LARGEST_HALF = 65504.0
"""Largest finite float16 (IEEE 754-2019)."""

SMALLEST_HALF, SMALLEST_NORMAL_HALF = -24, -14
"""Exponents of the smallest positive float16 and of the smallest one with full precision."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """Exact counts over all values that a tensor had.

    Attributes:
      elements: how many values there were.
      zeros, infs, nans: how many of them were zero (of either sign), infinite (of either sign), not a number.
      above: how many were finite and larger than 65504 in magnitude.
      smallest, largest: smallest and largest magnitude of those that were finite and not zero; infinity and 0 if there were none.
      faintest: the smallest, over all runs, of the largest such magnitude of a run; infinity if no run had one.
      exponents: (e, count) for each e with finite values of magnitude in [2^e, 2^(e+1)), ascending.
    """

    elements: int = 0
    zeros: int = 0
    infs: int = 0
    nans: int = 0
    above: int = 0
    smallest: float = math.inf
    largest: float = 0.0
    faintest: float = math.inf
    exponents: tuple[tuple[int, int], ...] = ()

    @property
    def nonzero(self) -> int:
        """Number of values that are finite and not zero."""
        return self.elements - self.zeros - self.infs - self.nans

    def below(self, exponent: int) -> int:
        """Returns how many values are not zero and smaller than 2^exponent in magnitude."""
        return sum(count for e, count in self.exponents if e < exponent)

    def share_below(self, exponent: int) -> float:
        """Returns the share (0 to 1) of the finite values that are not zero which are smaller than 2^exponent in magnitude; 0 if there are none."""
        return self.below(exponent) / self.nonzero if self.nonzero else 0.0

    def __add__(self, other: Counts) -> Counts:
        """Returns the counts of both together."""
        exponents = collections.Counter(dict(self.exponents))
        exponents.update(dict(other.exponents))
        return Counts(
            self.elements + other.elements,
            self.zeros + other.zeros,
            self.infs + other.infs,
            self.nans + other.nans,
            self.above + other.above,
            min(self.smallest, other.smallest),
            max(self.largest, other.largest),
            min(self.faintest, other.faintest),
            tuple(sorted(exponents.items())),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns what `from_json` reads: the attributes; those that are infinite are left out (JSON has no infinity)."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value != math.inf}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Counts:
        """Returns the counts that `to_json` wrote; raises TypeError or ValueError if `data` is nothing of the kind, or does not add up."""
        counts = cls(**{**data, "exponents": tuple((int(e), int(count)) for e, count in data["exponents"])})
        if sum(count for _, count in counts.exponents) != counts.nonzero:
            raise ValueError(f"the counts by exponent add up to {sum(count for _, count in counts.exponents)}, but {counts.nonzero} values are not zero")
        return counts
