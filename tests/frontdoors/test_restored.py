"""Functions that nobody traces here: of loaded SavedModels of both generations, wrapped graphs, signatures, and gradients through them (R121)."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.behaviour.on_off import in_turn, normal, run, scope
from tests.frontdoors.programs import X as DATA
from tests.frontdoors.programs import Y as LABELS
from tests.frontdoors.programs import network, session, v1
from tests.hooks.test_tf_function import types_run

X, W = normal(8, 8), normal(8, 8, scale=0.3, seed=12)
OFF = tfmp.mixed_precision(enabled=False)


class Module(tf.Module):
    """A weight, a function of several traces, and one with a loop inside."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(W)
        self.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [0, 1]), -1)

    @tf.function(input_signature=[tf.TensorSpec([None, 8], name="x")])
    def serve(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": self.deep(x), "class": self.table.lookup(tf.constant(["b"]))}

    @tf.function
    def deep(self, x: tf.Tensor, twice: bool = False) -> tf.Tensor:
        for _ in tf.range(2):
            x = tf.nn.tanh(x @ self.weight)
        return x @ self.weight if twice else x


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a SavedModel of `Module`."""
    folder = str(tmp_path_factory.mktemp("saved"))
    with OFF:
        module = Module()
        module.deep(X), module.deep(X, twice=True)
        tf.saved_model.save(module, folder)
    return folder


@pytest.fixture(scope="module")
def saved_v1(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a SavedModel that a Session has written."""
    folder = str(tmp_path_factory.mktemp("saved") / "v1")
    with OFF, session() as sess:
        x, y, hidden, loss = network()
        sess.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(sess, folder, {"x": x, "y": y}, {"hidden": hidden, "loss": loss})
    return folder


CALLS: dict[str, Callable[[Any], Any]] = {
    "function": lambda loaded: loaded.deep(X),
    "function with an argument": lambda loaded: loaded.deep(X, twice=True),
    "signature": lambda loaded: loaded.signatures["serving_default"](x=X),
    "concrete function": lambda loaded: loaded.serve.concrete_functions[0](X),
    "get_concrete_function": lambda loaded: loaded.serve.get_concrete_function()(x=X),
    "in a function": lambda loaded: tf.function(lambda x: loaded.deep(x) @ W)(X),
    "in a compiled function": lambda loaded: tf.function(lambda x: loaded.deep(x) @ W, jit_compile=True)(X),
    "mapped": lambda loaded: tf.map_fn(lambda x: loaded.deep(x[None])[0], X),
}


@pytest.mark.parametrize(("dtype", "call"), in_turn(CALLS))
def test_a_loaded_model_is_called(dtype: str, call: str, saved: str) -> None:
    run(lambda: CALLS[call](tf.saved_model.load(saved)), dtype).check(roundings=16)


@pytest.mark.parametrize(("dtype", "call"), in_turn(["signature", "concrete function", "get_concrete_function"]))
def test_what_is_called_directly_runs_half_kernels(dtype: str, call: str, saved: str) -> None:
    with scope(dtype):
        loaded = tf.saved_model.load(saved)
        ran = types_run(lambda: CALLS[call](loaded))
    assert ("MatMul", tf.dtypes.as_dtype(dtype).as_datatype_enum) in ran or ("_FusedMatMul", tf.dtypes.as_dtype(dtype).as_datatype_enum) in ran


@pytest.mark.parametrize(("dtype", "how"), in_turn(["function", "signature", "in a function"]))
def test_a_loaded_model_is_fine_tuned_with_a_fresh_layer(dtype: str, how: str, saved: str) -> None:
    def program() -> Any:
        loaded, head = tf.saved_model.load(saved), tf.Variable(normal(8, 2, scale=0.3, seed=5))
        labels = normal(8, 2, seed=6)

        def loss() -> tf.Tensor:
            features = loaded.signatures["serving_default"](x=X)["y"] if how == "signature" else loaded.deep(X)
            return tf.reduce_mean((features @ head - labels) ** 2)

        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                value = loss()
            for variable, gradient in zip((loaded.weight, head), tape.gradient(value, [loaded.weight, head]), strict=True):
                variable.assign_sub(0.1 * gradient)
            return value

        step = tf.function(step) if how == "in a function" else step
        return [*[step() for _ in range(5)], loaded.weight, head]

    run(lambda: [tf.convert_to_tensor(value) for value in program()], dtype).check(roundings=32)


@pytest.mark.parametrize(("dtype", "trainable"), in_turn([False, True]))
def test_a_loaded_model_is_a_layer_among_others(dtype: str, trainable: bool, saved: str) -> None:
    def program() -> Any:
        import keras

        layer = keras.layers.TFSMLayer(saved, call_endpoint="serving_default")
        x = keras.Input((8,))
        model = keras.Model(x, keras.layers.Dense(2, kernel_initializer="ones")(layer(keras.layers.Dense(8, kernel_initializer="ones")(x))["y"]))
        model.layers[2].trainable = trainable
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(X, normal(8, 2, seed=6), batch_size=8, verbose=0)
        return [layer(X), model.predict(X, verbose=0), *model.get_weights()]

    run(program, dtype).check(roundings=32)


def test_a_loaded_model_is_saved_again_as_without_tfmp(dtype: str, saved: str, tmp_path: pathlib.Path) -> None:
    with scope(dtype):
        loaded = tf.saved_model.load(saved)
        expected = [loaded.deep(X), CALLS["signature"](loaded)["y"]]
        tf.saved_model.save(loaded, str(tmp_path))
    data = (tmp_path / "saved_model.pb").read_bytes()
    assert b"tfmp" not in data
    with OFF:
        again = tf.saved_model.load(str(tmp_path))
        for result, mixed in zip([again.deep(X), CALLS["signature"](again)["y"]], expected, strict=True):
            np.testing.assert_allclose(result, mixed, atol=0.05)


@pytest.mark.parametrize(("dtype", "how"), in_turn(["signature", "prune", "variables"]))
def test_a_saved_model_of_tensorflow_1_is_called_and_tuned(dtype: str, how: str, saved_v1: str) -> None:
    def program() -> Any:
        loaded = tf.saved_model.load(saved_v1)
        signature = loaded.signatures["serving_default"]
        if how == "prune":
            return loaded.prune("x:0", "hidden:0")(tf.constant(DATA))
        if how == "signature":
            return signature(x=tf.constant(DATA), y=tf.constant(LABELS))
        losses = []
        for _ in range(3):
            with tf.GradientTape() as tape:
                losses.append(signature(x=tf.constant(DATA), y=tf.constant(LABELS))["loss"])
            for variable, gradient in zip(loaded.variables, tape.gradient(losses[-1], loaded.variables), strict=True):
                variable.assign_sub(0.1 * gradient)
        return [*losses, *[tf.convert_to_tensor(variable) for variable in loaded.variables]]

    run(program, dtype).check(roundings=32)


def test_a_graph_of_tensorflow_1_is_wrapped_and_differentiated(dtype: str) -> None:
    def program() -> Any:
        def body(x: tf.Tensor) -> Any:
            w = v1.get_variable("w", initializer=W.numpy())
            return {"product": tf.nn.relu(x @ w) @ w, "sum": tf.reduce_sum(x)}

        wrapped = v1.wrap_function(body, [tf.TensorSpec([None, 8])])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(wrapped(X)["product"] ** 2)
        pruned = wrapped.prune(wrapped.inputs[0], wrapped.outputs[0].op.inputs[0])
        return wrapped(X), tape.gradient(loss, wrapped.variables), pruned(X)

    run(program, dtype).check()


def test_an_old_frozen_graph_is_imported_and_pruned(dtype: str, tmp_path: pathlib.Path) -> None:
    with OFF, session() as sess:
        network(resource=False)
        sess.run(v1.global_variables_initializer())
        graph = v1.graph_util.convert_variables_to_constants(sess, sess.graph_def, ["output"])
    (tmp_path / "frozen.pb").write_bytes(graph.SerializeToString())

    def program() -> Any:
        read = v1.GraphDef.FromString((tmp_path / "frozen.pb").read_bytes())
        wrapped = v1.wrap_function(lambda: tf.graph_util.import_graph_def(read, name=""), [])
        function = wrapped.prune("x:0", ["output:0", "hidden:0"])
        return function(tf.constant(DATA)), tf.function(lambda x: function(x))(tf.constant(DATA))

    run(program, dtype).check()


def test_what_was_loaded_before_is_told_so(dtype: str, saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfmp.hooks import notices

    monkeypatch.setattr(notices, "_state", notices._State())
    with OFF:
        loaded = tf.saved_model.load(saved)
        expected = CALLS["signature"](loaded)["y"]
    with scope(dtype):
        with pytest.warns(tfmp.MixedPrecisionWarning, match="before mixed precision was switched on and stay in float32"):
            tf.function(lambda x: x @ W)(X)
        np.testing.assert_array_equal(CALLS["signature"](loaded)["y"], expected)
