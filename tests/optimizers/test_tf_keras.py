"""What only tf_keras has: its own wrapper's place and names, both kinds of optimizers, their configurations."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.optimizers.families import LEGACY, TF_KERAS, Family
from tfmp.optimizers.policies import DynamicLossScale, FixedLossScale
from tfmp.optimizers.tf_keras import TfKerasLegacyLossScaleOptimizer, TfKerasLossScaleOptimizer
from tfmp.optimizers.wrap import wrap

families = pytest.mark.parametrize("family", [TF_KERAS, LEGACY], ids=lambda family: family.name)
CLASSES = {TF_KERAS: TfKerasLossScaleOptimizer, LEGACY: TfKerasLegacyLossScaleOptimizer}


@families
def test_it_is_recognised_wherever_tf_keras_looks_for_its_own(family: Family) -> None:
    inner = family.adam(0.1)
    optimizer = wrap(inner)
    assert type(optimizer) is CLASSES[family]
    assert isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
    assert isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer if family is LEGACY else tf_keras.optimizers.Optimizer)
    assert tf_keras.optimizers.get(optimizer) is optimizer
    assert optimizer.inner_optimizer is inner
    with pytest.raises((ValueError, TypeError), match="already wrapped|cannot wrap another"):
        tf_keras.mixed_precision.LossScaleOptimizer(inner)


@families
def test_wrapping_twice_is_refused(family: Family) -> None:
    with pytest.raises(ValueError, match=f"tfmp.optimizers.tf_keras.{CLASSES[family].__name__} '.*' already scales the loss"):
        CLASSES[family](wrap(family.adam(0.1)))
    inner = family.adam(0.1)
    theirs = tf_keras.mixed_precision.LossScaleOptimizer(inner)
    for one in (theirs, inner):  # the inner one too: its gradients would be unscaled by both
        with pytest.raises(ValueError, match="already scales the loss; a second loss scale would divide"):
            CLASSES[family](one)


def test_each_kind_has_its_own_class() -> None:
    with pytest.raises(TypeError, match="not a tf_keras optimizer."):
        TfKerasLossScaleOptimizer(LEGACY.adam(0.1))
    with pytest.raises(TypeError, match="not a legacy tf_keras optimizer."):
        TfKerasLegacyLossScaleOptimizer(TF_KERAS.adam(0.1))


@families
def test_attributes_of_the_inner_optimizer_are_read_and_set_through_the_wrapper(family: Family) -> None:
    inner = family.adam(0.5, beta_1=0.75, clipnorm=3.0)
    optimizer = wrap(inner)
    assert (float(optimizer.beta_1), optimizer.clipnorm, float(optimizer.learning_rate)) == (0.75, 3.0, 0.5)
    optimizer.clipnorm, optimizer.beta_1, optimizer.learning_rate = 5.0, 0.5, 0.125
    assert (inner.clipnorm, float(inner.beta_1), float(inner.learning_rate)) == (5.0, 0.5, 0.125)
    optimizer.epsilon = 0.25
    assert inner.epsilon == 0.25
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = optimizer.nothing_of_this_name


@families
@pytest.mark.parametrize(
    "loss_scale", ["dynamic", 128, None, DynamicLossScale(initial=8, growth_interval=3, minimum=0.5, hysteresis=2), FixedLossScale(2, False)]
)
def test_the_configuration_makes_an_equal_wrapper(family: Family, loss_scale: Any) -> None:
    optimizer = wrap(family.sgd(0.5, momentum=0.25, clipvalue=2.0), loss_scale)
    copied = CLASSES[family].from_config(copy.deepcopy(optimizer.get_config()))
    for twin in (copied, tf_keras.optimizers.get(tf_keras.optimizers.serialize(optimizer))):
        assert type(twin) is CLASSES[family]
        assert twin.loss_scale_policy == optimizer.loss_scale_policy
        assert (float(twin.momentum), twin.clipvalue, float(twin.learning_rate)) == (0.25, 2.0, 0.5)


@families
def test_minimize_scales_and_skips(family: Family) -> None:
    variable, spoil = tf.Variable([1.0, 2.0]), tf.Variable(0.0)
    optimizer = wrap(family.sgd(0.25))

    def loss() -> tf.Tensor:
        return tf.reduce_sum(variable**2) + spoil * variable[0]

    optimizer.minimize(loss, [variable])
    assert variable.numpy().tolist() == [0.5, 1.0]
    with tf.GradientTape() as tape:
        value = loss()
    optimizer.minimize(value, [variable], tape=tape)
    assert variable.numpy().tolist() == [0.25, 0.5]
    spoil.assign(np.nan)
    optimizer.minimize(loss, [variable])
    assert variable.numpy().tolist() == [0.25, 0.5]
    assert (int(optimizer.skipped_steps), int(optimizer.iterations)) == (1, 2)


@families
def test_weights_can_be_set_with_and_without_the_scale(family: Family) -> None:
    variable, optimizer = tf.Variable([1.0, 2.0]), wrap(family.adam(0.1), DynamicLossScale(initial=4))
    optimizer.minimize(lambda: tf.reduce_sum(variable**2), [variable])
    optimizer.minimize(lambda: tf.reduce_sum(variable) * np.inf, [variable])
    weights = [np.array(one) for one in optimizer.variables()]
    inner = len(optimizer.inner_optimizer.variables())
    assert len(weights) == inner + 3
    twin = wrap(family.adam(0.1))
    twin.minimize(lambda: tf.reduce_sum(variable), [variable])
    twin.set_weights(weights[:inner])
    assert (int(twin.iterations), float(twin.scale)) == (1, 2.0**15)
    twin.set_weights(weights)
    assert twin.loss_scale_state() == optimizer.loss_scale_state()
    assert int(twin.skipped_steps) == 1
    if family is LEGACY:
        np.testing.assert_equal(twin.get_weights(), weights)
        assert [one.name for one in twin.weights] == [one.name for one in twin.variables()]


def test_weight_decay_exclusions_reach_the_inner_optimizer() -> None:
    optimizer = wrap(tf_keras.optimizers.SGD(1.0, weight_decay=0.5))
    decayed, kept = tf.Variable([1.0], name="decayed"), tf.Variable([1.0], name="kept")
    optimizer.exclude_from_weight_decay(var_names=["kept"])
    optimizer.minimize(lambda: tf.reduce_sum(decayed + kept) * 0.0, [decayed, kept])
    assert (float(decayed[0]), float(kept[0])) == (0.5, 1.0)


def test_a_skipped_step_does_not_count_unlike_in_tf_kerass_own() -> None:
    counts = []
    for wrapping in (tf_keras.mixed_precision.LossScaleOptimizer, wrap):
        variable, optimizer = tf.Variable([1.0]), wrapping(tf_keras.optimizers.SGD(0.1))
        optimizer.minimize(lambda variable=variable: tf.reduce_sum(variable) * np.inf, [variable])
        counts.append(int(optimizer.iterations))
    assert counts == [1, 0]
