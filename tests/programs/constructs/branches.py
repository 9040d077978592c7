"""Conditionals, and custom gradients: code that runs sometimes, or again."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.programs.constructs.construct import Construct, Forward
from tests.programs.constructs.loops import repeat


def _cond() -> Forward:
    def forward(x: Any, w: Any, v: Any) -> Any:
        y = x @ w
        return tf.cond(tf.reduce_sum(x) > -1e3, lambda: tf.nn.relu(y) @ v, lambda: tf.tanh(y)) @ w

    return forward


def _cond_one_denied() -> Forward:
    """One branch multiplies matrices, the other takes an exponential: the result has one type."""

    def forward(x: Any, w: Any, v: Any) -> Any:
        y = x @ w
        return tf.cond(tf.reduce_sum(x) < -1e3, lambda: tf.nn.relu(y) @ v, lambda: tf.exp(-tf.abs(y))) @ w

    return forward


def _switch_case() -> Forward:
    def forward(x: Any, w: Any, v: Any) -> Any:
        y = x @ w
        branches = [lambda: tf.nn.relu(y) @ v, lambda: y, lambda: tf.tanh(y @ v)]
        return tf.switch_case(tf.constant(2) + tf.cast(tf.reduce_sum(x) > 1e3, tf.int32), branches) @ w

    return forward


def _cond_in_a_loop() -> Forward:
    def body(i: Any, y: Any, w: Any, v: Any) -> Any:
        return (tf.cond(i % 2 == 0, lambda: tf.tanh(y @ w), lambda: tf.nn.relu(y @ v)),)

    return lambda x, w, v: repeat(lambda i, y: body(i, y, w, v), x)


def _loop_in_a_cond() -> Forward:
    def forward(x: Any, w: Any, v: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > -1e3, lambda: repeat(lambda i, y: (tf.tanh(y @ w),), x), lambda: x) @ v

    return forward


def _recompute() -> Forward:
    layer = tf.recompute_grad(lambda x, w: tf.nn.relu(tf.tanh(x @ w) @ w))
    return lambda x, w, v: layer(x, tf.convert_to_tensor(w)) @ v


def _custom_gradient() -> Forward:
    """The forward and the backward rule are functions of their own."""
    forward = tf.function(lambda x, w: tf.tanh(x @ w), autograph=False)
    backward = tf.function(lambda x, w, y, dy: ((dy * (1 - y * y)) @ tf.transpose(w), tf.transpose(x) @ (dy * (1 - y * y))), autograph=False)

    @tf.custom_gradient
    def layer(x: Any, w: Any) -> Any:
        y = forward(x, w)
        return y, lambda dy: backward(x, w, y, dy)

    return lambda x, w, v: layer(layer(x, tf.convert_to_tensor(w)), tf.convert_to_tensor(v)) @ w


def _stop_gradient() -> Forward:
    """A straight-through estimator: the gradient takes another way than the value."""
    quantize = tf.grad_pass_through(tf.function(lambda x: tf.round(x * 8.0) / 8.0, autograph=False))
    return lambda x, w, v: quantize(x @ w) @ v


CONSTRUCTS = (
    Construct("cond", _cond, (4, 8)),
    Construct("cond_with_one_branch_denied", _cond_one_denied, (6, 10)),
    Construct("switch_case", _switch_case, (5, 9)),
    Construct("cond_in_a_loop", _cond_in_a_loop, (4, 10), loops=True),
    Construct("loop_in_a_cond", _loop_in_a_cond, (4, 8), no_xla="Resource _Retval node", loops=True),
    Construct("recompute_grad", _recompute, (5, 11)),
    Construct("custom_gradient", _custom_gradient, (6, 10)),
    Construct("straight_through", _stop_gradient, (6, 10)),
)
