"""What a construct is: one way of putting functions, loops and branches together, as a differentiable function of an input and two weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tests.behaviour.on_off import ROUNDINGS, normal

Forward = Callable[[Any, Any, Any], Any]
"""Input [4, 8] and two weights [8, 8] to a result [4, 8] or a scalar, all float32."""

X, W, V = normal(4, 8), normal(8, 8, seed=12, scale=0.3), normal(8, 8, seed=13, scale=0.3)


@dataclasses.dataclass(frozen=True, eq=False)
class Construct:
    """One row of the table.

    Attributes:
      name: unique; the name of its golden file.
      make: returns the construct, with inner functions of its own.
      casts: number of Cast nodes that conversion adds, in the root and all functions, each function counted once: without gradients, and with them.
      bfloat16_casts: the same for bfloat16 where it differs, with another golden text then; None where it does not.
      kept: rule (a key of `reasons.WORDS`) to the number of matrix multiplications that stay float32 for it, with gradients.
      no_xla: why XLA does not compile it with its gradient, in the words of its error; "" if it does.
      loops: whether a loop is in it.
      roundings: unit roundoffs that results may be away from float32, relative to the largest element.
    """

    name: str
    make: Callable[[], Forward]
    casts: tuple[int, int]
    bfloat16_casts: tuple[int, int] | None = None
    kept: Mapping[str, int] = dataclasses.field(default_factory=dict)
    no_xla: str = ""
    loops: bool = False
    roundings: int = ROUNDINGS

    def __str__(self) -> str:
        """Returns the name, which pytest shows."""
        return self.name


@dataclasses.dataclass(frozen=True)
class Program:
    """A construct as a user writes it: weights that are variables, and `tf.function`s of the input."""

    weights: list[tf.Variable]
    forward: Any
    gradient: Any


def program(construct: Construct, jit_compile: bool = False) -> Program:
    """Returns new weights and two untraced functions: the result, and (result, gradients of the mean of its square with respect to input and weights)."""
    weights = [tf.Variable(W, name="w"), tf.Variable(V, name="v")]
    inner = construct.make()

    @tf.function(autograph=False, jit_compile=jit_compile)
    def forward(x: tf.Tensor) -> tf.Tensor:
        return inner(x, *weights)

    @tf.function(autograph=False, jit_compile=jit_compile)
    def gradient(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = inner(x, *weights)
            loss = tf.reduce_mean(y**2)
        return y, tape.gradient(loss, [x, *weights])

    return Program(weights, forward, gradient)
