"""Ten training steps, each with one op that leaves the range of float16, and only that. In float32 all of them train."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

WIDTH, BATCH, STEPS = 32, 16, 12


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
      name: what goes wrong.
      op: type of the op that does.
      node: a part of its node's name.
      body: (hidden layer, second weight, extra inputs) to the loss; traced inside the step.
      extra: what is handed in besides x and y.
      settings: what makes the op run in float16 where the default level would keep it out.
      spread: how large the hidden layer is.
      rate: learning rate.
    """

    name: str
    op: str
    node: str
    body: Callable[[Any, Any, Any, Any], Any]
    extra: tuple[Any, ...] = ()
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    spread: float = 1.0
    rate: float = 0.05

    def step(self) -> tuple[Any, list[Any]]:
        """Returns a new training step, a `tf.function` of (x, y, extra) to the loss, and its variables."""
        rng = np.random.default_rng(3)
        first = tf.Variable(rng.normal(size=(8, WIDTH)).astype("float32") * self.spread / 8**0.5)
        second = tf.Variable(rng.normal(size=(WIDTH, WIDTH)).astype("float32") / WIDTH**0.5)
        body, rate = self.body, self.rate

        @tf.function
        def step(x: Any, y: Any, *extra: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = body(tf.matmul(x, first), second, y, extra)
            for variable, gradient in zip((first, second), tape.gradient(loss, (first, second)), strict=True):
                variable.assign_sub(rate * gradient)
            return loss

        return step, [first, second]

    def batches(self, count: int = STEPS) -> list[tuple[Any, ...]]:
        """Returns batches of arguments for the step: the same data, so that the loss falls."""
        rng = np.random.default_rng(5)
        x, y = rng.normal(size=(BATCH, 8)).astype("float32"), rng.normal(size=(BATCH, WIDTH)).astype("float32")
        return [(x, y, *self.extra)] * count


def squared_error(result: Any, target: Any) -> Any:
    return tf.reduce_mean(tf.square(result - target))


def exponential(h: Any, w: Any, y: Any, extra: Any) -> Any:
    powers = tf.exp(h + 12.0)
    return squared_error(tf.matmul(powers / tf.reduce_max(powers), w), y)


def sum_of_squares(h: Any, w: Any, y: Any, extra: Any) -> Any:
    total = tf.reduce_sum(tf.square(h), axis=-1, keepdims=True)
    return squared_error(tf.matmul(h * tf.math.rsqrt(total), w), y)


def large_mask(h: Any, w: Any, y: Any, extra: Any) -> Any:
    scores = h + extra[0]  # not for a softmax: before one, such a mask is recognised
    return squared_error(tf.matmul(tf.tanh(scores - tf.reduce_max(scores, axis=-1, keepdims=True)), w), y)


def tiny_epsilon(h: Any, w: Any, y: Any, extra: Any) -> Any:
    return squared_error(tf.matmul(tf.math.divide(h * extra[0], extra[0]), w), y)


def norm(h: Any, w: Any, y: Any, extra: Any) -> Any:
    return squared_error(tf.matmul(h / tf.norm(h, axis=-1, keepdims=True), w), y)


def cumulative_sum(h: Any, w: Any, y: Any, extra: Any) -> Any:
    sums = tf.cumsum(tf.nn.relu(h), axis=-1)
    return squared_error(tf.matmul(sums / tf.reduce_max(sums), w), y)


def temperature(h: Any, w: Any, y: Any, extra: Any) -> Any:
    return squared_error(tf.matmul(tf.nn.softmax(h * 1000.0), w), y)


def huge_targets(h: Any, w: Any, y: Any, extra: Any) -> Any:
    return tf.reduce_mean(tf.square(tf.subtract(tf.matmul(tf.tanh(h), w), y * extra[0]) / extra[0]))


def growing_loop(h: Any, w: Any, y: Any, extra: Any) -> Any:
    start = h
    for _ in tf.range(8):
        h = tf.matmul(h, w) * 6.0
    return squared_error(tf.matmul(tf.tanh(h / tf.reduce_max(tf.abs(h))) + tf.tanh(start), w), y)


def gradient_only(h: Any, w: Any, y: Any, extra: Any) -> Any:
    small = tf.matmul(tf.tanh(h) * 0.001, w)
    return tf.reduce_mean(tf.square(small - 0.001 * y)) * extra[0]


def _mask() -> Any:
    mask = np.zeros((BATCH, WIDTH), "float32")
    mask[:, WIDTH // 2 :] = -1e9
    mask[0] = -1e9  # a row without anything to look at: all alike in float32, NaN once it is -inf
    return mask


FAULTS = (
    Fault("exp", "Exp", "Exp", exponential, settings={"allowlist_add": "Exp,RealDiv,Max"}),
    Fault("sum of squares", "Sum", "Sum", sum_of_squares, settings={"allowlist_add": "Square,Sum,Rsqrt"}, spread=60.0),
    Fault("large mask", "AddV2", "add", large_mask, (_mask(),)),
    Fault("division by a tiny epsilon", "RealDiv", "truediv", tiny_epsilon, (np.float32(1e-9),)),
    Fault("norm", "Mul", "norm/mul", norm, settings={"allowlist_add": "Mul,Sum,Sqrt"}, spread=300.0),
    Fault("cumulative sum", "Cumsum", "Cumsum", cumulative_sum, settings={"allowlist_add": "Cumsum,RealDiv,Max"}, spread=9000.0, rate=0.5),
    Fault("logits times temperature", "Mul", "mul", temperature, spread=100.0, rate=0.001),
    Fault("loss of huge targets", "Sub", "Sub", huge_targets, (np.float32(1e5),), settings={"allowlist_add": "Sub"}, rate=1e9),
    Fault("a loop that grows", "Mul", "while/mul", growing_loop),
    Fault("gradient only", "Mul", "gradient_tape/", gradient_only, (np.float32(1e11),), rate=1e-6),
)
