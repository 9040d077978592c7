"""Bounds are sound: whatever the numbers, what TensorFlow computes lies within them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph_text import parse
from tfmp.graph.view import read_graph
from tfmp.program.ranges import ANYTHING, RULES, VALUE_INPUTS, Ranges

UNARY = sorted({"Abs", "Cos", "Erf", "Erfc", "Exp", "Neg", "Relu", "Relu6", "Rsqrt", "Sigmoid", "Sign", "Sin", "Softmax", "Softsign", "Sqrt", "Square", "Tanh"})
BINARY = sorted({"AddV2", "Div", "Maximum", "Minimum", "Mul", "RealDiv", "SquaredDifference", "Sub"})
some = settings(max_examples=300, deadline=None, database=None, derandomize=True)
numbers = st.floats(-1e3, 1e3, width=32)


def bounds(text: str, name: str) -> tuple[float, float]:
    """Returns the interval of the first output of a node."""
    body = read_graph(parse(text), {})
    return Ranges(body).of((body.by_name[name], 0))


def within(value: np.ndarray, interval: tuple[float, float]) -> bool:
    """Returns whether all of `value` lies in the interval, float32's own rounding granted; what is not finite is not looked at."""
    finite = np.asarray(value, np.float64)[np.isfinite(value)]
    slack = 1e-5 * np.maximum(1, np.abs(finite))
    return bool(np.all(finite >= interval[0] - slack) and np.all(finite <= interval[1] + slack))


@given(st.sampled_from(UNARY), st.lists(numbers, min_size=2, max_size=4))
@some
def test_of_one_input(op: str, values: list[float]) -> None:
    interval = bounds(f"a = Const() value={values}\nr = {op}(a)\n", "r")
    argument = {"Softmax": "logits", "Softsign": "features", "Relu": "features", "Relu6": "features"}.get(op, "x")
    assert within(getattr(tf.raw_ops, op)(**{argument: tf.constant(values)}).numpy(), interval)


@given(st.sampled_from(BINARY), st.lists(numbers, min_size=2, max_size=2), st.lists(numbers, min_size=2, max_size=2))
@some
def test_of_two_inputs(op: str, left: list[float], right: list[float]) -> None:
    interval = bounds(f"a = Const() value={left}\nb = Const() value={right}\nr = {op}(a, b)\n", "r")
    for a in left:
        for b in right:
            with np.errstate(all="ignore"):
                assert within(getattr(tf.raw_ops, op)(x=tf.constant(a), y=tf.constant(b)).numpy(), interval) or (op in ("Div", "RealDiv") and b == 0)


X = "x = Placeholder() shape=[4, 4]\naxis = Const() dtype=int32 value=[1]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("r = Relu(x)\n", (0.0, math.inf)),
        ("m = Max(x, axis) keep_dims=true\nd = Sub(x, m)\nr = Exp(d)\n", (0.0, 1.0)),
        ("m = Max(x, axis) keep_dims=true\ns = StopGradient(m)\nd = Sub(x, s)\nr = Exp(d)\n", (0.0, 1.0)),
        ("m = Max(x, axis)\ny = Neg(x)\nd = Sub(y, m)\nr = Exp(d)\n", (0.0, math.inf)),
        ("r = Mul(x, x)\n", (0.0, math.inf)),
        ("e = Const() value=0.25\ns = SquaredDifference(x, x)\nv = Mean(s, axis)\na = AddV2(v, e)\nr = Rsqrt(a)\n", (0.0, 2.0)),
        ("s = Square(x)\nn = Neg(s)\nr = Exp(n)\n", (0.0, 1.0)),
        ("c = Const() value=[1.0, -2.0]\nr = RealDiv(x, c)\n", ANYTHING),
        ("r = MatMul(x, x)\n", ANYTHING),
    ],
)
def test_of_structures(text: str, expected: tuple[float, float]) -> None:
    assert bounds(X + text, "r") == expected


def test_a_long_chain_is_not_followed_to_its_end() -> None:
    chain = "".join(f"r{n} = Relu(r{n - 1})\n" for n in range(1, 5000))
    low, high = bounds(f"r0 = Const() value=2.0\n{chain}", "r4999")
    assert (low, high) == (0.0, math.inf)


def test_every_rule_is_tried() -> None:
    first = {"Add", "AddN", "EnsureShape", "ExpandDims", "Gather", "Identity", "Max", "MaxPool", "AvgPool", "Mean", "Min", "PreventGradient", "Reshape",
             "Select", "SelectV2", "Slice", "Snapshot", "Squeeze", "StopGradient", "StridedSlice", "Tile", "BroadcastTo", "Transpose"}  # fmt: skip
    assert set(RULES) == {*UNARY, *BINARY, *first, *VALUE_INPUTS}
