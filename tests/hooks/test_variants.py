"""What lists and optionals hold in 16 bit comes back in float32, and everything else as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

from tfmp.hooks.variants import is_variant, widened

raw = tf.raw_ops
SCALAR = tf.constant([], tf.int32)
sixteen = pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)


def listed(dtype: tf.DType, shape: Any, items: Sequence[Any]) -> tf.Tensor:
    """A tensor list; an item None is never written."""
    handle = raw.TensorListReserve(element_shape=shape, num_elements=len(items), element_dtype=dtype)
    for index, item in enumerate(items):
        if item is not None:
            handle = raw.TensorListSetItem(input_handle=handle, index=index, item=item)
    return handle


def items(handle: tf.Tensor, dtype: tf.DType, shape: Any) -> list[Any]:
    length = int(raw.TensorListLength(input_handle=handle))
    return [raw.TensorListGetItem(input_handle=handle, index=index, element_shape=shape, element_dtype=dtype) for index in range(length)]


def held(optional: tf.Tensor, dtype: tf.DType) -> Any:
    return raw.OptionalGetValue(optional=optional, output_types=[dtype], output_shapes=[tf.TensorShape(None)])[0]


@sixteen
def test_lists_of_tensors_of_one_or_of_several_shapes(dtype: tf.DType) -> None:
    one = listed(dtype, [2], [tf.constant([1, 2], dtype), None])
    assert [item.numpy().tolist() for item in items(widened(one), tf.float32, [2])] == [[1, 2], [0, 0]]
    several = listed(dtype, tf.constant([-1]), [tf.constant([1, 2], dtype), tf.constant([3], dtype)])
    assert [item.numpy().tolist() for item in items(widened(several), tf.float32, [-1])] == [[1, 2], [3]]


@sixteen
def test_lists_of_lists(dtype: tf.DType) -> None:
    inner = [listed(dtype, [1], [tf.constant([5], dtype)]), listed(tf.float32, [1], [tf.constant([6.0])]), listed(tf.int32, [1], [tf.constant([7])])]
    half, single, integer = items(widened(listed(tf.variant, SCALAR, inner)), tf.variant, SCALAR)
    assert items(half, tf.float32, [1])[0].numpy().tolist() == [5]
    assert items(single, tf.float32, [1])[0].numpy().tolist() == [6]
    assert items(integer, tf.int32, [1])[0].numpy().tolist() == [7]


@sixteen
def test_optionals_of_tensors_and_of_lists(dtype: tf.DType) -> None:
    assert held(widened(raw.OptionalFromValue(components=[tf.constant([5], dtype)])), tf.float32).numpy().tolist() == [5]
    held_list = held(widened(raw.OptionalFromValue(components=[listed(dtype, [1], [tf.constant([6], dtype)])])), tf.variant)
    assert items(held_list, tf.float32, [1])[0].numpy().tolist() == [6]


def test_everything_else_comes_back_as_it_is() -> None:
    others = [listed(tf.float32, [1], [tf.constant([5.0])]), listed(tf.int64, [1], [tf.constant([5], tf.int64)]), listed(tf.float16, [1], [])]
    others += [raw.OptionalNone(), raw.OptionalFromValue(components=[tf.constant(5.0)]), raw.OptionalFromValue(components=[tf.constant(5)])]
    others += [raw.OptionalFromValue(components=[tf.constant(5.0), tf.constant(5.0)])]
    for other in others:
        assert is_variant(other)
        assert widened(other) is other
    assert not is_variant(tf.constant(5.0))


def test_while_a_graph_is_being_built() -> None:
    handle = listed(tf.float16, [1], [tf.constant([5], tf.float16)])

    @tf.function
    def function() -> tf.Tensor:
        return items_of(widened(handle))

    def items_of(handle: tf.Tensor) -> tf.Tensor:
        return raw.TensorListGetItem(input_handle=handle, index=0, element_shape=[1], element_dtype=tf.float32)

    assert function().numpy().tolist() == [5]
