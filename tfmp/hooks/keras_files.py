"""What `compile` has wrapped by itself is saved as what the user gave it, so that a process without tfmp can load it.

Weights need nothing for that, and the state of the scale goes where a plain optimizer does not look (`optimizers/delegation.py`). Whoever wraps an
optimizer gets the wrapper in the file: that is what was compiled.
"""

from __future__ import annotations

import dataclasses
import importlib
import weakref
from collections.abc import Callable
from typing import Any

from tfmp.hooks.wrapping import Wrapped


@dataclasses.dataclass(frozen=True)
class Formats:
    """Where one Keras writes the older formats (H5, and tf_keras's SavedModels).

    Attributes:
      metadata: module whose `model_metadata(model, ...)` describes a compiled model.
      weights: module whose `save_optimizer_weights_to_hdf5_group(group, optimizer)` writes an optimizer's weights.
      utilities: module whose `get_registered_name(class)` names a class in files.
    """

    metadata: str
    weights: str
    utilities: str


FORMATS = {
    "keras": Formats("keras.src.legacy.saving.saving_utils", "keras.src.legacy.saving.legacy_h5_format", "keras.saving"),
    "tf_keras": Formats("tf_keras.src.saving.legacy.saving_utils", "tf_keras.src.saving.legacy.hdf5_format", "tf_keras.utils"),
}

_wrapped_by_compile: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_wrapped = Wrapped()


def was_wrapped(model: Any, given: Any, optimizer: Any, package: str) -> None:
    """Notes that `model` was compiled with `given`, an optimizer or its name, and trains with `optimizer`, which tfmp made of that."""
    _wrapped_by_compile[optimizer] = package
    config = getattr(getattr(model, "_compile_config", None), "config", None)
    if config is not None and "optimizer" in config:  # what model files in the `.keras` format describe
        config["optimizer"] = given


def install(package: str) -> None:
    """Hooks the older formats of a package, once."""
    formats = FORMATS[package]
    _wrapped.wrap(importlib.import_module(formats.metadata), "model_metadata", _describe)
    _wrapped.wrap(importlib.import_module(formats.weights), "save_optimizer_weights_to_hdf5_group", _write)


def uninstall() -> None:
    """Puts back what was hooked."""
    _wrapped.restore()


def _describe(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    described = wrapped(*args, **kwargs)
    optimizer = getattr(args[0] if args else kwargs["model"], "optimizer", None)
    if optimizer is not None and optimizer in _wrapped_by_compile and "optimizer_config" in described.get("training_config", {}):
        inner = optimizer.inner_optimizer
        name = importlib.import_module(FORMATS[_wrapped_by_compile[optimizer]].utilities).get_registered_name(type(inner))
        described["training_config"]["optimizer_config"] = {"class_name": name, "config": inner.get_config()}
    return described


def _write(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    group, optimizer = args  # positional in both families
    return wrapped(group, optimizer.inner_optimizer if optimizer in _wrapped_by_compile else optimizer, **kwargs)
