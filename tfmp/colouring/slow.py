"""The guard for kernels that exist, but are slower in 16 bit than in float32 on the hardware at hand, or for the shapes at hand."""

from __future__ import annotations

from tfmp.colouring.canvas import Canvas
from tfmp.graph.body import Edge
from tfmp.program.shapes import Shape
from tfmp.slow_kernels import DEPTHWISE, fits_cudnn


def keep_slow_kernels(canvas: Canvas) -> None:
    """Keeps nodes in float32 whose 16-bit kernel is known to be slower (`slow_kernels`) on a device that runs them; XLA compiles its own kernels."""
    slow, slow_filter, device = canvas.rules.slow, canvas.rules.slow_filter, canvas.rules.device
    asked = {*slow, *(DEPTHWISE if slow_filter else ())}
    for node in canvas.graph.body.nodes_of(asked):
        if canvas.processable[node] and device in canvas.devices(node):
            reason = slow.get(canvas.graph.body.ops[node]) or ("" if _fits_cudnn(_filter_shape(canvas, node)) else slow_filter)
            if reason:
                canvas.keep(node, "slow kernel", detail=reason)


def _filter_shape(canvas: Canvas, node: int) -> Shape:
    """Returns the shape of the filter of a depthwise convolution, or of the filter that it computes the gradient of."""
    body = canvas.graph.body
    filter_: Edge = (node, 0) if body.ops[node].endswith("BackpropFilter") else body.inputs[node][1]
    return canvas.sizes.shape(filter_)


def _fits_cudnn(shape: Shape) -> bool:
    """Returns whether cuDNN takes a filter of that shape; one that is not fully known is taken to be an ordinary one."""
    if shape is None or len(shape) != 4 or None in shape:
        return True
    return fits_cudnn(*(size for size in shape if size is not None))
