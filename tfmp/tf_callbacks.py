"""The one part of the border to TensorFlow that is needed as soon as TensorFlow has been imported, and nothing else.

`tf_api` cannot be used then: when `tf_api` itself is what imports TensorFlow, it is not finished yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.client.session import BaseSession as _BaseSession
from tensorflow.python.eager import context as _context
from tensorflow.python.eager import wrap_function as _wrap_function
from tensorflow.python.eager.polymorphic_function import transform as _transform
from tensorflow.python.saved_model import function_deserialization as _function_deserialization
from tensorflow.python.saved_model import save as _save

from tfmp.errors import TfmpError

OLDEST, NEWEST = (2, 18), (2, 21)
"""TensorFlow versions on which the whole test suite has passed."""


def check_version(version: str = tf.__version__) -> None:
    """Raises `TfmpError` if TensorFlow is older than 2.18; a newer one than 2.21 is let through."""
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise TfmpError(f"TensorFlow is {version}; tfmp needs 2.18 or later: pip install 'tensorflow>=2.18,<2.22'.")


def concrete_function_callbacks() -> list[Callable[[Any], None]]:
    """Returns the list that TensorFlow calls with every newly traced `ConcreteFunction` (`polymorphic_function/transform.py`)."""
    return _transform.CONCRETE_FUNCTION_CALLBACKS


def session_class() -> type:
    """Returns the class that every `tf.compat.v1.Session` derives from."""
    return _BaseSession


def function_loader() -> ModuleType:
    """Returns the module whose `load_function_def_library` makes a dict of `ConcreteFunction`s of the function library of a SavedModel."""
    return _function_deserialization


def saved_model_writer() -> ModuleType:
    """Returns the module whose `_build_meta_graph` makes the MetaGraphDef of a SavedModel, and returns it before everything else."""
    return _save


def wrapped_function_class() -> type:
    """Returns the subclass of `ConcreteFunction` that `tf.compat.v1.wrap_function` makes, also for SavedModels of TensorFlow 1."""
    return _wrap_function.WrappedFunction


def has_run() -> bool:
    """Returns whether TensorFlow has run anything in this process, eager ops included: only then are its devices initialised."""
    return bool(_context.context()._initialized)


@dataclasses.dataclass
class PrivateTrace:
    """A function that tfmp traces for itself, which is to stay as it is: whoever is on the list of callbacks leaves in `settings` what it would have been
    converted by (None if mixed precision is off).
    """

    settings: Any = None

    def mark(self) -> None:
        """Marks the graph that is being traced; to be called by the function that is traced."""
        tf.compat.v1.get_default_graph()._tfmp_private_trace = self


def private_trace(function: Any) -> PrivateTrace | None:
    """Returns the mark of a newly traced `ConcreteFunction`, or None."""
    return getattr(function.graph, "_tfmp_private_trace", None)
