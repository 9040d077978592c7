"""Leaving out what TensorFlow prunes changes nothing of what runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tfmp import engine, tf_api
from tfmp.conversion import Conversion
from tfmp.graph.view import read_function
from tfmp.hooks.conversion import Shapes
from tfmp.program.liveness import dead_nodes
from tfmp.reports.account import Record, make_record
from tfmp.reports.shapes import graphs_of
from tfmp.settings import make_settings

layers = keras.layers


def image_model() -> keras.Model:
    blocks = [layer for _ in range(2) for layer in (layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization())]
    return keras.Sequential([keras.Input((12, 12, 3)), *blocks, layers.Flatten(), layers.Dense(10)])


def text_model() -> keras.Model:
    inputs = keras.Input((12, 32))
    x = layers.LayerNormalization()(inputs + layers.MultiHeadAttention(2, 16)(inputs, inputs))
    x = layers.LayerNormalization()(x + layers.Dense(32, activation="gelu")(x))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def recurrent_model() -> keras.Model:
    """Keras traces the cell once outside the loop and leaves that in the graph, so that there are dead products as well."""
    image = (layers.Conv2D(8, 3), layers.BatchNormalization(), layers.Reshape((36, 8)))
    return keras.Sequential([keras.Input((8, 8, 3)), *image, layers.LSTM(5), layers.Dense(10)])


def keras_step(model: keras.Model) -> Any:
    model.compile(keras.optimizers.Adam(), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    return model, step.get_concrete_function(tf.zeros([4, *model.input_shape[1:]]), tf.zeros([4]))


def calling_step() -> Any:
    """A function that has a kernel and nothing to convert of its own, and calls one that has."""
    multiply = tf.function(lambda x: tf.exp(tf.nn.relu(tf.matmul(tf.exp(x), tf.exp(x), transpose_b=True))), autograph=False)

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return multiply((x - mean) * tf.math.rsqrt(variance + 1e-3))

    return multiply, step.get_concrete_function(tf.zeros([4, 32]))


STEPS: dict[str, Callable[[], Any]] = {
    "image": lambda: keras_step(image_model()),
    "text": lambda: keras_step(text_model()),
    "recurrent": lambda: keras_step(recurrent_model()),
    "calling": calling_step,
}


def convert(function: Any, *, prune: bool, **settings: Any) -> Conversion:
    chosen = make_settings(**{"dtype": "float16", "device": "CPU", **settings})
    graphs = tf_api.python_graphs([function.inference_fn]).get
    return engine.convert_named(function.inference_fn.name, tf_api.function_definition, chosen, graphs=graphs, prune=prune)


def what_runs(conversion: Conversion) -> Mapping[str, Any]:
    """Returns the nodes of each new function that are not pruned, as they are written, and what comes out of it."""
    found = {}
    for linked in conversion.functions(lambda name, version: f"{name}_{version}"):
        body = read_function(linked.proto, {})
        live = [node for node in body.proto_nodes if node not in set(dead_nodes(body))]
        found[linked.name] = {body.names[node]: body.protos[node].SerializeToString(deterministic=True) for node in live}, dict(linked.proto.ret)
    return found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", STEPS)
def test_what_runs_and_what_is_said_of_it_are_the_same(name: str, dtype: str) -> None:
    _, function = STEPS[name]()
    whole, pruned = (convert(function, prune=prune, dtype=dtype) for prune in (False, True))
    gone = sum(body.plan.body.pruned for body in pruned.bodies.values())
    assert gone >= pruned.replaced and gone
    assert bool(pruned.kernels) == (name != "calling")  # its kernel is in a function that stays what it was, but for what it calls
    assert not any(body.plan.body.pruned for body in whole.bodies.values())
    if name == "recurrent":  # a weight's cast for a dead product is handed to the loop as well; without that product, the loop's has a read of its own
        assert pruned.casts == whole.casts
    else:
        assert what_runs(pruned) == what_runs(whole)
    assert record(pruned, function) == record(whole, function)


def test_a_function_without_edits_of_its_own_calls_what_has_some() -> None:
    _, function = calling_step()
    conversion = convert(function, prune=True)
    root, callee = conversion.bodies.values()
    assert root.plan.empty and root.plan.body.pruned and not callee.plan.empty
    new, _ = conversion.functions(lambda name, version: f"{name}_new")
    assert {node.attr["f"].func.name for node in new.proto.node_def if node.op.endswith("PartitionedCall")} == {f"{callee.function}_new"}


def record(conversion: Conversion, function: Any) -> tuple[Any, ...]:
    made: Record = make_record(conversion, Shapes(graphs_of([function.inference_fn])))
    return made.converted, made.total, made.flop_share, made.casts, made.kept, made.kernels, made.replaced


@pytest.mark.parametrize("rules", [{"keep_float32": "op:Relu"}, {"force_16bit": "op:Tanh"}, {"denylist_add": "Relu"}])
def test_whoever_names_nodes_keeps_them(rules: dict[str, str]) -> None:
    _, function = STEPS["image"]()
    assert not any(body.plan.body.pruned for body in convert(function, prune=True, **rules).bodies.values())


def test_the_account_and_the_details_agree_and_the_details_have_every_node() -> None:
    model = image_model()
    with tfmp.mixed_precision(dtype="float16", ignore_performance=True):
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
        model.fit(np.zeros((4, 12, 12, 3), np.float32), np.zeros(4), batch_size=4, verbose=0)
    made = tfmp.report()[-1]
    details = made.details()
    assert details is not None
    assert (details.converted, details.total, details.casts_per_run) == (made.converted, made.total, made.casts)
    assert sum(node.rule == "replaced by a kernel" for node in details.nodes) == made.replaced > 0
