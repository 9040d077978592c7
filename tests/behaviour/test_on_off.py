"""The harness itself: it must notice what it is there to notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.behaviour import on_off

ONES = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("expected", "actual", "message"),
    [
        (ONES, ONES.astype(np.float16), "dtype or shape differs"),
        (ONES, ONES[None], "dtype or shape differs"),
        (ONES, ONES * np.float32(1.02), "differs by 0.02, 0.01 is allowed"),
        (ONES, np.array([1, 1, np.nan], np.float32), "differs by nan"),
        (np.array([1, np.inf], np.float32), np.array([1, -np.inf], np.float32), "other infinities"),
        (np.array([4999]), np.array([5000]), "Arrays are not equal"),
        (np.array(["a"]), np.array(["b"]), "Arrays are not equal"),
    ],
)
def test_each_kind_of_difference_is_noticed(expected: Any, actual: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        on_off.assert_alike({"y": expected}, {"y": actual}, 0.01)


def test_another_structure_is_noticed() -> None:
    with pytest.raises((ValueError, TypeError), match="structure"):
        on_off.assert_alike([ONES], (ONES,), 0.01)


def test_what_is_within_the_tolerance_passes() -> None:
    on_off.assert_alike([ONES, "text", 3], [ONES * np.float32(1.009), "text", 3], 0.01)


def test_a_run_in_which_nothing_is_converted_does_not_pass(dtype: str) -> None:
    runs = on_off.run(lambda: tf.function(lambda x: x + 1.0)(on_off.normal(2)), dtype)
    with pytest.raises(AssertionError, match="nothing was converted"):
        runs.check()
    runs.check_untouched()


def test_the_second_run_is_in_16_bit_and_the_first_is_not(dtype: str, jit: bool) -> None:
    x, w = on_off.normal(4, 8), on_off.normal(8, 4)
    runs = on_off.run(lambda: tf.function(tf.matmul, jit_compile=jit)(x, w), dtype).check()
    exact = x.numpy().astype(np.float64) @ w.numpy().astype(np.float64)
    rounded = tf.cast(tf.matmul(*(tf.cast(t, dtype) for t in (x, w))), tf.float32)
    np.testing.assert_allclose(runs.off, exact, rtol=1e-5)
    on_off.assert_alike(rounded, runs.on, 1.01 * on_off.SIXTEEN_BIT[dtype].unit_roundoff)
    assert np.abs(runs.on - exact).max() > np.abs(runs.off - exact).max()
    with pytest.raises(AssertionError, match=r"tfmp converted \d nodes"):
        runs.check_untouched()


def test_a_fallback_raises(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*details: object, **more: object) -> None:
        raise tfmp.RewriteError("planted")

    monkeypatch.setattr("tfmp.engine.make_plan", fail)
    with pytest.raises(tfmp.RewriteError, match="planted"):
        on_off.run(lambda: tf.function(tf.matmul)(tf.eye(2), tf.eye(2)), dtype)


def test_nodes_are_found_by_op_and_type(dtype: str) -> None:
    nodes = on_off.convert(tf.function(lambda x: tf.exp(x @ x)), tf.eye(2), dtype=dtype)
    assert nodes.types("MatMul") == [dtype]
    assert nodes.types("Exp") == ["float32"]
    with pytest.raises(AssertionError, match="no Conv2D"):
        nodes.types("Conv2D")
