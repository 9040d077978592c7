"""What an attached `tf.function` runs.

The float32 graph stays the truth: Python graphs, gradients, outer traces and SavedModels only ever see it. What TensorFlow *runs* is another matter: when a
function is called eagerly for the first time, the program that it is the root of is converted, registered under new names, and called instead. So inner
functions are converted as part of what calls them, `tf.data` functions (which are never called this way) not at all, and gradients are always taken of
float32 functions and then converted themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tfmp import tf_api
from tfmp.hooks import notices
from tfmp.settings import Settings


class MixedFunction(tf_api.AtomicFunction):
    """Stands for a float32 function: a call node in graphs, the converted program when it is run."""

    def __init__(self, original: tf_api.AtomicFunction, settings: Settings) -> None:
        """Takes over name, type, children and graph of `original`, which stays registered as long as this lives."""
        super().__init__(
            original.name,
            original._bound_context,
            original.function_type,
            original.children,
            original.call_options,
            cached_graph=original._cached_graph,
        )
        self._settings = settings
        self._lock = threading.Lock()
        self._converted: tf_api.AtomicFunction | None = None
        self._pending = True
        self._trusted = False

    def call_flat(self, *args: Any) -> Sequence[Any]:
        """Runs the converted program, or adds a call of the float32 function to the graph being built."""
        if not tf_api.executing_eagerly():
            return super().call_flat(*args)
        if self._pending:
            self._convert()
        if self._converted is None:
            return super().call_flat(*args)
        if self._trusted:
            return self._converted.call_flat(*args)
        return self._first_call(*args)

    def _convert(self) -> None:
        from tfmp.hooks import conversion  # the engine is loaded only in a process that converts something

        with self._lock:
            if self._pending:
                with notices.falling_back(self.name, self._settings.strict):
                    self._converted = conversion.convert_for_running(self, self._settings)
                self._pending = False

    def _first_call(self, *args: Any) -> Sequence[Any]:
        """Runs the converted program for the first time; if TensorFlow cannot even start it, the float32 function runs instead, now and from now on."""
        try:
            result = self._converted.call_flat(*args)  # type: ignore[union-attr]
        except tf_api.OpError as error:
            if self._settings.strict or not notices.could_not_start(error):
                raise
            notices.fell_back(self.name, error)
            self._converted = None
            return super().call_flat(*args)
        self._trusted = True
        return result


class _TapeFunctions(dict[Any, Any]):
    """Where a ConcreteFunction keeps what it built for gradient tapes (`_first_order_tape_functions`, `_higher_order_tape_functions`).

    What is put in is told to hand out converted forward and backward functions.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def __setitem__(self, key: Any, functions: Any) -> None:
        build: Callable[..., tuple[Any, ...]] = functions._forward_and_backward_functions

        def build_mixed(inference_args: Any, input_tangents: Any) -> tuple[Any, ...]:
            forward, graph, backward, *rest = build(inference_args, input_tangents)
            attach(backward, self._settings)
            return (MixedFunction(forward, self._settings), graph, backward, *rest)

        functions._forward_and_backward_functions = build_mixed
        super().__setitem__(key, functions)


def attach(function: tf_api.ConcreteFunction, settings: Settings) -> None:
    """Makes eager calls of `function`, with and without gradient tapes, run its converted program from now on."""
    function._inference_function = MixedFunction(function._inference_function, settings)
    function._first_order_tape_functions = _TapeFunctions(settings)
    function._higher_order_tape_functions = _TapeFunctions(settings)


def is_attached(function: tf_api.ConcreteFunction) -> bool:
    """Returns whether eager calls of `function` run a converted program."""
    return isinstance(function._inference_function, MixedFunction)
