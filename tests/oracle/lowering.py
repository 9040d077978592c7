"""Functions inlined and control flow lowered by grappler itself, as the runtime does before its mixed precision pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.oracle import client
from tests.zoo.case import strip_devices


def lower(graph_def: Any, fetches: Sequence[str]) -> Any:
    """Returns a new GraphDef with function calls inlined and functional loops and branches lowered to v1 control flow.

    This is a call of its own, before the mixed precision pass: in one call the colours would depend on function names.
    Only nodes that `fetches` need remain; nodes come in grappler's topological order and have no device.

    Args:
        graph_def: the GraphDef, unchanged.
        fetches: names of nodes to keep, without output index.

    Raises:
        OracleError: TensorFlow refused the graph.
    """
    answer = client.optimize(graph_def.SerializeToString(), fetches, ["pruning", "function", "pruning"])
    lowered = type(graph_def).FromString(answer.graph)
    strip_devices(lowered)
    return lowered
