"""A wrapper that looks like the optimizer it wraps: to attribute access, to checkpoints, to Keras files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfmp.optimizers.guard import Guard
from tfmp.optimizers.readings import Readings
from tfmp.optimizers.wrap import note_scaled

#: Name of the scale's state among the checkpoint children, where TensorFlow and tf_keras put theirs.
CHECKPOINT_CHILD = "loss_scale"

_TrackableProxy: Any = tf.__internal__.tracking.DelegatingTrackableMixin


class InnerProxy(Readings, _TrackableProxy):
    """Delegates to an inner optimizer what the wrapper does not do itself.

    To TensorFlow's checkpoints the wrapper is the inner optimizer plus one child, the state of the scale. The inner
    optimizer itself is left without that child. So a checkpoint of either can be restored into the other.
    """

    #: Attribute of the instance that holds the inner optimizer.
    _inner_attribute: ClassVar[str]

    #: Whether `apply_gradients` takes gradients of the scaled loss, and unscales them, or gradients that are unscaled.
    takes_scaled: ClassVar[bool] = False

    #: Whether the optimizers of the family cast gradients to the dtype of the variable themselves.
    casts_gradients: ClassVar[bool] = False

    def _attach(self, inner: Any, guard: Guard) -> None:
        """Sets what the proxy needs, past the families' own attribute assignment, which needs it already."""
        self.__dict__["_trackable"] = inner
        self.__dict__["_guard"] = guard
        note_scaled(inner)

    @staticmethod
    def create_slots(optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Creates what an inner optimizer creates for these (gradient, variable) pairs, outside of any function.

        Called before the step that may be skipped, since variables cannot be created in a conditional branch.
        """
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        """Reads a public attribute that the wrapper does not have from the inner optimizer."""
        inner = self.__dict__.get(self._inner_attribute)
        if inner is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets a public attribute that only the inner optimizer has on the inner optimizer."""
        inner = self.__dict__.get(self._inner_attribute)
        own = inner is None or name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if own or not hasattr(inner, name):
            super().__setattr__(name, value)
        else:
            setattr(inner, name, value)

    def __dir__(self) -> list[str]:
        """Lists the attributes except those that hold the inner optimizer.

        Keras's file formats save every optimizer they find here. The inner one's variables are already saved as the
        wrapper's own, so that the file fits the unwrapped optimizer too.
        """
        hidden = {"inner_optimizer", "_trackable", self._inner_attribute}
        return [name for name in super().__dir__() if name not in hidden]

    def exclude_from_weight_decay(self, *args: Any, **kwargs: Any) -> None:
        """Excludes variables from the inner optimizer's weight decay; arguments as there."""
        self._trackable.exclude_from_weight_decay(*args, **kwargs)

    def _trackable_children(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        children = dict(self._trackable._trackable_children(*args, **kwargs))
        if self._guard.variables is not None:
            children[CHECKPOINT_CHILD] = self._guard.variables
        return children

    def _lookup_dependency(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name == CHECKPOINT_CHILD and self._guard.variables is not None:
            return self._guard.variables
        return self._trackable._lookup_dependency(name, *args, **kwargs)


def check_minimize(optimizer: Any, base: type) -> None:
    """Refuses an optimizer with a `minimize` of its own, which would take its step past the wrapper, or be passed by.

    Args:
        optimizer: the optimizer to be wrapped.
        base: the class whose `minimize` only computes gradients and applies them.

    Raises:
        ValueError: the class of the optimizer, or one it comes from, overrides `minimize`.
    """
    owner = next(kind for kind in type(optimizer).__mro__ if "minimize" in vars(kind))
    if not issubclass(base, owner):
        raise ValueError(
            f"{owner.__module__}.{owner.__qualname__} has a `minimize` of its own, which a loss scale cannot get in between: it would unscale the "
            "gradients only after they were applied. Move what it does to `compute_gradients` or `apply_gradients`, or use loss_scale=None."
        )


def already_wrapped_error(optimizer: Any) -> ValueError:
    """Returns the error for an optimizer that scales the loss already."""
    name = getattr(optimizer, "name", "") or type(optimizer).__name__
    return ValueError(
        f"{type(optimizer).__module__}.{type(optimizer).__name__} {name!r} already scales the loss; a second loss scale "
        "would divide the gradients once too often. Use it as it is, or wrap its inner optimizer instead."
    )
