"""FLOPs against counts worked out by hand from the definition of each product."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfmp.reports.flops import FORMULAS, UNKNOWN, flops
from tfmp.tf_api import NodeDef, op_def


def node(op: str, **attrs: object) -> NodeDef:
    made = NodeDef(name="n", op=op)
    for name, value in attrs.items():
        if isinstance(value, bool):
            made.attr[name].b = value
        else:
            made.attr[name].s = str(value).encode()
    return made


@pytest.mark.parametrize(
    ("op", "attrs", "inputs", "output", "expected"),
    [
        ("MatMul", {}, [[3, 5], [5, 7]], [3, 7], 2 * 3 * 5 * 7),
        ("MatMul", {"transpose_a": True}, [[5, 3], [5, 7]], [3, 7], 2 * 3 * 5 * 7),
        ("BatchMatMulV2", {"adj_x": True}, [[4, 5, 3], [4, 5, 7]], [4, 3, 7], 2 * 4 * 3 * 5 * 7),
        ("Einsum", {"equation": "abc,cd->abd"}, [[2, 3, 5], [5, 7]], [2, 3, 7], 2 * 2 * 3 * 5 * 7),
        ("Einsum", {"equation": "...ab,...bc->...ac"}, [[4, 2, 3], [4, 3, 5]], [4, 2, 5], 2 * 4 * 2 * 3 * 5),
        ("Conv2D", {}, [[2, 8, 8, 3], [3, 3, 3, 16]], [2, 6, 6, 16], 2 * 2 * 6 * 6 * 16 * 3 * 3 * 3),
        ("Conv2DBackpropInput", {}, [[4], [3, 3, 3, 16], [2, 6, 6, 16]], [2, 8, 8, 3], 2 * 2 * 6 * 6 * 16 * 3 * 3 * 3),
        ("Conv2DBackpropFilter", {}, [[2, 8, 8, 3], [4], [2, 6, 6, 16]], [3, 3, 3, 16], 2 * 2 * 6 * 6 * 16 * 3 * 3 * 3),
        ("Conv3D", {}, [[1, 4, 4, 4, 2], [2, 2, 2, 2, 8]], [1, 3, 3, 3, 8], 2 * 27 * 8 * 8 * 2),
        ("DepthwiseConv2dNative", {}, [[1, 5, 5, 4], [3, 3, 4, 2]], [1, 3, 3, 8], 2 * 9 * 8 * 9),
        ("MatMul", {}, [[None, 5], [5, 7]], [None, 7], 2 * UNKNOWN * 5 * 7),
        ("MatMul", {}, [None, [5, 7]], None, 0),
        ("Relu", {}, [[3]], [3], 0),
    ],
)
def test_count(op: str, attrs: dict[str, object], inputs: list[list[int | None] | None], output: list[int | None] | None, expected: float) -> None:
    assert flops(node(op, **attrs), inputs, output) == expected


def test_every_formula_is_for_an_op_that_exists() -> None:
    assert [op for op in FORMULAS if op_def(op) is None] == []


def test_convolution_agrees_with_tensorflows_profiler() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.zeros([2, 8, 8, 3])
        y = tf.nn.conv2d(x, tf.zeros([3, 3, 3, 16]), 1, "VALID")
        tf.linalg.matmul(tf.reshape(y, [72, 16]), tf.zeros([16, 10]))
        counted = tf.compat.v1.profiler.profile(graph, options=tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()).total_float_ops
        ours = sum(
            flops(op.node_def, [t.shape.as_list() for t in op.inputs], op.outputs[0].shape.as_list()) for op in graph.get_operations() if op.type in FORMULAS
        )
    assert ours == counted
