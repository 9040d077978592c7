"""What mixed precision saves on whole programs: tfmp beside float32, TensorFlow's own pass and Keras's policy `mixed_float16`.

    python benchmarks/programs.py [--rows LSTM cond] [--dtype float16]

Each row is one training step (forward, gradients; inside the function also a fused update, float32 for all), run once on this CPU and traced kernel by kernel (`executed.py`).
Columns: share of matmul FLOPs in 16 bit; casts that run, loops counted by their trips; bytes that casts read and write; bytes of activations saved for the
backward part; bytes that all kernels read and write, relative to float32. TensorFlow's pass gets what its runtime gives it: functions inlined, loops and
branches lowered, and a forward and a backward function one at a time. It needs the CUDA build of TensorFlow, which simulates a GPU.
"least" is the least possible traffic with matmuls in 16 bit, denylist ops, variables and results in float32, and everything else free (a minimum cut).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]  # for `tests.oracle`, which starts TensorFlow with a simulated GPU

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from benchmarks.executed import Measures, Stage, measure, source
from benchmarks.least import least_traffic
from tests.oracle.lowering import lower
from tests.oracle.tf_pass import run_tensorflow_pass, unavailable_reason
from tfmp import engine, tf_api
from tfmp.hooks.tf_function import saved_tensors
from tfmp.settings import make_settings

BATCH, TIMES, FEATURES, UNITS, CLASSES = 32, 12, 32, 64, 10
RATE = 0.1


@dataclasses.dataclass(frozen=True)
class Step:
    """One training step: the function(s) that run, in order, and the input of the first.

    Attributes:
      functions: names of the functions, registered with the eager context: one, or a forward and its backward function.
      x: the first argument of the first function.
      captured: what comes after it: resources and tensors.
      links: for a backward function: (result of the forward function, argument of the backward one).
      inlined: whether functions are to be inlined, and loops and branches lowered.
      graphs: finds the Python graph of a function, and so the shapes in it.
      owner: keeps everything alive.
    """

    functions: tuple[str, ...]
    x: np.ndarray
    captured: tuple[Any, ...]
    links: tuple[tuple[int, int], ...]
    inlined: bool
    graphs: Callable[[str], Any]
    owner: Any


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(0.0, 1.0, shape).astype(np.float32)


def _dense(units: int = UNITS, activation: str | None = None) -> Any:
    return keras.layers.Dense(units, activation)


@dataclasses.dataclass(frozen=True)
class Row:
    """One program.

    Attributes:
      name: as printed.
      layers: makes the layers.
      forward: layers and input to the result. Written for Keras layers, so that a Keras policy applies; nothing in it names a type.
      x: the input.
      outside: whether the tape is outside of the function.
      inlined: whether functions are inlined, and loops and branches lowered.
    """

    name: str
    layers: Callable[[], Sequence[Any]]
    forward: Callable[[Sequence[Any], Any], Any]
    x: np.ndarray
    outside: bool = False
    inlined: bool = True


def _array_loop(layers: Sequence[Any], x: Any) -> Any:
    into, again, out = layers
    projected = tf.transpose(into(x), [1, 0, 2])
    inputs, outputs = (tf.TensorArray(projected.dtype, TIMES, element_shape=[BATCH, UNITS]) for _ in range(2))
    inputs = inputs.unstack(projected)

    def body(i: Any, state: Any, array: Any) -> Any:
        state = tf.tanh(inputs.read(i) + again(state))
        return i + 1, state, array.write(i, state)

    start = (0, tf.zeros([BATCH, UNITS], projected.dtype), outputs)
    states = tf.while_loop(lambda i, *_: i < TIMES, body, start, maximum_iterations=TIMES)[2].stack()
    return out(tf.reshape(states, [TIMES * BATCH, UNITS]))


def _nested(inlined: bool) -> Callable[[Sequence[Any], Any], Any]:
    def forward(layers: Sequence[Any], x: Any) -> Any:
        options = {} if inlined else {"experimental_attributes": {"_noinline": True}}
        first, second, third, out = layers
        layer = tf.function(lambda x: tf.nn.relu(second(x)), autograph=False, **options)
        block = tf.function(lambda x: layer(third(x)) + x, autograph=False, **options)
        return out(block(block(first(x))))

    return forward


def _cond(layers: Sequence[Any], x: Any) -> Any:
    first, second, out = layers
    hidden = first(x)
    return out(tf.cond(tf.reduce_sum(x) > -1e9, lambda: tf.nn.relu(second(hidden)), lambda: tf.tanh(hidden)))


def _chain(layers: Sequence[Any], x: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def _perceptron() -> Sequence[Any]:
    return [_dense(128, "relu"), _dense(CLASSES)]


SEQUENCES, VECTORS = _random(BATCH, TIMES, FEATURES), _random(BATCH, FEATURES)
ROWS = (
    Row("LSTM", lambda: [keras.layers.LSTM(UNITS), _dense(CLASSES)], _chain, SEQUENCES),
    Row("GRU", lambda: [keras.layers.GRU(UNITS), _dense(CLASSES)], _chain, SEQUENCES),
    Row("TensorArray loop", lambda: [_dense(), _dense(), _dense(CLASSES)], _array_loop, SEQUENCES),
    Row("nested functions", lambda: [_dense() for _ in range(3)] + [_dense(CLASSES)], _nested(True), VECTORS),
    Row("nested, not inlined", lambda: [_dense() for _ in range(3)] + [_dense(CLASSES)], _nested(False), VECTORS, inlined=False),
    Row("cond", lambda: [_dense(), _dense(), _dense(CLASSES)], _cond, VECTORS),
    Row("tape outside, 32", _perceptron, _chain, _random(32, 64), outside=True),
    Row("tape outside, 4096", _perceptron, _chain, _random(4096, 64), outside=True),
)


def trace(row: Row, policy: str = "float32") -> Step:
    """Returns the step of `row`, traced in float32 or under a Keras policy, with new weights that are the same every time."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        layers = row.layers()
        row.forward(layers, tf.constant(row.x))  # builds the weights
        return (_outside if row.outside else _inside)(row, layers)
    finally:
        keras.config.set_dtype_policy(previous)


def _inside(row: Row, layers: Sequence[Any]) -> Step:
    variables = [weight.value for layer in layers for weight in layer.trainable_weights]

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(row.forward(layers, x), tf.float32) ** 2)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=RATE, delta=gradient)
        return loss

    concrete = step.get_concrete_function(tf.TensorSpec(row.x.shape))
    return Step((_text(concrete.inference_fn.name),), row.x, tuple(concrete.captured_inputs), (), row.inlined, _graphs(concrete.inference_fn), (step, concrete, layers))


def _outside(row: Row, layers: Sequence[Any]) -> Step:
    function = tf.function(lambda x: tf.cast(row.forward(layers, x), tf.float32), autograph=False)  # a policy would change the type of the result
    concrete = function.get_concrete_function(tf.TensorSpec(row.x.shape))
    with tf.GradientTape():
        function(tf.constant(row.x))
    (functions,) = concrete._first_order_tape_functions.values()
    forward, graph, backward, *_ = functions._forward_and_backward_functions(None, None)
    links = saved_tensors(graph, functions._num_inference_outputs, backward)
    names = _text(forward.name), _text(backward.inference_fn.name)
    graphs = _graphs(forward, backward.inference_fn)
    return Step(names, row.x, tuple(concrete.captured_inputs), tuple(links), row.inlined, graphs, (function, concrete, forward, backward, layers))


def _graphs(*functions: Any) -> Callable[[str], Any]:
    return tf_api.python_graphs(functions).get


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else name


def convert(step: Step, dtype: str) -> Step:
    """Returns `step` with its functions converted by tfmp, as it does when they are first called."""
    settings = make_settings(dtype=dtype, device="CPU")
    if len(step.functions) == 1:
        conversion = engine.convert_named(step.functions[0], tf_api.function_definition, settings, graphs=step.graphs)
    else:
        conversion = engine.convert_pair(*step.functions, step.links, tf_api.function_definition, settings, graphs=step.graphs)
    linked = conversion.functions(lambda name, version: f"{name}_{dtype}_{version}")
    for one in linked:
        if not tf_api.has_function(one.name):
            tf_api.add_function(one.proto)
    return dataclasses.replace(step, functions=tuple(one.name for one in linked[: conversion.roots]))


@dataclasses.dataclass(frozen=True)
class Flat:
    """One function as a graph: its fetches are "result_0", ... and, if it has side effects, "effects"."""

    graph: Any
    results: int
    fetches: tuple[str, ...]
    arguments: tuple[str, ...]


def flatten(name: str, captured: Sequence[Any], inlined: bool) -> Flat:
    """Returns the function `name` as a graph, if `inlined` with functions inlined and loops and branches lowered; the last arguments are `captured`.

    Arguments are placeholders "argument_0", ...; a captured variable becomes a VarHandleOp that "initialise" fills with the variable's value.
    """
    function = function_def_to_graph(tf_api.function_definition(name))
    weights = {id(handle): tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32).numpy() for handle in captured if handle.dtype == tf.resource}
    with tf.Graph().as_default() as graph:
        inputs, fillers, plain = [], [], len(function.inputs) - len(captured)
        for index, tensor in enumerate(function.inputs):
            if tensor.dtype == tf.resource:
                value = weights[id(captured[index - plain])]
                inputs.append(tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=value.shape, shared_name=f"variable_{index}", name=f"variable_{index}"))
                fillers.append(tf.raw_ops.AssignVariableOp(resource=inputs[-1], value=tf.constant(value), name=f"fill_{index}"))
            else:
                inputs.append(tf.compat.v1.placeholder(tensor.dtype, tensor.shape, name=f"argument_{index}"))
        tf.group(*fillers, name="initialise")
        mapped = {tensor.name: value for tensor, value in zip(function.inputs, inputs, strict=True)}
        wanted = [tensor.name for tensor in function.outputs] + [operation.name for operation in function.control_outputs]
        found = tf.import_graph_def(_with_library(function.as_graph_def()), name="", input_map=mapped, return_elements=wanted)
        results = [tf.identity(tensor, name=f"result_{index}") for index, tensor in enumerate(found[: len(function.outputs)])]
        tf.group(*found[len(results) :], name="effects")
    fetches = (*(tensor.op.name for tensor in results), "effects")
    flat = _with_library(graph.as_graph_def())
    if inlined:
        flat = lower(flat, [*fetches, "initialise"])
    arguments = tuple(tensor.op.name for tensor in inputs if tensor.op.type == "Placeholder")
    return Flat(flat, len(results), fetches, arguments)


def _with_library(graph: Any) -> Any:
    """Returns `graph` with every function that it reaches in its library, from the eager context."""
    reached: dict[str, Any] = {}
    todo = [*graph.node]
    while todo:
        node = todo.pop()
        for value in node.attr.values():
            for called in [value.func] if value.HasField("func") else value.list.func:
                if called.name not in reached:
                    reached[called.name] = tf_api.function_definition(called.name)
                    todo += reached[called.name].node_def
    del graph.library.function[:]
    graph.library.function.extend(reached.values())
    return graph


VARIANTS = ("float32", "TensorFlow's pass", "Keras policy", "tfmp")


def run(step: Step, rewrite: Callable[[Any, Sequence[str]], Any] = lambda graph, fetches: graph) -> list[Stage]:
    """Returns what the functions of `step` execute, after `rewrite` (graph and fetches to graph) was applied to the flat graph of each."""
    stages: list[Stage] = []
    for name in step.functions:
        flat = flatten(name, () if stages else step.captured, step.inlined)
        values = {0: step.x} if not stages else _handed_over(step, stages[0])
        feeds = {f"argument_{index}": value for index, value in values.items()}
        graph = rewrite(flat.graph, [*flat.fetches, "initialise"])
        stages.append(Stage(graph, flat.fetches[:-1], ["effects"], feeds, ["initialise"]))
    return stages


def _handed_over(step: Step, forward: Stage) -> dict[int, np.ndarray]:
    """Returns the arguments of the backward function: ones for the gradients of the result, and what was saved."""
    saved = {argument: forward.results[result] for result, argument in step.links}
    return {index: np.ones_like(forward.results[0]) for index in range(min(saved))} | saved


def measured(step: Step, stages: Sequence[Stage]) -> Measures:
    """Returns the measures of one run of `step`."""
    return measure(stages, stages[0].saved_bytes() if len(stages) == 1 else _saved_between(step, *stages))


def _saved_between(step: Step, forward: Stage, backward: Stage) -> int:
    """Returns the bytes of activations that the forward function hands over and the backward function uses, each buffer once."""
    found = {}
    for result, argument in step.links:
        edge = (f"result_{result}", 0)
        if not forward.is_weight(edge):
            found[forward.origin(edge)] = forward.results[result].nbytes
    return sum(found.values())


def least(step: Step, stages: Sequence[Stage]) -> int:
    """Returns the least traffic that any choice of types gives `step`, whose float32 stages (a forward and a backward function) are given."""
    traffic: dict[str, tuple[str, int]] = {}
    tensors: dict[tuple[str, int], tuple[str, list[str], int]] = {}
    linked = {f"1/argument_{argument}": f"0/result_{result}" for result, argument in step.links}
    for number, stage in enumerate(stages):
        for one in stage.executions:
            name = f"{number}/{one.node.name}"
            traffic[name] = (one.node.op, one.traffic)
            for port, tensor in enumerate(one.outputs):
                if tensor.bytes:
                    tensors[name, port] = (name, [], tensor.bytes)
        for name, tensor in stage.fed.items():
            if f"{number}/{name}" not in linked:
                traffic[f"{number}/{name}"] = ("Placeholder", 0)
                tensors[f"{number}/{name}", 0] = (f"{number}/{name}", [], tensor.bytes)
    for number, stage in enumerate(stages):
        for one in stage.executions:
            for maker, port in (source(text) for text in one.node.input):
                edge = (linked.get(f"{number}/{maker}", f"{number}/{maker}"), port)
                if edge in tensors:
                    tensors[edge][1].append(f"{number}/{one.node.name}")
    kept = {name for name in traffic if name.partition("/")[2].startswith(("argument_", "result_"))} - set(linked.values())
    return least_traffic(traffic, tensors, frozenset(kept))


MIXED = VARIANTS[1:]
CELLS = {"coverage": "FLOPs in 16 bit", "casts": "casts", "cast_bytes": "bytes cast", "saved_bytes": "saved", "traffic": "traffic"}


def measure_row(row: Row, dtype: str) -> tuple[dict[str, Measures], int | None]:
    """Returns variant to measures, and the least possible traffic where it is worked out; TensorFlow's pass is missing where it cannot run."""
    step = trace(row)
    stages = run(step)
    found = {"float32": measured(step, stages)}
    if not unavailable_reason(dtype):
        found["TensorFlow's pass"] = measured(step, run(step, lambda graph, fetches: run_tensorflow_pass(graph, fetches, dtype).graph_def))
    policy = trace(row, f"mixed_{dtype}")
    found["Keras policy"] = measured(policy, run(policy))
    converted = convert(step, dtype)
    found["tfmp"] = measured(converted, run(converted))
    return found, least(step, stages) if row.outside else None


def verdict(found: dict[str, Measures]) -> str:
    """Returns "best" if tfmp is best or equal in every cell among the variants that use 16 bit, else the cells in which another one is better."""
    lost = []
    for cell, words in CELLS.items():
        values = {name: getattr(found[name], cell) for name in MIXED if name in found}
        best = (max if cell == "coverage" else min)(values, key=values.__getitem__)
        if values[best] != values["tfmp"]:
            sums = found[best].narrow_sums / 1024
            lost.append(f"{words} ({best}: {values[best] / values['tfmp']:.3f} of tfmp's{f', with {sums:.0f} KiB of sums of gradients in 16 bit' if sums else ''})")
    return "tfmp is best or equal in every cell" if not lost else "tfmp is not best in: " + ", ".join(lost)


def lines(row: Row, found: dict[str, Measures], least_bytes: int | None) -> list[str]:
    """Returns the printed lines of one row."""
    reference = found["float32"].traffic
    result = [f"{row.name:<20}"]
    for name, one in found.items():
        numbers = f"{one.coverage:7.1%} {one.casts:7d} {one.cast_bytes / 1024:10.1f} {one.saved_bytes / 1024:10.1f} {one.traffic / reference:9.3f}"
        result.append(f"  {name:<18} {numbers}")
    if least_bytes is not None:
        ratio = found["tfmp"].traffic / least_bytes
        result.append(f"  {'least possible':<18} {'':>37} {least_bytes / reference:9.3f}   (tfmp: {ratio:.3f} of it)")
    return [*result, f"  {verdict(found)}"]


def main() -> None:
    """Prints the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", default=[row.name for row in ROWS], help="names of rows")
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    options = parser.parse_args()
    print(f"{'':<20} {'FLOPs':>7} {'casts':>7} {'cast KiB':>10} {'saved KiB':>10} {'traffic':>9}")
    for row in ROWS:
        if row.name in options.rows:
            print("\n".join(lines(row, *measure_row(row, options.dtype))), flush=True)


if __name__ == "__main__":
    main()
