"""How what normalises data uses scale and offset."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tfmp.fusion.algebra import Monomial, Polynomial, X, add, same, scale
from tfmp.fusion.groups import Groups
from tfmp.fusion.ready import is_ready
from tfmp.graph.body import Body, Edge


@dataclasses.dataclass(frozen=True)
class Form:
    """How a normalisation uses scale and offset.

    Attributes:
      scale, offset: the tensors; None for 1 and 0.
      factor: what a difference from the mean is multiplied by, but for what is in `symbols`: the reciprocal root, or that and the scale.
      symbols: the scale, if it is none of the numbers.
    """

    scale: Edge | None
    offset: Edge | None
    factor: float
    symbols: Monomial


def form_of(body: Body, groups: Groups, node: int, root: float) -> Form | None:
    """Returns the form of what `node` computes if that is a normalisation."""
    if not groups.is_data((node, 0)):
        return None
    return (_by_row if groups.by_row else _by_channel)(body, groups, groups.values[node, 0], root)


def _by_channel(body: Body, groups: Groups, value: Polynomial, root: float) -> Form | None:
    """Returns the form of `value` if it is a normalisation with one scale and offset a group."""
    if not set(value) <= {(X,), ()} or not value.get((X,)):
        return None
    factor = value[X,]
    scale, offset = _leaf(body, groups, factor / root, 1.0), _leaf(body, groups, value.get((), 0.0) + groups.mean * factor, 0.0)
    return None if scale is None or offset is None else Form(scale[0], offset[0], factor, ())


def _leaf(body: Body, groups: Groups, target: float, neutral: float) -> tuple[Edge | None] | None:
    """Returns the tensor that holds `target` for each group, and is there before the data is; (None,) if that is the neutral number."""
    if same(target, neutral):
        return (None,)
    found = (edge for edge, number in groups.leaves.items() if same(number, target) and is_ready(body, edge))
    edge = next(found, None)
    return None if edge is None else (edge,)


def _by_row(body: Body, groups: Groups, value: Polynomial, root: float) -> Form | None:
    """Returns the form of `value` if it is a normalisation with a scale and offset that are the same for all groups."""
    weights: Mapping[int, Edge] = {symbol: edge for edge, symbol in groups.weights.items() if is_ready(body, edge)}
    scaled = [power for power, size in value.items() if X in power and size]
    if len(scaled) != 1 or scaled[0].count(X) > 1 or not all(symbol in weights for symbol in scaled[0][1:]) or len(scaled[0]) > 2:
        return None
    symbols = scaled[0][1:]
    rest = {power: size for power, size in add([value, scale(centred(symbols, groups.mean), -root)]).items() if abs(size) > 1e-6}
    offsets = [weights.get(power[0]) for power, size in rest.items() if len(power) == 1 and same(size, 1.0)]
    if len(rest) > 1 or len(offsets) != len(rest) or None in offsets:
        return None
    return Form(weights[symbols[0]] if symbols else None, offsets[0] if offsets else None, root, symbols)


def centred(symbols: Monomial, mean: float) -> Polynomial:
    """Returns the data less their mean, times `symbols`."""
    return {(X, *symbols): 1.0, symbols: -mean}
