"""Marks the nodes of Keras layers with the layers' names, for rules that name layers.

Name scopes in node names do not tell layers apart: a layer `dense` that is called again is in the scope `dense_1`, which another layer's may be too, and under
`fit` nearly every scope has such a number. So while rules that name layers are in force, every layer's call marks what it makes (`tf_marks`). Without such
rules Keras is left alone.
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from tfmp.hooks import activation
from tfmp.user_rules import LAYER_MARK

OWNERS = {"keras": ("keras.src.layers.layer", "Layer"), "tf_keras": ("tf_keras.src.engine.base_layer", "Layer")}
"""Package to the module and the name of the class whose `__call__` every layer's call goes through."""

_path: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("tfmp_layers", default=())
_originals: dict[str, Callable[..., Any]] = {}


def watch() -> None:
    """Hooks into the layers of every Keras that has been imported, once each."""
    for package in OWNERS.keys() - _originals.keys():
        if package in sys.modules and _runs_on_tensorflow(sys.modules[package]):
            _originals[package] = _owner(package).__call__
            _set_call(package, _marking(_originals[package]))


def uninstall() -> None:
    """Puts back every `__call__` that was hooked."""
    while _originals:
        _set_call(*_originals.popitem())


def _runs_on_tensorflow(package: Any) -> bool:
    return package.__name__ == "tf_keras" or package.backend.backend() == "tensorflow"


def _owner(package: str) -> Any:
    module, name = OWNERS[package]
    return getattr(importlib.import_module(module), name)


def _set_call(package: str, call: Callable[..., Any]) -> None:
    _owner(package).__call__ = call


def _marking(original: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    from tfmp import tf_marks

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if tf.executing_eagerly() or not activation.current().settings.has_rules_of("layer"):
            return original(self, *args, **kwargs)
        token = _path.set((*_path.get(), f"{self.name}:{type(self).__name__}"))
        try:
            with tf_marks.marking({LAYER_MARK: tf_marks.mark("/".join(_path.get()))}):
                return original(self, *args, **kwargs)
        finally:
            _path.reset(token)

    return __call__
