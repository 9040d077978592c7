"""Regions: what is traced inside `with tfmp.float32():` stays in float32, and so does its gradient."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
from collections.abc import Callable
from typing import Any

from tfmp.hooks import activation
from tfmp.user_rules import FLOAT32_MARK

_entered: contextvars.ContextVar[tuple[contextlib.AbstractContextManager[Any], ...]] = contextvars.ContextVar("tfmp_regions", default=())


class float32:  # noqa: N801  (used like a function)
    """A region: ops made inside, and their gradients, are never converted, whatever is converted around them.

    In a graph being traced (the body of a `tf.function`, a Keras layer's `call`, a loop or a branch) it covers the ops made in it, with the functions,
    loops and branches they call. Around eager code it covers the functions that are *traced* inside: those stay in float32 as a whole, and what was traced
    before runs as it was converted. Usable as `with tfmp.float32():` and as a decorator, `@tfmp.float32()`, of a function, a method or a `tf.function`.
    Regions nest, and belong to the thread that entered them.
    """

    def __enter__(self) -> float32:
        """Enters the region."""
        scope = _scope()
        scope.__enter__()
        _entered.set((*_entered.get(), scope))
        return self

    def __exit__(self, *details: Any) -> None:
        """Leaves the region, also when an exception passes."""
        *outer, scope = _entered.get()
        _entered.set(tuple(outer))
        scope.__exit__(*details)

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Returns `function` with every call inside the region; a `tf.function` comes back as something that still is one for its users."""
        if hasattr(function, "get_concrete_function"):
            from tfmp.hooks.scoped import ScopedFunction

            return ScopedFunction(function, self)

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return inside


def _scope() -> contextlib.AbstractContextManager[Any]:
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or tensorflow.executing_eagerly():
        return activation.mixed_precision(graph_rewrite=False, loss_scaling=activation.current().loss_scaling)
    from tfmp import tf_marks

    return tf_marks.marking({FLOAT32_MARK: tf_marks.mark(True)})
