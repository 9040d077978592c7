"""How long the rewrite takes, against tracing and against TensorFlow's own C++ pass, on training steps of growing size.

    python benchmarks/rewrite.py [--nodes 300 3000 15000 60000] [--steps lean keras nested] [--repeats 3] [--no-kernels]

The steps are stacks of dense layers with layer normalisation and their gradients: lean ones in plain TensorFlow with an SGD update, which trace as fast as
anything does, and those that Keras' `fit` traces for a model with Adam. "rewrite" is everything that tfmp does to make a step run: reading the definitions,
colouring, editing, verifying, registering and accounting. Two more rows have 200 functions that call each other ten deep, and loops nested five deep, with
their gradients. The C++ pass gets the same graph through grappler's own entry point, which needs the CUDA build of TensorFlow; elsewhere its column is empty.
Times are CPU times of this process, which other work on the machine disturbs least.

The aim is 5 % of tracing. Measured with kernels, on 2 cores with TensorFlow 2.21 (of tracing; us a node; TensorFlow's C++ pass, which puts in no kernels):
lean, 2,900 nodes 4.6 to 5.2 % in five runs, 4.7 % in the middle (11 to 14; 17 to 19), 14,600 nodes 4.2 % (11 to 12; 21 to 24), 58,000 nodes 4.6 to 5.0 %
(13 to 14; 31 to 42); keras, 2,800 nodes 4.3 to 4.9 % (11 to 14; 15), 14,200 nodes 3.3 to 4.0 % (11; 18 to 22), 57,000 nodes 4.2 to 4.4 % (13; 30 to 36). So
it grows linearly, costs less than the C++ pass, and is at the aim from a few thousand nodes on. 4 to 5 ms are spent however small a function is, mostly on
calls with small arrays, and the C++ pass has its share too: 300 nodes 9.5 to 13 % (26 to 33; 23 to 30, which is 8 to 11 %; the first Keras step of a
process traces longer), 200 functions 11 to 13 % (115; 185), loops 10 to 11 % (50; 80). A process with 58,000 nodes takes 1.7 GB.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_SIMULATE_GPU", "1")
os.environ.setdefault("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE", "1")

import keras
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
from tensorflow.python.grappler import tf_optimizer

from tfmp import tf_api
from tfmp.engine import convert_named
from tfmp.hooks.conversion import convert_for_running
from tfmp.settings import Settings

WIDTH, BATCH = 16, 8
SETTINGS = Settings(dtype="float16", device="CPU", ignore_performance=True)


def training_step(layers: int) -> tuple[Callable[..., tf.Tensor], list[tf.Tensor]]:
    """Returns an untraced step with `layers` layers, and its arguments."""
    weights = [tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], seed=[layer, 0])) for layer in range(layers)]
    scales = [tf.Variable(tf.ones([WIDTH])) for _ in range(layers)]

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = x
            for weight, scale in zip(weights, scales, strict=True):
                y = tf.nn.relu(y @ weight)
                mean, variance = tf.nn.moments(y, [-1], keepdims=True)
                y = (y - mean) * tf.math.rsqrt(variance + 1e-3) * scale
            loss = tf.reduce_mean(y * y)
        variables = weights + scales
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    return step, [tf.ones([BATCH, WIDTH])]


def keras_step(layers: int) -> tuple[Callable[..., tf.Tensor], list[tf.Tensor]]:
    """Returns the untraced step that `fit` traces for a Keras model with `layers` layers, and its arguments."""
    blocks = [block for _ in range(layers) for block in (keras.layers.Dense(WIDTH, activation="relu"), keras.layers.LayerNormalization())]
    model = keras.Sequential([keras.Input((WIDTH,)), *blocks])
    model.compile(keras.optimizers.Adam(), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    step.keeps = model  # functions hold variables weakly
    return step, [tf.ones([BATCH, WIDTH]), tf.ones([BATCH, WIDTH])]


def nested_functions(chains: int, depth: int) -> tuple[Callable[..., tf.Tensor], list[tf.Tensor]]:
    """Returns an untraced step through `chains` functions one after the other, each of which calls another one, and so on, `depth` deep."""
    weights = [tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], seed=[layer, 1]) / 4) for layer in range(chains * depth)]

    def layer(index: int) -> Callable[[tf.Tensor], tf.Tensor]:
        inner = layer(index + 1) if (index + 1) % depth else tf.identity
        return tf.function(lambda x: inner(tf.nn.relu(x @ weights[index])), autograph=False)

    functions = [layer(chain * depth) for chain in range(chains)]
    return with_gradient(lambda x: functools.reduce(lambda y, function: function(y), functions, x), weights), [tf.ones([BATCH, WIDTH])]


def nested_loops(depth: int) -> tuple[Callable[..., tf.Tensor], list[tf.Tensor]]:
    """Returns an untraced step with `depth` loops, one in the other, and a product in each."""
    weights = [tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], seed=[level, 2]) / 4) for level in range(depth)]

    def loop(level: int, x: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            y = tf.tanh(y @ weights[level])
            return step + 1, loop(level + 1, y) if level + 1 < depth else y

        return tf.while_loop(lambda step, y: step < 2, body, [0, x], maximum_iterations=2)[1]

    return with_gradient(lambda x: loop(0, x), weights), [tf.ones([BATCH, WIDTH])]


def with_gradient(function: Callable[[tf.Tensor], tf.Tensor], weights: list[tf.Variable]) -> Callable[..., tf.Tensor]:
    """Returns a training step of `function`, not traced yet."""

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(function(x))
        for variable, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    return step


def seconds(action: Callable[[], object], repeats: int) -> float:
    """Returns the median CPU time of `action` over `repeats` runs; giving up what it returns is not part of it."""
    times, kept = [], []
    for _ in range(repeats):
        start = time.process_time()
        kept.append(action())
        times.append(time.process_time() - start)
    return statistics.median(times)


def rewrite(function: tf_api.ConcreteFunction, settings: Settings = SETTINGS) -> object:
    """Converts and registers `function` and writes the account, as its first call would."""
    return convert_for_running([function.inference_fn], (), settings)


def cpp_pass(function: tf_api.ConcreteFunction) -> Callable[[], object]:
    """Returns a run of TensorFlow's pass on the graph of `function`."""
    graph = function.graph
    meta = tf.compat.v1.train.export_meta_graph(graph_def=graph.as_graph_def(), graph=graph)
    for node in meta.graph_def.node:
        node.device = ""
    fetches = meta_graph_pb2.CollectionDef()
    fetches.node_list.value.append(graph.outputs[0].name)
    meta.collection_def["train_op"].CopyFrom(fetches)
    options = rewriter_config_pb2.RewriterConfig(
        min_graph_nodes=-1,
        meta_optimizer_iterations=rewriter_config_pb2.RewriterConfig.ONE,
        auto_mixed_precision=rewriter_config_pb2.RewriterConfig.ON,
        optimizers=["auto_mixed_precision"],
    )
    config = config_pb2.ConfigProto(graph_options=config_pb2.GraphOptions(rewrite_options=options))
    return lambda: tf_optimizer.OptimizeGraph(config, meta)


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement: nodes of the whole program, and CPU seconds; None where TensorFlow has no such pass here."""

    name: str
    nodes: int
    tracing: float
    own: float
    theirs: float | None

    def __str__(self) -> str:
        """Returns the row of the table."""
        cpp = f"{self.theirs:8.3f}s {self.theirs / self.nodes * 1e6:10.1f}" if self.theirs is not None else f"{'-':>9} {'-':>10}"
        share = f"{self.own / self.tracing:10.1%} {self.own / self.nodes * 1e6:10.1f}"
        return f"{self.name:22}{self.nodes:7d} {self.tracing:8.3f}s {self.own:8.3f}s {share} {cpp}"


def measure(name: str, step: Callable[..., tf.Tensor], arguments: list[tf.Tensor], repeats: int, settings: Settings) -> Row:
    """Traces `step` and returns its row."""
    start = time.process_time()
    function = step.get_concrete_function(*arguments)
    tracing = time.process_time() - start
    nodes = convert_named(function.inference_fn.name, tf_api.function_definition, SETTINGS).total
    own = seconds(lambda: rewrite(function, settings), repeats)
    try:
        theirs = seconds(cpp_pass(function), 1)
    except tf.errors.OpError:
        theirs = None
    return Row(name, nodes, tracing, own, theirs)


def main() -> None:
    """Prints one row a size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[300, 3000, 15000, 60000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", nargs="+", choices=("lean", "keras", "nested"), default=["lean", "keras", "nested"])
    parser.add_argument("--no-kernels", action="store_true", help="leave normalisations as they are spelled")
    options = parser.parse_args()
    settings = dataclasses.replace(SETTINGS, fuse=not options.no_kernels)
    print(f"{'training step':22}{'nodes':>7} {'tracing':>9} {'rewrite':>9} {'of it':>10} {'us a node':>10} {'C++ pass':>9} {'us a node':>10}")
    for name, make in (("lean", training_step), ("keras", keras_step)):
        if name in options.steps:
            sizes = {}
            for layers in (1, 4):
                step, arguments = make(layers)
                probe = step.get_concrete_function(*arguments)
                rewrite(probe)  # the first reads the kernel registry, once a process
                sizes[layers] = len(probe.graph.get_operations())
            per_layer = (sizes[4] - sizes[1]) / 3
            for wanted in options.nodes:
                layers = max(1, round((wanted - sizes[1]) / per_layer) + 1)
                print(measure(f"{name}, {layers} layers", *make(layers), options.repeats, settings), flush=True)
    if "nested" in options.steps:
        print(measure("200 nested functions", *nested_functions(20, 10), options.repeats, settings), flush=True)
        print(measure("loops, 5 deep", *nested_loops(5), options.repeats, settings), flush=True)


if __name__ == "__main__":
    main()
