"""Shapes of what elementwise ops make: they follow from the operands', which is faster than to ask the Python graph."""

from __future__ import annotations

from collections.abc import Sequence

from tfmp.program.shapes import Shape

BROADCASTING = frozenset({"Add", "AddV2", "Div", "Mul", "RealDiv", "SquaredDifference", "Sub"})


def broadcast(op: str, shapes: Sequence[Shape]) -> Shape:
    """Returns the shape of what the elementwise op `op` makes of operands of these shapes, None if that cannot be told from them alone.

    (`BroadcastBinaryOpOutputShapeFnHelper` in TensorFlow's `common_shape_fns.cc`. Where the program narrowed a result down with `set_shape`, its Python graph
    knows more; where it narrowed an operand down after the op was made, less.)
    """
    first, second = shapes[0], shapes[-1]
    if all(shape == first for shape in shapes):
        return first
    if op not in BROADCASTING or first is None or second is None:
        return None
    rank = max(len(first), len(second))
    return tuple(map(_together, (1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second))


def _together(first: int | None, second: int | None) -> int | None:
    """Returns the size of the result along an axis; a size that is not known may be 1, and then the other may be 0."""
    if first == 1 or first == second:
        return second
    if second == 1:
        return first
    return first or second or None
