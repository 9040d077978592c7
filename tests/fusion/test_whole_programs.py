"""Programs of layers, some normalised, that share tensors, wait for each other and hand out what they have: kernels change nothing of what they compute."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from tensorflow.python.eager import context

import tfmp
from tests.fusion.running import FusedFunction, agree
from tests.fusion.test_properties import MEANS, RESULTS, RIGHT, ROOTS, VARIANCES
from tests.programs.written import Written
from tfmp import engine, tf_api
from tfmp.fusion import norms
from tfmp.fusion.repeats import Memory
from tfmp.graph.view import read_function
from tfmp.program.liveness import dead_nodes
from tfmp.settings import make_settings

SHAPE = (3, 4, 2, 16)
AXES = {"rows": (3,), "channels": (0, 1, 2)}


@dataclasses.dataclass(frozen=True)
class Layer:
    """One step of a program; what it makes joins the values that later steps read.

    Attributes:
      kind: a key of `KINDS`.
      reads: which two values it reads, counted from the newest.
      spelling: how a normalisation is written (`test_properties`).
      axes: what it normalises.
      after: what else becomes of a normalisation: a key of `AFTER`.
    """

    kind: str
    reads: tuple[int, int]
    spelling: tuple[str, str, str, str]
    axes: str
    after: str


AFTER = ("nothing", "nothing", "mean is a result", "variance is a result", "result waits", "average moves", "is read twice")


class Built:
    """A program as it is traced: its variables, and what it hands out beside its last value."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        self.weight = tf.Variable((0.4 * random.normal(size=(16, 16))).astype(np.float32))
        self.scale, self.offset = (tf.Variable(random.uniform(0.5, 1.5, 16).astype(np.float32)) for _ in range(2))
        self.average = tf.Variable(0.0)
        self.beside: list[tf.Tensor] = []

    def run(self, layers: list[Layer], x: tf.Tensor) -> tf.Tensor:
        """Returns the last value."""
        values = [tf.nn.leaky_relu(x), tf.sin(x)]
        for layer in layers:
            values.append(KINDS[layer.kind](self, layer, *(values[-1 - read % len(values)] for read in layer.reads)))
        return values[-1]

    def normalised(self, layer: Layer, x: tf.Tensor) -> tf.Tensor:
        mean_of, variance_of, root_of, result_of = layer.spelling
        axes = AXES[layer.axes]
        count = float(np.prod([SHAPE[axis] for axis in axes]))
        scale, offset = tf.identity(self.scale), tf.identity(self.offset)
        mean = MEANS[mean_of](x, axes, count)
        variance = VARIANCES[variance_of](x, mean, axes, count)
        y = RESULTS[result_of](x, mean, ROOTS[root_of](variance), scale, 0.0 if layer.after == "result waits" else offset)
        if layer.after in ("mean is a result", "variance is a result"):
            self.beside.append(mean if layer.after == "mean is a result" else variance)
        elif layer.after == "is read twice":
            y += tf.sin(mean) * y
        elif layer.after in ("average moves", "result waits"):
            moved = self.average.assign(0.9 * self.average + 0.1 * tf.reduce_mean(mean))
            with tf.control_dependencies([moved] if layer.after == "result waits" else []):
                y += offset
        return y


KINDS: dict[str, Any] = {
    "normalisation": lambda built, layer, a, b: built.normalised(layer, a),
    "product": lambda built, layer, a, b: tf.tensordot(a, built.weight, 1),
    "convolution": lambda built, layer, a, b: tf.nn.conv2d(a, built.weight[None, None], 1, "SAME"),
    "sum": lambda built, layer, a, b: a + b,
    "many": lambda built, layer, a, b: 0.3 * tf.add_n([a, b, tf.tanh(a), a]),
    "shifted": lambda built, layer, a, b: tf.identity(b + 0.5),
    "gate": lambda built, layer, a, b: a * tf.sigmoid(b),
    "tanh": lambda built, layer, a, b: tf.tanh(a),
    "stopped": lambda built, layer, a, b: a + tf.stop_gradient(b),
    "channels": lambda built, layer, a, b: a * built.scale + built.offset,
    "two": lambda built, layer, a, b: built.normalised(layer, a) - built.normalised(layer, a + 1.0),
}
FREQUENT = ["normalisation"] * 5 + ["product"] * 2 + list(KINDS)

GOOD_MEANS = ("mean", "sum")

layers = st.lists(
    st.builds(
        Layer,
        st.sampled_from(FREQUENT),
        st.tuples(st.integers(0, 2), st.integers(0, 3)),
        st.tuples(*(st.sampled_from([name for name in part if name in RIGHT]) for part in (GOOD_MEANS, VARIANCES, ROOTS, RESULTS))),
        st.sampled_from(sorted(AXES)),
        st.sampled_from(AFTER),
    ),
    min_size=3,
    max_size=8,
)


def traced(steps: list[Layer], derivatives: int) -> Any:
    """Returns a function of the data to all results, and gradients up to that order; it owns its variables."""
    built = Built()

    @tf.function(autograph=False)
    def function(x: tf.Tensor) -> Any:
        built.beside.clear()
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = built.run(steps, x)
                total = tf.reduce_sum(tf.tanh(y))
            first = tape.gradient(total, x) if derivatives else None
            again = tf.reduce_mean(tf.square(first)) if derivatives == 2 else total
        found = outer.gradient(again, [x, built.weight, built.scale, built.offset]) if derivatives else ()
        return [y, *built.beside, *(one for one in (first, *found) if one is not None)]

    function.built = built
    return function


def test_programs_compute_what_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = collections.Counter[str]()
    x = np.random.default_rng(5).normal(0.2, 1.0, SHAPE).astype(np.float32)

    @given(steps=layers, derivatives=st.sampled_from([0, 1, 1, 2]), known=st.booleans())
    @settings(max_examples=25, deadline=None, database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def check(steps: list[Layer], derivatives: int, known: bool) -> None:
        with tfmp.mixed_precision(enabled=False):
            function = traced(steps, derivatives)
            fused = FusedFunction(function, tf.TensorSpec(SHAPE if known else [None, *SHAPE[1:]]))
        wanted = fused.before(x)
        if fused.found:
            _is_what_is_read(fused)
            agree(fused(x), wanted, 1e-3)
        seen["found" if fused.found else "not found"] += 1
        seen["waits"] += fused.found and any(step.after == "result waits" for step in steps)
        converted = _converted(fused.concrete)
        monkeypatch.setattr(norms, "_memories", [Memory()])
        assert {name: _bytes(one) for name, one in _versions(converted)} == {name: _bytes(one) for name, one in _versions(_converted(fused.concrete))}
        for own, other in zip(_run(converted, fused.concrete, x), wanted, strict=True):
            assert own.shape == other.shape and own.dtype == other.dtype and np.isfinite(own).all()

    check()
    assert min(seen.values()) > 3, seen


def _is_what_is_read(fused: FusedFunction) -> None:
    """What is told of the function without reading it again is what reading it again tells."""
    read = read_function(fused.body.joined(), {})
    for column in ("names", "ops", "types", "inputs", "controlled"):
        assert getattr(fused.body, column) == getattr(read, column), column
    assert fused.body.dead == dead_nodes(read)


def _converted(concrete: Any) -> tfmp.Conversion:
    chosen = make_settings(dtype="float16", device="CPU", ignore_performance=True)
    graphs = tf_api.python_graphs([concrete.inference_fn]).get
    return engine.convert_named(concrete.inference_fn.name, tf_api.function_definition, chosen, graphs=graphs, prune=True)


def _versions(conversion: tfmp.Conversion) -> list[tuple[str, Any]]:
    return [(name, version.after) for name, version in Written(conversion).versions.items()]


def _bytes(definition: Any) -> bytes:
    return bytes(definition.SerializeToString(deterministic=True))


def _run(conversion: tfmp.Conversion, concrete: Any, x: np.ndarray) -> list[np.ndarray]:
    """Returns what the converted function gives."""
    for name, definition in _versions(conversion):
        if not tf_api.has_function(name):
            tf_api.add_function(definition)
    root = _versions(conversion)[0][0].encode()
    return [one.numpy() for one in context.context().call_function(root, [tf.constant(x), *concrete.captured_inputs], len(concrete.outputs))]
