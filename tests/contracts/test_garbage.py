"""A conversion leaves nothing behind that only the cycle collector could free: that would walk all of TensorFlow's objects for it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from tfmp import engine, tf_api
from tfmp.graph.body import Body
from tfmp.hooks.conversion import Shapes
from tfmp.reports.account import make_record
from tfmp.reports.shapes import graphs_of
from tfmp.settings import make_settings

layers = keras.layers


def keras_step(*blocks: Any) -> Any:
    model = keras.Sequential([keras.Input((8, 8, 3)), *blocks, layers.Dense(4)])
    model.compile("adam", "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    return model, step.get_concrete_function(tf.TensorSpec([None, 8, 8, 3]), tf.TensorSpec([None, 4]))


def control_flow() -> Any:
    weight = tf.Variable(tf.ones([4, 4]))

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x @ weight)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = inner(inner(x))
            for _ in tf.range(3):
                y = tf.tanh(y @ weight)
            y = tf.reduce_sum(y @ weight if tf.reduce_sum(y) > 0 else y)
        weight.assign_sub(tape.gradient(y, weight))
        return y

    return (weight, inner), step.get_concrete_function(tf.TensorSpec([None, 4]))


STEPS: dict[str, Callable[[], Any]] = {
    "image": lambda: keras_step(layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Dropout(0.5), layers.Flatten(), layers.LayerNormalization()),
    "recurrent": lambda: keras_step(layers.Reshape((8, 24)), layers.LSTM(4)),
    "control flow": control_flow,
}

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rules": {"keep_float32": "op:Relu", "force_16bit": "op:Tanh"},
    "tensorflow": {"level": "tensorflow"},
    "emulation": {"emulate": True},
}


def bodies_alive() -> int:
    return sum(isinstance(one, Body) for one in gc.get_objects())


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", STEPS)
def test_nothing_is_left_of_a_conversion(name: str, settings: str) -> None:
    _, function = STEPS[name]()
    chosen = make_settings(dtype="float16", device="CPU", **SETTINGS[settings])
    graphs = tf_api.python_graphs([function.inference_fn]).get
    gc.collect()
    gc.disable()
    try:
        before = bodies_alive()
        conversion = engine.convert_named(function.inference_fn.name, tf_api.function_definition, chosen, graphs=graphs, prune=True)
        make_record(conversion, Shapes(graphs_of([function.inference_fn])))
        assert conversion.changed and bodies_alive() > before
        del conversion
        assert bodies_alive() == before
    finally:
        gc.enable()
