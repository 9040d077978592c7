"""From what a user hands over (a function, a model) and a batch to a traced float32 function and its arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfmp import layer_marks, tf_api, tf_callbacks
from tfmp.errors import TfmpError
from tfmp.program.program import Program, from_function
from tfmp.settings import Settings


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced function with the arguments of one call.

    Attributes:
      function: the float32 function.
      arguments: its flat arguments, captured ones last.
      settings: what it would be converted by, were it traced by the user; None where mixed precision is off.
    """

    function: tf_api.ConcreteFunction
    arguments: Sequence[Any]
    settings: Settings | None = None

    @property
    def atomic(self) -> tf_api.AtomicFunction:
        """The function as TensorFlow's runtime has it."""
        return self.function._inference_function

    @property
    def name(self) -> str:
        """The function's name."""
        name = self.function.name
        return name.decode() if isinstance(name, bytes) else name

    def program(self) -> Program:
        """Returns the float32 program: what the function was before anything was converted."""
        return from_function(self.name, tf_api.serialised_function)

    def private(self) -> tuple[list[Any], list[Any]]:
        """Returns the arguments with a new variable in the place of each one, so that a run changes none of the user's; and those new variables, which
        must be kept for as long as the arguments are used.
        """
        copies = [tf_api.copy_of_variable(argument) if argument.dtype == tf.resource else None for argument in self.arguments]
        arguments = [argument if copy is None else copy.handle for argument, copy in zip(self.arguments, copies, strict=True)]
        return arguments, [copy for copy in copies if copy is not None]


class Tracer:
    """Traces a function, or what a model does with a batch, once for each form of batch, without touching the traces that the user has."""

    def __init__(self, fn_or_model: Any) -> None:
        """Takes a Keras model, a `tf.function`, a concrete function (such as a signature of a SavedModel), or a Python function of tensors.

        Raises:
          TfmpError: it is none of these.
        """
        self._model = fn_or_model if is_model(fn_or_model) else None
        if self._model is None and not callable(fn_or_model):
            raise TfmpError(f"{fn_or_model!r} is neither a Keras model nor a function.")
        self._stepped = False
        self._trace = tf_callbacks.PrivateTrace()
        self._functions = {what: tf.function(self._marked(call), autograph=autograph) for what, (call, autograph) in self._calls(fn_or_model).items()}

    def _calls(self, given: Any) -> Mapping[str, tuple[Callable[..., Any], bool]]:
        if self._model is not None:
            return {"step": (self._step, False), "forward": (self._forward, False)}
        return {"function": (getattr(given, "python_function", given), not isinstance(given, tf_api.ConcreteFunction))}

    def _marked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `call`, its graph marked as not the user's."""

        @functools.wraps(call)
        def marked(*args: Any, **kwargs: Any) -> Any:
            self._trace.mark()
            return call(*args, **kwargs)

        return marked

    def _step(self, data: Any) -> Any:
        self._stepped = True
        strategy = getattr(self._model, "distribute_strategy", None)
        if strategy is None or strategy.num_replicas_in_sync == 1:
            return self._model.train_step(data)  # type: ignore[union-attr]
        return strategy.run(self._model.train_step, args=(data,))  # type: ignore[union-attr]

    def _forward(self, x: Any) -> Any:
        return self._model(x, training=False)  # type: ignore[misc]

    def __call__(self, batch: Any) -> Traced:
        """Returns the traced function with the arguments that `batch` stands for.

        For a function: a tuple holds its positional arguments, a dict its keyword arguments, anything else is its only argument. For a compiled model: (x, y)
        or (x, y, sample_weight) is a training step; a batch without y, or with a model that is not compiled, a forward pass in inference mode.
        """
        what, args, kwargs = self._arguments(batch)
        if what == "step":
            self._build(args[0])
        function = self._functions[what]
        with layer_marks.marked_layers():
            function.get_concrete_function(*args, **kwargs)  # the first trace may create variables, and then differs from all others
            concrete = function.get_concrete_function(*args, **kwargs)
        return Traced(concrete, tuple(tf_api.flat_arguments(concrete, args, kwargs)), self._trace.settings)

    def _build(self, batch: Any) -> None:
        """Lets a model under a distribution strategy make its variables, which it cannot do while it is traced."""
        model, strategy = self._model, getattr(self._model, "distribute_strategy", None)
        if model is None or strategy is None or strategy.num_replicas_in_sync == 1:
            return
        if hasattr(model, "_maybe_symbolic_build"):  # Keras 3, as its `train_on_batch` does
            model._maybe_symbolic_build(data_batch=batch)
        else:
            with strategy.scope():
                model.optimizer.build(model.trainable_variables)

    def _arguments(self, batch: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        if self._model is None:
            if isinstance(batch, tuple):
                return "function", tuple(_tensors(list(batch))), {}
            return ("function", (), _tensors(batch)) if isinstance(batch, dict) else ("function", (_tensors(batch),), {})
        batch = _tensors(batch, float32=True)
        pair = isinstance(batch, (tuple, list)) and 2 <= len(batch) <= 3
        if pair and getattr(self._model, "optimizer", None) is not None:
            return "step", (tuple(batch),), {}
        return "forward", (batch[0] if pair else batch,), {}

    @property
    def is_model(self) -> bool:
        """Whether it traces a model."""
        return self._model is not None

    @property
    def loss_scale(self) -> float:
        """What the model's optimizer multiplies the loss by now, if a training step was traced; 1 if it does not, and for a function."""
        optimizer = getattr(self._model, "optimizer", None)
        scaled = getattr(optimizer, "scale_loss", None) or getattr(optimizer, "get_scaled_loss", None)  # Keras 3, tf_keras
        return float(scaled(tf.constant(1.0))) if self._stepped and scaled is not None else 1.0


def is_model(value: Any) -> bool:
    """Returns whether `value` is a Keras 3 or tf_keras model."""
    return hasattr(value, "train_step") and hasattr(value, "_flatten_layers")


def _tensors(batch: Any, float32: bool = False) -> Any:
    """Returns `batch` with NumPy arrays made tensors; with `float32`, those of float64 in float32, as Keras does with what it is fed."""

    def convert(value: Any) -> Any:
        if not isinstance(value, (np.ndarray, np.generic)):
            return value
        return tf.constant(value, tf.float32 if float32 and value.dtype == np.float64 else None)

    return tf.nest.map_structure(convert, batch)
