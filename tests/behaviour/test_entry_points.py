"""Every way into a Keras model runs in mixed precision: fit in all its forms, batches, evaluate, predict, custom steps, plain calls (R98)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import tfmp
from tests.behaviour.on_off import in_turn, normal, run, scope

ROWS, BATCH = 16, 4
X, Y = normal(ROWS, 8).numpy(), normal(ROWS, 2, seed=12).numpy()


def build(package: str = "keras", custom_step: bool = False, **options: Any) -> Any:
    """Returns a compiled two-layer model of one Keras."""
    import keras
    import tf_keras

    chosen = {"keras": keras, "tf_keras": tf_keras}[package]

    class Model(chosen.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, [variable.value for variable in self.trainable_variables])
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    layers = [chosen.Input((8,)), chosen.layers.Dense(8, activation="relu"), chosen.layers.Dense(2)]
    model = (Model if custom_step else chosen.Sequential)(layers)
    model.compile(**({"optimizer": "sgd", "loss": "mse", "jit_compile": False} | options))
    return model


def batches() -> Any:
    """Returns the data as a Dataset of batches."""
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def generator() -> Any:
    """Yields the data batch by batch."""
    for start in range(0, ROWS, BATCH):
        yield X[start : start + BATCH], Y[start : start + BATCH]


FIT = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}

ENTRIES: dict[str, Callable[[Any], Any]] = {
    "fit of arrays": lambda model: model.fit(X, Y, **FIT).history["loss"],
    "fit of a dataset": lambda model: model.fit(batches(), epochs=2, shuffle=False, verbose=0).history["loss"],
    "fit with validation": lambda model: model.fit(X, Y, validation_data=(X, Y), **FIT).history["val_loss"],
    "train_on_batch": lambda model: [float(model.train_on_batch(X, Y)) for _ in range(2)],
    "test_on_batch": lambda model: float(model.test_on_batch(X, Y)),
    "predict_on_batch": lambda model: model.predict_on_batch(X),
    "evaluate": lambda model: model.evaluate(X, Y, verbose=0),
    "predict": lambda model: model.predict(X, verbose=0),
    "predict of a dataset": lambda model: model.predict(batches().map(lambda x, y: x), verbose=0),
    "a call in a tf.function": lambda model: tf.function(model)(tf.constant(X)),
}


@pytest.mark.parametrize(("dtype", "entry"), in_turn(ENTRIES))
def test_each_entry_point_of_keras(dtype: str, entry: str) -> None:
    run(lambda: ENTRIES[entry](build()), dtype).check()


@pytest.mark.parametrize(("dtype", "entry"), in_turn(["evaluate", "fit of arrays", "predict"]))
def test_each_entry_point_of_tf_keras(dtype: str, entry: str) -> None:
    run(lambda: ENTRIES[entry](build("tf_keras")), dtype).check()


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_fit_of_a_generator(dtype: str) -> None:
    run(lambda: build().fit(generator(), shuffle=False, verbose=0).history["loss"], dtype).check()


@pytest.mark.parametrize(("dtype", "package"), in_turn(["keras", "tf_keras", "keras"])[1:])
def test_several_steps_in_one_execution(dtype: str, package: str) -> None:
    run(lambda: build(package, steps_per_execution=4).fit(X, Y, **FIT).history["loss"], dtype).check()


def test_a_compiled_model(dtype: str) -> None:
    def program() -> Any:
        model = build(jit_compile=True, optimizer="adam")
        return model.fit(X, Y, **FIT).history["loss"], model.predict(X, verbose=0)

    run(program, dtype).check()


@pytest.mark.parametrize(("dtype", "jit"), in_turn([False, True]))
def test_a_train_step_of_the_user(dtype: str, jit: bool) -> None:
    run(lambda: build(custom_step=True, jit_compile=jit).fit(X, Y, **FIT).history["loss"], dtype).check()


@pytest.mark.parametrize(("dtype", "optimizer"), in_turn(["sgd", "adam", "rmsprop", "adamw", "adagrad", "ftrl"]))
def test_optimizers_update_float32_weights_in_float32(dtype: str, optimizer: str) -> None:
    def program() -> Any:
        model = build(optimizer=optimizer)
        model.fit(X, Y, **FIT)
        return model.get_weights(), {variable.dtype for variable in model.variables + model.optimizer.variables} <= {"float32", "int32", "int64", "uint32"}

    runs = run(program, dtype).check()
    assert runs.on[1]


@pytest.mark.parametrize(("dtype", "jit"), in_turn([True, False]))
def test_a_custom_loop_with_a_keras_model(dtype: str, jit: bool) -> None:
    def program() -> Any:
        import keras

        model, optimizer = build(), keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
        variables = [variable.value for variable in model.trainable_variables]

        @tf.function(jit_compile=jit)
        def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), model.trainable_variables, strict=True))
            return loss

        return [step(tf.constant(X), tf.constant(Y)) for _ in range(3)], model.get_weights()

    run(program, dtype).check()


def test_the_report_has_a_record_for_each_entry_point(dtype: str) -> None:
    def program() -> Any:
        model = build()
        model.fit(X, Y, **FIT)
        model.evaluate(X, Y, verbose=0)
        return model.predict(X, verbose=0)

    runs = run(program, dtype).check()
    assert len(runs.records) == 3
    assert all(record.converted > 0 and record.flop_share == 1.0 for record in runs.records)
    assert str(runs.records[0]).startswith(runs.records[0].function)


def test_a_model_trained_in_mixed_precision_goes_on_in_float32(dtype: str) -> None:
    with scope(dtype):
        model = build()
        first = model.fit(X, Y, **FIT).history["loss"]
    with tfmp.mixed_precision(enabled=False):
        model.compile("sgd", "mse", jit_compile=False)
        before = len(tfmp.report())
        second = model.fit(X, Y, **FIT).history["loss"]
    assert len(tfmp.report()) == before
    assert second[-1] < first[0]


def test_eager_models_stay_float32_and_say_so(dtype: str) -> None:  # R142
    with pytest.warns(tfmp.MixedPrecisionWarning, match="compiled with run_eagerly=True: eager code is not rewritten"):
        runs = run(lambda: build(run_eagerly=True).fit(X, Y, **FIT).history["loss"], dtype)
    runs.check_untouched()


def test_models_of_every_style(dtype: str) -> None:
    def program() -> Any:
        import keras

        class Subclassed(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.hidden, self.head = keras.layers.Dense(8, activation="gelu"), keras.layers.Dense(2)

            def call(self, inputs: Any, training: bool = False) -> Any:
                return {"y": self.head(self.hidden(inputs["x"])), "training": inputs["x"][:, :1]}

        inputs = {"a": keras.Input((8,), name="a"), "b": keras.Input((8,), name="b")}
        shared = keras.layers.Dense(4, activation="tanh")
        both = keras.layers.Concatenate()([shared(inputs["a"]), shared(inputs["b"])])
        functional = keras.Model(inputs, [keras.layers.Dense(1)(both), both])
        return Subclassed().predict({"x": X}, verbose=0), functional.predict({"a": X, "b": X}, verbose=0)

    run(program, dtype).check()
