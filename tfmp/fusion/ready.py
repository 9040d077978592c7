"""What is there before any data is: parameters and constants, in the shape that they have or in another."""

from __future__ import annotations

from tfmp.graph.body import ARG, Body, Edge
from tfmp.program.rearrange import COPIES as REPEATING

SAME_NUMBERS = REPEATING | {"ExpandDims", "Identity", "PreventGradient", "Reshape", "Squeeze", "StopGradient"}
"""Ops whose result has no other numbers than their first input."""

NEAR = 4
"""How many such ops away what is READY is looked for. Our own choice."""

READY = frozenset({ARG, "Const", "ReadVariableOp"})


def is_ready(body: Body, edge: Edge) -> bool:
    """Returns whether a tensor is there before any data is, in the shape that it has or in another."""
    return body.ops[way_back(body, edge)[-1]] in READY


def way_back(body: Body, edge: Edge) -> list[int]:
    """Returns the node that makes a tensor, and those that made it before it was given other shapes."""
    way = [edge[0]]
    while body.ops[way[-1]] in SAME_NUMBERS and len(way) <= NEAR:
        way.append(body.inputs[way[-1]][0][0])
    return way
