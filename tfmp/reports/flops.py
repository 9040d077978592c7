"""Floating-point operations of matrix multiplications and convolutions, from shapes: two for each multiply-add."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from tfmp import tf_api
from tfmp.graph.body import Body
from tfmp.graph.flat import Shape
from tfmp.graph.wire import Node

UNKNOWN = 32
"""Stands for a dimension that is not known before the program runs, which mostly is the batch; shares of one program's FLOPs hardly depend on it."""

Formula = Callable[[tf_api.NodeDef, list[list[int]], list[int]], float]
"""Node, input shapes and output shape to FLOPs."""


def _matmul(node: tf_api.NodeDef, inputs: list[list[int]], output: list[int]) -> float:
    transposed = any(node.attr[name].b for name in ("transpose_a", "adj_x") if name in node.attr)
    return 2.0 * math.prod(output) * inputs[0][-2 if transposed else -1]


def _einsum(node: tf_api.NodeDef, inputs: list[list[int]], output: list[int]) -> float:
    terms = node.attr["equation"].s.decode().replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=True):
        head, dots, tail = term.partition("...")
        middle = shape[len(head) : len(shape) - len(tail)] if dots else []
        sizes.update(zip(head, shape, strict=False))
        sizes.update(zip(reversed(tail), reversed(shape), strict=False))
        sizes.update((f"...{axis}", size) for axis, size in enumerate(reversed(middle)))
    return 2.0 * math.prod(sizes.values())


def _convolution(filter_input: int, dense_input: int | None, per_channel: bool) -> Formula:
    """FLOPs of a convolution or one of its gradients: each element of the dense tensor (the output, or the gradient of it) takes one filter volume.

    Args:
      filter_input: which input is the filter, or -1 if the output has the filter's shape.
      dense_input: which input is the gradient of the output, or None if the output itself is meant.
      per_channel: depthwise: a filter volume is its spatial part only.
    """

    def flops(node: tf_api.NodeDef, inputs: list[list[int]], output: list[int]) -> float:
        kernel = output if filter_input < 0 else inputs[filter_input]
        volume = math.prod(kernel[:-2]) * (1 if per_channel else kernel[-2])
        return 2.0 * math.prod(output if dense_input is None else inputs[dense_input]) * volume

    return flops


FORMULAS: dict[str, Formula] = {
    "MatMul": _matmul,
    "BatchMatMul": _matmul,
    "BatchMatMulV2": _matmul,
    "BatchMatMulV3": _matmul,
    "Einsum": _einsum,
    **{f"Conv{n}D": _convolution(1, None, per_channel=False) for n in (2, 3)},
    **{op: _convolution(1, 2, per_channel=False) for op in ("Conv2DBackpropInput", "Conv3DBackpropInputV2")},
    **{op: _convolution(-1, 2, per_channel=False) for op in ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2")},
    "DepthwiseConv2dNative": _convolution(1, None, per_channel=True),
    "DepthwiseConv2dNativeBackpropInput": _convolution(1, 2, per_channel=True),
    "DepthwiseConv2dNativeBackpropFilter": _convolution(-1, 2, per_channel=True),
}
"""Op type to its formula; the layouts of the arguments are those of the op definitions."""


def flops(node: tf_api.NodeDef, inputs: Sequence[Shape], output: Shape) -> float:
    """Returns the FLOPs of one run of `node`, 0.0 for an op that is not in `FORMULAS` or a shape whose rank is unknown.

    Args:
      node: the node, for its attributes.
      inputs: shape of each data input; None for an unknown rank, None in a shape for an unknown size.
      output: shape of the first output.
    """
    formula = FORMULAS.get(node.op)
    if formula is None or output is None or any(shape is None for shape in inputs):
        return 0.0
    known = [[UNKNOWN if size is None else size for size in shape] for shape in inputs if shape is not None]
    return formula(node, known, [UNKNOWN if size is None else size for size in output])


def multiplying(body: Body) -> Iterator[tuple[Node, int]]:
    """Yields the nodes of `FORMULAS` that the program had, whose shapes tell how much is multiplied, each with the number of the node that does it now: its
    own, or that of the kernel in its place.
    """
    for node in body.nodes_of(FORMULAS):
        if node in body.replaced or node not in body.made:
            yield body.nodes[node], body.replaced.get(node, node)
    yield from ((gone, kernel) for op, gone, kernel in body.gone if op in FORMULAS)
