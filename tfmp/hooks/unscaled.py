"""The hook on the optimizers' step: tells somebody whose loop trains in float16 with an optimizer that scales no loss."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from functools import reduce
from typing import Any

from tfmp.hooks import activation, notices, optimizer
from tfmp.hooks.wrapping import Wrapped
from tfmp.optimizers import wrap


@dataclasses.dataclass(frozen=True)
class Step:
    """The method with which a kind of optimizers takes a step.

    Attributes:
      package: the package the kind belongs to.
      module: module of the class.
      owner: path of the class in the module.
      method: name of the method.
    """

    package: str
    module: str
    owner: str
    method: str

    def class_(self) -> Any:
        """Returns the class whose method is hooked."""
        return reduce(getattr, self.owner.split("."), importlib.import_module(self.module))


STEPS = (
    Step("keras", "keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply"),
    Step("keras", "keras", "optimizers.LossScaleOptimizer", "apply"),
    Step("tf_keras", "tf_keras.src.optimizers.optimizer", "Optimizer", "apply_gradients"),
    Step("tf_keras", "tf_keras", "optimizers.legacy.Optimizer", "apply_gradients"),
)
"""One row for each base class, and one for Keras 3's own loss scale optimizer, whose inner optimizer carries no mark. The wrappers of tfmp have a step of
their own, which is not hooked. Optimizers of `tf.compat.v1.train` are not watched: TensorFlow itself would have to be hooked when it is imported."""

_wrapped = Wrapped()


def install(package: str) -> None:
    """Hooks the steps of a package's optimizers, once."""
    for step in STEPS:
        if step.package == package:
            _wrapped.wrap(step.class_(), step.method, _watch)


def uninstall() -> None:
    """Puts back every step that was hooked."""
    _wrapped.restore()


def _watch(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Takes the step; while a function is traced to run in float16, looks at whose step it is."""
    import tensorflow as tf

    if tf.inside_function():
        if wrap.is_wrapped(instance):
            wrap.note_scaled(instance.inner_optimizer)
        elif not wrap.is_scaled(instance):
            active = activation.current()
            if active.graph_rewrite and active.loss_scaling and optimizer.scales_losses(active):
                notices.applied_unscaled(f"{type(instance).__module__}.{type(instance).__name__}")
    return wrapped(*args, **kwargs)
