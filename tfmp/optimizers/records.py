"""How the state of the scale travels in Keras files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from tfmp.optimizers.state import ScaleVariables


class ScaleRecord:
    """What a Keras metric needs to carry the scale's state in `.keras` and `.weights.h5` files.

    Keras saves what hangs on an optimizer only if it is of one of its own kinds. Of these a metric is the closest: its result is the current
    loss scale. Each family mixes this class with its own `Metric`.
    """

    def __init__(self, variables: ScaleVariables) -> None:
        """Reads from and writes to `variables`; the metric has none of its own."""
        super().__init__(name="loss_scale")  # type: ignore[call-arg]  # of the Metric it is mixed with
        # In a closure, where neither family of Keras tracks it as a part of the metric.
        self._state_of_scale: Callable[[], ScaleVariables] = lambda: variables

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: only the optimizer moves the scale."""

    def reset_state(self) -> None:
        """Does nothing: the scale lives longer than an epoch."""

    def result(self) -> tf.Tensor:
        """Returns the current loss scale, float32 scalar."""
        return self._state_of_scale().value("scale")

    def save_own_variables(self, store: Any) -> None:
        """Writes the state into a Keras variable store."""
        self._state_of_scale().save_to(store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the state from a Keras variable store; a file without it is noted and changes nothing."""
        if not self._state_of_scale().load_from(store):
            logging.info("No loss scale in the file: saved without loss scaling. The scale keeps its value.")
