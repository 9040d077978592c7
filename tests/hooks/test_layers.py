"""Rules that name Keras layers: exactly those layers, forward and backward, whatever TensorFlow makes of their name scopes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfmp
from tfmp import layer_marks
from tfmp.hooks import layers

FAMILIES = {"keras": keras, "tf_keras": tf_keras}
ON = {"dtype": "float16", "ignore_performance": True, "loss_scaling": False}
X, Y = np.ones((8, 8), "float32"), np.ones((8, 8), "float32")


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Any:
    return FAMILIES[request.param]


@pytest.fixture(autouse=True)
def _hook_goes_again() -> Iterator[None]:
    yield
    layers.uninstall()


def model_of(family: Any) -> Any:
    """Returns a model whose scopes mislead: one layer called twice, and names that are other names with a number."""
    dense, dense_1, head = (family.layers.Dense(8, name=name) for name in ("dense", "dense_1", "head"))
    inner = family.Sequential([family.layers.Input((8,)), dense_1, family.layers.LayerNormalization(name="norm")], name="inner")
    x = family.layers.Input((8,))
    return family.Model(x, head(inner(dense(dense(x)))), name="outer")


@functools.cache
def step_of(family: Any) -> Any:
    """Returns a traced training step of the model, its layers marked."""
    model = model_of(family)

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    with tfmp.mixed_precision(**ON, keep_float32="layer:nothing"):
        return step.get_concrete_function(X)


# A layer has three products in a training step, one of them the gradient of its input, which the first one does not need.
RULES = {
    "layer:dense": (5, 6),
    "layer:dense_1": (3, 8),
    "layer:inner/*": (3, 8),
    "layer:inn*": (3, 8),
    "layer:head": (3, 8),
    "layer:Dense": (11, 0),
    "layer:outer": (11, 0),
    "layer:inner/dense": (0, 11),
    "layer:LayerNormalization": (0, 11),
}


@pytest.mark.parametrize("rule", RULES)
def test_exactly_the_layers_that_a_rule_names_stay_in_float32(family: Any, rule: str) -> None:
    decisions = list(tfmp.convert_function(step_of(family), keep_float32=rule).decisions({"MatMul"}))
    assert all(decision.converted or decision.detail == rule for decision in decisions)
    assert (sum(not d.converted for d in decisions), sum(d.converted for d in decisions)) == RULES[rule]


def test_under_fit_too() -> None:
    model = model_of(keras)
    model.compile("sgd", "mse", jit_compile=False)
    before = len(tfmp.report())
    with tfmp.mixed_precision(**ON, keep_float32="layer:dense_1"):
        model.fit(X, Y, verbose=0)
    record = max(tfmp.report()[before:], key=lambda record: record.total)
    assert [decision.detail for decision in record.kept] == ["layer:dense_1"] * 3


def test_layers_are_hooked_only_while_a_rule_names_one_and_put_back(family: Any) -> None:
    owner = layer_marks.owner(family.__name__)
    before = owner.__call__
    with tfmp.mixed_precision(**ON, keep_float32="op:Softmax"):
        assert owner.__call__ is before
    with tfmp.mixed_precision(**ON, force_16bit="layer:x"):
        hooked = owner.__call__
        assert hooked is not before and hooked.__wrapped__ is before
    with tfmp.mixed_precision(**ON, keep_float32="layer:y"):
        assert owner.__call__ is hooked
    layers.uninstall()
    assert owner.__call__ is before


def test_autograph_still_converts_what_layers_do(family: Any) -> None:
    class Halving(family.layers.Layer):
        def call(self, x: Any) -> Any:
            while tf.reduce_max(x) > 1:
                x = x / 2
            return x

    layer = Halving()
    values = tf.constant([1.0, 7.0])

    def run() -> Any:
        return tf.function(lambda x: layer(x))(values).numpy().tolist()

    def outcome() -> Any:
        try:
            return run()
        except Exception as error:  # noqa: BLE001  # the same error is the same outcome
            return type(error)

    expected = outcome()
    with tfmp.mixed_precision(**ON, keep_float32="layer:nothing"):
        assert outcome() == expected


def test_marks_reach_loops_inside_layers_and_their_gradients() -> None:
    model = keras.Sequential([keras.Input((4, 8)), keras.layers.LSTM(8, name="recurrent"), keras.layers.Dense(8, name="last")])
    model.compile("sgd", "mse", jit_compile=False)
    before = len(tfmp.report())
    with tfmp.mixed_precision(**ON, keep_float32="layer:recurrent"):
        model.fit(np.ones((8, 4, 8), "float32"), Y, verbose=0)
    record = max(tfmp.report()[before:], key=lambda record: record.total)
    assert record.kept and {decision.detail for decision in record.kept} == {"layer:recurrent"}
    assert 0 < record.flop_share < 0.5


def test_apexs_o2_keeps_batch_normalisation_whatever_it_is_called() -> None:
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(name="bn"), keras.layers.ReLU()])
    concrete = tf.function(lambda x: model(x, training=False))
    with tfmp.mixed_precision(**ON, level="O2"):
        before = len(tfmp.report())
        concrete(np.ones((2, 8, 8, 3), "float32"))
    conversion = tfmp.convert_function(concrete.get_concrete_function(np.ones((2, 8, 8, 3), "float32")), level="O2")
    assert tfmp.report()[before:][-1].flop_share == 1
    found = {d.node: d.converted for d in conversion.decisions() if "/bn_" in d.node or "/bn/" in d.node}
    assert found and not any(found.values())
