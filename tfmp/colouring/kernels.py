"""The guards around kernels that were put in the place of other ops (`tfmp.fusion`)."""

from __future__ import annotations

import numpy as np

from tfmp.colouring.canvas import Canvas


def leave_replaced(canvas: Canvas) -> None:
    """Leaves what a kernel computes in its stead: TensorFlow prunes it."""
    replaced = canvas.graph.body.replaced
    if replaced:
        causes = np.array([canvas.graph.first[kernel] for kernel in replaced.values()])
        canvas.leave_all(np.array(list(replaced)), "replaced by a kernel", causes)
        canvas.put_on_list(replaced, None)  # what they do, they do to nobody


def keep_residual_sums(canvas: Canvas) -> None:
    """Keeps in float32 the sums that run past the layers of a Transformer, forward and backward: each layer adds to what all those before it have made, and
    its rounding would be there to the end. PyTorch's autocast has them in float32 too, since its `layer_norm` gives float32 (`autocast_mode.h`).
    """
    for node in sorted(canvas.graph.body.residual):
        canvas.leave(node, "residual sum")
