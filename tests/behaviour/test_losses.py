"""Every loss of Keras 3 and tf_keras after a matrix multiplication: float32, and close to what it is in float32 (R37)."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run

ROWS, CLASSES = 6, 4
X, W = normal(ROWS, 8), normal(8, CLASSES, seed=12, scale=0.3)
IDS = np.array([0, 3, 1, 2, 3, 0])
BINARY = (np.arange(ROWS * CLASSES).reshape(ROWS, CLASSES) % 3 == 0).astype(np.float32)

LABELS = {
    "SparseCategoricalCrossentropy": IDS,
    "CategoricalCrossentropy": np.eye(CLASSES, dtype=np.float32)[IDS],
    "CategoricalFocalCrossentropy": np.eye(CLASSES, dtype=np.float32)[IDS],
    "CategoricalGeneralizedCrossEntropy": IDS,
    "MeanAbsolutePercentageError": 0.5 + BINARY,  # its gradient at labels of zero is beyond half numbers
    "CTC": np.array([[1, 2], [2, 3], [1, 3], [3, 3], [2, 1], [1, 1]]),
}
"""Labels of the losses that want other ones than numbers between 0 and 1."""

ALONE = {"CTC"}
"""Losses that get a function of their own."""


def loss_classes(package: str) -> dict[str, type]:
    """Returns the loss classes of one Keras by name, without the base class and without aliases of another one."""
    losses = importlib.import_module(f"{package}.losses")
    found = {cls for _, cls in inspect.getmembers(losses, inspect.isclass) if issubclass(cls, losses.Loss) and cls is not losses.Loss}
    return {cls.__name__: cls for cls in found}


def predictions(name: str, logits: tf.Tensor) -> tf.Tensor:
    """Returns what the loss `name` wants as predictions, made of logits of shape [ROWS, CLASSES]."""
    if "Categorical" in name:
        return tf.nn.softmax(logits)
    if name == "CTC":
        return tf.reshape(tf.tile(logits, [1, 5]), [ROWS, 5, CLASSES])
    if name == "Circle":
        return tf.nn.l2_normalize(logits, 1)
    return tf.sigmoid(logits)


def labels(name: str) -> np.ndarray:
    """Returns labels for the loss `name`."""
    return IDS if name == "Circle" else LABELS.get(name, BINARY)


@functools.cache
def losses_and_gradients(package: str, dtype: str, alone: str = "") -> on_off.Runs:
    """Returns value and gradient of every loss of one Keras, all computed in one function; those in `ALONE` one by one."""

    def program() -> Any:
        w = tf.Variable(W)
        losses = {name: cls() for name, cls in sorted(loss_classes(package).items()) if name == alone or not {name, alone} & ALONE}
        given = {name: labels(name) for name in losses}

        @tf.function
        def f(given: dict[str, tf.Tensor]) -> Any:
            results = {}
            for name, loss in losses.items():
                with tf.GradientTape() as tape:
                    value = loss(given[name], predictions(name, X @ w))
                results[name] = (value, tape.gradient(value, w))
            return results

        return f({name: tf.constant(value) for name, value in given.items()})

    return run(program, dtype)


def names() -> list[tuple[str, str]]:
    """Returns (package, loss) for every loss that both supported versions of both packages have."""
    common = (
        "BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy", "CategoricalFocalCrossentropy", "CategoricalHinge", "CosineSimilarity",
        "Hinge", "Huber", "KLDivergence", "LogCosh", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError", "MeanSquaredLogarithmicError",
        "Poisson", "SparseCategoricalCrossentropy", "SquaredHinge",
    )  # fmt: skip
    return [*(("tf_keras", name) for name in common), *(("keras", name) for name in (*common, "CTC", "Circle", "Dice", "Tversky"))]


def test_the_list_of_losses_is_complete() -> None:
    # Generalised cross-entropy is in newer versions of Keras 3 only.
    for package in ("keras", "tf_keras"):
        assert set(loss_classes(package)) - {"CategoricalGeneralizedCrossEntropy"} == {name for where, name in names() if where == package}


@pytest.mark.parametrize(("package", "name"), names())
def test_value_and_gradient_are_those_of_float32(dtype: str, package: str, name: str) -> None:
    runs = losses_and_gradients(package, dtype, name if name in ALONE else "")
    assert runs.converted > 0
    tolerance = 2 * on_off.ROUNDINGS * on_off.SIXTEEN_BIT[dtype].unit_roundoff
    on_off.assert_alike(runs.off[name], runs.on[name], tolerance)
    assert runs.on[name][0].dtype == tf.float32


@pytest.mark.parametrize("kind", ["float32", "int32", "int64", "uint8"])
def test_labels_of_any_type_give_the_same_loss(dtype: str, kind: str) -> None:
    def program() -> Any:
        import keras

        sparse, binary = keras.losses.SparseCategoricalCrossentropy(from_logits=True), keras.losses.BinaryCrossentropy()
        f = tf.function(lambda ids, bits: (sparse(ids, X @ W), binary(bits, tf.sigmoid(X @ W))))
        return f(tf.constant(IDS.astype(kind)), tf.constant(BINARY.astype(kind)))

    run(program, dtype).check()


def test_a_loss_that_casts_to_float32_by_hand(dtype: str) -> None:  # R34
    scale = tf.constant(3.0)

    def program() -> Any:
        import keras

        temperature = tf.Variable(2.0)

        def activation(y: Any) -> Any:
            return y * tf.sigmoid(1.702 * y) + tf.constant(0.1) * temperature

        def loss(labels: Any, y: Any) -> Any:
            return keras.ops.mean(keras.ops.square(keras.ops.cast(labels, "float32") - keras.ops.cast(y, "float32"))) * scale

        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation=activation), keras.layers.Dense(1)])
        model.compile("sgd", loss)
        return [float(model.train_on_batch(X.numpy(), IDS[:, None])) for _ in range(3)], model.predict(X.numpy(), verbose=0)

    run(program, dtype).check(2 * on_off.ROUNDINGS)


def test_integer_labels_and_float32_labels_need_no_casts_in_user_code(dtype: str) -> None:  # R151
    def program() -> Any:
        w = tf.Variable(W)

        @tf.function
        def step(x: tf.Tensor, y: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, x @ w))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return [step(X, tf.constant(BINARY)) for _ in range(3)], w.read_value()

    run(program, dtype).check()
