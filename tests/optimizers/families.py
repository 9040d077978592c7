"""The optimizer families for parametrised tests: how each makes an optimizer, and its idiom for one training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
import tf_keras

from tfmp.optimizers.keras3 import LossScaleMonitor
from tfmp.optimizers.tf_keras import TfKerasLossScaleMonitor

v1 = tf.compat.v1.train


@dataclass(frozen=True)
class Family:
    """One family; `keras` is the Keras whose models train with it, None if models cannot."""

    name: str
    adam: Callable[..., Any]
    sgd: Callable[..., Any]
    keras: Any
    unscales_in_apply: bool = False

    def iterations(self, optimizer: Any) -> int:
        """Steps that were taken."""
        return int(optimizer.iterations)


KERAS3 = Family("keras3", keras.optimizers.Adam, keras.optimizers.SGD, keras, unscales_in_apply=True)
TF_KERAS = Family("tf_keras", tf_keras.optimizers.Adam, tf_keras.optimizers.SGD, tf_keras)
LEGACY = Family("legacy", tf_keras.optimizers.legacy.Adam, tf_keras.optimizers.legacy.SGD, tf_keras)
V1 = Family("v1", v1.AdamOptimizer, v1.GradientDescentOptimizer, None)
FAMILIES = (KERAS3, TF_KERAS, LEGACY, V1)
KERASES = (KERAS3, TF_KERAS, LEGACY)
MONITORS = {keras: LossScaleMonitor, tf_keras: TfKerasLossScaleMonitor}


def is_wrapped(optimizer: Any) -> bool:
    """Whether `optimizer` is one of tfmp's wrappers."""
    return hasattr(type(optimizer), "loss_scale_policy")


def set_scale(optimizer: Any, scale: float) -> None:
    """Moves the scale of a wrapper or scaler by hand, so that one traced step can be run at several scales."""
    optimizer._guard.variables.current_loss_scale.assign(scale)


def gradients_for(family: Family, optimizer: Any, loss: Callable[[], Any], variables: Sequence[Any]) -> list[Any]:
    """The gradients to hand to `apply_gradients`, in the idiom of the family: Keras 3 takes scaled ones, the others unscaled ones."""
    with tf.GradientTape() as tape:
        value = loss()
        if is_wrapped(optimizer):
            value = optimizer.scale_loss(value) if family.unscales_in_apply else optimizer.get_scaled_loss(value)
    gradients = tape.gradient(value, list(variables))
    if is_wrapped(optimizer) and not family.unscales_in_apply:
        gradients = optimizer.get_unscaled_gradients(gradients)
    return gradients


def train_step(family: Family, optimizer: Any, loss: Callable[[], Any], variables: Sequence[Any]) -> None:
    """One step of a custom loop in the idiom of the family."""
    optimizer.apply_gradients(list(zip(gradients_for(family, optimizer, loss, variables), variables, strict=True)))


def make_function(step: Callable[..., None], mode: str) -> Callable[..., None]:
    """The step run eagerly, as a function, or compiled by XLA."""
    return step if mode == "eager" else tf.function(step, jit_compile=mode == "jit")


MODES = ("eager", "function", "jit")
