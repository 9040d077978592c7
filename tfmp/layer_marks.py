"""Marks the nodes of Keras layers with the layers' names, for rules that name layers and for those who show where something happened.

Name scopes in node names do not tell layers apart: a layer `dense` that is called again is in the scope `dense_1`, which another layer's may be too, and under
`fit` nearly every scope has such a number. So while somebody asks for it, every layer's call marks what it makes (`tf_marks`). Otherwise Keras is left alone.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tfmp.user_rules import LAYER_MARK

OWNERS = {"keras": ("keras.src.layers.layer", "Layer"), "tf_keras": ("tf_keras.src.engine.base_layer", "Layer")}
"""Package to the module and the name of the class whose `__call__` every layer's call goes through."""

Asks = Callable[[], bool]
"""Returns whether somebody wants the node that is made now to be marked."""

_path: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("tfmp_layers", default=())
_numbers = itertools.count()
_originals: dict[str, Callable[..., Any]] = {}
_asking: dict[str, Asks] = {}


def watch(who: str, asks: Asks) -> None:
    """Hooks into the layers of every Keras that has been imported, once each, until `unwatch(who)`; marks are made where `asks` says so."""
    _asking[who] = asks
    for package in OWNERS.keys() - _originals.keys():
        if package in sys.modules and _runs_on_tensorflow(sys.modules[package]):
            _originals[package] = owner(package).__call__
            _set_call(package, _marking(_originals[package]))


def unwatch(who: str) -> None:
    """Takes back what `watch(who, ...)` did; puts back every `__call__` that was hooked if nobody else watches."""
    _asking.pop(who, None)
    while _originals and not _asking:
        _set_call(*_originals.popitem())


@contextlib.contextmanager
def marked_layers() -> Iterator[None]:
    """A scope in which every layer's call marks what it makes, in every thread: distribution strategies trace each replica in a thread of its own."""
    who = f"scope {next(_numbers)}"
    watch(who, lambda: True)
    try:
        yield
    finally:
        unwatch(who)


def owner(package: str) -> Any:
    """Returns the class whose `__call__` is hooked."""
    module, name = OWNERS[package]
    return getattr(importlib.import_module(module), name)


def _runs_on_tensorflow(package: Any) -> bool:
    return package.__name__ == "tf_keras" or package.backend.backend() == "tensorflow"


def _set_call(package: str, call: Callable[..., Any]) -> None:
    owner(package).__call__ = call


def _marking(original: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    from tfmp import tf_marks

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if tf.executing_eagerly() or not any(asks() for asks in list(_asking.values())):
            return original(self, *args, **kwargs)
        token = _path.set((*_path.get(), f"{self.name}:{type(self).__name__}"))
        try:
            with tf_marks.marking({LAYER_MARK: tf_marks.mark("/".join(_path.get()))}):
                return original(self, *args, **kwargs)
        finally:
            _path.reset(token)

    return __call__
