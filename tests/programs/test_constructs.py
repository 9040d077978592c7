"""Every construct of the table: values and gradients as in float32, interpreted and compiled, and exactly the casts that it needs."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import tensorflow as tf

import tfmp
from tests.behaviour.on_off import ROUNDINGS, assert_alike, scope
from tests.programs.constructs import CONSTRUCTS, Construct, Program, program
from tests.programs.constructs.construct import X
from tests.programs.golden import check
from tests.programs.written import Written
from tfmp.dtypes import SIXTEEN_BIT

FORWARD, WITH_GRADIENT = 0, 1

table = pytest.mark.parametrize("construct", CONSTRUCTS, ids=str)


def inside(made: Program) -> Any:
    """Returns the result and the gradients, taken inside the function."""
    return made.gradient(X)


def outside(made: Program) -> Any:
    """Returns the result without a tape, and the gradients of a persistent tape outside of the function, first of the result, then of another loss."""
    plain = made.forward(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        y = made.forward(X)
        losses = tf.reduce_mean(y**2), tf.reduce_sum(y)
    return plain, [tape.gradient(loss, [X, *made.weights]) for loss in losses]


@functools.cache
def reference(construct: Construct, run: Any) -> Any:
    """Returns what `run` gives in float32, interpreted: XLA's float32 differs by less than any tolerance here."""
    with tfmp.mixed_precision(enabled=False):
        return run(program(construct))


def compare(construct: Construct, run: Any, jit: bool, dtype: str) -> None:
    """Asserts that `run` gives the same in `dtype` as in float32, within rounding, and that something was converted."""
    expected, before = reference(construct, run), len(tfmp.report())
    with scope(dtype):
        actual = run(program(construct, jit))
    assert sum(record.converted for record in tfmp.report()[before:]) > 0
    assert_alike(expected, actual, construct.roundings * SIXTEEN_BIT[dtype].unit_roundoff)


@functools.cache
def traced(construct: Construct) -> tuple[Any, Any]:
    """Returns the construct without and with gradients, traced while tfmp is off."""
    with tfmp.mixed_precision(enabled=False):
        made = program(construct)
        return tuple(function.get_concrete_function(tf.TensorSpec([4, 8])) for function in (made.forward, made.gradient))


@functools.cache
def written(construct: Construct, gradient: int, dtype: str) -> Written:
    """Returns the converted program."""
    return Written(tfmp.convert_function(traced(construct)[gradient], dtype=dtype))


@table
def test_values_and_gradients_agree(construct: Construct, dtype: str) -> None:
    compare(construct, inside, False, dtype)


@pytest.mark.parametrize("construct", [one for one in CONSTRUCTS if not one.no_xla], ids=str)
def test_values_and_gradients_agree_under_xla(construct: Construct, dtype: str) -> None:
    compare(construct, inside, True, dtype)


@pytest.mark.parametrize("construct", [one for one in CONSTRUCTS if one.no_xla], ids=str)
def test_what_xla_refuses_it_refuses_in_float32_too(construct: Construct) -> None:
    with pytest.raises((tf.errors.OpError, ValueError), match=construct.no_xla), tfmp.mixed_precision(enabled=False):
        inside(program(construct, True))


@table
def test_gradients_of_a_tape_outside_agree(construct: Construct, dtype: str) -> None:
    compare(construct, outside, False, dtype)


@table
def test_the_number_of_casts_is_exact(construct: Construct, dtype: str) -> None:
    expected = construct.casts if dtype == "float16" else construct.bfloat16_casts or construct.casts
    assert (written(construct, FORWARD, dtype).casts, written(construct, WITH_GRADIENT, dtype).casts) == expected


@table
def test_matrix_multiplications_are_16_bit_or_say_why_not(construct: Construct, dtype: str) -> None:
    result = written(construct, WITH_GRADIENT, dtype)
    assert result.kept_products() == construct.kept
    assert dtype in result.types("MatMul", "BatchMatMulV2")


@table
def test_the_root_keeps_its_signature(construct: Construct, dtype: str) -> None:
    root = next(iter(written(construct, WITH_GRADIENT, dtype).versions.values()))
    for field in ("input_arg", "output_arg"):
        assert [arg.type for arg in getattr(root.after.signature, field)] == [arg.type for arg in getattr(root.before.signature, field)]


@table
def test_the_text_is_as_reviewed(construct: Construct, dtype: str) -> None:
    other = dtype == "bfloat16" and construct.bfloat16_casts is not None
    check(f"{construct.name}_bfloat16" if other else construct.name, written(construct, WITH_GRADIENT, dtype).text())


def test_the_tolerance_can_be_missed() -> None:
    with pytest.raises(AssertionError, match="differs by"):
        assert_alike([X], [X * (1 + 3 * ROUNDINGS * SIXTEEN_BIT["float16"].unit_roundoff)], ROUNDINGS * SIXTEEN_BIT["float16"].unit_roundoff)
