"""Functions with kernels put in and nothing else changed: all in float32, so that what they compute can be compared with what the program computes."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfmp import tf_api
from tfmp.fusion.fuse import fuse
from tfmp.graph.body import Body
from tfmp.program.program import from_function

_numbers = itertools.count()


class FusedFunction:
    """A traced function with kernels put in.

    Attributes:
      body: what it has become; the body as it was if nothing was found.
      found: whether anything was put in.
      concrete: the function as it was traced.
    """

    def __init__(self, function: Callable[..., Any], *specs: tf.TensorSpec, **options: Any) -> None:
        """Traces `function` and puts kernels in; `options` are those of `fuse`."""
        traced = function if hasattr(function, "get_concrete_function") else tf.function(function, autograph=False)
        self.concrete = traced.get_concrete_function(*specs)
        name = self.concrete.name.decode() if isinstance(self.concrete.name, bytes) else self.concrete.name
        self._name, self._traced = name, traced
        program = from_function(name, tf_api.function_definition)
        kept = options.pop("kept", {})
        fused = fuse(program, tf_api.python_graphs([self.concrete.inference_fn]).get, {name: frozenset(kept)} if kept else {}, **options)
        self.body: Body = fused.bodies[name]
        self.found = name in fused.changed

    @property
    def live_ops(self) -> Mapping[str, int]:
        """Op type to how many nodes of it TensorFlow does not prune."""
        from tfmp.program.liveness import dead_nodes

        dead = set(dead_nodes(self.body))
        return collections.Counter(op for node, op in enumerate(self.body.ops) if node not in dead)

    def __call__(self, *arguments: Any, compiled: bool = False) -> Sequence[Any]:
        """Runs what it has become; returns the flat results as arrays."""
        assert self.found
        proto = tf_api.FunctionDef.FromString(self.body.joined())
        proto.signature.name = f"{self._name}_fused_{next(_numbers)}"
        if compiled:
            proto.attr["_XlaMustCompile"].b = True
        function = tf_api.new_atomic_function(proto.signature.name, proto, self.concrete.inference_fn, self.concrete.inference_fn.children)
        given = [tf.convert_to_tensor(one) for one in arguments]
        return [np.asarray(one) for one in tf.nest.flatten(function.call_flat(*given, *self.concrete.captured_inputs)) if one is not None]

    def before(self, *arguments: Any) -> Sequence[Any]:
        """Runs the function as it was traced; returns the flat results as arrays."""
        return [np.asarray(one) for one in tf.nest.flatten(self.concrete(*[tf.convert_to_tensor(one) for one in arguments]))]


def with_gradients(forward: Callable[..., tf.Tensor], variables: Sequence[Any]) -> Callable[..., Any]:
    """Returns a function of `x` and of the gradient for the result, to the result and the gradients for `x` and for `variables`."""

    def step(x: tf.Tensor, gradient: tf.Tensor) -> Any:
        x = tf.nn.leaky_relu(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = forward(x)
            total = tf.reduce_sum(tf.tanh(y) * gradient)
        return y, *tape.gradient(total, [x, *variables], unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return step


def agree(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], tolerance: float = 2e-5) -> None:
    """Asserts that two lists of results are the same up to the rounding of float32, each relative to its largest element."""
    assert len(found) == len(wanted)
    for own, other in zip(found, wanted, strict=True):
        assert own.shape == other.shape and own.dtype == other.dtype
        np.testing.assert_allclose(own, other, rtol=0, atol=tolerance * max(1e-3, float(np.max(np.abs(other), initial=0.0))))
