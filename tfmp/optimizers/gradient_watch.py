"""How many elements of gradients float16 cannot hold: counted in the graph, exactly, when somebody looks, and without a change of what is converted.

Everything is compared as bit patterns of integers: those of non-negative float32 numbers are in the order of the numbers (IEEE 754-2019, section 3.4), and
a rewrite of the graph leaves integers alone, so that watching a program does not change it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfmp.dtypes import FLOAT16
from tfmp.optimizers.gradients import Gradient, values_of
from tfmp.optimizers.guard import as_written

LIMITS = (FLOAT16.smallest, FLOAT16.smallest_normal, FLOAT16.largest)
"""Below the first, half of all numbers become zero in float16; below the second, digits are lost; above the third, infinity comes."""

_WITHOUT_SIGN = 0x7FFFFFFF


@dataclasses.dataclass(frozen=True)
class GradientCounts:
    """Elements of gradients of the scaled loss, as float16 sees them.

    Attributes:
      elements: how many there were.
      zeros: how many were exactly zero: gradients that are not there, and those that have underflowed before.
      underflow: how many were smaller than 2^-24 in magnitude, the smallest float16 number, but not zero.
      subnormal: how many were smaller than 2^-14, below which float16 loses digits, but not zero; with those that underflow.
      overflow: how many were larger than 65504 in magnitude, infinite or not a number.
    """

    elements: int = 0
    zeros: int = 0
    underflow: int = 0
    subnormal: int = 0
    overflow: int = 0

    def __add__(self, other: GradientCounts) -> GradientCounts:
        """Returns the counts of both together."""
        return GradientCounts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    def share(self, what: str) -> float:
        """Returns the share (0 to 1) of the elements that are `what`, the name of another attribute; 0 if there are no elements."""
        return getattr(self, what) / self.elements if self.elements else 0.0


FIELDS = tuple(field.name for field in dataclasses.fields(GradientCounts))


def count_gradients(gradients: Sequence[Gradient], scale: Any = 1.0) -> tf.Tensor:
    """Returns the counts of each gradient times `scale`.

    Args:
      gradients: tensors, sparse or dense, or None (all zero).
      scale: what they must be multiplied with to be gradients of the scaled loss: the loss scale if they are unscaled already, else 1.

    Returns:
      int64, shape [number of gradients, 5], in the order of the fields of `GradientCounts`.
    """
    limits = tf.bitcast(tf.constant(LIMITS, tf.float32) / tf.cast(scale, tf.float32), tf.int32)
    return tf.stack([_count(gradient, limits) for gradient in gradients]) if gradients else tf.zeros([0, len(FIELDS)], tf.int64)


def _count(gradient: Gradient, limits: tf.Tensor) -> tf.Tensor:
    if gradient is None:
        return tf.zeros([len(FIELDS)], tf.int64)
    values = values_of(gradient)
    bits = tf.bitwise.bitwise_and(tf.bitcast(tf.cast(values, tf.float32), tf.int32), _WITHOUT_SIGN)
    zeros, underflow, subnormal = (tf.math.count_nonzero(bits < limit) for limit in (1, limits[0], limits[1]))
    return tf.stack([tf.size(bits, tf.int64), zeros, underflow - zeros, subnormal - zeros, tf.math.count_nonzero(bits > limits[2])])


def by_layer(paths: Iterable[str], counts: Iterable[Sequence[int]]) -> dict[str, GradientCounts]:
    """Returns the counts of each layer: of the variables whose paths ("net/dense/kernel", or "net/dense/kernel:0") differ in the last part only."""
    found: dict[str, GradientCounts] = {}
    for path, row in zip(paths, counts, strict=True):
        layer = path.rpartition("/")[0] or path.partition(":")[0]
        found[layer] = found.get(layer, GradientCounts()) + GradientCounts(*map(int, row))
    return found


class GradientWatch:
    """Counts what an optimizer is given, in steps for which it is switched on.

    The counts are kept in variables, which under a distribution strategy add up over the replicas.
    """

    def __init__(self, scale: Callable[[], Any], strategy: tf.distribute.Strategy | None = None, paths: Sequence[str] = ()) -> None:
        """Starts switched off.

        Args:
          scale: returns what gradients must be multiplied with, as for `count_gradients`.
          strategy: the strategy that the optimizer is used under, if there is one.
          paths: paths of the variables, in the order of the gradients, if they are known yet; under a strategy with several replicas they must be.
        """
        self._scale, self._strategy = scale, strategy or tf.distribute.get_strategy()
        self.paths = tuple(paths)
        self._counts: tf.Variable | None = None
        with self._strategy.scope():
            self._on = tf.Variable(False, trainable=False, name="tfmp_watch_gradients")
            if self.paths:
                self._make()

    def _make(self) -> None:
        self._counts = tf.Variable(
            tf.zeros([len(self.paths), len(FIELDS)], tf.int64),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
            name="tfmp_gradient_counts",
        )

    def switch(self, on: bool) -> None:
        """Switches counting on or off for the steps that follow."""
        self._on.assign(on)

    @as_written
    def look(self, pairs: Sequence[tuple[Gradient, Any]]) -> None:
        """Counts (gradient, variable) pairs, if it is switched on; part of the training step."""
        paths = tuple(getattr(variable, "path", variable.name) for _, variable in pairs)
        if self._counts is None:
            self.paths = paths
            with tf.init_scope():
                self._make()
        order = [self.paths.index(path) for path in paths if path in self.paths]
        counts = self._counts
        gradients = [gradient for (gradient, _), path in zip(pairs, paths, strict=True) if path in self.paths]

        def count() -> tf.Tensor:
            found = tf.scatter_nd(tf.constant(order, shape=[len(order), 1]), count_gradients(gradients, self._scale()), [len(self.paths), len(FIELDS)])
            with tf.control_dependencies([counts.assign_add(found)]):  # type: ignore[union-attr]  # made above
                return tf.constant(True)

        tf.cond(tf.convert_to_tensor(self._on), count, lambda: tf.constant(False))

    def take(self) -> dict[str, GradientCounts]:
        """Returns the counts by layer since they were taken last, and starts again from zero. Eager only."""
        if self._counts is None:
            return {}
        found = by_layer(self.paths, tf.convert_to_tensor(self._counts).numpy().tolist())
        self._counts.assign(tf.zeros([len(self.paths), len(FIELDS)], tf.int64))
        return found


WATCH = "_tfmp_gradient_watch"
"""Where an optimizer keeps its watch."""


def watch_of(optimizer: Any) -> GradientWatch | None:
    """Returns the watch of an optimizer, or None if it has none."""
    found: GradientWatch | None = vars(optimizer).get(WATCH)
    return found


def put_watch(optimizer: Any, watch: GradientWatch) -> None:
    """Makes a Keras 3 or tf_keras optimizer show what it is given to `watch` first, in functions that are traced from now on."""
    original = optimizer.apply_gradients

    @as_written
    def apply_gradients(grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        watch.look(pairs)
        return original(pairs, *args, **kwargs)

    vars(optimizer).update({"apply_gradients": apply_gradients, WATCH: watch})  # past the families' own attribute assignment, which would track them
