"""When a constant or an integer is too much for a 16-bit type: decided by NumPy's and ml_dtypes' own rounding."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmp.colouring import constants, guards
from tfmp.dtypes import BFLOAT16, FLOAT16, FloatFormat

KINDS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
formats = st.sampled_from([FLOAT16, BFLOAT16])
singles = st.floats(width=32, allow_nan=False)


def rounded(value: float, target: FloatFormat) -> float:
    """Returns `value` after a trip through the 16-bit type."""
    with np.errstate(over="ignore"):
        return float(np.float32(value).astype(KINDS[target.name]))


def scalar(value: float) -> np.ndarray:
    """Returns a float32 scalar."""
    return np.asarray(value, np.float32)


@given(value=singles, target=formats)
@settings(max_examples=500, deadline=None, database=None, derandomize=True)
def test_a_scalar_is_bad_if_it_overflows_cannot_divide_or_becomes_one(value: float, target: FloatFormat) -> None:
    result = rounded(value, target)
    overflows = math.isfinite(value) and math.isinf(result)
    with np.errstate(over="ignore", divide="ignore"):
        divides = value == 0 or math.isinf(value) or math.isfinite(rounded(1 / result if result else math.inf, target))
    becomes_one = abs(result) == 1 and abs(value) != 1
    assert constants.rounds_badly(scalar(value), target) == (overflows or not divides or becomes_one)


@pytest.mark.parametrize(
    ("value", "half", "brain"),
    [
        (0.0, False, False), (1.0, False, False), (-1.0, False, False), (0.5, False, False), (math.inf, False, False), (-math.inf, False, False),
        (65504.0, False, False), (65519.0, False, False), (65520.0, True, False), (-1e9, True, False), (3.4e38, True, True),
        (1e-3, False, False), (1e-6, True, False), (1e-12, True, False), (1e-38, True, False),
        (1 - 1e-6, True, True), (0.999, False, True), (0.99, False, False), (1.0001, True, True), (-0.9999, True, True),
    ],
)  # fmt: skip
def test_scalars_that_people_write(value: float, half: bool, brain: bool) -> None:
    assert (constants.rounds_badly(scalar(value), FLOAT16), constants.rounds_badly(scalar(value), BFLOAT16)) == (half, brain)


@pytest.mark.parametrize(("size", "expected"), [(constants.FEW, True), (constants.FEW + 1, False)])
def test_tiny_elements_count_in_small_constants_only(size: int, expected: bool) -> None:
    values = np.ones(size, np.float32)
    values[3] = 1e-9
    assert constants.rounds_badly(values, FLOAT16) is expected


@given(values=st.lists(singles, min_size=constants.FEW + 1, max_size=40), target=formats)
@settings(max_examples=200, deadline=None, database=None, derandomize=True)
def test_in_large_constants_only_overflow_and_tables_of_whole_numbers_count(values: list[float], target: FloatFormat) -> None:
    expected = any(math.isfinite(value) and math.isinf(rounded(value, target)) for value in values)
    if all(math.isfinite(value) and value == int(value) and abs(value) <= 2**24 for value in values) and len(set(values)) > 2:
        expected = expected or any(rounded(value, target) != value for value in values)
    assert constants.rounds_badly(np.asarray(values, np.float32), target) == expected


@pytest.mark.parametrize(
    ("values", "half", "brain"),
    [
        (np.arange(2049), False, True), (np.arange(2050), True, True), (np.arange(257), False, False), (np.arange(258), False, True),
        (np.arange(100) * 4096, True, False),  # beyond 65504; multiples that eight bits hold
        ([0, 4097, 0, 4097], False, False), ([0.5, 4097, 4099, 4101], False, False), ([0, 2.0**25 + 4, 5], True, False),
    ],
)  # fmt: skip
def test_a_table_of_whole_numbers_is_not_rounded(values: Any, half: bool, brain: bool) -> None:
    found = np.asarray(values, np.float32)
    assert (constants.rounds_badly(found, FLOAT16), constants.rounds_badly(found, BFLOAT16)) == (half, brain)


def test_an_empty_constant_is_fine() -> None:
    assert not constants.rounds_badly(np.zeros([0], np.float32), FLOAT16)


@pytest.mark.parametrize("target", [FLOAT16, BFLOAT16], ids=lambda target: target.name)
@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_are_inexact_if_some_value_of_their_type_is(kind: str, target: FloatFormat) -> None:
    import tensorflow as tf

    largest = 1 if kind == "bool" else np.iinfo(kind).max
    exact = all(rounded(float(value), target) == value for value in range(3000) if value <= largest)
    assert guards._may_be_inexact(tf.dtypes.as_dtype(kind).as_datatype_enum, target) is not exact


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "string", "complex64", "variant"])
def test_other_types_are_no_integers(kind: str) -> None:
    import tensorflow as tf

    assert not guards._may_be_inexact(tf.dtypes.as_dtype(kind).as_datatype_enum, FLOAT16)


def test_every_op_that_the_guards_name_is_an_op() -> None:
    from tests.test_oplists import registered_ops

    named = guards.ELEMENTWISE | guards.CARRIERS | guards.ROOTS | guards.ADDITIONS | guards.GROWING
    assert named <= registered_ops()


def test_every_op_that_writes_a_variable_is_found_by_its_stem() -> None:
    """An op that takes a resource or a reference, and whose name says that it updates it; an accumulator, a barrier or an array is no variable."""
    from tests.test_oplists import registered_ops
    from tfmp import tf_api

    for op in registered_ops():
        definition = tf_api.op_def(op)
        takes = bool(definition.input_arg) and (definition.input_arg[0].is_ref or definition.input_arg[0].type == 20)
        if takes and re.search("Assign|Apply|Scatter", op) and not re.search("Accumulator|Barrier|TensorArray", op):
            assert op.startswith(guards.WRITE_STEMS), op
