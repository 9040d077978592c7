"""Whole trainings and the numbers that decide them: clip factors, products that overflow, local losses, growing residuals, logits (R55 to R62)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.behaviour.on_off import DTYPES, normal, run, scope, set_seeds
from tfmp import numerics

CLASSES = 4


@pytest.mark.parametrize("size", [1e9, 1e-9])
def test_a_clip_factor_beyond_16_bit_still_clips_to_the_norm(dtype: str, size: float) -> None:  # R55
    def program() -> Any:
        weights = [tf.Variable(normal(8, 8, seed=seed)) for seed in (1, 2)]

        @tf.function
        def clipped(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.tanh(x @ weights[0]) @ weights[1])
            gradients = [gradient * size for gradient in tape.gradient(loss, weights)]
            return tf.clip_by_global_norm(gradients, 1.0)

        return clipped(normal(16, 8, seed=3))

    runs = run(program, dtype)
    gradients, norm = runs.on
    assert runs.converted > 0
    assert float(tf.linalg.global_norm(gradients)) == pytest.approx(min(1.0, float(norm)), rel=1e-2)
    assert float(norm) == pytest.approx(float(runs.off[1]), rel=3e-2)
    assert all(np.any(gradient.numpy()) for gradient in gradients)


def _gram(features: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(features, [-1, features.shape[-1]])
    return tf.matmul(flat, flat, transpose_a=True, name="gram")


def _gram_in_float32(features: tf.Tensor) -> tf.Tensor:
    with tfmp.float32():
        return _gram(features)


@pytest.mark.parametrize(("gram", "rule"), [(_gram, "name:*gram*"), (_gram_in_float32, "")], ids=["rule", "region"])
def test_a_gram_matrix_that_would_overflow_stays_float32_by_a_rule(dtype: str, gram: Callable[[tf.Tensor], tf.Tensor], rule: str) -> None:  # R56
    features = tf.constant(10.0 + np.random.default_rng(0).normal(size=(1, 64, 64, 8)).astype("float32"))

    def program() -> Any:
        mix = tf.Variable(tf.eye(8))

        @tf.function
        def style(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                found = gram(tf.reshape(tf.reshape(x, [-1, 8]) @ mix, x.shape))
                loss = tf.reduce_mean((found / 4096.0) ** 2)
            return found, tape.gradient(loss, mix)

        return style(features)

    runs = run(program, dtype, **({"keep_float32": rule} if rule else {})).check()
    assert float(tf.reduce_max(runs.on[0])) > 4e5


def test_a_gram_matrix_without_a_rule_is_found_and_named() -> None:  # R56
    style = tf.function(lambda x: tf.reduce_mean(_gram(x @ tf.eye(8))))
    found = numerics.find_nonfinite(style, (10.0 * tf.ones([64 * 64, 8]),), dtype="float16")
    assert found is not None
    assert (found.node, found.also_in_float32) == ("gram", False)


def _residual(x: Any, width: int, norm: bool) -> Any:
    layers = keras.layers
    y = layers.Conv2D(width, 3, padding="same")(x)
    return layers.ReLU()(layers.Add()([x, layers.BatchNormalization()(y) if norm else y]))


def _mlp() -> Any:
    return keras.Sequential([keras.Input([64]), keras.layers.Dense(32, "gelu"), keras.layers.Dense(32, "relu"), keras.layers.Dense(CLASSES)])


def _resnet() -> Any:
    entry = keras.Input([64])
    x = keras.layers.Conv2D(8, 3, padding="same")(keras.layers.Reshape([8, 8, 1])(entry))
    x = _residual(_residual(x, 8, norm=True), 8, norm=True)
    return keras.Model(entry, keras.layers.Dense(CLASSES)(keras.layers.GlobalAveragePooling2D()(x)))


def _lstm() -> Any:
    return keras.Sequential([keras.Input([64]), keras.layers.Reshape([8, 8]), keras.layers.LSTM(16), keras.layers.Dense(CLASSES)])


def _transformer() -> Any:
    entry = keras.Input([64])
    x = keras.layers.Dense(16)(keras.layers.Reshape([8, 8])(entry))
    x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 8)(x, x))
    x = keras.layers.LayerNormalization()(x + keras.layers.Dense(16)(keras.layers.Dense(32, "gelu")(x)))
    return keras.Model(entry, keras.layers.Dense(CLASSES)(keras.layers.GlobalAveragePooling1D()(x)))


def _embeddings() -> Any:
    """Returns a small model like DLRM: embeddings of integers, their dot products with each other, and dense layers on top."""
    entry = keras.Input([64])
    ids = keras.ops.cast(keras.ops.abs(entry[:, :4]) * 1000.0, "int32") % 5000
    vectors = keras.layers.Embedding(5000, 16)(ids)
    pairs = keras.ops.reshape(keras.ops.matmul(vectors, keras.ops.transpose(vectors, [0, 2, 1])), [-1, 16])
    return keras.Model(entry, keras.layers.Dense(CLASSES)(keras.layers.Concatenate()([pairs, keras.layers.Dense(16, "relu")(entry)])))


def _losses(make: Callable[[], Any], x: Any, y: Any) -> tuple[list[float], Any]:
    """Returns the losses of 100 steps, and the optimizer, which scales the loss."""
    set_seeds()
    model, rule = make(), tfmp.LossScaleOptimizer(keras.optimizers.Adam(5e-3))
    variables = model.trainable_variables
    rule.build(variables)

    @tf.function(autograph=False)
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True)))
            scaled = rule.scale_loss(loss)
        rule.apply_gradients(zip(tape.gradient(scaled, [variable.value for variable in variables]), variables, strict=True))
        return loss

    return [float(step(x, y)) for _ in range(100)], rule


@pytest.mark.parametrize("make", [_mlp, _resnet, _lstm, _transformer, _embeddings], ids=lambda make: make.__name__.removeprefix("_"))
def test_training_ends_where_float32_does(make: Callable[[], Any]) -> None:  # R58, R62
    """With loss scaling: losses are finite and end within 10 %; few steps are skipped, and none late."""
    random = np.random.default_rng(4)
    x = random.normal(size=(64, 64)).astype("float32")
    y = np.argmax(x @ random.normal(size=(64, CLASSES)), 1)
    with tfmp.mixed_precision(enabled=False):
        reference, _ = _losses(make, x, y)
    assert reference[-1] < 0.7 * reference[0]
    for dtype in DTYPES:
        before = len(tfmp.report())
        with scope(dtype):
            losses, rule = _losses(make, x, y)
        assert any(record.converted for record in tfmp.report()[before:])
        assert np.all(np.isfinite(losses)), f"{dtype}: {losses}"
        assert int(rule.skipped_steps) < 10 and int(rule.last_skip_step) <= 30
        assert abs(losses[-1] - reference[-1]) <= 0.1 * reference[-1] + 0.01, f"{dtype}: {losses[-1]}, float32: {reference[-1]}"


def test_layers_that_train_themselves_by_local_losses(dtype: str) -> None:  # R59
    """As in the forward-forward algorithm: every layer has its own loss, of a size that a half-precision gradient would lose, and its own optimizer."""
    random = np.random.default_rng(5)
    good, bad = (tf.constant(random.normal(mean, 1.0, (64, 16)), tf.float32) for mean in (0.5, -0.5))

    def program() -> Any:
        layers = [keras.layers.Dense(16, "relu") for _ in range(2)]
        rules = [tfmp.LossScaleOptimizer(keras.optimizers.SGD(3e5)) for _ in layers]
        for layer in layers:
            layer.build([None, 16])

        @tf.function
        def step(good: tf.Tensor, bad: tf.Tensor) -> Any:
            losses = []
            for layer, rule in zip(layers, rules, strict=True):
                variables = layer.trainable_variables
                with tf.GradientTape() as tape:
                    ups, downs = layer(good), layer(bad)
                    goodness = tf.reduce_mean(ups**2, 1) - tf.reduce_mean(downs**2, 1)
                    loss = 1e-6 * tf.reduce_mean(tf.math.softplus(2.0 - goodness))
                    scaled = rule.scale_loss(loss)
                rule.apply_gradients(zip(tape.gradient(scaled, [v.value for v in variables]), variables, strict=True))
                losses.append(loss)
                good, bad = (tf.stop_gradient(one / (tf.norm(one, axis=1, keepdims=True) + 1e-4) * 4.0) for one in (ups, downs))
            return losses

        return [[float(loss) for loss in step(good, bad)] for _ in range(20)]

    runs = run(program, dtype)
    assert runs.converted > 0
    first, last = np.array(runs.on[0]), np.array(runs.on[-1])
    assert np.all(last < 0.7 * first), "every layer learns"
    np.testing.assert_allclose(last, runs.off[-1], rtol=0.05)


def _stream() -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a residual stream that doubles five times and ends above 65504, normalised at the end."""
    weights = [tf.Variable(tf.eye(8)) for _ in range(5)]

    def forward(x: tf.Tensor) -> tf.Tensor:
        for number, weight in enumerate(weights):
            x = tf.add(x, tf.matmul(tf.nn.relu(x), weight, name=f"product_{number}"), name=f"residual_{number}")
        return tf.matmul(x, tf.eye(8), name="last") / tf.reduce_max(x)

    return forward


def test_a_residual_stream_beyond_the_range_of_float16_is_named_and_finite_in_bfloat16() -> None:  # R61
    x = tf.constant(np.random.default_rng(6).uniform(2000.0, 3000.0, (4, 8)), tf.float32)
    found = numerics.find_nonfinite(tf.function(_stream()), (x,), dtype="float16")
    assert found is not None and not found.also_in_float32
    assert found.node in ("product_4", "residual_4", "last"), str(found)
    assert numerics.find_nonfinite(tf.function(_stream()), (x,), dtype="bfloat16") is None
    run(lambda: tf.function(_stream())(x), "bfloat16").check()


def test_a_loss_curve_with_logits_of_a_bfloat16_product_follows_float32() -> None:  # R62
    """200 steps of a classifier whose last product is in bfloat16; softmax and loss are not."""
    random = np.random.default_rng(7)
    x = tf.constant(random.normal(size=(128, 16)), tf.float32)
    y = tf.constant(np.argmax(x @ random.normal(size=(16, CLASSES)), 1), tf.int32)

    def program() -> Any:
        hidden, out = tf.Variable(normal(16, 32, seed=8) * 0.25), tf.Variable(normal(32, CLASSES, seed=9) * 0.25)

        @tf.function
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                logits = tf.nn.relu(x @ hidden) @ out
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
            for variable, gradient in zip((hidden, out), tape.gradient(loss, (hidden, out)), strict=True):
                variable.assign_sub(0.2 * gradient)
            return loss

        return [float(step()) for _ in range(200)]

    runs = run(program, "bfloat16")
    assert runs.converted > 0
    np.testing.assert_allclose(runs.on[50::50], runs.off[50::50], rtol=0.05)
    assert runs.on[-1] < 0.3 * runs.on[0]
