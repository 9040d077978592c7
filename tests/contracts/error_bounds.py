"""How far a result may be off if every float32 tensor of a graph were held in a 16-bit type instead.

Running error analysis (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.3): the graph is run in float32 by TensorFlow, every tensor is
fetched, and a bound on the absolute error of each element is carried forward, op by op, from the values. A bound is infinite where a result may overflow,
and a bound on a bool or an integer says by how much it may differ where a comparison or a truncation may go the other way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tfmp import tf_api
from tfmp.dtypes import FLOAT16, FloatFormat

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Bounded:
    """A tensor of the float32 run and the bound on the error of each of its elements, both float64; `items` are those of a tensor list."""

    value: Array
    error: Array
    items: tuple[Bounded, ...] = ()


@dataclasses.dataclass(frozen=True)
class Op:
    """One node as the rules see it: its attributes, its inputs, its own values and the unit roundoff of the 16-bit type."""

    node: tf_api.NodeDef
    inputs: Sequence[Bounded]
    value: Array
    unit: float

    def errors(self) -> list[Array]:
        """Returns the error bound of each input."""
        return [tensor.error for tensor in self.inputs]


Rule = Callable[[Op], Array]


def carry(graph: tf_api.GraphDef, values: Mapping[str, Array], target: FloatFormat) -> dict[str, Bounded]:
    """Returns tensor name ("node" or "node:1") to value and bound for `graph`, whose nodes are in topological order and whose float32 run gave `values`."""
    found: dict[str, Bounded] = {}
    for node in graph.node:
        inputs = [found[text] for text in node.input if not text.startswith("^")]
        for port, name in enumerate((node.name, f"{node.name}:1", f"{node.name}:2")):
            if name in values or (port == 0 and node.op.startswith(("EmptyTensorList", "TensorListPush"))):
                value = np.asarray(values.get(name, 0.0))
                with np.errstate(all="ignore"):
                    found[name] = _bounded(node, port, inputs, value, target)
    return found


def _bounded(node: tf_api.NodeDef, port: int, inputs: Sequence[Bounded], value: Array, target: FloatFormat) -> Bounded:
    if node.op in _LISTS:
        return _LISTS[node.op](inputs, port)
    rule = _PORTS.get(node.op)
    wide = value.astype(np.float64)
    error = rule(Op(node, inputs, wide, target.unit_roundoff), port) if rule else RULES[node.op](Op(node, inputs, wide, target.unit_roundoff))
    error = np.where(np.isfinite(wide), np.nan_to_num(error, nan=np.inf, posinf=np.inf), np.inf)
    if value.dtype == np.int32:
        error = np.where(np.abs(wide) + error < 2.0**31, error, np.inf)  # it may wrap round
    return Bounded(wide, _rounded(wide, error, target) if value.dtype == np.float32 else error)


def _rounded(value: Array, error: Array, target: FloatFormat) -> Array:
    """Returns the bound after the function was evaluated to within one rounding, and the result rounded once more."""
    reach = np.abs(value) + error
    return np.where(reach > target.largest, np.inf, error + 2 * (target.unit_roundoff * reach + target.smallest))


def _first(op: Op) -> Array:
    return op.inputs[0].error


def _sum(op: Op) -> Array:
    return sum(op.errors()[1:], op.errors()[0])  # type: ignore[return-value]


def _largest(op: Op) -> Array:
    return np.maximum(*op.errors())


def _product(op: Op) -> Array:
    (x, dx), (y, dy) = ((tensor.value, tensor.error) for tensor in op.inputs)
    return np.abs(x) * dy + dx * np.abs(y) + dx * dy


def _matmul(op: Op) -> Array:
    """First-order terms of both factors, and a sum of n products each rounded (section 3.1 there: n times the unit roundoff)."""
    (x, dx), (y, dy) = ((np.abs(tensor.value), tensor.error) for tensor in op.inputs)
    if "transpose_b" in op.node.attr and op.node.attr["transpose_b"].b:
        y, dy = y.T, dy.T
    return x @ dy + dx @ y + dx @ dy + (x.shape[-1] + 1) * op.unit * ((x + dx) @ (y + dy))


def _convolution(op: Op) -> Array:
    """A filter of one element is a product."""
    x, weight = op.inputs
    return x.error * np.abs(weight.value).max() + (np.abs(x.value) + x.error) * (weight.error.max() + 2 * op.unit * np.abs(weight.value).max())


def _exponential(op: Op) -> Array:
    return op.value * np.expm1(_first(op))


def _softmax(op: Op) -> Array:
    """Every exponential and their sum of n change by the same factor at most; each is rounded."""
    shift = 2 * _first(op).max(axis=-1, keepdims=True) + 2 * op.value.shape[-1] * op.unit
    return op.value * np.expm1(shift)


def _reduction(op: Op) -> Array:
    tensor, axis = op.inputs[0], int(op.inputs[1].value[0])
    total = (tensor.error + tensor.value.shape[axis] * op.unit * (np.abs(tensor.value) + tensor.error)).sum(axis=axis, keepdims=True)
    return total if op.node.op == "Sum" else total / tensor.value.shape[axis]


def _batch_norm(op: Op) -> Array:
    """In inference `y = (x - mean) * (scale / sqrt(variance + epsilon)) + offset`, the statistics staying float32."""
    x, scale, offset, mean, variance = (tensor.value for tensor in op.inputs)
    factor = np.abs(scale) / np.sqrt(variance + op.node.attr["epsilon"].f)
    return factor * (op.inputs[0].error + 4 * op.unit * (np.abs(x) + np.abs(mean))) + 4 * op.unit * np.abs(offset)


def _comparison(op: Op) -> Array:
    x, y = op.inputs
    return (~(np.abs(x.value - y.value) > x.error + y.error)).astype(np.float64)


def _selection(op: Op) -> Array:
    condition, x, y = op.inputs
    chosen = np.where(condition.value != 0, x.error, y.error)
    return np.where(condition.error > 0, np.abs(x.value - y.value) + x.error + y.error, chosen)


def _cast(op: Op) -> Array:
    tensor, to = op.inputs[0], op.node.attr["DstT"].type
    if to == _INT32:
        low, middle, high = (np.trunc(tensor.value + sign * tensor.error) for sign in (-1, 0, 1))
        return np.where(np.abs(tensor.value) + tensor.error < 2.0**31, np.maximum(high - middle, middle - low), np.inf)
    if to == FLOAT16.number:
        return _rounded(tensor.value, tensor.error, FLOAT16)
    return tensor.error


def _half_matmul_or_any(op: Op) -> Array:
    """A MatMul in half before the rewrite has both runs rounded alike but for what came in; in double, rounding does not count."""
    unit = 0.0 if op.node.attr["T"].type == _DOUBLE else FLOAT16.unit_roundoff if op.node.attr["T"].type == FLOAT16.number else op.unit
    return _matmul(dataclasses.replace(op, unit=unit))


def _shaped(change: Callable[[Op, list[Array]], Array]) -> Rule:
    """The error moves as the values do."""
    return lambda op: change(op, op.errors())


def _reshape(op: Op, errors: list[Array]) -> Array:
    return errors[0].reshape(op.value.shape)


_INT32, _DOUBLE = 3, 2

RULES: dict[str, Rule] = {
    **dict.fromkeys(("Const", "Placeholder"), lambda op: np.zeros_like(op.value)),
    **dict.fromkeys(("Relu", "Neg", "Abs", "Identity", "Tanh", "Sigmoid", "Softplus", "Sin", "Atan", "LogicalNot"), _first),
    **dict.fromkeys(("AddV2", "Sub", "AddN", "BiasAdd"), _sum),
    **dict.fromkeys(("Maximum", "Minimum"), _largest),
    **dict.fromkeys(("MatMul", "BatchMatMulV2", "Einsum"), _half_matmul_or_any),
    **dict.fromkeys(("Sum", "Mean"), _reduction),
    "Mul": _product,
    "Conv2D": _convolution,
    "Exp": _exponential,
    "Softmax": _softmax,
    "Greater": _comparison,
    "SelectV2": _selection,
    "Cast": _cast,
    "Reshape": _shaped(_reshape),
    "Transpose": _shaped(lambda op, errors: errors[0].T),
    "ConcatV2": _shaped(lambda op, errors: np.concatenate(errors[:2], axis=1)),
    "Pack": _shaped(lambda op, errors: np.stack(errors)),
}
_PORTS: dict[str, Callable[[Op, int], Array]] = {
    "Split": lambda op, port: np.split(op.inputs[1].error, 2, axis=1)[port],
    "Unpack": lambda op, port: op.inputs[0].error[port],
    "IdentityN": lambda op, port: op.inputs[port].error,
    "FusedBatchNormV3": lambda op, port: _batch_norm(op) if port == 0 else np.zeros_like(op.value),
}
_LISTS: dict[str, Callable[[Sequence[Bounded], int], Bounded]] = {
    "EmptyTensorList": lambda inputs, port: Bounded(np.zeros(()), np.zeros(())),
    "TensorListPushBack": lambda inputs, port: dataclasses.replace(inputs[0], items=(*inputs[0].items, inputs[1])),
    "TensorListPopBack": lambda inputs, port: inputs[0].items[-1] if port else inputs[0],
}
