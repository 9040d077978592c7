"""Functions that call functions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.programs.constructs.construct import Construct, Forward


def _function(body: Any, **options: Any) -> Any:
    return tf.function(body, autograph=False, **options)


def _not_inlined(body: Any) -> Any:
    return _function(body, experimental_attributes={"_noinline": True})


def _nested() -> Forward:
    layer = _function(lambda x, w: tf.nn.relu(x @ w))
    block = _function(lambda x, w, v: layer(layer(x, w), v) + x)
    return lambda x, w, v: block(x, w, v) @ w


def _noinline() -> Forward:
    layer = _not_inlined(lambda x, w: tf.tanh(x @ w))
    return lambda x, w, v: layer(tf.nn.swish(x @ v), w) @ v


def _same_colour_twice() -> Forward:
    gate = _not_inlined(lambda x: x * tf.sigmoid(x))
    return lambda x, w, v: gate(gate(x @ w) @ v) @ w


def _two_colours() -> Forward:
    """The gate lies between matrix multiplications in one place, and between an exponential and a sum in the other."""
    gate = _not_inlined(lambda x: x * tf.sigmoid(x))
    return lambda x, w, v: gate(x @ w) @ v + tf.reduce_sum(gate(tf.exp(-x)))


def _three_places() -> Forward:
    layer = _not_inlined(lambda x, w: tf.tanh(x @ w))
    block = _function(lambda x, w: layer(x, w) + x)

    def forward(x: Any, w: Any, v: Any) -> Any:
        _, x = tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, layer(y, v)), (0, layer(x, w)), maximum_iterations=2)
        return block(x, w)

    return forward


def _diamond() -> Forward:
    """Calls that double at every level: 2, 4, 8 uses of one function."""
    first = _function(lambda x, w: tf.nn.relu(x @ w))
    second = _function(lambda x, w: first(x, w) + first(-x, w))
    third = _function(lambda x, w: second(x, w) + second(-x, w))
    return lambda x, w, v: (third(x, w) + third(-x, w)) @ v


def _untouched_callee() -> Forward:
    """A function of denylist and integer ops only: it keeps being the old one."""
    norm = _not_inlined(lambda x, scale: tf.exp(-tf.reduce_mean(x * x)) * tf.cast(scale, tf.float32))
    return lambda x, w, v: x @ w * norm(x, tf.constant(3)) @ v


def _compiled_inside() -> Forward:
    layer = _function(lambda x, w: tf.tanh(x @ w), jit_compile=True)
    return lambda x, w, v: layer(tf.nn.relu(x @ v), w) @ v


def _compiled_in_a_loop() -> Forward:
    layer = _function(lambda x, w: tf.tanh(x @ w), jit_compile=True)

    def forward(x: Any, w: Any, v: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, layer(y, w) @ v), (0, x), maximum_iterations=3)[1]

    return forward


def _result_also_integer() -> Forward:
    """A function with float32 and int32 arguments and results in mixed order."""
    both = _not_inlined(lambda n, x, w: (tf.shape(x)[0] + n, x @ w, n * 2))

    def forward(x: Any, w: Any, v: Any) -> Any:
        rows, y, count = both(tf.constant(2), x, w)
        return tf.reshape(y @ v, [rows - 2, 2 * count])

    return forward


CONSTRUCTS = (
    Construct("nested_functions", _nested, (4, 8)),
    Construct("callee_not_inlined", _noinline, (5, 12)),
    Construct("callee_twice_in_one_colour", _same_colour_twice, (4, 8)),
    Construct("callee_in_two_colours", _two_colours, (4, 8)),
    Construct("callee_in_three_places", _three_places, (4, 15), loops=True),
    Construct("calls_that_double", _diamond, (4, 8)),
    Construct("callee_untouched", _untouched_callee, (5, 10)),
    Construct("compiled_callee", _compiled_inside, (4, 8)),
    Construct("compiled_callee_in_a_loop", _compiled_in_a_loop, (4, 8), loops=True),
    Construct("integers_among_arguments", _result_also_integer, (4, 8)),
)
