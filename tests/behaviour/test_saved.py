"""Files: what is saved while tfmp is on is float32 and can be read anywhere; what is loaded runs (R118, R121, R122)."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tfmp
from tests.behaviour import on_off
from tests.behaviour.on_off import in_turn, normal, run, scope

X, Y, W = normal(8, 8).numpy(), normal(8, 2, seed=12).numpy(), normal(8, 8, seed=13)


def model() -> Any:
    """Returns a compiled Keras model of two layers."""
    import keras

    layers = [keras.Input((8,)), keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    made = keras.Sequential(layers)
    made.compile("adam", "mse", jit_compile=False)
    return made


def types_in(folder: pathlib.Path) -> set[str]:
    """Returns the names of all float types in the graphs and functions of a SavedModel."""
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    graphs = [meta.graph_def for meta in saved.meta_graphs]
    nodes = [node for graph in graphs for part in (graph.node, *(function.node_def for function in graph.library.function)) for node in part]
    types = {value.type for node in nodes for value in node.attr.values() if value.WhichOneof("value") == "type"}
    return {tf.dtypes.as_dtype(number).name for number in types if tf.dtypes.as_dtype(number).is_floating}


@pytest.mark.parametrize(("dtype", "how"), in_turn(["export", "tf.saved_model.save", "module", "export"]))
def test_a_saved_model_of_a_trained_model_is_float32(dtype: str, how: str, tmp_path: pathlib.Path) -> None:  # R118
    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(W)

        @tf.function(input_signature=[tf.TensorSpec([None, 8], name="x")])
        def serve(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": x @ self.weight}

    with scope(dtype):
        trained: Any = Module() if how == "module" else model()
        trained.serve(tf.constant(X)) if how == "module" else trained.fit(X, Y, verbose=0)
        expected = trained.serve(tf.constant(X))["y"] if how == "module" else trained.predict(X, verbose=0)
        trained.export(str(tmp_path), verbose=False) if how == "export" else tf.saved_model.save(trained, str(tmp_path))
    with tfmp.mixed_precision(enabled=False):
        assert types_in(tmp_path) == {"float32"}
        loaded = tf.saved_model.load(str(tmp_path))
        signature = loaded.signatures["serving_default"]
        (name,) = signature.structured_input_signature[1]
        (result,) = signature(**{name: tf.constant(X)}).values()
    assert {spec.dtype for spec in tf.nest.flatten(signature.structured_input_signature)} == {tf.float32}
    on_off.assert_alike(result.numpy(), np.asarray(expected), on_off.ROUNDINGS * on_off.SIXTEEN_BIT[dtype].unit_roundoff)


@pytest.mark.parametrize(("dtype", "format"), in_turn(["keras", "h5", "weights.h5"]))
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_a_keras_file_goes_from_mixed_precision_to_float32_and_back(dtype: str, format: str, tmp_path: pathlib.Path) -> None:  # R121, R122
    import keras

    def load(path: str) -> Any:
        if format == "keras":
            return keras.models.load_model(path)
        made = model()
        made.optimizer.build(made.trainable_variables)
        made.load_weights(path) if format == "weights.h5" else made.set_weights(keras.models.load_model(path, compile=False).get_weights())
        return made

    def save(made: Any, path: str) -> None:
        made.save_weights(path) if format == "weights.h5" else made.save(path)

    there, back = str(tmp_path / f"there.{format}"), str(tmp_path / f"back.{format}")
    with scope(dtype):
        trained = model()
        trained.fit(X, Y, verbose=0)
        save(trained, there)
    with tfmp.mixed_precision(enabled=False):
        plain = load(there)
        for mixed, other in zip(trained.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_array_equal(mixed, other)
        plain.fit(X, Y, verbose=0)
        save(plain, back)
    with scope(dtype):
        again = load(back)
        before = len(tfmp.report())
        again.fit(X, Y, verbose=0)
    assert sum(record.converted for record in tfmp.report()[before:]) > 0


def test_a_checkpoint_with_its_optimizer_goes_both_ways(dtype: str, tmp_path: pathlib.Path) -> None:  # R122
    def trained(inside: Any, path: str = "") -> Any:
        with inside:
            made = model()
            made.optimizer.build(made.trainable_variables)
            if path:
                tf.train.Checkpoint(model=made, optimizer=made.optimizer).read(path).assert_consumed()
            before = [np.array(weight) for weight in [*made.get_weights(), *made.optimizer.variables]]
            made.fit(X, Y, verbose=0)
            return made, before

    first, _ = trained(scope(dtype))
    path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).write(str(tmp_path / "first"))
    second, restored = trained(tfmp.mixed_precision(enabled=False), path)
    on_off.assert_alike([np.array(w) for w in [*first.get_weights(), *first.optimizer.variables]], restored, 0.0)
    path = tf.train.Checkpoint(model=second, optimizer=second.optimizer).write(str(tmp_path / "second"))
    _, restored = trained(scope(dtype), path)
    on_off.assert_alike([np.array(w) for w in [*second.get_weights(), *second.optimizer.variables]], restored, 0.0)


def test_loaded_functions_run_in_a_function_traced_now(dtype: str, tmp_path: pathlib.Path) -> None:  # R121
    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(W)

        @tf.function(input_signature=[tf.TensorSpec([None, 8])])
        def apply(self, x: tf.Tensor) -> tf.Tensor:
            return tf.nn.relu(x @ self.weight) @ self.weight

    with tfmp.mixed_precision(enabled=False):
        tf.saved_model.save(Module(), str(tmp_path))

    def program() -> Any:
        loaded = tf.saved_model.load(str(tmp_path))
        f = tf.function(lambda x: loaded.apply(x) @ W)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(f(tf.constant(X)))
        return f(tf.constant(X)), loaded.apply(tf.constant(X)), tape.gradient(loss, loaded.weight)

    run(program, dtype).check()


def test_a_saved_model_as_a_keras_layer(dtype: str, tmp_path: pathlib.Path) -> None:  # R121
    import keras

    with tfmp.mixed_precision(enabled=False):
        model().export(str(tmp_path), verbose=False)

    def program() -> Any:
        layer = keras.layers.TFSMLayer(str(tmp_path), call_endpoint="serve")
        return keras.Sequential([keras.Input((8,)), layer, keras.layers.Dense(3, kernel_initializer="ones")]).predict(X, verbose=0)

    run(program, dtype).check()


def test_the_same_bytes_are_exported_on_and_off(dtype: str, tmp_path: pathlib.Path) -> None:
    def graph(inside: Any) -> Any:
        with inside:
            f = tf.function(lambda x: tf.nn.relu(x @ W) @ W)
            f(tf.constant(X))
            return f.get_concrete_function(tf.TensorSpec([8, 8])).graph.as_graph_def()

    off, on = graph(tfmp.mixed_precision(enabled=False)), graph(scope(dtype))
    assert off == on
