"""What loss scaling does to gradients: divide them by the scale, and find the non-finite ones.

A gradient is a tensor, an `IndexedSlices` (kept sparse: only its values are touched) or None (kept None).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

#: A gradient as TensorFlow hands it out.
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None

_SIXTEEN_BIT = (tf.float16, tf.bfloat16)


def scale_loss(loss: Any, scale: tf.Tensor) -> tf.Tensor:
    """Returns the loss times the scale.

    A 16-bit loss is multiplied in float32 and stays float32: 2^16 is already infinite in float16. Any other
    floating dtype is kept.

    Args:
        loss: tensor of any shape.
        scale: float32 scalar.
    """
    loss = tf.convert_to_tensor(loss)
    if loss.dtype in _SIXTEEN_BIT:
        loss = tf.cast(loss, tf.float32)
    return loss * tf.cast(scale, loss.dtype)


def unscale(gradients: Sequence[Gradient], scale: tf.Tensor, *, widen: bool) -> list[Gradient]:
    """Returns the gradients divided by the scale.

    They are multiplied by the reciprocal, which is exact for a power of two. 16-bit gradients are multiplied in
    float32, float64 gradients in float64.

    Args:
        gradients: tensors, sparse or dense, or None.
        scale: float32 scalar.
        widen: whether 16-bit gradients come back as float32. If not, they are rounded to their own dtype, as
            optimizers need that hand gradients straight to a kernel of the variable's dtype.
    """
    times = _Multiplier(1.0, scale)
    return [_map_values(gradient, lambda values: times(values, widen)) for gradient in gradients]


def finite_each(
    gradients: Sequence[Gradient], scale: tf.Tensor | None = None, replicas: int = 1, also: Sequence[tf.Tensor] = ()
) -> tf.Tensor:
    """Returns for each gradient whether all its elements are finite.

    Each gradient is read once; nothing leaves the device.

    Args:
        gradients: tensors, sparse or dense, or None.
        scale: None to test the gradients as they are; else float32 scalar, and what is tested is `unscale` of the
            gradients times `replicas`, so that if all are finite, the sum over the replicas is finite too.
        replicas: number of replicas the gradients will be summed over.
        also: further conditions, bool scalars.

    Returns:
        bool, shape [number of gradients that are not None, plus number of further conditions].
    """
    present = [values_of(gradient) for gradient in gradients if gradient is not None]
    if not present and not also:
        return tf.zeros([0], tf.bool)
    if scale is not None:
        times = _Multiplier(float(replicas), scale)
        present = [times(values, widen=False) for values in present]
    return tf.stack([*(tf.reduce_all(_is_finite(values)) for values in present), *also])


def cast_like(gradient: Gradient, variable: Any) -> Gradient:
    """Returns the gradient in the dtype of its variable."""
    return _map_values(gradient, lambda values: tf.cast(values, variable.dtype.base_dtype))


def values_of(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """Returns the values of a sparse gradient, or a dense gradient itself."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)


def _map_values(gradient: Gradient, function: Any) -> Gradient:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(tf.convert_to_tensor(gradient))


class _Multiplier:
    """Multiplies by `numerator / scale`, which is computed once for each dtype it is needed in."""

    def __init__(self, numerator: float, scale: tf.Tensor) -> None:
        self._numerator = numerator
        self._scale = scale
        self._factors: dict[tf.DType, tf.Tensor] = {}

    def __call__(self, values: tf.Tensor, widen: bool) -> tf.Tensor:
        dtype = tf.float32 if values.dtype in _SIXTEEN_BIT else values.dtype
        if dtype not in self._factors:
            self._factors[dtype] = self._numerator / tf.cast(self._scale, dtype)
        product = tf.cast(values, dtype) * self._factors[dtype]
        return product if widen else tf.cast(product, values.dtype)


def _is_finite(values: tf.Tensor) -> tf.Tensor:
    if values.dtype.is_complex:
        return tf.math.is_finite(tf.math.real(values)) & tf.math.is_finite(tf.math.imag(values))
    return tf.math.is_finite(values)
