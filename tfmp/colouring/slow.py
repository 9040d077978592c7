"""The guard for kernels that exist, but are slower in 16 bit than in float32 on the hardware at hand."""

from __future__ import annotations

from tfmp.colouring.canvas import Canvas


def keep_slow_kernels(canvas: Canvas) -> None:
    """Keeps nodes in float32 whose 16-bit kernel is known to be slower (`slow_kernels.ROWS`) on a device that runs them; XLA compiles its own kernels."""
    slow, device = canvas.rules.slow, canvas.rules.device
    for node, op in enumerate(canvas.graph.body.ops) if slow else ():
        if op in slow and canvas.processable[node] and device in canvas.devices(node):
            canvas.keep(node, "slow kernel", detail=slow[op])
