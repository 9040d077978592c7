"""Polynomials compute what NumPy does, and count as one only if they are."""

from __future__ import annotations

import math
from collections.abc import Mapping

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tfmp.fusion import algebra
from tfmp.fusion.algebra import DY, ELEMENTWISE, Polynomial, X

SYMBOLS = (X, DY, 2)
numbers = st.floats(0.25, 2.0)
leaves = st.one_of(numbers, st.sampled_from(["x", "dy", "w"]))
AS_NUMPY = {
    "AddV2": np.add, "AddN": np.add, "Mul": np.multiply, "Sub": np.subtract, "SquaredDifference": lambda a, b: (a - b) ** 2,
    "Square": lambda a, b: a * a, "Neg": lambda a, b: -a,
}  # fmt: skip
trees = st.recursive(leaves, lambda inner: st.tuples(st.sampled_from(sorted(AS_NUMPY)), inner, inner), max_leaves=6)
LETTERS = dict(zip(("x", "dy", "w"), SYMBOLS, strict=True))
settings.register_profile("algebra", deadline=None, database=None, derandomize=True, max_examples=200)
profile = settings.get_profile("algebra")


def as_polynomial(tree: object) -> Polynomial | None:
    if isinstance(tree, float):
        return algebra.constant(tree)
    if isinstance(tree, str):
        return {(LETTERS[tree],): 1.0}
    op, *parts = tree  # type: ignore[misc]
    values = [as_polynomial(part) for part in (parts[:1] if op in ("Square", "Neg") else parts)]
    return None if None in values else ELEMENTWISE[op](values)  # type: ignore[arg-type]


def as_array(tree: object, at: Mapping[str, np.ndarray]) -> np.ndarray:
    if isinstance(tree, float):
        return np.full(5, tree)
    if isinstance(tree, str):
        return at[tree]
    op, left, right = tree  # type: ignore[misc]
    return AS_NUMPY[op](as_array(left, at), as_array(right, at))


@given(tree=trees)
@profile
def test_a_polynomial_is_what_the_ops_compute(tree: object) -> None:
    found = as_polynomial(tree)
    if found is None:  # of too high a degree
        return
    random = np.random.default_rng(0)
    at = {letter: random.normal(size=5) for letter in LETTERS}
    symbols = {symbol: at[letter] for letter, symbol in LETTERS.items()}
    value = sum((size * math.prod((symbols[symbol] for symbol in power), start=np.ones(5)) for power, size in found.items()), np.zeros(5))
    np.testing.assert_allclose(value, as_array(tree, at), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("op", "values", "wanted"),
    [
        ("Rsqrt", [4.0], 0.5), ("Sqrt", [4.0], 2.0), ("Reciprocal", [4.0], 0.25), ("RealDiv", [3.0, 4.0], 0.75), ("Div", [3.0, 4.0], 0.75),
        ("RsqrtGrad", [0.5, 3.0], -0.1875), ("SqrtGrad", [2.0, 3.0], 0.75), ("ReciprocalGrad", [0.25, 3.0], -0.1875),
    ],
)  # fmt: skip
def test_functions_of_numbers(op: str, values: list[float], wanted: float) -> None:
    found = ELEMENTWISE[op]([algebra.constant(value) for value in values])
    assert found is not None and algebra.number_of(found) == pytest.approx(wanted)


@pytest.mark.parametrize("op", ["Rsqrt", "Sqrt", "Reciprocal"])
@pytest.mark.parametrize("value", [{(X,): 1.0}, {(): -1.0}, {(): 0.0}], ids=["data", "negative", "zero"])
def test_no_function_of_what_is_no_positive_number(op: str, value: Polynomial) -> None:
    assert ELEMENTWISE[op]([value]) is None


def test_a_division_by_data_or_by_zero_is_none() -> None:
    assert algebra.divide([{(X,): 1.0}, {(X,): 1.0}]) is None and algebra.divide([{(X,): 1.0}, {}]) is None


def test_what_differs_in_one_coefficient_is_not_alike() -> None:
    value = {(X,): 1.0, (): 2.0}
    assert algebra.alike(value, {(X,): 1.0 + 1e-8, (): 2.0, (DY,): 0.0})
    assert not algebra.alike(value, {(X,): 1.0 + 1e-4, (): 2.0}) and not algebra.alike(value, {(X,): 1.0})
    assert not algebra.alike(value, {**value, (DY,): 1e-3})
