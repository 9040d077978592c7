"""One function for all families, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import keras
import pytest
import tensorflow as tf
import tf_keras

from tests.optimizers.conftest import ROOT
from tests.optimizers.families import FAMILIES, KERAS3, LEGACY, TF_KERAS, V1, Family
from tfmp.optimizers.keras3 import LossScaleOptimizer
from tfmp.optimizers.policies import DynamicLossScale, FixedLossScale, NoLossScale
from tfmp.optimizers.tf_keras import TfKerasLegacyLossScaleOptimizer, TfKerasLossScaleOptimizer
from tfmp.optimizers.v1 import V1LossScaleOptimizer
from tfmp.optimizers.wrap import family_of, is_wrapped, register, wrap

WRAPPERS = {KERAS3: LossScaleOptimizer, TF_KERAS: TfKerasLossScaleOptimizer, LEGACY: TfKerasLegacyLossScaleOptimizer, V1: V1LossScaleOptimizer}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize(
    ("loss_scale", "policy"),
    [("dynamic", DynamicLossScale()), (64, FixedLossScale(64)), (None, NoLossScale()), (DynamicLossScale(hysteresis=2), DynamicLossScale(hysteresis=2))],
)
def test_each_family_gets_its_own_wrapper(family: Family, loss_scale: Any, policy: Any) -> None:  # R103
    inner = family.adam(0.1)
    assert not is_wrapped(inner)
    wrapped = wrap(inner, loss_scale)
    assert type(wrapped) is WRAPPERS[family]
    assert wrapped.inner_optimizer is inner
    assert wrapped.loss_scale_policy == policy
    assert is_wrapped(wrapped)
    with pytest.raises(ValueError, match="already scales the loss"):
        wrap(wrapped)


def test_the_wrappers_of_others_are_wrapped_already() -> None:
    theirs = [
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
        tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD()),
        tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.legacy.SGD()),
        tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer(tf.compat.v1.train.AdamOptimizer(), "dynamic"),
    ]
    for optimizer in theirs:
        assert is_wrapped(optimizer)
        with pytest.raises(ValueError, match=f"{type(optimizer).__name__} .* already scales the loss"):
            wrap(optimizer)


@pytest.mark.parametrize("thing", [None, "adam", 3, object(), keras.optimizers.Adam, tf.Variable(1.0)])
def test_anything_else_is_refused_with_a_list_of_what_is_accepted(thing: Any) -> None:  # R103
    accepted = (
        r"Give a Keras 3 optimizer \(keras.optimizers\), a tf_keras optimizer \(tf_keras.optimizers\), a legacy tf_keras optimizer "
        r"\(tf_keras.optimizers.legacy\) or a TensorFlow 1 optimizer \(tf.compat.v1.train.Optimizer\)."
    )
    with pytest.raises(TypeError, match=rf"Cannot scale losses for .* of type {type(thing).__name__}\. {accepted}"):
        wrap(thing)
    assert not is_wrapped(thing)


def test_a_name_gets_a_hint() -> None:
    with pytest.raises(TypeError, match="Create the optimizer first: a name does not tell its family."):
        wrap("adam")


def test_a_bad_loss_scale_is_refused_before_anything_is_wrapped() -> None:
    inner = keras.optimizers.Adam(loss_scale_factor=8.0)
    with pytest.raises(ValueError, match="loss_scale='static' is not known"):
        wrap(inner, "static")
    assert inner.loss_scale_factor == 8.0


def test_families_are_told_apart() -> None:
    assert len({family_of(family.adam(0.1)).wrapper for family in FAMILIES}) == len(FAMILIES)


def test_registering_is_harmless_for_other_packages() -> None:
    for package in ("keras", "tf_keras", "tensorflow", "nothing"):
        register(package)
    assert keras.saving.get_registered_object("tfmp>LossScaleOptimizer") is LossScaleOptimizer


def test_the_table_imports_no_framework() -> None:
    code = (
        "import sys, tfmp.optimizers.wrap, tfmp.optimizers.policies, tfmp.optimizers.loss_scale; "
        "print({'tensorflow', 'keras', 'tf_keras'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == "set()"
