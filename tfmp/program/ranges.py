"""Between which values a tensor lies, as far as the graph tells: interval arithmetic from constants and from ops whose results are bounded by what they are.

Sound in real arithmetic: a float32 result may pass a bound by its own rounding, which no rule here depends on. Asked for few tensors, so looked up backwards
and remembered.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from tfmp import tf_api
from tfmp.graph.body import Body, Edge
from tfmp.graph.kinds import Kind

Interval = tuple[float, float]

ANYTHING: Interval = (-math.inf, math.inf)
DEPTH = 24
"""How many ops back a bound is looked for. Our own choice: the structures that are known here are shorter."""


def _hull(intervals: Sequence[Interval]) -> Interval:
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def _add(intervals: Sequence[Interval]) -> Interval:
    return sum(low for low, _ in intervals), sum(high for _, high in intervals)


def _negative(intervals: Sequence[Interval]) -> Interval:
    low, high = intervals[0]
    return -high, -low


def _subtract(intervals: Sequence[Interval]) -> Interval:
    (low, high), (other_low, other_high) = intervals
    return low - other_high, high - other_low


def _product(intervals: Sequence[Interval]) -> Interval:
    corners = [0.0 if a == 0 or b == 0 else a * b for a in intervals[0] for b in intervals[1]]
    return min(corners), max(corners)


def _square(intervals: Sequence[Interval]) -> Interval:
    low, high = intervals[0]
    largest = max(low * low, high * high)
    return (0.0 if low <= 0 <= high else min(low * low, high * high)), largest


def _absolute(intervals: Sequence[Interval]) -> Interval:
    low, high = intervals[0]
    return (0.0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _quotient(intervals: Sequence[Interval]) -> Interval:
    low, high = intervals[1]
    if low <= 0 <= high:
        return ANYTHING
    return _product([intervals[0], tuple(sorted((1 / low, 1 / high)))])  # type: ignore[list-item]


def _monotone(function: Callable[[float], float]) -> Callable[[Sequence[Interval]], Interval]:
    def image(intervals: Sequence[Interval]) -> Interval:
        low, high = intervals[0]
        return function(low), function(high)

    return image


def _exponential(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)


def _root(value: float) -> float:
    return math.sqrt(max(value, 0.0))


def _inverse_root(intervals: Sequence[Interval]) -> Interval:
    low, high = (max(value, 0.0) for value in intervals[0])
    return (0.0 if math.isinf(high) else 1 / math.sqrt(high) if high else math.inf), (1 / math.sqrt(low) if low else math.inf)


def _between(low: float, high: float) -> Callable[[Sequence[Interval]], Interval]:
    return lambda intervals: (low, high)


def _first(intervals: Sequence[Interval]) -> Interval:
    return intervals[0]


RULES: dict[str, Callable[[Sequence[Interval]], Interval]] = {
    **dict.fromkeys(("Add", "AddV2", "AddN"), _add),
    "Sub": _subtract,
    "Mul": _product,
    **dict.fromkeys(("RealDiv", "Div"), _quotient),
    "Neg": _negative,
    "Square": _square,
    "SquaredDifference": lambda intervals: _square([_subtract(intervals)]),
    "Abs": _absolute,
    "Exp": _monotone(_exponential),
    "Sqrt": _monotone(_root),
    "Rsqrt": _inverse_root,
    "Relu": _monotone(lambda value: max(value, 0.0)),
    "Relu6": _monotone(lambda value: min(max(value, 0.0), 6.0)),
    **dict.fromkeys(("Sigmoid", "Softmax", "RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2", "OneHot"), _between(0.0, 1.0)),
    **dict.fromkeys(("Tanh", "Erf", "Softsign", "Sign", "Sin", "Cos"), _between(-1.0, 1.0)),
    "Erfc": _between(0.0, 2.0),
    "Maximum": lambda intervals: (max(low for low, _ in intervals), max(high for _, high in intervals)),
    "Minimum": lambda intervals: (min(low for low, _ in intervals), min(high for _, high in intervals)),
    **dict.fromkeys(("Select", "SelectV2"), lambda intervals: _hull(intervals[1:])),
    **dict.fromkeys(("Mean", "Max", "Min", "Identity", "StopGradient", "Reshape", "Squeeze", "ExpandDims", "Tile", "BroadcastTo", "Transpose", "Slice",
                     "StridedSlice", "Gather", "EnsureShape", "Snapshot", "PreventGradient", "MaxPool", "AvgPool"), _first),
}  # fmt: skip
"""Op to what it makes of the intervals of its inputs."""

BOUNDED = RULES.keys() | {"Const"}
"""Ops of whose results anything is known."""

VALUE_INPUTS = {"OneHot": 0, "RandomUniform": 0, "StatelessRandomUniform": 0, "StatelessRandomUniformV2": 0}
"""Ops whose result is bounded whatever they read."""


class Ranges:
    """The intervals of the tensors of one body, looked up when they are asked for."""

    def __init__(self, body: Body) -> None:
        """Looks nothing up yet."""
        self._body = body
        self._known: dict[Edge, Interval] = {}
        self._unbounded: dict[Edge, int] = {}  # how deep was looked there in vain

    def of(self, edge: Edge, depth: int = DEPTH) -> Interval:
        """Returns the interval of the tensor that comes out of a node's port."""
        if self._body.ops[edge[0]] not in BOUNDED:
            return ANYTHING
        found = self._known.get(edge)
        if found is not None:
            return found
        if self._unbounded.get(edge, 0) >= depth:
            return ANYTHING
        found = self._find(edge, depth)
        if found != ANYTHING:
            self._known[edge] = found
        else:
            self._unbounded[edge] = depth
        return found

    def _find(self, edge: Edge, depth: int) -> Interval:
        body, (node, port) = self._body, edge
        op = body.ops[node]
        if body.nodes[node] is None or port or not depth:
            return ANYTHING
        if op == "Const":
            return constant(body.kinds.table[body.kind_of[node]])
        if op == "Sub" and _is_shifted_down(body, node):
            return -math.inf, 0.0
        if op == "Mul" and body.inputs[node][0] == body.inputs[node][1]:
            return _square([self.of(body.inputs[node][0], depth - 1)])
        return RULES[op]([self.of(source, depth - 1) for source in body.inputs[node][: VALUE_INPUTS.get(op)]])


def _is_shifted_down(body: Body, node: int) -> bool:
    """Returns whether a Sub takes from a tensor that tensor's own maximum, as a softmax does that is written out."""
    value, other = body.inputs[node]
    while body.ops[other[0]] in ("StopGradient", "Identity"):
        other = body.inputs[other[0]][0]
    return body.ops[other[0]] == "Max" and body.inputs[other[0]][0] == value


def constant(kind: Kind) -> Interval:
    """Returns the interval of what a Const makes, if it is small: a graph has few different ones, many times each."""
    return _interval(kind.value) if kind.value else ANYTHING


@functools.lru_cache(maxsize=4096)
def _interval(tensor: bytes) -> Interval:
    array = np.asarray(tf_api.read_tensor(tf_api.TensorProto.FromString(tensor)))
    if array.dtype.kind not in "fiub" or not array.size or np.isnan(array).any():
        return ANYTHING
    return float(array.min()), float(array.max())
