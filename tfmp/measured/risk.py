"""From ranges to decisions: the loss scale, which ops are at risk in a 16-bit type, and which dangerous ones are proved safe."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from tfmp.dtypes import FLOAT16, FloatFormat
from tfmp.measured.counts import Counts
from tfmp.measured.record import ACTIVATION, GRADIENTS, UPDATE, OpRange, Ranges

HEADROOM = 4.0
"""Factor by which a magnitude may grow after calibration before it leaves the 16-bit range. Our own choice; OpenVINO and ModelOpt's AutoCast leave more (a
bound of 512 on what was seen), since they convert once and do not train."""

LARGEST_SCALE = 2.0**24
"""The largest loss scale that is proposed: the bound of NVIDIA's Apex (`apex/amp/scaler.py`), and of `DynamicLossScale`."""

DIVISORS = {
    "Div": 1, "DivNoNan": 1, "Inv": 0, "Log": 0, "Log1p": 0, "RealDiv": 1, "Reciprocal": 0, "Rsqrt": 0, "RsqrtGrad": 0, "Xdivy": 1, "Xlogy": 1,
}  # fmt: skip
"""Op to the input that must not round to zero, whatever is beside it: each value by itself decides whether the result is finite."""

ADDITIONS = frozenset({"Add", "AddN", "AddV2", "BiasAdd", "BiasAddV1", "Maximum", "Minimum", "Select", "SelectV2", "Sub", "SquaredDifference"})
"""Ops in which an input may vanish beside another one without harm; what counts is whether the result does."""

INNER_SUMS = {"Mean": 1, "L2Loss": 2, "EuclideanNorm": 2}
"""Op that sums before it makes the result small again, to the power of the inputs that it sums (R50 and similar: the inner sum overflows first)."""

ARGUMENT = "_Arg"

SOURCES = frozenset({ARGUMENT, "Const", "ReadVariableOp", "VariableV2", "Placeholder"})
"""Ops that compute nothing: what is dangerous in them is dangerous for those that read them."""

DENIED_FOR_RANGE = frozenset({"Exp", "Expm1", "Pow", "Square", "SquaredDifference", "Rsqrt"})
"""Ops that are kept in float32 since their results are easily out of range, and only for that: each element of the result depends on one element of each
input, so that measured ranges prove them safe. (Sums and losses stay where they are: they lose in 16 bit what no range shows.)"""


@dataclasses.dataclass(frozen=True)
class Risk:
    """Why an op should stay in float32.

    Attributes:
      op: the record.
      why: one sentence.
      port: the output that is meant, of a call, loop or branch, which hands its values on and has others that may be in 16 bit; else None.
    """

    op: OpRange
    why: str
    port: int | None = None

    @property
    def carries(self) -> bool:
        """Whether the node only hands on what was computed elsewhere: a call, loop or branch, or an argument of an inner function."""
        return self.port is not None or self.op.op == ARGUMENT

    @property
    def name(self) -> str:
        """The node's name; with the port, "node:port"."""
        return self._with_port(self.op.node)

    @property
    def alias(self) -> str:
        """The same with the node's alias."""
        return self._with_port(self.op.alias)

    def _with_port(self, name: str) -> str:
        return name if self.port is None else f"{name}:{self.port}"


def proposed_loss_scale(ranges: Ranges, target: FloatFormat = FLOAT16) -> float:
    """Returns the largest power of two, from 1 to 2^24, that keeps `HEADROOM` times the largest gradient times the scale within `target`.

    The rule of "Mixed Precision Training" (Micikevicius et al. 2018, section 3.2): any scale will do with which the largest gradient stays below 65504.
    A power of two rounds nothing. A gradient that leaves the range without any scale is not counted: no scale helps it (`at_risk` keeps it in float32).
    1 if there are no gradients. Gradients recorded under a loss scale are counted without it.
    """
    largest = [counts.largest / ranges.loss_scale for one in ranges if one.kind in GRADIENTS for counts in one.outputs.values()]
    fitting = max((value for value in largest if 0 < value <= target.largest / HEADROOM), default=0.0)
    if not fitting:
        return 1.0
    return min(LARGEST_SCALE, max(1.0, 2.0 ** math.floor(math.log2(target.largest / (HEADROOM * fitting)))))


def at_risk(ranges: Ranges, target: FloatFormat = FLOAT16, *, headroom: float = HEADROOM, loss_scale: float | None = None) -> list[Risk]:
    """Returns the ops that should stay in float32 since they read or compute what `target` cannot hold, each with the first reason.

    An op is at risk if a tensor that it reads or computes
      * had a magnitude above `target.largest / headroom`;
      * had, in some run, all its magnitudes below the smallest one with full precision (2^-14), so that all of it would be rough or zero. Where an addition
        reads it, only the result counts;
      * is one to divide by (`DIVISORS`) and had a single magnitude below that;
    or if the sum inside a mean or a norm may leave the range. Gradients are counted times the loss scale. What is infinite or NaN in float32 is so in 16 bit,
    and no reason. What optimizers do is left out: it stays in float32 anyway.

    Args:
      ranges: what was measured.
      target: the 16-bit type.
      headroom: factor by which magnitudes may grow.
      loss_scale: what the loss will be multiplied by; by default what `ranges` says.
    """
    scale = ranges.training_scale if loss_scale is None else loss_scale
    limits = _Limits(target, headroom, (proposed_loss_scale(ranges, target) if scale is None else scale) / ranges.loss_scale)
    return [risk for one in ranges if one.kind != UPDATE for risk in _risks(ranges, one, limits)]


def _risks(ranges: Ranges, one: OpRange, limits: _Limits) -> Iterator[Risk]:
    if one.is_call or (one.op == ARGUMENT and one.place):
        for port, why in _bad_outputs(one, limits):
            yield Risk(one, why, port if one.is_call else None)
    elif one.op not in SOURCES:
        yield from (Risk(one, why) for why in itertools.islice(_dangers(ranges, one, limits), 1))


@dataclasses.dataclass(frozen=True)
class _Limits:
    target: FloatFormat
    headroom: float
    scale: float

    def factor(self, one: OpRange) -> float:
        return self.scale if one.kind in GRADIENTS else 1.0

    def too_large(self, counts: Counts, factor: float) -> str:
        if counts.largest * factor * self.headroom > self.target.largest:
            scaled = f" times the loss scale {factor:g}" if factor != 1 else ""
            return f"reaches {counts.largest:.3g}{scaled}, and {self.target.name} ends at {self.target.largest:g}"
        return ""

    def vanishes(self, counts: Counts, factor: float) -> str:
        if counts.nonzero and counts.faintest * factor < self.target.smallest_normal:
            scaled = f" times the loss scale {factor:g}" if factor != 1 else ""
            return f"is at most {counts.faintest:.3g}{scaled} in some run, which is rough or zero in {self.target.name}"
        return ""

    def divides_badly(self, counts: Counts) -> str:
        if counts.nonzero and counts.smallest < self.target.smallest_normal:
            return f"goes down to {counts.smallest:.3g}, which is rough or zero in {self.target.name}, and is divided by"
        return ""


def _bad_outputs(one: OpRange, limits: _Limits) -> Iterator[tuple[int, str]]:
    factor = limits.factor(one)
    for port, counts in one.outputs.items():
        why = limits.too_large(counts, factor) or limits.vanishes(counts, factor)
        if why:
            yield port, f"output {port} {why}"


def _dangers(ranges: Ranges, one: OpRange, limits: _Limits) -> Iterator[str]:
    yield from (why for _, why in _bad_outputs(one, limits))
    reads = dict(ranges.read(one))
    divisor = one.inputs[DIVISORS[one.op]] if DIVISORS.get(one.op, len(one.inputs)) < len(one.inputs) else ""
    for text, counts in reads.items():
        source = ranges.by_key[(one.place, text.rpartition(":")[0])]
        factor = limits.factor(source)
        why = limits.too_large(counts, factor) or (limits.divides_badly(counts) if text == divisor else "")
        if not why and one.op not in ADDITIONS:
            why = limits.vanishes(counts, factor)
        if why:
            yield f"input {text} {why}"
        power = INNER_SUMS.get(one.op)
        if power and one.outputs[0].elements and (counts.elements / one.outputs[0].elements) * (counts.largest * factor) ** power > limits.target.largest:
            yield f"sums {counts.elements // one.outputs[0].elements} values of up to {counts.largest:.3g} each (power {power})"


def proved_safe(ranges: Ranges, target: FloatFormat = FLOAT16, *, headroom: float = HEADROOM) -> list[OpRange]:
    """Returns the ops of the types `DENIED_FOR_RANGE` in the forward pass whose inputs and outputs all stay, `headroom` squared left free on both sides,
    where `target` has full precision: no infinity, and not one magnitude that is too large or too small.
    """
    low, high = target.smallest_normal * headroom**2, target.largest / headroom**2
    candidates = (one for one in ranges if one.op in DENIED_FOR_RANGE and one.kind == ACTIVATION)
    return [one for one in candidates if all(_within(counts, low, high) for counts in (*one.outputs.values(), *dict(ranges.read(one)).values()))]


def _within(counts: Counts, low: float, high: float) -> bool:
    return not counts.infs and not counts.nans and (not counts.nonzero or (low <= counts.smallest and counts.largest <= high))


def keep_float32(ranges: Ranges, target: FloatFormat = FLOAT16, **how: float) -> tuple[str, ...]:
    """Returns the nodes at risk as rules for the setting `keep_float32` ("name:NODE"), to be read and changed by hand; `how` as for `at_risk`.

    The setting `ranges` does more: it also keeps single values in float32 that loops, branches and calls carry, which no rule can name.
    """
    return tuple(dict.fromkeys(f"name:{risk.op.node}" for risk in at_risk(ranges, target, **how) if not risk.carries))
