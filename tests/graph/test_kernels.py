"""Which kernels there are: what TensorFlow says when it runs the op."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfmp.dtypes import BFLOAT16, DT_FLOAT, DT_HALF, FLOAT16, FloatFormat
from tfmp.graph.kernels import has_kernel

# Ops of one or two equal inputs; those with and without half kernels on a CPU.
UNARY = (
    "Abs", "Acos", "Cholesky", "Cos", "Digamma", "Dawsn", "Erf", "Erfinv", "Exp", "Expint", "FresnelCos", "Inv", "Log", "MatrixDeterminant",
    "MatrixInverse", "Ndtri", "Neg", "Relu", "Rint", "Rsqrt", "SelfAdjointEig", "Sigmoid", "Softmax", "Sqrt", "Tanh", "Selu",
)  # fmt: skip
BINARY = ("AddV2", "Igamma", "MatMul", "MatrixSolve", "Maximum", "Mod", "Mul", "Pow", "RealDiv", "SquaredDifference", "Xlogy", "Zeta")


def runs(op: str, dtype: str) -> bool:
    """Returns whether TensorFlow finds a kernel when it runs `op` on the CPU; other complaints do not count."""
    value = tf.cast(np.eye(2, dtype=np.float32), dtype)
    names = [arg.name for arg in _definition(op).input_arg]
    try:
        with tf.device("CPU:0"):
            getattr(tf.raw_ops, op)(**dict.fromkeys(names, value))
    except (tf.errors.NotFoundError, tf.errors.UnimplementedError, tf.errors.InvalidArgumentError, TypeError):
        return False
    return True


def _definition(op: str) -> Any:
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(op)


@pytest.mark.parametrize("target", [FLOAT16, BFLOAT16], ids=lambda target: target.name)
@pytest.mark.parametrize("op", [*UNARY, *BINARY])
def test_there_is_a_kernel_where_tensorflow_can_run_the_op(op: str, target: FloatFormat) -> None:
    allowed = {number for attr in _definition(op).attr if attr.name == "T" for number in attr.allowed_values.list.type}
    assert (target.number in allowed and has_kernel(op, "CPU", {"T": frozenset({target.number})})) == runs(op, target.name)


def test_the_ops_tried_are_of_both_kinds() -> None:
    assert {has_kernel(op, "CPU", {"T": frozenset({DT_HALF})}) for op in UNARY} == {True, False}


def test_all_types_of_a_list_must_fit() -> None:
    assert has_kernel("IdentityN", "CPU", {"T": frozenset({DT_FLOAT, DT_HALF})})
    assert not has_kernel("FusedBatchNormV3", "CPU", {"T": frozenset({DT_HALF}), "U": frozenset({DT_HALF})})
    assert has_kernel("FusedBatchNormV3", "CPU", {"T": frozenset({DT_HALF}), "U": frozenset({DT_FLOAT})})


def test_kernels_for_every_device_count() -> None:
    """Enter has no CPU kernel of its own for every type, but one of the default device."""
    assert has_kernel("Identity", "CPU", {"T": frozenset({DT_HALF})})
    assert not has_kernel("Identity", "NOWHERE", {"T": frozenset({3})}) or has_kernel("Identity", "DEFAULT", {"T": frozenset({3})})


def test_an_op_without_kernels_has_none() -> None:
    assert not has_kernel("RiscConv", "CPU", {"T": frozenset({DT_FLOAT})})


def test_xla_is_a_device_of_its_own() -> None:
    cell = {"T": frozenset({DT_HALF})}
    assert has_kernel("LSTMBlockCell", "CPU", cell)
    assert not has_kernel("LSTMBlockCell", "XLA_CPU_JIT", cell)
    assert has_kernel("AvgPool3D", "XLA_CPU_JIT", cell)
    assert not has_kernel("AvgPool3D", "CPU", cell)
