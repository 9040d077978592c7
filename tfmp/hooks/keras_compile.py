"""The hook on `Model.compile`: wraps the optimizer in a loss scale where the environment, or `tfmp.enable`, asks for loss scaling in float16; and
the one place that puts all hooks into a Keras and takes them out again.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from tfmp.hooks import activation, keras_files, keras_fit, notices, optimizer, unscaled
from tfmp.hooks.wrapping import Wrapped
from tfmp.optimizers import wrap


@dataclasses.dataclass(frozen=True)
class Family:
    """Where one Keras keeps what the hook needs.

    Attributes:
      name: the package.
      module: module that defines the class with `compile`.
      owner: name of that class.
    """

    name: str
    module: str
    owner: str

    def compile_owner(self) -> type:
        """Returns the class whose `compile` is hooked."""
        return getattr(importlib.import_module(self.module), self.owner)


KERAS = Family("keras", "keras.src.trainers.trainer", "Trainer")
TF_KERAS = Family("tf_keras", "tf_keras.src.engine.training", "Model")

_wrapped = Wrapped()


def install_keras() -> None:
    """Hooks Keras 3's `compile`, once, and lets models be loaded that were saved with a loss scale; with another backend than TensorFlow there is
    nothing to hook.
    """
    if importlib.import_module("keras").backend.backend() == "tensorflow":
        _install(KERAS)
        keras_files.install(KERAS.name)
        keras_fit.install(KERAS.name)
        unscaled.install(KERAS.name)
        wrap.register(KERAS.name)


def install_tf_keras() -> None:
    """Hooks tf_keras's `compile`, once, and lets models be loaded that were saved with a loss scale."""
    _install(TF_KERAS)
    keras_files.install(TF_KERAS.name)
    keras_fit.install(TF_KERAS.name)
    unscaled.install(TF_KERAS.name)
    wrap.register(TF_KERAS.name)


def uninstall() -> None:
    """Puts back every `compile` and `fit`, every step of an optimizer that was hooked, and the writing of files."""
    keras_files.uninstall()
    keras_fit.uninstall()
    unscaled.uninstall()
    _wrapped.restore()


def _install(family: Family) -> None:
    _wrapped.wrap(family.compile_owner(), "compile", _Compile(family))
    activation.watch_layers(activation.current())


class _Compile:
    """What runs instead of `compile`."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def __call__(self, wrapped: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls `compile` with a wrapped optimizer, or with exactly what it was given if loss scaling is off."""
        active = activation.current()
        if active.graph_rewrite:
            _warn_about(model, args, kwargs)
        if active.loss_scaling and optimizer.scales_losses(active):
            given = args[0] if args else kwargs.get("optimizer", "rmsprop")  # the first parameter and its default, in both families
            # `get` would put an optimizer of TensorFlow 1 into a class of its own, which nothing scales; `compile` does that with what it is handed.
            known = given is None or wrap.is_optimizer(given)
            plain = opt = given if known else importlib.import_module(self._family.name).optimizers.get(given)
            opt = _scaled(opt, model, active.settings.strict)
            result = wrapped(opt, *args[1:], **kwargs) if args else wrapped(**{**kwargs, "optimizer": opt})
            if opt is not plain:
                keras_files.was_wrapped(model, plain if self._family is KERAS else given, opt, self._family.name)
            return result
        return wrapped(*args, **kwargs)


def _scaled(opt: Any, model: Any, strict: bool) -> Any:
    if opt is None or wrap.is_wrapped(opt):
        return opt
    try:
        return wrap.wrap(opt, "dynamic")
    except Exception as error:
        if strict:
            raise
        name, kind = getattr(model, "name", type(model).__name__), type(error).__name__
        notices.warn_once(f"unscaled {name}", f"model {name!r} trains without a loss scale. {kind}: {error} TFMP_STRICT=1 raises instead.")
        return opt


def _warn_about(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    policy = getattr(getattr(model, "dtype_policy", None), "name", "")
    if str(policy).startswith("mixed_"):
        notices.warn_once(
            "policy",
            f"model {model.name!r} already has the dtype policy {policy!r}: what it casts stays as it is, and only what it leaves in float32 is looked "
            "at. Use one of the two.",
        )
    if kwargs.get("run_eagerly"):
        notices.warn_once("eager", f"model {model.name!r} is compiled with run_eagerly=True: eager code is not rewritten and stays in float32.")
