"""What small integer tensors hold: axes, shapes, and counts that are worked out from shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tfmp import tf_api
from tfmp.graph.body import Body, Edge

Dimensions = Callable[[Edge], Sequence[int] | None]
"""A tensor to its dimensions, numbers standing for those that are not known; None where nothing is known."""

LOOKS_AT_SHAPES = frozenset({"Shape", "ShapeN", "Size"})

DEPTH = 12
"""How many ops back a count is looked for. Our own choice: gradients of means take eight."""

ARITHMETIC: Mapping[str, Callable[..., np.ndarray]] = {
    "AddV2": np.add,
    "Cast": np.asarray,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "GatherV2": lambda values, indices, axis: np.take(values, indices, axis=int(axis)),
    "Identity": np.asarray,
    "Maximum": np.maximum,
    "Mul": np.multiply,
    "Prod": lambda values, axes: np.prod(values, axis=tuple(np.atleast_1d(axes).tolist())),
    "Sub": np.subtract,
}
"""Op to what it makes of arrays."""


Constants = dict[int, np.ndarray]
"""Kind of a Const to its value; filled as they are read."""


def numbers(body: Body, edge: Edge, dimensions: Dimensions, constants: Constants, depth: int = DEPTH) -> np.ndarray | None:
    """Returns what the tensor `edge` holds, None if that cannot be told."""
    node, port = edge
    op = body.ops[node]
    if op == "Const":
        kind = body.kind_of[node]
        if kind not in constants:
            constants[kind] = np.asarray(tf_api.read_tensor(body.protos[node].attr["value"].tensor))
        return constants[kind]
    if op in LOOKS_AT_SHAPES:
        found = dimensions(body.inputs[node][port])
        return None if found is None else np.asarray(np.prod(found) if op == "Size" else found)
    if op not in ARITHMETIC and op != "BroadcastGradientArgs" or not depth:
        return None
    values = [numbers(body, source, dimensions, constants, depth - 1) for source in body.inputs[node]]
    if any(value is None for value in values):
        return None
    if op == "BroadcastGradientArgs":
        return _repeated(values[port].tolist(), values[1 - port].tolist())  # type: ignore[union-attr]
    try:
        return ARITHMETIC[op](*values)
    except (ValueError, IndexError, np.exceptions.AxisError):  # the program itself would fail there
        return None


def axes_of(body: Body, edge: Edge, rank: int, dimensions: Dimensions, constants: Constants) -> tuple[int, ...] | None:
    """Returns the axes that the tensor `edge` names of another one with `rank` axes, positive and in ascending order; None if that cannot be told."""
    found = numbers(body, edge, dimensions, constants)
    return None if found is None else tuple(sorted(axis % rank for axis in found.ravel().tolist()))


def _repeated(own: Sequence[int], other: Sequence[int]) -> np.ndarray:
    """Returns the axes of the broadcast result along which an operand is repeated, or has size 1 like the other one (`BCast` in TensorFlow's `bcast.h`)."""
    rank = max(len(own), len(other))
    aligned = [1] * (rank - len(own)) + list(own)
    longer = [1] * (rank - len(other)) + list(other)
    missing = rank - len(own)
    return np.array([axis for axis in range(rank) if axis < missing or aligned[axis] == 1 or (aligned[axis] != longer[axis] != 1)], np.int32)
