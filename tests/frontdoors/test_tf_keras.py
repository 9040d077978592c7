"""tf_keras beside Keras 3 in one process: what people do with a model runs in 16 bit and gives what it gives without tfmp."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfmp
from tests.behaviour.on_off import in_turn, normal, run, scope

X, Y = normal(32, 8).numpy(), normal(32, 2, seed=12).numpy()
IMAGES = normal(8, 8, 8, 3, seed=13).numpy()
LABELS = np.arange(8) % 2

pytestmark = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")


def dense(*, regularised: bool = False) -> Any:
    """Returns a model of two layers."""
    return tf_keras.Sequential(
        [
            tf_keras.layers.Dense(16, activation="relu", input_shape=(8,), kernel_regularizer="l2" if regularised else None),
            tf_keras.layers.BatchNormalization(),
            tf_keras.layers.Dense(2),
        ]
    )


def fitted(model: Any, x: Any = X, y: Any = Y, optimizer: Any = "sgd", loss: Any = "mse", **arguments: Any) -> list[Any]:
    """Compiles and fits; returns the history, a prediction and the weights."""
    model.compile(optimizer, loss, metrics=arguments.pop("metrics", None))
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False, **arguments).history
    return [history, model.predict(x, verbose=0), model.get_weights()]


def functional() -> Any:
    x = tf_keras.Input((8, 8, 3))
    y = tf_keras.layers.Conv2D(4, 3, activation="relu")(x)
    y = tf_keras.layers.MaxPooling2D()(tf_keras.layers.BatchNormalization()(y))
    return fitted(tf_keras.Model(x, tf_keras.layers.Dense(2)(tf_keras.layers.Flatten()(y))), IMAGES, LABELS, "sgd", sparse(), metrics=["accuracy"])[1:]


def sparse() -> Any:
    return tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Stepping(tf_keras.Model):
    """A model with a training step, a loss and a metric of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = tf_keras.layers.Dense(16, activation="tanh"), tf_keras.layers.Dense(2)
        self.tracker = tf_keras.metrics.Mean(name="tracked")

    def call(self, x: Any) -> Any:
        hidden = self.hidden(x)
        self.add_loss(0.01 * tf.reduce_sum(hidden**2))
        return self.out(hidden)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2) + sum(self.losses)
            wanted = self.optimizer.get_scaled_loss(loss) if hasattr(self.optimizer, "get_scaled_loss") else loss
        gradients = tape.gradient(wanted, self.trainable_variables)
        if hasattr(self.optimizer, "get_unscaled_gradients"):
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"tracked": self.tracker.result()}


def adding_losses() -> Any:
    """`model.add_loss` of a functional model, and a regulariser."""
    x = tf_keras.Input((8,))
    hidden = tf_keras.layers.Dense(16, activation="relu", kernel_regularizer="l2")(x)
    model = tf_keras.Model(x, tf_keras.layers.Dense(2)(hidden))
    model.add_loss(0.01 * tf.reduce_mean(hidden))
    return fitted(model)


def called_back() -> Any:
    """Callbacks that read, change and save what a model has."""
    seen: list[Any] = []
    note = tf_keras.callbacks.LambdaCallback(
        on_epoch_end=lambda _epoch, logs: seen.append(sorted(logs)), on_batch_end=lambda _batch, logs: seen.append(len(logs))
    )
    schedule = tf_keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    stop = tf_keras.callbacks.EarlyStopping(monitor="loss", patience=5, restore_best_weights=True)
    return [fitted(dense(), callbacks=[note, schedule, stop, tf_keras.callbacks.TerminateOnNaN()]), seen]


def by_hand() -> Any:
    """train_on_batch, predict_on_batch, a loop over batches, and a frozen layer."""
    model = dense()
    model.layers[0].trainable = False
    model.compile(tf_keras.optimizers.legacy.Adam(0.01), "mae")
    return [model.train_on_batch(X, Y), model.test_on_batch(X, Y), model.predict_on_batch(X), model(X, training=False), model.get_weights()]


PROGRAMS: dict[str, Callable[[], Any]] = {
    "compile and fit": lambda: fitted(dense(), metrics=["mae"]),
    "functional": functional,
    "train_step": lambda: fitted(Stepping())[1:],
    "add_loss": adding_losses,
    "regulariser and clipping": lambda: fitted(dense(regularised=True), optimizer=tf_keras.optimizers.SGD(0.05, clipnorm=0.5)),
    "callbacks": called_back,
    "by hand": by_hand,
}


@pytest.mark.parametrize(("dtype", "program"), in_turn(PROGRAMS))
def test_a_model_gives_the_same_results(dtype: str, program: str) -> None:
    run(PROGRAMS[program], dtype).check(roundings=64)


def test_the_loss_of_a_tensorflow_1_optimizer_is_scaled_under_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with scope("float16", loss_scaling=True):
        model = dense()
        fitted(model, optimizer=tf.compat.v1.train.MomentumOptimizer(0.05, 0.9))
    assert model.optimizer.optimizer.scale == 2.0**15


@pytest.mark.parametrize("kind", ["new", "legacy", "v1"])
def test_switched_on_by_code_the_loss_is_scaled_and_weights_are_those_of_float32(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFMP_DTYPE", "float16")
    monkeypatch.setenv("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE", "1")

    optimizers: dict[str, Callable[[], Any]] = {
        "new": lambda: tf_keras.optimizers.SGD(0.05, momentum=0.9),
        "legacy": lambda: tf_keras.optimizers.legacy.SGD(0.05, momentum=0.9),
        "v1": lambda: tf.compat.v1.train.MomentumOptimizer(0.05, 0.9),
    }

    def weights(optimizer: Any) -> Any:
        tf_keras.utils.set_random_seed(3)
        return fitted(dense(), optimizer=optimizer)[-1]

    with tfmp.mixed_precision(enabled=False):
        expected = weights(optimizers[kind]())
    before = len(tfmp.report())
    try:
        optimizer = tfmp.enable_mixed_precision_graph_rewrite(optimizers[kind](), loss_scale=256)
        actual = weights(optimizer)
    finally:
        tfmp.hooks.activation._process.asked = None
    assert any(record.converted for record in tfmp.report()[before:])
    assert float(tf.convert_to_tensor(optimizer.scale)) == 256
    for one, other in zip(expected, actual, strict=True):
        assert one.dtype == other.dtype == np.float32
        np.testing.assert_allclose(other, one, atol=0.02)


def test_both_kinds_of_keras_train_in_one_process(dtype: str) -> None:
    def program() -> Any:
        three = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)])
        three.compile("sgd", "mse", jit_compile=False)
        two = tf_keras.Sequential([tf_keras.layers.Dense(16, activation="relu", input_shape=(8,)), tf_keras.layers.Dense(2)])
        two.compile("sgd", "mse")
        for _ in range(2):
            three.fit(X, Y, verbose=0, shuffle=False)
            two.fit(X, Y, verbose=0, shuffle=False)
        return three.predict(X, verbose=0), two.predict(X, verbose=0)

    runs = run(program, dtype).check(roundings=64)
    assert len([record for record in runs.records if record.converted]) >= 4


def test_compile_wraps_by_itself_where_loss_scaling_is_on(tmp_path: pathlib.Path) -> None:
    with scope("float16", loss_scaling=True):
        model = dense()
        model.compile("adam", "mse")
        model.fit(X, Y, verbose=0, callbacks=[tf_keras.callbacks.ModelCheckpoint(str(tmp_path / "saved"), save_weights_only=True)])
        assert model.optimizer.scale.numpy() == 2.0**15
        assert type(model.optimizer.inner_optimizer).__name__ == "Adam"
    with tfmp.mixed_precision(enabled=False):
        plain = dense()
        plain.compile("adam", "mse")
        plain.load_weights(str(tmp_path / "saved")).expect_partial()
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
