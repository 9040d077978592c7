"""Training steps of small Keras models, converted once for all tests."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

import tfmp
from tests.reports.only import records_of
from tfmp.reports.records import Details

FAMILIES = ("keras", "tf_keras")


@functools.cache
def trained(family: str) -> tuple[Any, Any]:
    """Returns a model that was trained for one step in float16, and the report of it. The model must stay alive for details to be there."""
    keras: Any = importlib.import_module(family)
    layers = keras.layers
    inputs = keras.Input((12, 12, 3))
    x = layers.Conv2D(8, 3, activation="relu", name="picture")(inputs)
    x = layers.BatchNormalization(name="normal")(x)
    x = layers.Reshape((100, 8), name="sequence")(x)
    x = layers.LSTM(5, name="memory")(x)
    x = layers.Dense(10, name="classes")(x)
    model = keras.Model(inputs, x, name="net")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tfmp.mixed_precision(dtype="float16", ignore_performance=True):
        model.compile("adam", loss, jit_compile=False)
        with records_of() as report:
            model.fit(np.zeros((4, 12, 12, 3), np.float32), np.zeros(4), batch_size=4, verbose=0)
    return model, report()


@functools.cache
def details(family: str) -> Details:
    """Returns the details of the step of `trained(family)`."""
    _, report = trained(family)
    (found,) = report.details
    return found
