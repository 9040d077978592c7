"""What an attached `tf.function` runs.

The float32 graph stays the truth: Python graphs, gradients, outer traces and SavedModels only ever see it. What TensorFlow *runs* is another matter: when a
function is called eagerly for the first time, the program that it is the root of is converted, registered under new names, and called instead. So inner
functions are converted as part of what calls them, `tf.data` functions (which are never called this way) not at all, and gradients are always taken of
float32 functions and then converted themselves: a forward function and the backward function of its tape as one program, so that what the first saves for
the second is in 16 bit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tfmp import tf_api
from tfmp.hooks import notices, variants
from tfmp.settings import Settings

Links = Sequence[tuple[int, int]]
"""Pairs of (result of a forward function, argument of its backward function) that are one value, which nobody else sees."""


class LazyProgram:
    """One function, or a forward and its backward function, that are converted together when the first of them is called.

    Safe to use from several threads.
    """

    def __init__(self, functions: Sequence[tf_api.AtomicFunction], links: Links, settings: Settings) -> None:
        """Keeps `functions`, the float32 originals, registered as long as it lives; converts nothing yet."""
        self.functions, self.links, self.settings = tuple(functions), links, settings
        self._lock = threading.Lock()
        self._converted: Sequence[tf_api.AtomicFunction] | None = None
        self._pending = True

    def converted(self, index: int) -> tf_api.AtomicFunction | None:
        """Returns what to run instead of `functions[index]`; None if that is to be run itself. The first call converts."""
        if self._pending:
            self._convert()
        return None if self._converted is None else self._converted[index]

    def _convert(self) -> None:
        from tfmp.hooks import conversion  # the engine is loaded only in a process that converts something

        with self._lock:
            if self._pending:
                with notices.falling_back(self.functions[0].name, self.settings.strict):
                    self._converted = conversion.convert_for_running(self.functions, self.links, self.settings)
                self._pending = False

    def give_up(self) -> None:
        """Makes every function of the program run as it is from now on."""
        self._converted = None


class MixedFunction(tf_api.AtomicFunction):
    """Stands for a float32 function: a call node in graphs, the converted program when it is run."""

    def __init__(self, program: LazyProgram, index: int = 0, takes_sixteen: bool = False) -> None:
        """Takes over name, type, children and graph of `program.functions[index]`.

        With `takes_sixteen` it may be handed 16-bit tensors and lists of them for float32 ones, since a converted forward function made them.
        """
        original = program.functions[index]
        super().__init__(
            original.name,
            original._bound_context,
            original.function_type,
            original.children,
            original.call_options,
            cached_graph=original._cached_graph,
        )
        self._program, self._index, self._takes_sixteen = program, index, takes_sixteen
        self._trusted = False

    def call_flat(self, *args: Any) -> Sequence[Any]:
        """Runs the converted program, or adds a call of the float32 function to the graph being built."""
        converted = self._program.converted(self._index) if tf_api.executing_eagerly() else None
        if converted is None:
            return super().call_flat(*self._as_declared(args))
        if self._takes_sixteen:
            args = _as_declared_by(converted, args)
        if self._trusted:
            return converted.call_flat(*args)
        return self._first_call(converted, args)

    def _first_call(self, converted: tf_api.AtomicFunction, args: tuple[Any, ...]) -> Sequence[Any]:
        """Runs the converted program for the first time; if TensorFlow cannot even start it, the float32 function runs instead, now and from now on."""
        try:
            result = converted.call_flat(*args)
        except tf_api.OpError as error:
            if self._program.settings.strict or not notices.could_not_start(error):
                raise
            notices.fell_back(self.name, error)
            self._program.give_up()
            return super().call_flat(*self._as_declared(args))
        self._trusted = True
        return result

    def _as_declared(self, args: Sequence[Any]) -> Sequence[Any]:
        """Returns `args` with 16-bit tensors, and what lists and optionals hold, cast to what the float32 function takes."""
        if not self._takes_sixteen:
            return args
        return [variants.widened(arg) if variants.is_variant(arg) else arg for arg in _as_declared_by(self, args)]


def _as_declared_by(function: tf_api.AtomicFunction, args: Sequence[Any]) -> tuple[Any, ...]:
    """Returns `args` with 16-bit tensors cast to float32 where `function` declares that."""
    return tuple(tf_api.as_type(arg, declared.type) for arg, declared in zip(args, function.cached_definition.signature.input_arg, strict=True))


class _TapeFunctions(dict[Any, Any]):
    """Where a ConcreteFunction keeps what it built for gradient tapes (`_first_order_tape_functions`, `_higher_order_tape_functions`).

    What is put in is told to hand out converted forward and backward functions. In the first-order case nobody but the backward function ever sees what
    the forward function saves for it. In the higher-order case the tape also takes what is saved for results, with gradients of their own: these stay
    float32 tensors, which TensorFlow lets flow back into 16-bit results, but a list's gradient is a list, whose type has to fit, so lists stay float32.
    """

    def __init__(self, settings: Settings, first_order: bool, takes_sixteen: bool) -> None:
        super().__init__()
        self._settings, self._first_order, self._takes_sixteen = settings, first_order, takes_sixteen

    def __setitem__(self, key: Any, functions: Any) -> None:
        build: Callable[..., tuple[Any, ...]] = functions._forward_and_backward_functions

        def build_mixed(inference_args: Any, input_tangents: Any) -> tuple[Any, ...]:
            forward, graph, backward, *rest = build(inference_args, input_tangents)
            if not input_tangents:
                links = saved_tensors(graph, functions._num_inference_outputs, backward, lists=self._first_order)
                program = LazyProgram([forward, backward._inference_function], links, self._settings)
                attach(backward, self._settings, MixedFunction(program, 1, takes_sixteen=True))
            else:
                program = LazyProgram([forward], (), self._settings)
                attach(backward, self._settings)
            return (MixedFunction(program, 0, self._takes_sixteen), graph, backward, *rest)

        functions._forward_and_backward_functions = build_mixed
        super().__setitem__(key, functions)


def saved_tensors(graph: Any, results: int, backward: tf_api.ConcreteFunction, lists: bool = True) -> Links:
    """Returns which results of a forward function are saved for its backward function only.

    Args:
      graph: the forward function's Python graph; its outputs are the user's results and then what is saved.
      results: how many outputs are the user's.
      backward: the backward function, whose last arguments are its captured inputs.
      lists: whether to include tensor lists and optionals.
    """

    def counts(dtype: Any) -> bool:
        return dtype.is_floating or (lists and dtype == tf_api.VARIANT)

    position = {id(tensor): index for index, tensor in enumerate(graph.outputs) if index >= results}
    captured = backward.captured_inputs
    first = len(backward.inputs) - len(captured)
    return tuple((position[id(tensor)], first + index) for index, tensor in enumerate(captured) if id(tensor) in position and counts(tensor.dtype))


def attach(function: tf_api.ConcreteFunction, settings: Settings, inference: MixedFunction | None = None) -> None:
    """Makes eager calls of `function`, with and without gradient tapes, run its converted program from now on.

    `inference` is what stands for its inference function, if that is part of a larger program; it may then be handed 16-bit tensors in graphs too.
    """
    function._inference_function = inference or MixedFunction(LazyProgram([function._inference_function], (), settings))
    if inference is not None:
        function._delayed_rewrite_functions._inference_function = inference
    takes_sixteen = inference is not None
    function._first_order_tape_functions = _TapeFunctions(settings, True, takes_sixteen)
    function._higher_order_tape_functions = _TapeFunctions(settings, False, takes_sixteen)


def is_attached(function: tf_api.ConcreteFunction) -> bool:
    """Returns whether eager calls of `function` run a converted program."""
    return isinstance(function._inference_function, MixedFunction)
