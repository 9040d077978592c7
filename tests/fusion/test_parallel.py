"""Blocks of a Transformer whose parts run in parallel, each with a normalisation of its own of the same data."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.fusion.test_norms import BACKWARD, FORWARD, random
from tests.fusion.test_repeats import Traced


def test_parallel_blocks_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def block(x: tf.Tensor, scale: tf.Variable, offset: tf.Variable, beside: list[tf.Tensor]) -> tf.Tensor:
        one, other = (tf.nn.batch_normalization(x, *tf.nn.moments(x, [-1], keepdims=True), offset, scale, epsilon) for epsilon in (1e-3, 1e-2))
        return x + tf.sin(one) + tf.tanh(other)

    traced = Traced([block] * 6)
    found, worked_out = traced.norms(monkeypatch)
    assert len(found) == 12 and all(norm.gradient for norm in found) and worked_out < 6
    assert [norm.epsilon for norm in found] == pytest.approx([1e-3, 1e-2] * 6)
    assert (found, 6) == traced.norms(monkeypatch, variants=0)


def parallel_block(norm: Callable[[], Any]) -> keras.Model:
    """x + attention(ln1(x)) + mlp(ln2(x)), as in GPT-NeoX, twice."""
    layers = keras.layers
    inputs = keras.Input((6, 16))
    x = layers.Dense(16)(inputs)
    for _ in range(2):
        first, second = norm()(x), norm()(x)
        attended, fed = layers.MultiHeadAttention(2, 8)(first, first), layers.Dense(16)(layers.Dense(32, activation="gelu")(second))
        x = layers.Add()([x, attended, fed])
    return keras.Model(inputs, layers.Dense(3)(x))


def layer_norms(count: int) -> Callable[[], Any]:
    epsilons = iter([1e-3, 1e-5] * count)
    return lambda: keras.layers.LayerNormalization(epsilon=next(epsilons))


def test_a_keras_model_with_parallel_blocks_is_converted() -> None:
    model = parallel_block(layer_norms(2))

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.square(model(x, training=True)))
        return tape.gradient(total, [weight.value for weight in model.trainable_weights])

    conversion = tfmp.convert_function(step.get_concrete_function(tf.TensorSpec([None, 6, 16])))
    bodies = [body.plan.body for body in conversion.bodies.values()]
    ops = collections.Counter(op for body in bodies for node, op in enumerate(body.ops) if node not in (body.dead or ()))
    assert (ops[FORWARD], ops[BACKWARD]) == (8, 8) and not {"Rsqrt", "RsqrtGrad", "SquaredDifference"} & ops.keys()


def test_a_keras_model_with_parallel_blocks_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFMP_STRICT", "1")
    x, wanted = random(32, 6, 16), random(32, 6, 3, seed=1)

    def losses() -> Sequence[float]:
        keras.utils.set_random_seed(3)
        model = parallel_block(layer_norms(2))
        model.compile(keras.optimizers.Adam(1e-2), "mse", jit_compile=False)
        return model.fit(x, wanted, batch_size=16, epochs=3, shuffle=False, verbose=0).history["loss"]  # type: ignore[no-any-return]

    before = losses()
    tfmp.enable(dtype="bfloat16", ignore_performance=True)
    try:
        after = losses()
        report = str(tfmp.report())
    finally:
        tfmp.disable()
    assert before[-1] < before[0]
    np.testing.assert_allclose(after, before, rtol=0.03)
    assert "fused kernels in" in report
