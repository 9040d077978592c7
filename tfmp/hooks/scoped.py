"""A `tf.function` that is always called, and traced, inside one scope."""

from __future__ import annotations

import contextlib
from typing import Any

import wrapt


class ScopedFunction(wrapt.ObjectProxy):  # type: ignore[type-arg]  # wrapt is generic in its stubs only
    """Stands for a `tf.function` and passes everything on to it, but enters a scope around whatever may trace."""

    def __init__(self, function: Any, scope: contextlib.AbstractContextManager[Any]) -> None:
        """Wraps `function`; `scope` is entered anew at every call."""
        super().__init__(function)
        self._self_scope = scope

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function inside the scope."""
        with self._self_scope:
            return self.__wrapped__(*args, **kwargs)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """Traces, or finds, the concrete function inside the scope."""
        with self._self_scope:
            return self.__wrapped__.get_concrete_function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds a decorated method; the bound function keeps the scope."""
        return type(self)(self.__wrapped__.__get__(instance, owner), self._self_scope)
