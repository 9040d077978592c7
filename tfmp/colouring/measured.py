"""The two passes that go by measured ranges (`tfmp.numerics.calibrate`): what does not fit stays in float32, what is proved to fit is no longer denied."""

from __future__ import annotations

from tfmp.colouring.canvas import Canvas
from tfmp.graph.view import RETVAL
from tfmp.oplists import DENY, INFER


def keep_out_of_range(canvas: Canvas) -> None:
    """Keeps in float32 the nodes, and the single outputs of calls, loops and branches, whose ranges do not fit, unless the user forces them."""
    keep, forced, graph = canvas.rules.measured.keep, canvas.rules.wishes.force, canvas.graph
    outputs = {name.rpartition(":")[0] for name in keep if ":" in name}
    for node, name in enumerate(graph.body.names):
        if node in forced or graph.body.ops[node] == RETVAL:
            continue
        if name in keep:
            canvas.keep(node, "measured out of range")
        for port, slot in enumerate(graph.body.layouts[node].outputs if name in outputs else ()):
            vertex = graph.first[node] + slot
            if f"{name}:{port}" in keep and canvas.is_float32(vertex):
                canvas.paint_deny(graph.stands_for[vertex], "measured out of range")


def free_in_range(canvas: Canvas) -> None:
    """Treats the denylist nodes whose ranges are proved to fit as if they were on the inferlist."""
    free = canvas.rules.measured.free
    nodes = [node for node, name in enumerate(canvas.graph.body.names) if name in free and canvas.kind[node] == DENY]
    if nodes:
        canvas.put_on_list(nodes, INFER)
