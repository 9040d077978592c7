"""Loops and what they carry: values, weights, tensor lists."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.programs.constructs.construct import Construct, Forward

STEPS = 3


def repeat(body: Any, *start: Any, steps: int = STEPS) -> Any:
    """Returns what `body`, a function of the step and the carried values, makes of `start` in `steps` steps."""
    found = tf.while_loop(lambda i, *_: i < steps, lambda i, *values: (i + 1, *body(i, *values)), (tf.constant(0), *start), maximum_iterations=steps)
    return found[1] if len(start) == 1 else found[1:]


def _while() -> Forward:
    return lambda x, w, v: repeat(lambda i, y: (tf.tanh(y @ w) @ v,), x)


def _invariant() -> Forward:
    """The weights come in as loop variables, as they do where a function hands a tensor to a loop."""
    return lambda x, w, v: repeat(lambda i, y, k: (tf.nn.relu(y @ k) + x, k), x, tf.transpose(w) @ v)[0]


def _nested() -> Forward:
    def body(i: Any, y: Any, w: Any, v: Any) -> Any:
        return (tf.tanh(repeat(lambda j, z: (tf.nn.relu(z @ w) + z,), y, steps=2) @ v),)

    return lambda x, w, v: repeat(lambda i, y: body(i, y, w, v), x)


def _two_values() -> Forward:
    """One carried value lies between matrix multiplications, the other between exponentials."""

    def body(y: Any, s: Any, w: Any, v: Any) -> Any:
        return tf.tanh(y @ w) @ v, tf.exp(-s) * 0.5

    def forward(x: Any, w: Any, v: Any) -> Any:
        y, s = repeat(lambda i, y, s: body(y, s, w, v), x, x)
        return y + s

    return forward


def _swapped() -> Forward:
    """Carried values that change places: one colour for both."""
    return lambda x, w, v: repeat(lambda i, y, z: (z @ w, tf.nn.relu(y)), x, x @ v)[0]


def _running_sum() -> Forward:
    return lambda x, w, v: repeat(lambda i, y, s: (tf.tanh(y @ w), s + y @ v), x, tf.zeros_like(x))[1]


def _map() -> Forward:
    return lambda x, w, v: tf.map_fn(lambda row: tf.tanh((row[None] @ w) @ v)[0], x)


def _scan() -> Forward:
    return lambda x, w, v: tf.scan(lambda state, row: tf.tanh(state @ w + row[None] @ v), x, initializer=tf.zeros([1, 8]))[:, 0]


def _vectorized_map() -> Forward:
    return lambda x, w, v: tf.vectorized_map(lambda row: tf.tanh((row[None] @ w) @ v)[0], x)


def _array_forward() -> Forward:
    """Written in a loop, read after it."""

    def forward(x: Any, w: Any, v: Any) -> Any:
        array = tf.TensorArray(tf.float32, STEPS, element_shape=[4, 8])
        array = repeat(lambda i, a: (a.write(i, tf.nn.relu((x * tf.cast(i, tf.float32)) @ w)),), array)
        return tf.reduce_sum(tf.reshape(tf.reshape(array.stack(), [-1, 8]) @ v, [STEPS, 4, 8]), 0)

    return forward


def _array_backward() -> Forward:
    """Filled before a loop, read in it."""

    def forward(x: Any, w: Any, v: Any) -> Any:
        array = tf.TensorArray(tf.float32, STEPS, element_shape=[4, 8]).unstack(tf.reshape(tf.tile(x, [STEPS, 1]) @ w, [STEPS, 4, 8]))
        return repeat(lambda i, y: (tf.tanh(array.read(i) + y @ v),), x)

    return forward


def _array_both() -> Forward:
    """A recurrent network by hand: inputs read from one list, states written to another."""

    def forward(x: Any, w: Any, v: Any) -> Any:
        inputs = tf.TensorArray(tf.float32, 4, element_shape=[1, 8]).unstack(x[:, None])
        outputs = tf.TensorArray(tf.float32, 4, element_shape=[1, 8])

        def body(i: Any, state: Any, array: Any) -> Any:
            state = tf.tanh(inputs.read(i) @ w + state @ v)
            return state, array.write(i, state)

        return repeat(body, tf.zeros([1, 8]), outputs, steps=4)[1].stack()[:, 0]

    return forward


def _list_through_a_function() -> Forward:
    """One function fills a list, another reads it; the handle travels as an argument and as a result."""
    fill = tf.function(_fill, autograph=False, experimental_attributes={"_noinline": True})
    total = tf.function(_total, autograph=False, experimental_attributes={"_noinline": True})
    return lambda x, w, v: total(fill(x, w), v)


def _fill(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    handle = tf.raw_ops.TensorListReserve(element_shape=[4, 8], num_elements=2, element_dtype=tf.float32)
    for i in range(2):
        handle = tf.raw_ops.TensorListSetItem(input_handle=handle, index=i, item=(i + 1.0) * (x @ w))
    return handle


def _total(handle: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    items = [tf.raw_ops.TensorListGetItem(input_handle=handle, index=i, element_shape=[4, 8], element_dtype=tf.float32) for i in range(2)]
    return tf.nn.relu(items[0] @ v) + items[1] @ v


def _list_of_a_loop() -> Forward:
    """A list that a loop pushes on, read one by one after it."""

    def forward(x: Any, w: Any, v: Any) -> Any:
        handle = tf.raw_ops.EmptyTensorList(element_shape=[4, 8], max_num_elements=STEPS, element_dtype=tf.float32)
        body = lambda i, y, h: (tf.tanh(y @ w), tf.raw_ops.TensorListPushBack(input_handle=h, tensor=y @ v))  # noqa: E731
        handle = repeat(body, x, handle)[1]
        result = tf.zeros_like(x)
        for _ in range(STEPS):
            handle, item = tf.raw_ops.TensorListPopBack(input_handle=handle, element_shape=[4, 8], element_dtype=tf.float32)
            result = tf.nn.relu(item) @ w + result
        return result

    return forward


def _condition_with_a_product() -> Forward:
    """The condition multiplies matrices, too."""

    def forward(x: Any, w: Any, v: Any) -> Any:
        more = lambda y: tf.reduce_sum(tf.abs(y @ v)) > 4.0  # noqa: E731
        return tf.while_loop(more, lambda y: (0.5 * (y @ w),), (x,), maximum_iterations=8)[0]

    return forward


CONSTRUCTS = (
    Construct("while_loop", _while, (4, 8), loops=True),
    Construct("loop_invariant", _invariant, (4, 10), loops=True),
    Construct("nested_loops", _nested, (6, 13), loops=True),
    Construct("two_loop_variables", _two_values, (4, 8), loops=True),
    Construct("swapped_loop_variables", _swapped, (4, 9), loops=True),
    Construct("running_sum", _running_sum, (4, 9), loops=True),
    Construct("map_fn", _map, (4, 9), loops=True),
    Construct("scan", _scan, (4, 11), loops=True),
    Construct("vectorized_map", _vectorized_map, (6, 10)),
    Construct("array_written_in_a_loop", _array_forward, (4, 8), loops=True),
    Construct("array_read_in_a_loop", _array_backward, (4, 10), loops=True),
    Construct("arrays_in_and_out", _array_both, (4, 11), loops=True),
    Construct("list_through_functions", _list_through_a_function, (4, 12)),
    Construct("list_of_a_loop", _list_of_a_loop, (4, 10), loops=True),
    Construct("product_in_a_condition", _condition_with_a_product, (5, 9), loops=True),
)
