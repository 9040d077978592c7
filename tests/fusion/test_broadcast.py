"""Shapes that follow from operands are those that TensorFlow's own shape functions find."""

from __future__ import annotations

import itertools

import pytest
import tensorflow as tf

from tfmp.fusion.algebra import ELEMENTWISE
from tfmp.fusion.broadcast import BROADCASTING, broadcast

SHAPES = [None, (), (1,), (3,), (None,), (0,), (2, 3), (None, 3), (2, None), (1, 3), (2, 1), (None, 1), (None, None), (4, 2, 3), (None, 2, 1)]

UNARY = {"Neg", "Reciprocal", "Rsqrt", "Sqrt", "Square"}


@pytest.mark.parametrize("op", sorted(ELEMENTWISE))
def test_shapes_are_tensorflows(op: str) -> None:
    told = 0
    for shapes in itertools.product(SHAPES, repeat=1 if op in UNARY else 2):
        with tf.Graph().as_default():
            operands = [tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes]
            try:
                result = getattr(tf.raw_ops, op)(**({"inputs": operands} if op == "AddN" else dict(zip(NAMES.get(op, "xy"), operands, strict=False))))
            except ValueError:
                continue  # these do not fit
        found = broadcast(op, shapes)
        actual = None if result.shape.rank is None else tuple(result.shape)
        assert found is None or found == actual, (op, shapes)
        told += found is not None
    assert told >= (40 if op in BROADCASTING else 10)


NAMES = dict.fromkeys(("ReciprocalGrad", "RsqrtGrad", "SqrtGrad"), ("y", "dy"))
