"""Ranges of a Keras model hold where `fit` trains it: the nodes have the same names there."""

from __future__ import annotations

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfmp
from tfmp import numerics
from tfmp.optimizers import wrap

FAMILIES = {"keras": keras, "tf_keras": tf_keras}
ON: dict[str, Any] = {"dtype": "float16", "device": "CPU", "ignore_performance": True, "strict": True, "loss_scaling": False}
RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(32, 8)).astype("float32"), RNG.integers(0, 4, 32)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Any:
    return FAMILIES[request.param]


def model_of(family: Any) -> Any:
    """Returns a compiled model that trains in float32 and overflows in float16, in its last layer but one."""
    family.utils.set_random_seed(4)
    layers = family.layers

    class Sharpen(layers.Layer):  # type: ignore[name-defined]
        def call(self, x: Any) -> Any:
            return tf.nn.softmax(x * 40000.0)

    model = family.Sequential([layers.Input((8,)), layers.Dense(16, activation="tanh"), layers.Dense(16), Sharpen(name="sharpen"), layers.Dense(4)])
    loss = family.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(wrap.wrap(family.optimizers.SGD(0.1), 1.0), loss, jit_compile=False)
    return model


def fitted(family: Any, **scope: Any) -> list[float]:
    """Returns the losses of five epochs."""
    with tfmp.mixed_precision(**scope):
        return [float(loss) for loss in model_of(family).fit(X, Y, batch_size=32, epochs=5, shuffle=False, verbose=0).history["loss"]]


def test_a_model_that_overflows_trains_with_ranges(family: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ranges.json"
    numerics.save(numerics.calibrate(model_of(family), [(X, Y)]), path)
    full = fitted(family, enabled=False)
    assert not np.isfinite(fitted(family, **ON)).all()
    np.testing.assert_allclose(fitted(family, **ON, ranges=path), full, rtol=5e-3)
    record = tfmp.report()[-1]
    assert record.converted > 0 and record.unused_rules == ()
    monkeypatch.setenv("TFMP_RANGES", str(path))
    np.testing.assert_allclose(fitted(family, **ON), full, rtol=5e-3)


def test_what_broke_is_found_with_its_layer(family: Any) -> None:
    model = model_of(family)
    found = numerics.find_nonfinite(model, (X, Y))
    assert found is not None and found.op == "Mul" and found.layer == f"{model.name}/sharpen"
    assert numerics.compare(model, (X, Y))[0].node == found.node


def test_a_model_on_several_devices() -> None:
    devices = tf.config.list_logical_devices("CPU")
    strategy = tf.distribute.MirroredStrategy([device.name for device in devices[:2]]) if len(devices) > 1 else tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = model_of(keras)
    found = numerics.find_nonfinite(model, (X, Y))
    assert found is not None and found.op == "Mul" and found.layer == f"{model.name}/sharpen"
