"""A scale and an offset for each channel, in one kernel: what batch normalisation is once its statistics are settled.

In 16 bit, x * scale + offset rounds both parameters, the product and the sum. `FusedBatchNormV3` reads the data once, computes in float32, and rounds once;
TensorFlow's own optimizer puts it together with a convolution or a ReLU beside it (`remapper.cc`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion.counts import LOOKS_AT_SHAPES
from tfmp.fusion.norms import ADDITIONS, CHANNEL_RANKS
from tfmp.graph.body import Body, Edge
from tfmp.graph.readers import Readers
from tfmp.program.shapes import Shape, Sizes

CONVOLUTIONS = frozenset({"Conv2D", "Conv2DBackpropInput", "Conv3D", "Conv3DBackpropInputV2", "DepthwiseConv2dNative"})
"""Where there is none, data of four or five axes are no images, and nothing is looked for."""


@dataclasses.dataclass(frozen=True)
class Affine:
    """data * scale + offset.

    Attributes:
      result: the node that adds.
      product: the node that multiplies.
      data: of four or five axes.
      scale, offset: with one number a channel.
      shapes: where the shape of the product is looked at.
    """

    result: int
    product: int
    data: Edge
    scale: Edge
    offset: Edge
    shapes: tuple[Edge, ...]


def affines(body: Body, sizes: Sizes, readers: Readers, kept: Collection[int]) -> Iterator[Affine]:
    """Yields scales and offsets of channels in `body`; the arguments are those of `norms.norms`."""
    for node in body.nodes_of(ADDITIONS) if body.nodes_of(CONVOLUTIONS) else ():
        if node not in kept and body.types[node][0] == DT_FLOAT:
            shape = sizes.shape((node, 0))
            if shape is not None and len(shape) in CHANNEL_RANKS and shape[-1]:
                found = _found(body, sizes, readers, node, shape)
                if found is not None and found.product not in kept:
                    yield found


def _found(body: Body, sizes: Sizes, readers: Readers, node: int, shape: Shape) -> Affine | None:
    for (product, output), offset in (body.inputs[node], reversed(body.inputs[node])):
        if body.ops[product] == "Mul" and not output and _per_channel(sizes.shape(offset), shape):
            looking = [reader for reader in readers[product][0] if body.ops[reader[0]] in LOOKS_AT_SHAPES]
            for data, scale in (body.inputs[product], reversed(body.inputs[product])):
                alone = len(readers[product][0]) == len(looking) + 1
                if alone and sizes.shape(data) == shape and _per_channel(sizes.shape(scale), shape):
                    return Affine(node, product, data, scale, offset, tuple(looking))
    return None


def _per_channel(shape: Shape, data: Shape) -> bool:
    """Returns whether a tensor has one number for each channel of data of the shape `data`."""
    if not shape or data is None or len(shape) > len(data):
        return False
    return shape[-1] == data[-1] and all(size == 1 for size in shape[:-1])
