"""Tensor lists and optionals whose elements are in 16 bit, cast back to float32.

A converted forward function may save such lists for its backward function. Should that one have to run unconverted after all, it needs them in float32.
What a list holds is not written on its handle, so it is found out by asking: TensorFlow refuses to hand out elements of another type.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_REFUSED = (tf.errors.InvalidArgumentError, tf.errors.InternalError)
_SIXTEEN = (tf.float16, tf.bfloat16)


def is_variant(tensor: Any) -> bool:
    """Returns whether `tensor` is an eager tensor of type variant."""
    return tensor.dtype == tf.variant and hasattr(tensor, "numpy")


def widened(handle: Any) -> Any:
    """Returns a variant scalar with everything float16 or bfloat16 that it holds, lists in lists included, in float32.

    Args:
      handle: an eager tensor of type variant: a tensor list, an optional, or something else, which comes back as it is.
    """
    with tf.init_scope():  # at once, also while a graph is being built
        return _widened(handle)


def _widened(handle: Any) -> Any:
    try:
        length = int(tf.raw_ops.TensorListLength(input_handle=handle))
    except _REFUSED:
        return _widened_optional(handle)
    return _widened_list(handle, length) if length else handle


def _widened_list(handle: Any, length: int) -> Any:
    shape = tf.raw_ops.TensorListElementShape(input_handle=handle, shape_type=tf.int32)
    for dtype in _SIXTEEN:
        try:
            elements = [_element(handle, index, shape, dtype) for index in range(length)]
        except _REFUSED:
            continue
        return _listed([tf.cast(element, tf.float32) for element in elements], shape, tf.float32)
    try:
        elements = [_element(handle, index, shape, tf.variant) for index in range(length)]
    except _REFUSED:
        return handle
    return _listed([_widened(element) for element in elements], shape, tf.variant)


def _element(handle: Any, index: int, shape: Any, dtype: tf.DType) -> Any:
    return tf.raw_ops.TensorListGetItem(input_handle=handle, index=index, element_shape=shape, element_dtype=dtype)


def _listed(elements: list[Any], shape: Any, dtype: tf.DType) -> Any:
    result = tf.raw_ops.TensorListReserve(element_shape=shape, num_elements=len(elements), element_dtype=dtype)
    for index, element in enumerate(elements):
        result = tf.raw_ops.TensorListSetItem(input_handle=result, index=index, item=element)
    return result


def _widened_optional(handle: Any) -> Any:
    try:
        if not bool(tf.raw_ops.OptionalHasValue(optional=handle)):
            return handle
    except _REFUSED:
        return handle
    for dtype in (*_SIXTEEN, tf.variant):
        try:
            (value,) = tf.raw_ops.OptionalGetValue(optional=handle, output_types=[dtype], output_shapes=[tf.TensorShape(None)])
        except _REFUSED:
            continue
        value = _widened(value) if dtype == tf.variant else tf.cast(value, tf.float32)
        return tf.raw_ops.OptionalFromValue(components=[value])
    return handle
