"""Recurrent layers: values, states and all gradients as in float32, saved activations in 16 bit forwards and backwards, nothing multiplied in float32."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.behaviour.on_off import ROUNDINGS, assert_alike, scope
from tests.programs.constructs import recurrent
from tests.programs.constructs.recurrent import ROWS, Recurrent
from tests.programs.golden import check
from tests.programs.written import Written
from tfmp.dtypes import SIXTEEN_BIT

PACKAGES = ("keras", "tf_keras")
SAVING = ("EmptyTensorList", "TensorListPushBack", "TensorListPopBack")
"""The ops by which a loop's gradient saves activations (`while_v2.py`); the lists of TensorArrays are made otherwise."""

rows = pytest.mark.parametrize("row", ROWS, ids=str)
packages = pytest.mark.parametrize("package", PACKAGES)


@functools.cache
def reference(row: Recurrent, package: str) -> Any:
    """Returns the results in float32."""
    with tfmp.mixed_precision(enabled=False):
        return recurrent.run(row, package)


@functools.cache
def traced(row: Recurrent, package: str) -> tuple[Any, Any]:
    """Returns the layer, which must outlive its variables' handles, and the step, traced while tfmp is off."""
    with tfmp.mixed_precision(enabled=False):
        layer, gradient = recurrent.step(row, package)
        return layer, gradient.get_concrete_function(tf.TensorSpec(row.x.shape))


@functools.cache
def written(row: Recurrent, package: str, dtype: str) -> Written:
    """Returns the converted step."""
    return Written(tfmp.convert_function(traced(row, package)[1], dtype=dtype))


def compare(row: Recurrent, package: str, dtype: str, jit: bool = False) -> None:
    """Asserts that the results in `dtype` are those in float32 within rounding, one for each time step that an error can pass through."""
    expected = reference(row, package)
    with scope(dtype):
        actual = recurrent.run(row, package, jit)
    assert_alike(expected, actual, ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff)


@rows
@packages
def test_values_states_and_gradients_agree(row: Recurrent, package: str, dtype: str) -> None:
    compare(row, package, dtype)


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in ("lstm", "gru", "lstm_masked", "conv_lstm")], ids=str)
def test_values_and_gradients_agree_under_xla(row: Recurrent, dtype: str) -> None:
    compare(row, "keras", dtype, jit=True)


@rows
@packages
def test_nothing_is_multiplied_in_float32(row: Recurrent, package: str, dtype: str) -> None:
    assert written(row, package, dtype).kept_products() == {}


@rows
@packages
def test_what_the_loop_saves_is_16_bit(row: Recurrent, package: str, dtype: str) -> None:
    result = written(row, package, dtype)
    found = {tf.dtypes.as_dtype(node.attr["element_dtype"].type) for node in result.nodes(*SAVING)}
    floats = {one.name for one in found if one.is_floating}
    assert floats == (set() if row.name == "lstm_unrolled" else {dtype})


@rows
@packages
def test_the_number_of_casts_is_exact(row: Recurrent, package: str, dtype: str) -> None:
    assert written(row, package, dtype).casts == row.casts[PACKAGES.index(package)]


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in ("lstm", "gru", "simple_rnn")], ids=str)
def test_the_text_is_as_reviewed(row: Recurrent, dtype: str) -> None:
    check(f"keras_{row.name}", written(row, "keras", dtype).text())


def test_states_are_float32_and_carried_on() -> None:
    row = next(row for row in ROWS if row.name == "gru_stateful")
    with scope("float16"):
        (first, second), states = recurrent.run(row, "keras")
    assert {state.dtype for state in states} == {np.dtype(np.float32)}
    assert np.abs(first[0] - second[0]).max() > 1e-3
