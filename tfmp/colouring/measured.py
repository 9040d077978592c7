"""The two passes that go by measured ranges (`tfmp.numerics.calibrate`): what does not fit stays in float32, what is proved to fit is no longer denied."""

from __future__ import annotations

from collections.abc import Sequence

from tfmp.colouring.canvas import Canvas
from tfmp.graph.body import RETVAL
from tfmp.measured.naming import aliases
from tfmp.measured.rules import Names
from tfmp.oplists import DENY, INFER
from tfmp.program.union import Union


def keep_out_of_range(canvas: Canvas) -> None:
    """Keeps in float32 the nodes, and the single outputs of calls, loops and branches, whose ranges do not fit, unless the user forces them."""
    names, measured = _names(canvas)
    forced, graph = canvas.rules.wishes.force, canvas.graph
    outputs = {name.rpartition(":")[0] for name in measured.keep if ":" in name}
    for node, name in enumerate(names):
        if node in forced or graph.body.ops[node] == RETVAL:
            continue
        if name in measured.keep:
            canvas.keep(node, "measured out of range")
        for port, slot in enumerate(graph.body.layouts[node].outputs if name in outputs else ()):
            vertex = graph.first[node] + slot
            if f"{name}:{port}" in measured.keep and canvas.is_float32(vertex):
                canvas.paint_deny(graph.stands_for[vertex], "measured out of range")


def free_in_range(canvas: Canvas) -> None:
    """Treats the denylist nodes whose ranges are proved to fit as if they were on the inferlist."""
    names, measured = _names(canvas)
    nodes = [node for node, name in enumerate(names) if name in measured.free and canvas.list_of(node) == DENY]
    if nodes:
        canvas.put_on_list(nodes, INFER)


def _names(canvas: Canvas) -> tuple[Sequence[str], Names]:
    """Returns the names of the nodes as they were measured, and what was measured."""
    names, other = canvas.graph.body.names, aliases_of(canvas.union)
    fitting, _ = canvas.rules.measured.fitting(names, other)
    return (names if fitting is canvas.rules.measured.names else other), fitting


def aliases_of(union: Union) -> list[str]:
    """Returns the alias of every node of `union`, instance by instance."""
    ends = (*union.offsets[1:], len(union.body))
    return [alias for start, end in zip(union.offsets, ends, strict=True) for alias in aliases(union.body.names[start:end])]
