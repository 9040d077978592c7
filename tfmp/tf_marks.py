"""Marks on nodes: attributes that every node made in a part of a graph carries, and every node of its gradient. The border to TensorFlow for that.

`Graph._attr_scope` sets attributes on what is made inside a `with`. For gradients, which are made later, TensorFlow has three ways, and each is told to
enter the marks of what is differentiated:

- a tape that has recorded an op calls one function for all ops (`eager/backprop.py: _gradient_function`) with the op's recorded attributes: marks are
  recorded among them;
- a tape that has recorded a function call, or a function with a custom gradient, calls the closure it was given (`eager/record.py`);
- symbolic gradients, as functions, loops and branches have them, call one function with the op (`ops/gradients_util.py: _MaybeCompile`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python import pywrap_tfe as _pywrap_tfe
from tensorflow.python.eager import backprop as _backprop
from tensorflow.python.eager import execute as _execute
from tensorflow.python.eager import record as _record
from tensorflow.python.ops import gradients_util as _gradients_util

PREFIX = "_tfmp_"
"""What the names of marks begin with."""

Marks = Mapping[str, attr_value_pb2.AttrValue]
"""Attribute name to value."""

_lock = threading.Lock()
_installed: list[bool] = []


def mark(value: bool | str) -> attr_value_pb2.AttrValue:
    """Returns `value` as the value of an attribute."""
    return attr_value_pb2.AttrValue(s=value.encode()) if isinstance(value, str) else attr_value_pb2.AttrValue(b=value)


def marking(marks: Marks) -> contextlib.AbstractContextManager[None]:
    """Returns a scope in which nodes of the graph that is being built are marked, and their gradients; in eager code it does nothing."""
    if not marks or tf.executing_eagerly():
        return contextlib.nullcontext()
    _follow_gradients()
    scope: contextlib.AbstractContextManager[None] = tf.compat.v1.get_default_graph()._attr_scope(dict(marks))
    return scope


def marks_here() -> Marks:
    """Returns the marks that a node made now would get."""
    scope = getattr(tf.compat.v1.get_default_graph(), "_attr_scope_map", None) if not tf.executing_eagerly() else None
    return {name: value for name, value in scope.items() if name.startswith(PREFIX)} if scope else {}


def _follow_gradients() -> None:
    """Makes gradients carry the marks of what they differentiate, from now on; done once in a process, and without effect where there are no marks."""
    with _lock:
        if _installed:
            return
        _installed.append(True)
        _execute.record_gradient = _recording(_execute.record_gradient)
        _pywrap_tfe.TFE_Py_RegisterGradientFunction(_gradient_function)
        _record.record_operation = _closing(_record.record_operation)
        _record.record_operation_backprop_only = _closing(_record.record_operation_backprop_only)
        _gradients_util._MaybeCompile = _symbolic(_gradients_util._MaybeCompile)


def _recording(record: Callable[..., None]) -> Callable[..., None]:
    def record_gradient(op_name: str, inputs: Any, attrs: Sequence[Any] | None, outputs: Any) -> None:
        marks = marks_here()
        record(op_name, inputs, (*(attrs or ()), *(part for item in marks.items() for part in item)) if marks else attrs, outputs)

    return record_gradient


def _gradient_function(op_name: str, attrs: Sequence[Any], *rest: Any) -> Any:
    marks = {name: value for name, value in zip(attrs[::2], attrs[1::2], strict=True) if name.startswith(PREFIX)} if attrs else {}
    with marking(marks):
        return _backprop._gradient_function(op_name, attrs, *rest)


def _closing(record: Callable[..., None]) -> Callable[..., None]:
    def record_operation(op_type: str, output_tensors: Any, input_tensors: Any, backward_function: Callable[..., Any], *rest: Any, **named: Any) -> None:
        marks = marks_here()

        def marked_backward(*gradients: Any) -> Any:
            with marking(marks):
                return backward_function(*gradients)

        record(op_type, output_tensors, input_tensors, marked_backward if marks else backward_function, *rest, **named)

    return record_operation


def _symbolic(compile_gradient: Callable[..., Any]) -> Callable[..., Any]:
    def maybe_compile(scope: str, op: Any, function: Any, gradient: Callable[[], Any]) -> Any:
        with marking({name: value for name, value in op.node_def.attr.items() if name.startswith(PREFIX)}):
            return compile_gradient(scope, op, function, gradient)

    return maybe_compile
