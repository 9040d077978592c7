"""Which wrapper an optimizer gets: one table of families, and `wrap`."""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any


@dataclass(frozen=True)
class Family:
    """A kind of optimizers.

    Attributes:
        description: how to name it in an error.
        package: the package its classes come from. No family is asked before its package is imported, since there can
            be no optimizer of it yet.
        optimizer: path of its base class in the package.
        scaling: path of the class of its own loss scale optimizers in the package; every wrapper is one too.
        wrapper: module and class of the wrapper.
    """

    description: str
    package: str
    optimizer: str
    scaling: str
    wrapper: tuple[str, str]

    def wrapper_class(self) -> Any:
        """Returns the class of the wrapper, importing its module."""
        module, name = self.wrapper
        return getattr(importlib.import_module(module), name)

    def has(self, candidate: Any, path: str) -> bool:
        """Returns whether `candidate` is an instance of the class at `path` of the imported package."""
        package: Any = sys.modules.get(self.package)
        return package is not None and isinstance(candidate, reduce(getattr, path.split("."), package))


#: A new family is one row here and one module with its wrapper.
FAMILIES: tuple[Family, ...] = (
    Family(
        "a Keras 3 optimizer (keras.optimizers)",
        "keras",
        "optimizers.Optimizer",
        "optimizers.LossScaleOptimizer",
        ("tfmp.optimizers.keras3", "LossScaleOptimizer"),
    ),
    Family(
        "a tf_keras optimizer (tf_keras.optimizers)",
        "tf_keras",
        "optimizers.Optimizer",
        "mixed_precision.LossScaleOptimizer",
        ("tfmp.optimizers.tf_keras", "TfKerasLossScaleOptimizer"),
    ),
    Family(
        "a legacy tf_keras optimizer (tf_keras.optimizers.legacy)",
        "tf_keras",
        "optimizers.legacy.Optimizer",
        "mixed_precision.LossScaleOptimizer",
        ("tfmp.optimizers.tf_keras", "TfKerasLegacyLossScaleOptimizer"),
    ),
    Family(
        "a TensorFlow 1 optimizer (tf.compat.v1.train.Optimizer)",
        "tensorflow",
        "compat.v1.train.Optimizer",
        "compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer",
        ("tfmp.optimizers.v1", "V1LossScaleOptimizer"),
    ),
)


def wrap(optimizer: Any, loss_scale: Any = "dynamic") -> Any:
    """Returns the optimizer under a loss scale, as an optimizer of the same family.

    Args:
        optimizer: an optimizer of Keras 3, tf_keras (new or legacy) or `tf.compat.v1.train`.
        loss_scale: "dynamic", a number for a fixed scale, None for no scaling, or a policy record.

    Raises:
        TypeError: it is something else; the text lists what is accepted.
        ValueError: it scales the loss already, by a wrapper of tfmp or of its own family; or `loss_scale` is out of range;
            or the current distribution strategy cannot scale losses.
    """
    return family_of(optimizer).wrapper_class()(optimizer, loss_scale)


def family_of(optimizer: Any) -> Family:
    """Returns the family of an optimizer.

    Raises:
        TypeError: it belongs to none; the text lists what is accepted.
    """
    for family in FAMILIES:
        if family.has(optimizer, family.optimizer):
            return family
    accepted = _enumerate([family.description for family in FAMILIES])
    hint = " Create the optimizer first: a name does not tell its family." if isinstance(optimizer, str) else ""
    raise TypeError(f"Cannot scale losses for {optimizer!r} of type {type(optimizer).__name__}. Give {accepted}.{hint}")


def is_optimizer(optimizer: Any) -> bool:
    """Returns whether something is an optimizer of a family, and not the name of one or its configuration."""
    return any(family.has(optimizer, family.optimizer) for family in FAMILIES)


def is_wrapped(optimizer: Any) -> bool:
    """Returns whether an optimizer scales the loss already, by a wrapper of tfmp or of its own family."""
    return any(family.has(optimizer, family.scaling) for family in FAMILIES)


_scaled: weakref.WeakSet[Any] = weakref.WeakSet()


def note_scaled(optimizer: Any) -> None:
    """Notes that an optimizer gets its gradients from something that scales the loss: a wrapper of any kind, or a `LossScaler`."""
    _scaled.add(optimizer)


def is_scaled(optimizer: Any) -> bool:
    """Returns whether an optimizer is known to get its gradients from something that scales the loss."""
    return optimizer in _scaled or bool(getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False))  # tf_keras's own mark


def register(package: str) -> None:
    """Makes the wrappers of a package's optimizers known to its loader of model files.

    Keras finds a class in a file only if the class's module was imported. So this is called once the package, "keras" or "tf_keras", is imported;
    for another package, or for Keras 3 on another backend than TensorFlow, it does nothing.
    """
    loaded: Any = sys.modules.get(package)
    if package == "keras" and loaded is not None and loaded.config.backend() != "tensorflow":
        return
    for family in FAMILIES:
        if family.package == package in ("keras", "tf_keras") and loaded is not None:
            family.wrapper_class()


def _enumerate(items: Sequence[str]) -> str:
    return f"{', '.join(items[:-1])} or {items[-1]}"
