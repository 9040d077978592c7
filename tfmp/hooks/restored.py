"""The hooks on functions that no tracing makes: those of loaded SavedModels, and graphs that `tf.compat.v1.wrap_function` wraps (SavedModels of
TensorFlow 1, imported frozen graphs).

Being loaded or wrapped is to them what being traced is to a `tf.function`: what is on at that time holds. Nothing is converted before it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfmp import tf_callbacks
from tfmp.hooks import tracing
from tfmp.hooks.wrapping import Wrapped

_wrapped = Wrapped()


def install() -> None:
    """Hooks the loader and the class of wrapped graphs, once."""
    _wrapped.wrap(tf_callbacks.function_loader(), "load_function_def_library", _load)
    _wrapped.wrap(tf_callbacks.wrapped_function_class(), "__init__", _wrap)


def uninstall() -> None:
    """Takes the hooks out again; what has been loaded stays as it is."""
    _wrapped.restore()


def _load(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    functions = wrapped(*args, **kwargs)
    for function in functions.values():
        tracing.on_trace(function)
    return functions


def _wrap(wrapped: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    wrapped(*args, **kwargs)
    tracing.on_trace(function)
