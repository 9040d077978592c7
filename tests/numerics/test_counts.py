"""Counts of magnitudes: exactly those that NumPy and plain Python find, whatever the values, and additive."""

from __future__ import annotations

import collections
import json
import math
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from tfmp.measured.counts import Counts
from tfmp.numerics.calibration import count

TYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
many = settings(max_examples=60, deadline=None, database=None, derandomize=True)


def by_hand(values: np.ndarray) -> Counts:
    """The same counts value by value, in Python's own doubles, which hold every value of the other types."""
    floats = [float(value) for value in values.reshape(-1)]
    magnitudes = [abs(value) for value in floats if math.isfinite(value) and value != 0]
    exponents = collections.Counter(math.frexp(value)[1] - 1 for value in magnitudes)
    return Counts(
        len(floats),
        sum(value == 0 for value in floats),
        sum(math.isinf(value) for value in floats),
        sum(math.isnan(value) for value in floats),
        sum(value > 65504 for value in magnitudes),
        min(magnitudes, default=math.inf),
        max(magnitudes, default=0.0),
        max(magnitudes, default=math.inf),
        tuple(sorted(exponents.items())),
    )


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Arrays of any bit patterns of a float type, subnormals, infinities and NaNs among them."""
    dtype = np.dtype(draw(st.sampled_from(TYPES)))
    raw = draw(st.binary(min_size=0, max_size=40 * dtype.itemsize))
    return np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype)


@given(values=arrays())
@many
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_counts_are_those_of_every_single_value(values: np.ndarray) -> None:
    assert count(values) == by_hand(values)


@given(parts=st.lists(arrays(), max_size=4))
@many
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_counts_of_parts_add_up_to_those_of_the_whole(parts: list[np.ndarray]) -> None:
    whole = by_hand(np.concatenate([np.zeros(0), *(part.astype(np.float64) for part in parts)]))
    total = sum((count(part) for part in parts), Counts())
    faintest = min((by_hand(part).faintest for part in parts), default=math.inf)
    assert total == Counts(**{**vars(whole), "faintest": faintest})
    assert Counts.from_json(json.loads(json.dumps(total.to_json()))) == total


def test_shares_are_of_what_is_finite_and_not_zero() -> None:
    values = np.array([0.0, -0.0, 2.0**-24, -(2.0**-25), 2.0**-14, 2.0**-15, 65504.0, 65505.0, np.inf, np.nan], np.float32)
    counts = count(values)
    assert (counts.elements, counts.zeros, counts.infs, counts.nans, counts.nonzero, counts.above) == (10, 2, 1, 1, 6, 1)
    assert (counts.below(-24), counts.below(-14), counts.below(-23)) == (1, 3, 2)
    assert (counts.share_below(-24), counts.share_below(-14)) == (1 / 6, 3 / 6)
    assert Counts().share_below(-24) == 0


@pytest.mark.parametrize("damage", [{"exponents": [[0, 3]]}, {"zeros": 1}, {"exponents": 3}, {"more": 1}])
def test_counts_that_do_not_add_up_are_refused(damage: dict[str, Any]) -> None:
    data = count(np.array([1.0, 3.0])).to_json()
    with pytest.raises((TypeError, ValueError)):
        Counts.from_json({**data, **damage})
