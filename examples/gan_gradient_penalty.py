"""Two networks, two losses, two loss scales and a gradient of a gradient: a small WGAN-GP in float16.

    python examples/gan_gradient_penalty.py

A generator learns to draw points on a circle, a critic to tell its points from real ones. The critic's loss contains a gradient penalty: the
norm of the critic's gradient with respect to its *input*, which is then differentiated again with respect to its *weights* (Gulrajani et al.,
"Improved Training of Wasserstein GANs", arXiv 1704.00028). Both derivatives run through float16 and both can underflow, so both are scaled:

- the inner one is scaled and unscaled at once, since the penalty needs its true size;
- the outer one is scaled as every loss is, unscaled, and the step is skipped if it overflowed anywhere. An overflow of the inner derivative makes
  the loss infinite or NaN, and with it the outer gradients, so the same test finds it.

Each loss has a scaler of its own: the critic's overflows must not lower the scale of the generator.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

import tfmp
from tfmp import LossScaler

NOISE, HIDDEN, BATCH, PENALTY = 4, 64, 128, 2.0


@dataclass(frozen=True)
class Player:
    """One of the two networks, with what trains it."""

    network: Any
    optimizer: Any
    scaler: LossScaler


def make_player(inputs: int, outputs: int, loss_scale: Any, seed: int) -> Player:
    """Returns a network of two hidden layers with an Adam optimizer and a loss scale of its own."""
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(HIDDEN, activation="leaky_relu") for _ in range(2)]
    network = keras.Sequential([keras.Input((inputs,)), *hidden, keras.layers.Dense(outputs)])
    return Player(network, keras.optimizers.Adam(3e-3, beta_1=0.5), LossScaler(loss_scale))


def penalty(critic: Player, real: tf.Tensor, fake: tf.Tensor, mix: tf.Tensor) -> tf.Tensor:
    """Returns how far the critic's gradient with respect to its input is from length 1, squared, between real and fake points."""
    points = mix * real + (1 - mix) * fake
    with tf.GradientTape() as inner:
        inner.watch(points)
        scaled = critic.scaler.scale_loss(critic.network(points, training=True))
    # The outer tape records this division too: the penalty is that of the true gradient.
    (gradient,) = critic.scaler.unscale([inner.gradient(scaled, points)]).gradients
    length = tf.sqrt(tf.reduce_sum(gradient**2, axis=1) + 1e-12)
    return tf.reduce_mean((length - 1) ** 2)


def train_critic(critic: Player, generator: Player, real: tf.Tensor, noise: tf.Tensor, mix: tf.Tensor) -> tf.Tensor:
    """Takes one step of the critic and returns its loss."""
    fake = generator.network(noise, training=True)
    with tf.GradientTape() as tape:
        difference = tf.reduce_mean(critic.network(fake, training=True)) - tf.reduce_mean(critic.network(real, training=True))
        loss = difference + PENALTY * penalty(critic, real, fake, mix)
        scaled = critic.scaler.scale_loss(loss)
    weights = critic.network.trainable_weights
    critic.scaler.apply(critic.optimizer, tape.gradient(scaled, weights), weights)
    return loss


def train_generator(critic: Player, generator: Player, noise: tf.Tensor) -> tf.Tensor:
    """Takes one step of the generator, its gradients clipped, and returns its loss."""
    with tf.GradientTape() as tape:
        loss = -tf.reduce_mean(critic.network(generator.network(noise, training=True), training=True))
        scaled = generator.scaler.scale_loss(loss)
    weights = generator.network.trainable_weights
    unscaled = generator.scaler.unscale(tape.gradient(scaled, weights))
    clipped, _ = tf.clip_by_global_norm(unscaled.gradients, 1.0)
    generator.scaler.step(generator.optimizer, zip(clipped, weights, strict=True), unscaled)
    generator.scaler.update(unscaled)
    return loss


def circle(random: tf.random.Generator, count: int) -> tf.Tensor:
    """Returns points of the circle of radius 1, float32, shape [count, 2]."""
    angle = random.uniform([count], 0, 2 * math.pi)
    return tf.stack([tf.cos(angle), tf.sin(angle)], axis=1)


def train(dtype: str, loss_scale: Any, steps: int, seed: int = 0, jit: bool = False) -> tuple[Player, Player]:
    """Returns critic and generator after so many steps (five of the critic for each of the generator).

    Args:
        dtype: what the steps are converted to, "float16" or "bfloat16", or "float32" to leave them alone.
        loss_scale: of either loss: "dynamic", a number, None or a policy record.
        steps: steps of the generator.
        seed: of weights, data and noise.
        jit: whether XLA compiles the steps.
    """
    critic, generator = make_player(2, 1, loss_scale, seed), make_player(NOISE, 2, loss_scale, seed + 1)
    for player in (critic, generator):
        player.optimizer.build(player.network.trainable_weights)
    random = tf.random.Generator.from_seed(seed)
    critic_step = tf.function(lambda *data: train_critic(critic, generator, *data), jit_compile=jit)
    generator_step = tf.function(lambda noise: train_generator(critic, generator, noise), jit_compile=jit)
    # A CPU gains nothing from float16, so tfmp would leave it alone; `ignore_performance` asks for it all the same.
    with contextlib.nullcontext() if dtype == "float32" else tfmp.mixed_precision(dtype=dtype, ignore_performance=True):
        for _ in range(steps):
            for _ in range(5):
                critic_step(circle(random, BATCH), random.normal([BATCH, NOISE]), random.uniform([BATCH, 1]))
            generator_step(random.normal([BATCH, NOISE]))
    return critic, generator


def main() -> int:
    """Trains, prints how it went, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="steps of the generator (default: 400)")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float16", help="what the steps compute in (default: float16)")
    arguments = parser.parse_args()
    critic, generator = train(arguments.dtype, "dynamic", arguments.steps)
    for name, player in (("critic", critic), ("generator", generator)):
        scaler = player.scaler
        print(f"{name}: loss scale {float(scaler.scale):g}, {int(scaler.skipped_steps)} of {scaler.loss_scale_state().steps} steps skipped")
    points = generator.network(tf.random.stateless_normal([1000, NOISE], seed=[1, 2]))
    radius = tf.norm(points, axis=1)
    print(f"radius of the generated points: {float(tf.reduce_mean(radius)):.2f} on average, {float(tf.math.reduce_std(radius)):.2f} standard deviation")
    print(tfmp.report())
    return 0 if abs(float(tf.reduce_mean(radius)) - 1) < 0.2 else 1


if __name__ == "__main__":
    sys.exit(main())
