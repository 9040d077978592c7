"""What hooks put around the methods and functions of others, and how it comes off again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import wrapt

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""What runs instead: called with what was there (bound), its instance (None for a function), and the arguments of the call."""


class _AsWritten:
    # AutoGraph calls what has an attribute of this name as it is. Without it, it says of everything that wrapt wraps that it "is not yet supported" before it
    # does the same. Methods of Keras, tf_keras and TensorFlow it never translates, wrapped or not.
    autograph_info__: ClassVar[dict[str, Any]] = {}


class _Bound(_AsWritten, wrapt.BoundFunctionWrapper):  # type: ignore[type-arg]
    pass


class _Function(_AsWritten, wrapt.FunctionWrapper):  # type: ignore[type-arg]
    __bound_function_wrapper__ = _Bound


class Wrapped:
    """Attributes of modules and classes that one hook has wrapped."""

    def __init__(self) -> None:
        """Wraps nothing yet."""
        self._originals: dict[tuple[Any, str], Any] = {}

    def wrap(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        """Puts `wrapper` around `owner.name`, which the module or class `owner` itself must have; once, whatever comes later."""
        if (owner, name) not in self._originals:
            self._originals[owner, name] = vars(owner)[name]
            wrapt.wrap_object(owner, name, _Function, (wrapper,))

    def restore(self) -> None:
        """Puts back everything that was there."""
        while self._originals:
            (owner, name), original = self._originals.popitem()
            setattr(owner, name, original)
