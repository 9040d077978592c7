"""Normalisations of data by their own mean and variance, and their gradients, found by what they compute.

y = (x - mean) * rsqrt(variance + epsilon) * scale + offset. The statistics are of a channel of all examples, and scale and offset have one number a channel
(Ioffe and Szegedy, "Batch Normalization", 2015); or they are of one row of the last axis, and scale and offset have one number for each of its elements
(Ba, Kiros and Hinton, "Layer Normalization", 2016).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion.algebra import DY, Monomial, Polynomial, X, add, alike, number_of, same, scale
from tfmp.fusion.counts import Constants, axes_of
from tfmp.fusion.found import Gradient, Norm
from tfmp.fusion.groups import Groups
from tfmp.fusion.ready import NEAR, SAME_NUMBERS, is_ready
from tfmp.fusion.repeats import Memory, Repeats
from tfmp.fusion.surroundings import Readers, Surroundings
from tfmp.graph.body import Body, Edge
from tfmp.program.shapes import Shape, Sizes

CHANNEL_RANKS = (4, 5)
"""Of data that are normalised by channel: what `FusedBatchNormV3` takes."""

SHORTEST_ROW = 16
"""Shorter rows are normalised as they are spelled: the kernel takes each row for a channel, and would have next to nothing to do for it. Our own choice."""

ADDITIONS = frozenset({"Add", "AddV2"})

HANDING_ON = frozenset({"Identity", "Neg", "Reshape", "Sum"})


_memories: list[Memory[Norm]] = [Memory()]
"""How normalisations were spelled that this process has met, in the last one. One in use is never emptied: another thread may be reading it."""


def memory() -> Memory[Norm]:
    """Returns the memory of this process: a new one if there is too much in it."""
    if _memories[-1].is_full:
        _memories[:] = [Memory()]
    return _memories[-1]


@dataclasses.dataclass(frozen=True)
class _Form:
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


def norms(body: Body, sizes: Sizes, readers: Readers, kept: frozenset[int]) -> Iterator[Norm]:
    """Yields the normalisations of `body`.

    Args:
      body: a function.
      sizes: the shapes of its tensors.
      readers: `body.readers()`.
      kept: nodes that must stay as they are.
    """
    done: set[Edge] = set()
    remembered = memory()
    around = Surroundings(body, sizes, readers, numbers=remembered.numbers)
    repeats = Repeats(around, remembered)
    for node, op in enumerate(body.ops):
        if op == "Mean" and body.inputs[node][0] not in done:
            data, where = body.inputs[node]
            axes = _axes(body, sizes, data, where, around.constants)
            if axes is not None:
                done.add(data)
                found = repeats.find(data, (axes, sizes.shape(data)), lambda seen, data=data, axes=axes: _found(seen, data, axes))  # type: ignore[misc]
                if found is not None and not kept.intersection(found.touched):
                    done.update((one, 0) for one in found.touched if one != found.result)
                    yield found


def _axes(body: Body, sizes: Sizes, data: Edge, where: Edge, constants: Constants) -> tuple[int, ...] | None:
    """Returns the axes of a mean whose groups are channels or rows; else None."""
    node, port = data
    shape = sizes.shape(data)
    if shape is None or len(shape) < 2 or shape[-1] is None or body.types[node][body.layouts[node].outputs[port]] != DT_FLOAT:
        return None
    axes = axes_of(body, where, len(shape), lambda edge: None, constants)
    if axes is None:
        return None
    by_row = axes == (len(shape) - 1,) and shape[-1] >= SHORTEST_ROW
    by_channel = axes == tuple(range(len(shape) - 1)) and len(shape) in CHANNEL_RANKS
    return axes if (by_row or by_channel) and _has_two(shape, axes) else None


def _has_two(shape: Shape, axes: tuple[int, ...]) -> bool:
    """Returns whether a group has two elements at least: of a single one, cuDNN and TensorFlow do not agree what the corrected variance is.

    Data that are known to have no element at all have none: nothing is gained, and a size that is not known beside a 0 does not follow from their number.
    """
    return 0 not in (shape or ()) and math.prod(size for axis in axes if (size := (shape or ())[axis]) is not None) > 1


def _found(around: Surroundings, data: Edge, axes: Sequence[int]) -> Norm | None:
    """Returns the normalisation of the tensor `data` along `axes`, if there is one: what scale and offset are applied to comes before what they are not, and
    what has a gradient before what has none.
    """
    body, groups = around.body, Groups(around, data, axes)
    groups.spread(data)
    mean, variance = groups.computing(groups.mean), groups.computing(groups.variance)
    if not mean or not variance:
        return None
    roots = {epsilon: (groups.variance + epsilon) ** -0.5 for epsilon in _epsilons(body, groups)}
    found = [
        (node, form, epsilon)
        for epsilon, root in roots.items()
        for node in groups.nodes
        if body.ops[node] not in SAME_NUMBERS and (form := _form(body, groups, node, root)) is not None
    ]
    if not found:
        return None
    found.sort(key=lambda one: (one[1].scale is None) + (one[1].offset is None))
    gradients = (_gradient(body, groups, form, roots[epsilon]) for _, form, epsilon in found)
    number, gradient = next(((number, one) for number, one in enumerate(gradients) if one is not None), (0, None))
    result, form, epsilon = found[number]
    count = None if any(groups.shape[axis] is None for axis in groups.axes) else groups.count
    touched = (*groups.nodes, *((gradient.data,) if gradient and gradient.data is not None else ()))
    like_data = tuple(node for node in groups.nodes if node != result and groups.is_data((node, 0)))
    return Norm(groups.by_row, groups.data, result, form.scale, form.offset, epsilon, count, mean, variance, like_data, gradient, touched)


def _epsilons(body: Body, groups: Groups) -> Iterator[float]:
    """Yields the numbers that are added to the variance."""
    for node, value in groups.statistics():
        if body.ops[node] in ADDITIONS and len(body.inputs[node]) == 2:
            for own, other in (body.inputs[node], reversed(body.inputs[node])):
                number = groups.number(other) if same(number_of(groups.values[own]) or 0.0, groups.variance) else None
                if number is not None and number > 0 and same(value, groups.variance + number):
                    yield number


def _form(body: Body, groups: Groups, node: int, root: float) -> _Form | None:
    """Returns the form of what `node` computes if that is a normalisation."""
    if not groups.is_data((node, 0)):
        return None
    return (_by_row if groups.by_row else _by_channel)(body, groups, groups.values[node, 0], root)


def _by_channel(body: Body, groups: Groups, value: Polynomial, root: float) -> _Form | None:
    """Returns the form of `value` if it is a normalisation with one scale and offset a group."""
    if not set(value) <= {(X,), ()} or not value.get((X,)):
        return None
    factor = value[X,]
    scale, offset = _leaf(body, groups, factor / root, 1.0), _leaf(body, groups, value.get((), 0.0) + groups.mean * factor, 0.0)
    return None if scale is None or offset is None else _Form(scale[0], offset[0], factor, ())


def _leaf(body: Body, groups: Groups, target: float, neutral: float) -> tuple[Edge | None] | None:
    """Returns the tensor that holds `target` for each group, and is there before the data is; (None,) if that is the neutral number."""
    if same(target, neutral):
        return (None,)
    found = (edge for edge, number in groups.leaves.items() if same(number, target) and is_ready(body, edge))
    edge = next(found, None)
    return None if edge is None else (edge,)


def _by_row(body: Body, groups: Groups, value: Polynomial, root: float) -> _Form | None:
    """Returns the form of `value` if it is a normalisation with a scale and offset that are the same for all groups."""
    weights: Mapping[int, Edge] = {symbol: edge for edge, symbol in groups.weights.items() if is_ready(body, edge)}
    scaled = [power for power, size in value.items() if X in power and size]
    if len(scaled) != 1 or scaled[0].count(X) > 1 or not all(symbol in weights for symbol in scaled[0][1:]) or len(scaled[0]) > 2:
        return None
    symbols = scaled[0][1:]
    rest = {power: size for power, size in add([value, scale(_centred(symbols, groups.mean), -root)]).items() if abs(size) > 1e-6}
    offsets = [weights.get(power[0]) for power, size in rest.items() if len(power) == 1 and same(size, 1.0)]
    if len(rest) > 1 or len(offsets) != len(rest) or None in offsets:
        return None
    return _Form(weights[symbols[0]] if symbols else None, offsets[0] if offsets else None, root, symbols)


def _centred(symbols: Monomial, mean: float) -> Polynomial:
    """Returns the data less their mean, times `symbols`."""
    return {(X, *symbols): 1.0, symbols: -mean}


def _gradient(body: Body, groups: Groups, form: _Form, root: float) -> Gradient | None:
    candidates = (edge for edge, nodes in groups.unknown.items() if not {"Mul", "RealDiv"}.isdisjoint(body.ops[node] for node in nodes))
    for incoming in dict.fromkeys(_handed_on(body, groups, edge) for edge in candidates):
        found = _gradient_from(groups.with_gradient(incoming), incoming, form, root)
        if found is not None:
            return found
    return None


def _handed_on(body: Body, groups: Groups, edge: Edge) -> Edge:
    """Returns the tensor of the data's shape that `edge` is made of by what gradients of broadcasts put in its way: sums over axes that may be none, reshapes,
    a sign.
    """
    first = edge
    for _ in range(NEAR):
        if body.ops[edge[0]] not in HANDING_ON:
            break
        edge = body.inputs[edge[0]][0]
        first = edge if groups.is_data(edge) else first
    return first


def _gradient_from(groups: Groups, incoming: Edge, form: _Form, root: float) -> Gradient | None:
    scale, offset = _of_weights(groups, root) if groups.by_row else _of_leaves(groups, root)
    wanted, around = _for_data(groups, form, root), tuple(groups.nodes)
    for node in groups.nodes:
        if alike(groups.values[node, 0], wanted):
            return Gradient(incoming, node, (), scale, offset, around)
    for node, ports in groups.partial.items():
        if ports and alike(groups.sum_of_known(node), wanted):
            return Gradient(incoming, node, tuple(ports), scale, offset, around)
    return Gradient(incoming, None, (), scale, offset, around) if scale and offset else None


def _of_leaves(groups: Groups, root: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the nodes that compute the gradients for a scale and an offset with one number a group."""
    product = groups.moment((X, DY)) - groups.mean * groups.moment((DY,))
    return groups.computing(root * product * groups.count), groups.computing(groups.moment((DY,)) * groups.count)


def _of_weights(groups: Groups, root: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the nodes that compute the gradients for a scale and an offset that are the same for all groups."""
    wanted: tuple[Polynomial, Polynomial] = scale(_centred((DY,), groups.mean), root), {(DY,): 1.0}
    ours, theirs = (tuple(node for node, value in groups.across.items() if alike(value, one)) for one in wanted)
    return ours, theirs


def _for_data(groups: Groups, form: _Form, root: float) -> Polynomial:
    """Returns the gradient for the data: f * (d - mean(d) - (x - mean) / (variance + epsilon) * mean(d * (x - mean))), where f is the factor of `form`, and d
    the incoming gradient times the symbols of `form` (`FusedBatchNormGrad` in TensorFlow's `fused_batch_norm_op.cc`).
    """
    gradient: Monomial = (DY, *form.symbols)
    mean = groups.moment(gradient)
    slope = root**2 * (groups.moment((X, *gradient)) - groups.mean * mean)
    return scale({gradient: 1.0, (): slope * groups.mean - mean, (X,): -slope}, form.factor)
