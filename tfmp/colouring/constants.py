"""What the values of constants become in a 16-bit type."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tfmp import tf_api
from tfmp.dtypes import FloatFormat, sixteen_bit
from tfmp.errors import GraphError
from tfmp.graph.body import Body

FEW = 16
"""Constants of at most so many elements are taken for bounds, masks and epsilons, where rounding to zero or one changes what is meant. In larger ones
(weights of a frozen model) tiny elements are ordinary, and only overflow counts. Our own choice."""

Question = Callable[[np.ndarray, FloatFormat], bool]
"""What may be asked about a value and a 16-bit type: `holds_exactly`, `overflows`, `rounds_badly`."""


def answer(question: Question, body: Body, number: int, target: FloatFormat) -> bool:
    """Returns the answer to `question` about the value of the constants of one kind of `body`; raises `GraphError` if they have none that can be read."""
    kind = body.kinds.table[number]
    if kind.value:
        return _answer(question, kind.value, target.name)
    value = kind.node.attr.get("value")
    if value is None:
        raise GraphError(f"Const node {body.names[body.kind_of.index(number)]!r} has no value.")
    return question(np.asarray(tf_api.read_tensor(value.tensor)), target)


@functools.lru_cache(maxsize=4096)
def _answer(question: Question, tensor: bytes, target: str) -> bool:
    return question(np.asarray(tf_api.read_tensor(tf_api.TensorProto.FromString(tensor))), sixteen_bit(target))


def holds_exactly(values: np.ndarray, target: FloatFormat) -> bool:
    """Returns whether rounding the float32 `values` to `target` changes none of them."""
    return bool(np.array_equal(tf_api.rounded(values, target.number), values, equal_nan=True))


LARGEST_WHOLE = 2.0**24
"""Beyond this float32 itself does not hold every whole number (24 bits of significand, IEEE 754)."""


def overflows(values: np.ndarray, target: FloatFormat) -> bool:
    """Returns whether rounding the float32 `values` to `target` makes a finite one infinite."""
    return bool(np.any(np.isfinite(values) & ~np.isfinite(tf_api.rounded(values, target.number))))


def rounds_badly(values: np.ndarray, target: FloatFormat) -> bool:
    """Returns whether rounding to `target` makes a finite value infinite, or, in an array of at most `FEW` elements, a non-zero value so small that
    nothing can be divided by it (its reciprocal is infinite in `target`), or one that is not 1 into 1; and whether `values` are a table of whole numbers (ids,
    positions, counts), not all of which `target` holds. `values` is float32.
    """
    if overflows(values, target) or is_inexact_table(values, target):
        return True
    rounded = tf_api.rounded(values, target.number)
    vanished = (np.abs(rounded) < 1 / target.largest) & (values != 0)
    became_one = (np.abs(rounded) == 1) & (np.abs(values) != 1)
    return values.size <= FEW and bool(np.any(vanished | became_one))


def is_inexact_table(values: np.ndarray, target: FloatFormat) -> bool:
    """Returns whether the float32 `values` are whole numbers that float32 holds and `target` does not. Two different values make a mask, not a table."""
    if not values.size or not target.largest_integer < float(np.max(np.abs(values))) <= LARGEST_WHOLE:
        return False
    return bool(np.all(values == np.rint(values))) and not holds_exactly(values, target) and np.unique(values).size > 2
