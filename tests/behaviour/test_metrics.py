"""Every metric of Keras 3 on rewritten predictions: its state stays float32 and counts exactly (R38, R52)."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.behaviour import on_off
from tests.behaviour.on_off import run

ROWS = 32
BITS = (np.arange(ROWS * 4).reshape(ROWS, 4) * 7 % 16 / 16.0).astype(np.float32)  # every product and sum of these is exact in 16 bit
IDS = np.arange(ROWS) * 3 % 4

ARGUMENTS: dict[str, dict[str, Any]] = {
    "IoU": {"num_classes": 2, "target_class_ids": [0]},
    "BinaryIoU": {"target_class_ids": [0, 1], "threshold": 0.3},
    "MeanIoU": {"num_classes": 4},
    "OneHotIoU": {"num_classes": 4, "target_class_ids": [1]},
    "OneHotMeanIoU": {"num_classes": 4},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "MeanMetricWrapper": {"fn": lambda y, p: tf.abs(y - p)},
    "F1Score": {"threshold": 0.4},
    "FBetaScore": {"threshold": 0.4},
    "TopKCategoricalAccuracy": {"k": 2},
    "SparseTopKCategoricalAccuracy": {"k": 2},
}
LABELS: dict[str, Any] = {
    "integers": IDS,
    "one hot": np.eye(4, dtype=np.float32)[IDS],
    "binary": (BITS[::-1] > 0.45).astype(np.float32),
    "numbers": BITS[::-1].copy(),
}
KIND = {
    "SparseCategoricalAccuracy": "integers",
    "SparseCategoricalCrossentropy": "integers",
    "SparseTopKCategoricalAccuracy": "integers",
    "OneHotIoU": "one hot",
    "OneHotMeanIoU": "one hot",
    "CategoricalAccuracy": "one hot",
    "CategoricalCrossentropy": "one hot",
    "CategoricalHinge": "one hot",
    "TopKCategoricalAccuracy": "one hot",
    "ConcordanceCorrelation": "numbers",
    "MeanAbsoluteError": "numbers",
    "MeanSquaredError": "numbers",
    "PearsonCorrelation": "numbers",
    "R2Score": "numbers",
}


def metric_names() -> list[str]:
    """Returns the names of the metrics of the installed Keras 3, without base classes, and without those that only average what they are given."""
    import keras

    found = {cls.__name__ for _, cls in inspect.getmembers(keras.metrics, inspect.isclass)}
    return sorted(found - {"Metric", "Mean", "Sum", "MeanMetricWrapper"})


@functools.cache
def all_metrics(dtype: str) -> on_off.Runs:
    """Returns result and state of every metric after three rewritten updates, all in one function."""

    def program() -> Any:
        import keras

        metrics = {name: getattr(keras.metrics, name)(**ARGUMENTS.get(name, {})) for name in metric_names()}
        identity = tf.eye(4)

        def add(name: str, p: Any, labels: dict[str, Any]) -> None:
            if name in ("IoU", "BinaryIoU", "MeanIoU"):
                metrics[name].update_state(tf.cast(labels["binary"], tf.int32), tf.cast(p > 0.3, tf.int32))
            else:
                metrics[name].update_state(labels[KIND.get(name, "binary")], p)

        @tf.function
        def update(p: tf.Tensor, labels: dict[str, tf.Tensor]) -> None:
            for name in metrics:
                add(name, p @ identity, labels)

        labels = {name: tf.constant(value) for name, value in LABELS.items()}
        for name, metric in metrics.items():  # state that hangs on shapes is made outside the function
            add(name, tf.constant(BITS), labels)
            metric.reset_state()
        for _ in range(3):
            update(tf.constant(BITS), labels)
        return {name: (np.asarray(metric.result()), [np.asarray(v) for v in metric.variables]) for name, metric in metrics.items()}

    return run(program, dtype)


@pytest.mark.parametrize("name", metric_names())
def test_a_metric_of_exact_predictions_equals_float32(dtype: str, name: str) -> None:
    runs = all_metrics(dtype)
    assert runs.converted > 0
    on_off.assert_alike(runs.off[name], runs.on[name], 4 * on_off.SIXTEEN_BIT[dtype].unit_roundoff)
    assert all(state.dtype.itemsize >= 4 for state in runs.on[name][1])


def test_means_over_100000_samples(dtype: str) -> None:  # R52
    samples = 100_000

    def program() -> Any:
        import keras

        metrics = [keras.metrics.MeanAbsoluteError(), keras.metrics.MeanSquaredError(), keras.metrics.TruePositives()]
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(loss="mse", metrics=metrics)
        x = np.ones((samples, 2), np.float32)
        y = np.full((samples, 1), 3.0, np.float32)
        return model.evaluate(x, y, batch_size=25_000, verbose=0), [np.asarray(v) for metric in metrics for v in metric.variables]

    runs = run(program, dtype).check()
    assert runs.on[0] == [1.0, 1.0, 1.0, 100_000.0]


def test_a_running_count_and_sum_above_2048(dtype: str) -> None:  # R52
    def program() -> Any:
        import keras

        total, mean = keras.metrics.Sum(), keras.metrics.Mean()

        @tf.function
        def update(x: tf.Tensor) -> None:
            y = x @ tf.eye(4)
            total.update_state(tf.ones([1000]) + 0.0 * tf.reduce_sum(y))
            mean.update_state(y)

        for _ in range(5):
            update(tf.ones([600, 4]))
        return total.result(), mean.result(), mean.count.numpy()

    runs = run(program, dtype).check()
    assert [float(leaf) for leaf in runs.on] == [5000.0, 1.0, 3000.0]


def test_metrics_in_fit_and_evaluate(dtype: str) -> None:  # R38
    def program() -> Any:
        import keras

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation="softmax")])
        metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=metrics)
        history = model.fit(BITS, IDS, batch_size=8, epochs=2, verbose=0, shuffle=False).history
        return history["loss"], model.evaluate(BITS, IDS, verbose=0)[:1]

    run(program, dtype).check()
