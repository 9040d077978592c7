"""The hook on `Model.fit`: nobody who trains with a loss scale of tfmp should have to ask for being told that training is stuck."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from tfmp.hooks.wrapping import Wrapped

EVERY = 100
"""Batches from one look at the scale to the next: each look waits for the device."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """Where one Keras keeps `fit`, and the callback for it.

    Attributes:
      module: module of the class with `fit`.
      owner: name of that class.
      wrappers: module of tfmp with the wrappers of the family's optimizers.
      monitor: name of the callback there.
    """

    module: str
    owner: str
    wrappers: str
    monitor: str

    def class_(self) -> Any:
        """Returns the class whose `fit` is hooked."""
        return getattr(importlib.import_module(self.module), self.owner)


FITS = {
    "keras": Fit("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer", "tfmp.optimizers.keras3", "LossScaleMonitor"),
    "tf_keras": Fit("tf_keras.src.engine.training", "Model", "tfmp.optimizers.tf_keras", "TfKerasLossScaleMonitor"),
}

_wrapped = Wrapped()


def install(package: str) -> None:
    """Hooks the `fit` of a Keras, once."""
    _wrapped.wrap(FITS[package].class_(), "fit", _Monitored(FITS[package]))


def uninstall() -> None:
    """Puts back every `fit` that was hooked."""
    _wrapped.restore()


class _Monitored:
    """What runs instead of `fit`."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit

    def __call__(self, wrapped: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls `fit` with a monitor of the loss scale among its callbacks if the optimizer has a scale of tfmp and nobody watches it yet."""
        if getattr(getattr(model, "optimizer", None), "loss_scale_policy", None) is None:
            return wrapped(*args, **kwargs)
        from tfmp.optimizers.monitor import MonitorRules

        arguments = inspect.signature(wrapped).bind_partial(*args, **kwargs).arguments
        callbacks = arguments.get("callbacks")
        given = [] if callbacks is None else list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
        # A `CallbackList` of Keras is complete as it is: nothing can be added to it from outside.
        if any(isinstance(one, MonitorRules) or hasattr(one, "append") for one in given):
            return wrapped(*args, **kwargs)
        monitor = getattr(importlib.import_module(self._fit.wrappers), self._fit.monitor)
        return wrapped(**{**arguments, "callbacks": [*given, monitor(every=EVERY)]})
