"""What is saved while tfmp is on is what would be saved without it, also by functions that were rewritten and have run (R118)."""

from __future__ import annotations

import collections
import contextlib
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import ops

import tfmp
from tests.behaviour.on_off import in_turn, normal, scope

X, Y, W = normal(8, 8), normal(8, 2, seed=12), normal(8, 8, scale=0.3, seed=13)
OFF = tfmp.mixed_precision(enabled=False)


@pytest.fixture(autouse=True, scope="module")
def _four_digits() -> None:
    """Lets TensorFlow's count, which goes into the names of functions, have four digits: like no other number in these graphs."""
    while ops.uid() < 1000:
        pass


def contents(folder: pathlib.Path) -> str:
    """Returns the text of a SavedModel, the functions in the order of their names, counted afresh."""
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    (meta,) = saved.meta_graphs
    return counted_afresh(
        [
            saved.saved_model_schema_version,
            meta.meta_info_def,
            meta.saver_def,
            meta.signature_def["serve"],
            meta.object_graph_def.nodes,
            *in_order(meta.object_graph_def.concrete_functions.items(), key=lambda item: item[0]),
            *parts(meta.graph_def),
        ]
    )


def parts(graph: Any) -> list[Any]:
    """Returns the nodes of a graph, and its functions in the order of their names."""
    library = graph.library
    return [*graph.node, *in_order(library.function, lambda function: function.signature.name), *in_order(library.gradient, lambda one: one.function_name)]


def in_order(things: Any, key: Any) -> list[Any]:
    """Returns `things` sorted by name, the number at the end of the name as a number."""
    return sorted(things, key=lambda thing: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key(thing))])


def counted_afresh(things: list[Any]) -> str:
    """Returns the text of `things` with the numbers that TensorFlow gives functions in the order of their making replaced by those of their appearance."""
    numbers: dict[str, int] = {}
    return re.sub(r"\d{4,}", lambda found: f"#{numbers.setdefault(found[0], len(numbers))}", "\n".join(map(str, things)))


class Module(tf.Module):
    """A weight, functions that call each other, a training step, and a signature."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(W)

    @tf.function(input_signature=[tf.TensorSpec([None, 8], name="x")])
    def serve(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": self.layers(x)}

    @tf.function
    def layers(self, x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = self.activation(x @ self.weight)
        return x @ self.weight

    @tf.custom_gradient
    def activation(self, x: tf.Tensor) -> Any:
        return tf.nn.relu(x), lambda dy: dy * tf.cast(x > 0, tf.float32)

    @tf.function
    def train(self, x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.layers(x) ** 2)
        self.weight.assign_sub(0.1 * tape.gradient(loss, self.weight))
        return loss

    def run(self) -> Module:
        """Runs everything, also under tapes; returns self."""
        self.serve(X), self.layers(X), self.train(X)
        with tf.GradientTape() as outer, tf.GradientTape() as tape:
            outer.watch(X)
            tape.watch(X)
            loss = tf.reduce_sum(self.serve(X)["y"])
        tape.gradient(loss, [X, self.weight])
        return self


@pytest.mark.parametrize(("dtype", "gradients"), in_turn([False, True]))
def test_a_module_is_saved_as_without_tfmp(dtype: str, gradients: bool, tmp_path: pathlib.Path) -> None:
    def save(module: Module, name: str) -> str:
        signatures = {"serve": module.serve.get_concrete_function(), "layers": module.layers.get_concrete_function(tf.TensorSpec([8, 8]))}
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=gradients, save_debug_info=False)
        tf.saved_model.save(module, str(tmp_path / name), signatures, options)
        return contents(tmp_path / name)

    with OFF:
        expected = save(Module().run(), "off")
    before = len(tfmp.report())
    with scope(dtype):
        actual = save(Module().run(), "on")
    assert sum(record.converted for record in tfmp.report()[before:]) > 0
    assert actual == expected


@pytest.mark.parametrize(("dtype", "how"), in_turn(["export", "tf.saved_model.save"]))
def test_a_keras_model_is_saved_as_without_tfmp(dtype: str, how: str, tmp_path: pathlib.Path) -> None:
    import keras

    def save(name: str) -> str:
        keras.utils.clear_session(free_memory=False)
        layers = [keras.Input((8,)), keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        model.compile("adam", "mse", jit_compile=False)
        model.fit(X, Y, verbose=0)
        model.predict(X, verbose=0)
        model.export(str(tmp_path / name), verbose=False) if how == "export" else tf.saved_model.save(model, str(tmp_path / name))
        return contents(tmp_path / name)

    with OFF:
        expected = save("off")
    before = len(tfmp.report())
    with scope(dtype):
        actual = save("on")
    assert sum(record.converted for record in tfmp.report()[before:]) > 0
    assert typed_ops(actual) == typed_ops(expected) if how == "export" else actual == expected


def typed_ops(text: str) -> collections.Counter[str]:
    """How often each op and type is there: Keras exports the weights of a model in any order."""
    return collections.Counter(re.findall(r'^ *(?:op: ".*"|d?type: DT_.*)$', text, re.MULTILINE))


def test_the_frozen_graph_of_a_function_that_has_run_is_float32(dtype: str) -> None:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    def frozen(inside: Any) -> Any:
        with inside:
            module = Module()
            module.serve(X)
            graph = convert_variables_to_constants_v2(module.serve.get_concrete_function(), lower_control_flow=False).graph.as_graph_def()
            return counted_afresh(parts(graph))

    assert frozen(scope(dtype)) == frozen(OFF)


def test_checkpoints_hold_the_same_names_types_and_shapes(dtype: str, tmp_path: pathlib.Path) -> None:
    def listed(inside: Any, name: str) -> list[Any]:
        with inside:
            path = tf.train.Checkpoint(module=Module().run()).write(str(tmp_path / name))
        reader = tf.train.load_checkpoint(path)
        types = reader.get_variable_to_dtype_map()
        return [(key, types[key], shape) for key, shape in sorted(reader.get_variable_to_shape_map().items())]

    assert listed(scope(dtype), "on") == listed(OFF, "off")


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated", "ignore:.*LiteRT interpreter")
def test_a_tflite_model_of_a_function_that_has_run_is_the_same(dtype: str) -> None:
    def converted(inside: Any) -> list[Any]:
        with inside:
            module = Module()
            module.serve(X)
            model = tf.lite.TFLiteConverter.from_concrete_functions([module.serve.get_concrete_function()], module).convert()
        details = tf.lite.Interpreter(model_content=model).get_tensor_details()
        return [(one["name"], one["dtype"].__name__, one["shape"].tolist()) for one in details]

    assert converted(scope(dtype)) == converted(OFF)


def float_types(folder: pathlib.Path) -> set[str]:
    """Returns the names of the float types of matrix products in a SavedModel."""
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    nodes = [node for function in saved.meta_graphs[0].graph_def.library.function for node in function.node_def]
    return {tf.dtypes.as_dtype(node.attr["T"].type).name for node in nodes if node.op == "MatMul"}


@pytest.mark.parametrize(("dtype", "how"), in_turn(["module", "export"]))
def test_a_flag_asks_for_the_rewritten_graphs(dtype: str, how: str, tmp_path: pathlib.Path) -> None:
    import keras

    with scope(dtype, save_rewritten=True):
        module: Any = Module() if how == "module" else keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(2)])
        if how == "module":
            module.run()
            tf.saved_model.save(module, str(tmp_path))
        else:
            module.export(str(tmp_path), verbose=False)
        expected = module.serve(X)["y"] if how == "module" else module.predict(X, verbose=0)
    # The loader knows a tensor of the loop by the loop's float32 body, which therefore stays in the file beside the one that runs.
    assert float_types(tmp_path) == ({dtype, "float32"} if how == "module" else {dtype})
    with OFF:
        loaded = tf.saved_model.load(str(tmp_path))
        signature = loaded.signatures["serving_default"]
        assert {spec.dtype for spec in tf.nest.flatten((signature.structured_input_signature, signature.structured_outputs))} == {tf.float32}
        with tf.GradientTape() if how == "export" else contextlib.nullcontext() as tape:  # a loop that was saved rewritten runs, but has no gradient
            (result,) = signature(*[], **{next(iter(signature.structured_input_signature[1])): X}).values()
        np.testing.assert_allclose(result, expected, atol=0.02)
        assert {variable.dtype for variable in signature.variables} == {tf.float32}
        assert tape is None or all(gradient.dtype == tf.float32 for gradient in tape.gradient(result, signature.variables))
