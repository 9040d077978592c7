"""Normalisation layers of Keras and by hand: statistics as in float32, in training and inference (R40, R46, R47, R49)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run

IMAGES = normal(4, 6, 6, 4)


def layers() -> dict[str, Callable[[], Any]]:
    """Returns makers of normalisation layers."""
    import keras
    import tf_keras

    return {
        "batch norm": keras.layers.BatchNormalization,
        "batch norm without scale and offset": lambda: keras.layers.BatchNormalization(center=False, scale=False),
        "fused batch norm of tf_keras": tf_keras.layers.BatchNormalization,
        "unfused batch norm of tf_keras": lambda: tf_keras.layers.BatchNormalization(fused=False, center=False, scale=False),
        "layer norm": lambda: keras.layers.LayerNormalization(epsilon=1e-12),
        "layer norm of tf_keras": lambda: tf_keras.layers.LayerNormalization(epsilon=1e-12),
        "group norm": lambda: keras.layers.GroupNormalization(2),
        "unit norm": keras.layers.UnitNormalization,
        "spectral norm": lambda: keras.layers.SpectralNormalization(keras.layers.Conv2D(4, 1)),
    }


def trained(make: Callable[[], Any], x: tf.Tensor, jit: bool = False) -> Any:
    """Returns what three training steps and one inference step of convolution, layer, convolution give, with the layer's state."""
    kernel, layer = tf.Variable(normal(3, 3, 4, 4, seed=12, scale=0.3)), make()
    layer.build(x.shape)

    @tf.function(jit_compile=jit)
    def f(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            y = tf.nn.conv2d(layer(tf.nn.conv2d(x, kernel, 1, "SAME"), training=True), kernel, 1, "SAME")
            loss = tf.reduce_mean(y**2)
        return loss, tape.gradient(loss, kernel)

    infer = tf.function(lambda x: tf.nn.conv2d(layer(tf.nn.conv2d(x, kernel, 1, "SAME"), training=False), kernel, 1, "SAME"))
    return [f(x) for _ in range(3)], infer(x), [np.asarray(variable) for variable in layer.variables if "seed" not in variable.name]


NAMES = (
    "batch norm",
    "batch norm without scale and offset",
    "fused batch norm of tf_keras",
    "unfused batch norm of tf_keras",
    "layer norm",
    "layer norm of tf_keras",
    "group norm",
    "unit norm",
    "spectral norm",
)


@pytest.mark.parametrize("name", NAMES)
def test_layers_between_convolutions(dtype: str, name: str) -> None:  # R40
    run(lambda: trained(layers()[name], IMAGES), dtype).check(2 * on_off.ROUNDINGS)


@pytest.mark.parametrize("name", ["batch norm", "fused batch norm of tf_keras", "layer norm"])
def test_layers_between_convolutions_compiled(dtype: str, name: str) -> None:
    run(lambda: trained(layers()[name], IMAGES, jit=True), dtype).check(2 * on_off.ROUNDINGS)


@pytest.mark.parametrize("name", ["batch norm", "fused batch norm of tf_keras", "layer norm", "group norm"])
def test_inputs_around_65000_are_not_rounded_before_the_statistics(dtype: str, name: str) -> None:  # R47
    x = 65000.0 + normal(4, 6, 6, 4, scale=2e3)

    def program() -> Any:
        layer = layers()[name]()
        layer.build(x.shape)
        return tf.function(lambda x: tf.nn.conv2d(layer(x, training=True), normal(1, 1, 4, 2), 1, "SAME"))(x)

    runs = run(program, dtype).check()
    assert np.isfinite(runs.on).all()


@pytest.mark.parametrize("name", ["layer norm", "layer norm of tf_keras"])
@pytest.mark.parametrize("value", [0.0, 300.0])
def test_constant_inputs_with_a_tiny_epsilon(dtype: str, name: str, value: float) -> None:  # R46
    def program() -> Any:
        layer, w = layers()[name](), normal(8, 8)
        layer.build((4, 8))

        @tf.function
        def f(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x) @ w + 1.0
                loss = tf.reduce_mean(y**2)
            return loss, tape.gradient(loss, x)

        return f(tf.fill([4, 8], value))

    runs = run(program, dtype).check()
    assert np.isfinite(runs.on[1]).all()


def test_large_activations_and_many_elements(dtype: str) -> None:  # R49
    x = normal(4, 130, 130, 1, scale=300.0)  # 67,600 elements a channel, more than the largest half number

    def program() -> Any:
        import keras

        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, None, None, 1))
        f = tf.function(lambda x: tf.reduce_mean(layer(tf.nn.conv2d(x, tf.ones([1, 1, 1, 1]), 1, "SAME"), training=True) ** 2))
        return f(x), layer.moving_mean.numpy(), layer.moving_variance.numpy()

    runs = run(program, dtype).check()
    np.testing.assert_allclose(runs.on[2], runs.off[2], rtol=2 * on_off.SIXTEEN_BIT[dtype].unit_roundoff)


def test_moments_renormalised_by_hand(dtype: str) -> None:  # R40
    def program() -> Any:
        moving = tf.Variable(tf.ones([4]))

        @tf.function
        def f(x: tf.Tensor) -> Any:
            y = tf.nn.conv2d(x, normal(3, 3, 4, 4, seed=12), 1, "SAME")
            mean, variance = tf.nn.moments(y, [0, 1, 2])
            correction = tf.clip_by_value(tf.sqrt(variance / moving), 1.0 / 3.0, 3.0)
            moving.assign_sub(0.01 * (moving - variance))
            y = tf.nn.batch_normalization(y, mean, variance, None, None, 1e-3) * tf.stop_gradient(correction)
            return tf.nn.conv2d(y, normal(3, 3, 4, 4, seed=13), 1, "SAME")

        return f(IMAGES), f(IMAGES), moving.read_value()

    run(program, dtype).check(2 * on_off.ROUNDINGS)


def test_a_convolution_network_with_batch_norm_learns_as_in_float32(dtype: str) -> None:  # R49
    def program() -> Any:
        import keras

        model = keras.Sequential([
            keras.Input((8, 8, 1)), keras.layers.Conv2D(8, 3), keras.layers.BatchNormalization(), keras.layers.ReLU(),
            keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1),
        ])  # fmt: skip
        x = normal(64, 8, 8, 1, scale=300.0).numpy()
        y = (x[:, :4].mean((1, 2, 3)) > x[:, 4:].mean((1, 2, 3))).astype(np.float32)
        model.compile(keras.optimizers.Adam(0.02), keras.losses.BinaryCrossentropy(from_logits=True))
        return [float(model.train_on_batch(x, y)) for _ in range(20)]

    runs = run(program, dtype)
    assert runs.converted > 0
    assert runs.on[-1] < runs.on[0]
    assert abs(runs.on[-1] - runs.off[-1]) < 0.1 * runs.off[-1]
