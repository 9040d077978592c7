"""Batch normalisation of data by its own statistics, and its gradient, found by what they compute.

Forward: y = (x - mean) * rsqrt(variance + epsilon) * scale + offset (Ioffe and Szegedy, "Batch Normalization", 2015), backward their gradients with respect
to x, scale and offset, as `FusedBatchNormV3` and `FusedBatchNormGradV3` compute them (`nn_ops.cc`, `fused_batch_norm_op.cc`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion.algebra import DATA, GRADIENT, ONE, Polynomial, alike, number_of, same
from tfmp.fusion.channels import Channels, is_ready
from tfmp.graph.view import Body, Edge
from tfmp.program.shapes import Sizes

RANKS = (4, 5)
"""Of the data: what the kernels take."""


@dataclasses.dataclass(frozen=True)
class Gradient:
    """The gradient of one batch normalisation.

    Attributes:
      incoming: the gradient for the result.
      data: the node that computes the gradient for the data, or adds it to others; None if nothing needs it.
      summands: the input ports of that node that it is the sum of; () for what is one as a whole.
      scale, offset: the nodes that compute the gradients for scale and offset.
    """

    incoming: Edge
    data: int | None
    summands: tuple[int, ...]
    scale: tuple[int, ...]
    offset: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class BatchNorm:
    """One batch normalisation.

    Attributes:
      data: what is normalised.
      result: the node that computes the normalised data.
      scale, offset: one number a channel; None for 1 and 0.
      epsilon: what is added to the variance.
      count: how many elements a channel has; None if only the program knows.
      mean, variance: the nodes that compute the statistics.
      shapes: the nodes that look at the shape of something that has the data's shape.
      gradient: its gradient, if that is in the same graph.
      touched: every node that it consists of.
    """

    data: Edge
    result: int
    scale: Edge | None
    offset: Edge | None
    epsilon: float
    count: int | None
    mean: tuple[int, ...]
    variance: tuple[int, ...]
    shapes: tuple[Edge, ...]
    gradient: Gradient | None
    touched: tuple[int, ...]


def batch_norms(body: Body, sizes: Sizes, readers: Sequence[Sequence[Sequence[Edge]]], kept: frozenset[int]) -> Iterator[BatchNorm]:
    """Yields the batch normalisations of `body`.

    Args:
      body: a function.
      sizes: the shapes of its tensors.
      readers: `body.readers()`.
      kept: nodes that must stay as they are.
    """
    done: set[Edge] = set()
    for node, op in enumerate(body.ops):
        if op == "Mean" and body.inputs[node][0] not in done:
            data = body.inputs[node][0]
            done.add(data)
            if _may_be_normalised(body, sizes, data):
                found = _found(body, sizes, readers, data)
                if found is not None and not kept.intersection(found.touched):
                    done.update((one, 0) for one in found.touched)
                    yield found


def _may_be_normalised(body: Body, sizes: Sizes, data: Edge) -> bool:
    """Returns whether a channel has two elements at least: of a single one, cuDNN and TensorFlow do not agree what the corrected variance is."""
    node, port = data
    shape = sizes.shape(data)
    if body.types[node][body.layouts[node].outputs[port]] != DT_FLOAT or shape is None or len(shape) not in RANKS or shape[-1] is None:
        return False
    return math.prod(size for size in shape[:-1] if size is not None) > 1


def _found(body: Body, sizes: Sizes, readers: Sequence[Sequence[Sequence[Edge]]], data: Edge) -> BatchNorm | None:
    channels = Channels(body, sizes, readers, data)
    channels.spread(data)
    mean, variance = (_computing(body, channels, target) for target in (channels.mean, channels.variance))
    if not mean or not variance:
        return None
    for epsilon in _epsilons(body, channels):
        root = (channels.variance + epsilon) ** -0.5
        for node in channels.nodes:
            value = channels.values[node, 0]
            factor, rest = value.get(DATA, 0.0) / root, value.get(ONE, 0.0) + channels.mean * value.get(DATA, 0.0)
            scale, offset = _leaf(body, channels, factor, 1.0), _leaf(body, channels, rest, 0.0)
            if set(value) <= {DATA, ONE} and scale is not None and offset is not None:
                gradient = _gradient(body, channels, factor, root)
                nodes = (*channels.nodes, *((gradient.data,) if gradient and gradient.data is not None else ()))
                return BatchNorm(
                    data, node, scale[0], offset[0], epsilon, _count(channels), mean, variance, _shapes(body, readers, channels, node), gradient, nodes
                )
    return None


def _count(channels: Channels) -> int | None:
    return None if None in channels.shape else math.prod(channels.shape[:-1])  # type: ignore[arg-type]


def _computing(body: Body, channels: Channels, target: float) -> tuple[int, ...]:
    """Returns the nodes that compute `target` for each channel from what is something else."""
    found = [node for node, value in channels.statistics() if same(value, target)]
    return tuple(node for node in found if not any(source in found for source, _ in body.inputs[node]))


def _epsilons(body: Body, channels: Channels) -> Iterator[float]:
    """Yields the numbers that are added to the variance."""
    for node, value in channels.statistics():
        if body.ops[node] in ("Add", "AddV2") and len(body.inputs[node]) == 2:
            for own, other in (body.inputs[node], reversed(body.inputs[node])):
                number = channels.number(other) if same(number_of(channels.values[own]) or 0.0, channels.variance) else None
                if number is not None and number > 0 and same(value, channels.variance + number):
                    yield number


def _leaf(body: Body, channels: Channels, target: float, neutral: float) -> tuple[Edge | None] | None:
    """Returns the tensor that holds `target` for each channel, and is there before the data is; (None,) if that is the neutral number."""
    if same(target, neutral):
        return (None,)
    for edge, number in channels.leaves.items():
        if same(number, target) and is_ready(body, edge):
            return (edge,)
    return None


def _shapes(body: Body, readers: Sequence[Sequence[Sequence[Edge]]], channels: Channels, result: int) -> tuple[Edge, ...]:
    found = (node for node in channels.nodes if node != result and channels.is_data((node, 0)))
    return tuple(reader for node in found for reader in readers[node][0] if body.ops[reader[0]] in ("Shape", "ShapeN", "Size"))


def _gradient(body: Body, channels: Channels, factor: float, root: float) -> Gradient | None:
    for incoming, nodes in channels.unknown.items():
        if any(body.ops[node] == "Mul" for node in nodes):
            found = _gradient_from(body, channels.with_gradient(incoming), incoming, factor, root)
            if found is not None:
                return found
    return None


def _gradient_from(body: Body, channels: Channels, incoming: Edge, factor: float, root: float) -> Gradient | None:
    centred = channels.product_sum - channels.mean * channels.gradient_sum
    wanted = for_data(factor * root, root, channels.mean, channels.gradient_sum / channels.count, centred / channels.count)
    offset, scale = _computing(body, channels, channels.gradient_sum), _computing(body, channels, root * centred)
    for node in channels.nodes:
        if alike(channels.values[node, 0], wanted):
            return Gradient(incoming, node, (), scale, offset)
    for node, ports in channels.partial.items():
        if ports and alike(channels.sum_of_known(node), wanted):
            return Gradient(incoming, node, tuple(ports), scale, offset)
    return Gradient(incoming, None, (), scale, offset) if scale and offset else None


def for_data(factor: float, root: float, mean: float, gradient: float, product: float) -> Polynomial:
    """Returns the gradient for the data (`FusedBatchNormGrad` in `fused_batch_norm_op.cc`).

    Args:
      factor: scale * rsqrt(variance + epsilon).
      root: rsqrt(variance + epsilon).
      mean: of the data.
      gradient: mean of the incoming gradient.
      product: mean of the incoming gradient times the centred data.
    """
    slope = -factor * root**2 * product
    return {GRADIENT: factor, DATA: slope, ONE: -factor * gradient - slope * mean}


