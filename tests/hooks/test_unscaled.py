"""A loop of one's own in float16 without loss scaling: one warning, and none for those who scale."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.autograph.utils import ag_logging

import tfmp
from tfmp.errors import MixedPrecisionWarning
from tfmp.hooks import keras_compile, unscaled
from tfmp.optimizers.scaler import LossScaler
from tfmp.optimizers.wrap import wrap

ON = {"dtype": "float16", "ignore_performance": True}
MAKERS = {"keras": keras.optimizers.SGD, "tf_keras": tf_keras.optimizers.SGD, "tf_keras legacy": tf_keras.optimizers.legacy.SGD}
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def train(optimizer: Any, weight: tf.Variable, loss: Callable[[], Any]) -> None:
    """One step of a loop of one's own, in the idiom of the optimizer."""
    with tf.GradientTape() as tape:
        value = loss()
        if hasattr(optimizer, "get_scaled_loss"):
            value = optimizer.get_scaled_loss(value)
        elif hasattr(optimizer, "scale_loss"):
            value = optimizer.scale_loss(value)
    gradients = tape.gradient(value, [weight])
    if hasattr(optimizer, "get_unscaled_gradients"):
        gradients = optimizer.get_unscaled_gradients(gradients)
    optimizer.apply_gradients(zip(gradients, [weight]))  # noqa: B905  (AutoGraph knows no `strict`)


class Model:
    """Two layers with losses of their own, each with its optimizer (as in Hinton, "The Forward-Forward Algorithm", arXiv 2212.13345)."""

    def __init__(self, make: Callable[[float], Any], wrapping: Callable[[Any], Any] = lambda optimizer: optimizer) -> None:
        self.weights = [tf.Variable(np.random.default_rng(seed).normal(size=(8, 8)).astype("float32")) for seed in (0, 1)]
        self.optimizers = [wrapping(make(0.01)) for _ in self.weights]
        for optimizer, weight in zip(self.optimizers, self.weights, strict=True):
            if hasattr(optimizer, "build"):
                optimizer.build([weight])
        self.inputs = tf.constant(np.random.default_rng(2).normal(size=(16, 8)).astype("float32"))

    def goodness(self, weight: tf.Variable, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        hidden = tf.nn.relu(inputs @ weight)
        return hidden, tf.math.softplus(2.0 - tf.reduce_mean(hidden**2, axis=1))

    def loss(self, place: int) -> tf.Tensor:
        """What a layer learns from, and no layer before it."""
        inputs = self.inputs
        for weight in self.weights[:place]:
            inputs = tf.stop_gradient(self.goodness(weight, inputs)[0])
        return tf.reduce_mean(self.goodness(self.weights[place], inputs)[1])

    def step(self) -> None:
        """Each layer learns from its own loss, the last one first."""
        for place in (1, 0):
            train(self.optimizers[place], self.weights[place], functools.partial(self.loss, place))

    def trained(self, steps: int = 40) -> float:
        """The sum of both losses after the steps."""
        run = tf.function(lambda: self.step())
        for _ in range(steps):
            run()
        return float(self.loss(0) + self.loss(1))


def heard(train: Callable[[], Any], **settings: Any) -> list[str]:
    """What is said about loss scaling while mixed precision is on."""
    with warnings.catch_warnings(record=True) as caught, tfmp.mixed_precision(**{**ON, **settings}):
        warnings.simplefilter("always", MixedPrecisionWarning)
        train()
    return [str(one.message) for one in caught if "not scaled" in str(one.message)]


@makers
def test_layers_with_plain_optimizers_of_their_own_are_told_once(make: Any) -> None:
    (message,) = heard(Model(make).trained)
    assert f"an optimizer ({make.__module__}.SGD) applies gradients of a loss that is not scaled" in message
    assert "tfmp.enable_mixed_precision_graph_rewrite" in message


@makers
def test_layers_with_wrapped_optimizers_learn_as_in_float32_in_silence(make: Any) -> None:
    plain, results = Model(make).trained(), []
    assert heard(lambda: results.append(Model(make, wrap).trained())) == []
    assert abs(results[0] - plain) < 0.01 * plain


@pytest.mark.parametrize("own", ["keras", "tf_keras", "tf_keras legacy"])
def test_the_familys_own_wrapper_counts(own: str) -> None:
    module = keras.optimizers if own == "keras" else tf_keras.mixed_precision
    model = Model(MAKERS[own], module.LossScaleOptimizer)

    assert heard(tf.function(lambda: train(model.optimizers[0], model.weights[0], functools.partial(model.loss, 0)))) == []


@makers
def test_a_scaler_counts(make: Any) -> None:
    model, scaler = Model(make), LossScaler()

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = scaler.scale_loss(model.loss(0))
        scaler.apply(model.optimizers[0], tape.gradient(loss, [model.weights[0]]), [model.weights[0]])

    assert heard(tf.function(step)) == []


@makers
@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"loss_scaling": False}, {"graph_rewrite": False}, {"denylist_add": "MatMul"}], ids=str)
def test_nothing_is_said_where_nothing_can_underflow_or_it_is_accepted(make: Any, settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "tfmp: mixed precision is on, but nothing was converted")
        assert heard(lambda: Model(make).trained(1), **settings) == []


def test_a_loop_that_knows_nothing_of_loss_scaling_trains_although_compile_wrapped_its_optimizer(caplog: pytest.LogCaptureFixture) -> None:
    """Keras 3 hands scaled gradients to `apply`; a `train_step` from before that does not, and must not have them divided."""

    class Own(keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    results = []
    for on in (False, True):
        model = Own([keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="ones")])
        with tfmp.mixed_precision(on, **ON if on else {}), caplog.at_level("WARNING", logger="absl"):
            model.compile(keras.optimizers.SGD(0.1))
            model.fit(np.ones((8, 3), "float32"), np.zeros((8, 2), "float32"), batch_size=4, verbose=0)
        results.append(model.get_weights()[0])
    np.testing.assert_allclose(results[1], results[0], rtol=2e-3)
    assert not np.array_equal(results[0], np.ones((3, 2)))
    assert sum("Gradients are applied of a loss that was not scaled. They are taken as they are" in one.getMessage() for one in caplog.records) == 1


@makers
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
def test_autograph_has_nothing_to_say_about_the_step(make: Any, wrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(ag_logging, "warning", lambda message, *args, **_: said.append(message % args))
    weight, optimizer = tf.Variable([1.0, 2.0]), (wrap if wrapped else lambda one: one)(make(0.1))

    @tf.function
    def step(halves: tf.Tensor) -> None:
        def loss() -> tf.Tensor:
            value = tf.reduce_sum(weight**2)
            if halves:  # AutoGraph has translated this function if tracing gets past here
                value = value / 2.0
            return value

        train(optimizer, weight, loss)

    with tfmp.mixed_precision(**ON, loss_scaling=wrapped):
        step(tf.constant(True))
    np.testing.assert_allclose(weight, [0.9, 1.8], rtol=1e-6)
    assert said == []


def test_uninstalling_restores_every_step() -> None:
    hooked = {step: step.class_().__dict__[step.method] for step in unscaled.STEPS}
    keras_compile.uninstall()
    try:
        for step in unscaled.STEPS:
            assert step.class_().__dict__[step.method] is hooked[step].__wrapped__
    finally:
        keras_compile.install_keras()
        keras_compile.install_tf_keras()
