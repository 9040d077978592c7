"""How long the rewrite takes, against tracing and against TensorFlow's own C++ pass, on training steps of growing size.

    python benchmarks/rewrite.py [--nodes 300 3000 15000 60000] [--repeats 3]

The step is a stack of dense layers with layer normalisation, its gradients and an SGD update, traced by `tf.function`. "rewrite" is everything that tfmp does
to make it run: reading the definitions, colouring, editing, verifying and registering. The C++ pass gets the same graph through grappler's own entry point,
which needs the CUDA build of TensorFlow; elsewhere its column is empty.
Times are CPU times of this process, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_SIMULATE_GPU", "1")
os.environ.setdefault("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE", "1")

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
from tensorflow.python.grappler import tf_optimizer

from tfmp import tf_api
from tfmp.engine import convert_named
from tfmp.hooks.conversion import register
from tfmp.settings import Settings

WIDTH, BATCH = 16, 8
SETTINGS = Settings(dtype="float16", device="CPU")


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


def seconds(action: Callable[[], object], repeats: int) -> float:
    """Returns the median CPU time of `action` over `repeats` runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return statistics.median(times)


def rewrite(function: tf_api.ConcreteFunction) -> object:
    """Converts and registers `function`, as its first call would."""
    conversion = convert_named(function.inference_fn.name, tf_api.function_definition, SETTINGS)
    return register(conversion, [function.inference_fn])


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


def measure(wanted: int, per_layer: float, repeats: int) -> tuple[int, float, float, float | None]:
    """Returns nodes, and the CPU seconds of tracing, of the rewrite and of the C++ pass, for a step of about `wanted` nodes."""
    step, arguments = training_step(max(1, round(wanted / per_layer)))
    start = time.process_time()
    function = step.get_concrete_function(*arguments)
    tracing = time.process_time() - start
    nodes = len(function.graph.get_operations())
    own = seconds(lambda: rewrite(function), repeats)
    try:
        theirs = seconds(cpp_pass(function), 1)
    except tf.errors.OpError:
        theirs = None
    return nodes, tracing, own, theirs


def main() -> None:
    """Prints one row a size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[300, 3000, 15000, 60000])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    step, arguments = training_step(4)
    probe = step.get_concrete_function(*arguments)
    rewrite(probe)  # reads the kernel registry, once a process
    per_layer = len(probe.graph.get_operations()) / 4
    print(f"{'nodes':>7} {'tracing':>9} {'rewrite':>9} {'of tracing':>11} {'us a node':>10} {'C++ pass':>9} {'us a node':>10}")
    for wanted in options.nodes:
        nodes, tracing, own, theirs = measure(wanted, per_layer, options.repeats)
        cpp = f"{theirs:8.3f}s {theirs / nodes * 1e6:10.1f}" if theirs is not None else f"{'-':>9} {'-':>10}"
        print(f"{nodes:7d} {tracing:8.3f}s {own:8.3f}s {own / tracing:11.1%} {own / nodes * 1e6:10.1f} {cpp}", flush=True)


if __name__ == "__main__":
    main()
