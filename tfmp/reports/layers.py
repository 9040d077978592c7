"""Which layer a node belongs to, read from its name.

Keras and TensorFlow write the name scopes of layers into node names: "model/dense_1/MatMul" forward, "gradient_tape/model/dense_1/MatMul/MatMul_1" and
"gradients/model/dense_1/MatMul_grad/MatMul" in the backward pass. Nothing but names says which scope is a layer and which one an op has opened, so the
words below tell them apart: an op's own scope has the name of its op type, or is on a list.
"""

from __future__ import annotations

import dataclasses
import functools
import re

from tfmp import tf_api

GRADIENT_SCOPES = frozenset({"gradient_tape", "gradients"})
"""Scopes that `tf.GradientTape` and `tf.gradients` open; the path of what is differentiated begins anew behind them."""

GRADIENT_SUFFIX = "_grad"
"""What `tf.gradients` appends to the name of the op whose gradient it takes."""

TRANSPARENT = frozenset({"while", "cond", "case", "switch_case", "PartitionedCall", "StatefulPartitionedCall", "functional_while", "then", "else"})
"""Scopes of control flow and calls, which say nothing about layers: what is inside may still have layers."""

OP_SCOPES = frozenset({
    "AssignMovingAvg", "AvgPool1d", "AvgPool2d", "AvgPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d", "Read", "TensorArrayUnstack",
    "TensorArrayV2Read", "TensorArrayV2Stack", "TensorArrayV2Write", "Tensordot", "accumulator", "argmax", "batchnorm", "broadcast_weights", "concat",
    "convolution", "count_nonzero", "div", "div_no_nan", "einsum", "embedding_lookup", "floordiv", "l2_normalize", "log_loss", "logistic_loss",
    "matmul", "mod", "moments", "mul", "one_hot", "ones", "ones_like", "packed", "pow", "random_normal", "random_uniform", "range",
    "softmax_cross_entropy_with_logits", "sqrt", "stateless_dropout", "stateless_random_normal", "stateless_random_uniform", "strided_slice", "sub",
    "transpose", "truediv", "truncated_normal", "weighted_loss", "zeros", "zeros_like",
})  # fmt: skip
"""Scopes that functions of TensorFlow and Keras open around a few ops, without the number at their end; a layer's path ends before them.
Words that people call layers ("norm", "tile") are left out: a line too many in a report is better than a layer that is missing."""

AMBIGUOUS, OPERANDS = frozenset({"add", "split"}), frozenset({"x", "y", "ReadVariableOp", "split_dim"})
"""Scopes that layers (`keras.layers.Add`) as well as operators open, and the constants that an operator makes of its operands in it."""

_NUMBER = re.compile(r"(_\d+)+$")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a node belongs.

    Attributes:
      layer: path of the layer, such as "model/dense_1"; "" where the name tells of none.
      gradient: whether the node is part of a backward pass.
    """

    layer: str
    gradient: bool


def place(name: str, caller: Place | None = None) -> Place:
    """Returns the place of the node called `name`; `caller` is the place of the node that calls the function it is in, if it is in one that is called.

    Names in an inner function may repeat the caller's path (Keras 3's loops) or start anew (tf_keras's recurrent layers); both come out the same.
    """
    scopes, leaf = name.split("/")[:-1], name.rpartition("/")[2]
    gradient = any(scope in GRADIENT_SCOPES or scope.endswith(GRADIENT_SUFFIX) for scope in scopes)
    restarts = [position for position, scope in enumerate(scopes) if scope in GRADIENT_SCOPES]
    path = scopes[restarts[-1] + 1 :] if restarts else scopes
    path = path or [scope for scope in scopes if scope not in GRADIENT_SCOPES]  # "gradient_tape/model/lstm/while/gradients/AddN"
    layer = _layer([scope.removesuffix(GRADIENT_SUFFIX) for scope in path], gradient or leaf in OPERANDS)
    outer = caller.layer if caller else ""
    if outer and layer != outer and not layer.startswith(f"{outer}/"):
        layer = f"{outer}/{layer}" if layer else outer
    return Place(layer, gradient or (caller is not None and caller.gradient))


def _layer(path: list[str], of_operator: bool) -> str:
    """Returns the layer's part of a path; `of_operator` says whether a scope of `AMBIGUOUS` that holds no op of that kind would be an operator's."""
    kept: list[str] = []
    for position, scope in enumerate(path):
        plain = _NUMBER.sub("", scope)
        if plain in TRANSPARENT:
            continue
        operators = plain in AMBIGUOUS and of_operator and not any(inner.lower().startswith(plain) for inner in path[position + 1 :])
        if plain in OP_SCOPES or _is_op(plain) or operators or scope in kept[-1:]:  # tf_keras's Dropout opens a scope of its own name
            break
        kept.append(scope)
    return "/".join(_once(kept))


@functools.cache
def _is_op(scope: str) -> bool:
    return tf_api.op_def(scope) is not None


def _once(path: list[str]) -> list[str]:
    """Returns a path without its repetition: the accumulators of a loop's gradient are called "model/lstm/while/model/lstm/while/lstm_cell/..."."""
    for length in range(len(path) // 2, 0, -1):
        if path[:length] == path[length : 2 * length]:
            return path[length:]
    return path
