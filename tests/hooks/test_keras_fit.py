"""Whoever trains with a loss scale is told that training is stuck, without asking for it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfmp
from tfmp.errors import MixedPrecisionWarning
from tfmp.hooks import keras_compile, keras_fit
from tfmp.optimizers.keras3 import LossScaleMonitor
from tfmp.optimizers.tf_keras import TfKerasLossScaleMonitor
from tfmp.optimizers.wrap import wrap

MONITORS = {keras: LossScaleMonitor, tf_keras: TfKerasLossScaleMonitor}
families = pytest.mark.parametrize("family", MONITORS, ids=lambda family: family.__name__)
X, Y = np.ones((64, 3), "float32"), np.zeros((64, 1), "float32")


def fitted(family: Any, optimizer: Any, x: np.ndarray = X, callbacks: Any = None) -> Any:
    """The history of a model after 64 batches of one row, 15 of which the scale needs to get to its floor."""
    model = family.Sequential([family.layers.Input((3,)), family.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model.fit(x, Y, 1, 2, 0, callbacks)  # by place, as some do


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "Training is stuck" in record.getMessage()]


@families
def test_a_model_that_only_overflows_is_reported_once(family: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="absl"), tfmp.mixed_precision(dtype="float16", ignore_performance=True):
        history = fitted(family, "sgd", X * np.inf)
    (message,) = said(caplog)
    assert "the last 64 steps were skipped" in message
    assert "kernel" in message
    assert set(history.history) == {"loss"}


@families
def test_a_model_that_trains_is_not_talked_about(family: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="absl"):
        history = fitted(family, wrap(family.optimizers.SGD(0.1)))
    assert said(caplog) == []
    assert set(history.history) == {"loss"}


@families
def test_the_users_own_monitor_is_the_only_one(family: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="absl"):
        fitted(family, wrap(family.optimizers.SGD(0.1)), X * np.inf, [MONITORS[family](at_floor="ignore")])
    assert said(caplog) == []


@families
def test_callbacks_of_every_form_are_called(family: Any) -> None:
    seen: list[int] = []
    callback = family.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    for callbacks in ([callback], (callback,), callback):
        fitted(family, wrap(family.optimizers.SGD(0.1)), callbacks=callbacks)
    assert seen == [0, 1] * 3


@families
def test_a_complete_list_of_callbacks_is_passed_on(family: Any) -> None:
    model = family.Sequential([family.layers.Input((3,)), family.layers.Dense(1)])
    model.compile(wrap(family.optimizers.SGD(0.1)), "mse")
    seen: list[int] = []
    callback = family.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    model.fit(X, Y, batch_size=64, verbose=0, callbacks=family.callbacks.CallbackList([callback], add_history=True, model=model, epochs=1, steps=1))
    assert seen == [0]


@families
def test_a_strategy_that_cannot_scale_losses_is_named(family: Any) -> None:
    with tf.distribute.experimental.CentralStorageStrategy(["CPU:0"], "CPU:0").scope():
        model = family.Sequential([family.layers.Input((3,)), family.layers.Dense(1)], name="mine")
        given = family.optimizers.SGD(0.1)
        with tfmp.mixed_precision(dtype="float16", ignore_performance=True):
            with pytest.warns(MixedPrecisionWarning, match="model 'mine' trains without a loss scale. ValueError: .* does not work under CentralStorage"):
                model.compile(given, "mse")
            assert model.optimizer is given
        with tfmp.mixed_precision(dtype="float16", ignore_performance=True, strict=True), pytest.raises(ValueError, match="CentralStorage"):
            model.compile(given, "mse")


def test_uninstalling_restores_fit() -> None:
    hooked = {package: fit.class_().__dict__["fit"] for package, fit in keras_fit.FITS.items()}
    keras_compile.uninstall()
    try:
        for package, fit in keras_fit.FITS.items():
            assert fit.class_().__dict__["fit"] is hooked[package].__wrapped__
    finally:
        keras_compile.install_keras()
        keras_compile.install_tf_keras()
