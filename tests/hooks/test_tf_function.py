"""What an attached function runs: the converted program when called eagerly, itself in graphs, itself where conversion fails."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

import tfmp
from tfmp import tf_api
from tfmp.errors import MixedPrecisionWarning, RewriteError
from tfmp.hooks import conversion, notices

DT_HALF = 19
ON = {"dtype": "float16", "ignore_performance": True, "loss_scaling": False}


@pytest.fixture(autouse=True)
def _fresh_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_state", notices._State(on=True))


def types_run(call: object) -> set[tuple[str, int]]:
    """Returns (op, type of T) of the nodes of the functions that TensorFlow set up in order to run `call`, after its own optimisers."""
    options = context.context()
    options.enable_run_metadata()
    options.enable_graph_collection()
    try:
        options.export_run_metadata()  # what earlier tests have left
        call()  # type: ignore[operator]
        metadata: config_pb2.RunMetadata = options.export_run_metadata()
    finally:
        options.disable_graph_collection()
        options.disable_run_metadata()
    graphs = [graph for graphs in metadata.function_graphs for graph in (graphs.post_optimization_graph, *graphs.partition_graphs)]
    nodes = [node for graph in graphs for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes]
    return {(node.op, node.attr["T"].type) for node in nodes if "T" in node.attr}


def product() -> tf.types.experimental.PolymorphicFunction:
    weight = tf.Variable(np.linspace(-1, 1, 16).reshape(4, 4).astype("float32"))
    function = tf.function(lambda x: tf.nn.relu(x @ weight))
    function.weight = weight
    return function


X = tf.constant(np.linspace(0, 1, 8).reshape(2, 4).astype("float32"))


def test_eager_call_runs_half_kernels() -> None:
    function = product()

    def step() -> None:
        with tfmp.mixed_precision(**ON):
            function(X)

    assert any(op in ("MatMul", "_FusedMatMul") and dtype == DT_HALF for op, dtype in types_run(step))


def test_float32_scope_runs_float32_kernels() -> None:
    function = product()

    def step() -> None:
        with tfmp.mixed_precision(enabled=False):
            function(X)

    ran = types_run(step)
    assert ran and DT_HALF not in {dtype for _, dtype in ran}


@pytest.mark.parametrize("persistent", [False, True])
def test_tape_runs_half_kernels_forward_and_backward(persistent: bool) -> None:
    function = product()

    def step() -> tf.Tensor:
        with tfmp.mixed_precision(**ON), tf.GradientTape(persistent=persistent) as tape:
            loss = tf.reduce_sum(function(X))
        return tape.gradient(loss, function.weight)

    ran = types_run(step)
    assert ("MatMul", DT_HALF) in ran
    assert persistent or ("ReluGrad", DT_HALF) in ran  # what a persistent tape saves is float32, so that a cast behind ReluGrad is cheaper than two before it
    assert step().dtype == tf.float32


def test_activations_saved_for_the_backward_function_are_half() -> None:
    function = product()
    with tfmp.mixed_precision(**ON):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(X))
        gradient = tape.gradient(loss, function.weight)
        (pair,) = function.get_concrete_function(X)._first_order_tape_functions.values()
    forward = pair._forward._program.converted(0).definition.signature
    results = function.get_concrete_function(X).function_def.signature.output_arg
    saved = [arg.type for arg in forward.output_arg][len(results) :]
    assert saved and set(saved) == {DT_HALF} and gradient.dtype == tf.float32


@pytest.mark.parametrize("later", ["another tape", "inside a function", "jacobian"])
def test_backward_function_that_is_used_in_another_way_later(later: str) -> None:
    function = product()
    with tfmp.mixed_precision(**ON):
        function(X)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(X))
        if later == "another tape":
            with tf.GradientTape() as second:
                gradient = tape.gradient(loss, function.weight)
            assert second.gradient(gradient, function.weight) is None
        elif later == "inside a function":
            gradient = tf.function(lambda: tape.gradient(loss, function.weight))()
        else:
            with tf.GradientTape() as tape:
                rows = tf.reduce_sum(function(X), axis=1)
            gradient = tf.reduce_sum(tape.jacobian(rows, function.weight), axis=0)
    with tfmp.mixed_precision(enabled=False), tf.GradientTape() as tape:
        plain = tf.reduce_sum(tf.nn.relu(X @ function.weight))
    expected = tape.gradient(plain, function.weight)
    np.testing.assert_allclose(gradient, expected, atol=4 * 2.0**-11 * float(tf.reduce_max(tf.abs(expected))))


def test_what_users_see_is_unchanged() -> None:
    function = product()
    with tfmp.mixed_precision(**ON):
        mixed = function.get_concrete_function(X)
        function(X)
    with tfmp.mixed_precision(enabled=False):
        plain = tf.function(lambda x: tf.nn.relu(x @ function.weight)).get_concrete_function(X)
    assert (mixed.output_dtypes, mixed.output_shapes) == (plain.output_dtypes, plain.output_shapes)
    assert str(mixed.function_type) == str(plain.function_type)
    assert mixed.structured_input_signature == plain.structured_input_signature
    assert {node.attr["T"].type for node in mixed.function_def.node_def if node.op == "MatMul"} == {1}
    assert mixed.captured_inputs[0] is function.weight.handle


def test_inner_function_stays_float32_in_the_graph_of_the_outer_one() -> None:
    inner = product()
    with tfmp.mixed_precision(**ON):
        inner(X)
        outer = tf.function(lambda x: inner(x)).get_concrete_function(X)
    library = outer.graph.as_graph_def().library.function
    assert [node.attr["T"].type for f in library for node in f.node_def if node.op == "MatMul"] == [1]


def test_saved_model_holds_float32(tmp_path: object) -> None:
    module = tf.Module()
    module.product = product()
    module.weight = module.product.weight
    with tfmp.mixed_precision(**ON):
        module.product(X)
        tf.saved_model.save(module, str(tmp_path))
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((tmp_path / "saved_model.pb").read_bytes())  # type: ignore[operator]
    functions = saved.meta_graphs[0].graph_def.library.function
    assert not [f.signature.name for f in functions if "tfmp" in f.signature.name]
    assert DT_HALF not in {node.attr["T"].type for f in functions for node in f.node_def}


def test_dataset_function_stays_float32() -> None:
    with tfmp.mixed_precision(**ON):
        dataset = tf.data.Dataset.from_tensors(X).map(lambda x: x @ tf.transpose(x))
        ran = types_run(lambda: list(dataset))
    assert ("MatMul", DT_HALF) not in ran


@pytest.mark.parametrize("strict", [False, True])
def test_failed_conversion_falls_back_with_one_warning(monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    def fail(*arguments: object) -> None:
        raise RewriteError("planted")

    monkeypatch.setattr(conversion, "convert_for_running", fail)
    function = product()
    with tfmp.mixed_precision(**ON, strict=strict):
        if strict:
            with pytest.raises(RewriteError, match="planted"):
                function(X)
            return
        with pytest.warns(MixedPrecisionWarning, match=r"function '__inference_.*' runs unrewritten, in float32: RewriteError: planted") as caught:
            result = function(X)
            function(X)
    assert len(caught) == 1
    np.testing.assert_array_equal(result, tf.nn.relu(X @ function.weight))


@pytest.mark.parametrize("what", ["types", "order"])
def test_program_that_tensorflow_cannot_start_falls_back(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A product whose type is not that of what it reads, or that waits for what reads it."""
    real = tf_api.new_atomic_function

    def broken(name: str, definition: Any, *arguments: Any) -> tf_api.AtomicFunction:
        copy = tf_api.FunctionDef.FromString(definition.SerializeToString())
        (product,) = (node for node in copy.node_def if node.op == "MatMul")
        (reader,) = (node for node in copy.node_def if node.op == "Relu")
        if what == "types":
            product.attr["T"].type = 1
        else:
            product.input.append(f"^{reader.name}")
        return real(name, copy, *arguments)

    monkeypatch.setattr(tf_api, "new_atomic_function", broken)
    function = product()
    with tfmp.mixed_precision(**ON), pytest.warns(MixedPrecisionWarning, match="runs unrewritten"):
        result = function(X)
    np.testing.assert_array_equal(result, tf.nn.relu(X @ function.weight))


def test_users_own_error_is_not_taken_for_ours() -> None:
    @tf.function
    def checked(x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(x, 0.5)
        return x @ tf.transpose(x)

    with tfmp.mixed_precision(**ON), pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        checked(X)


def test_threads_convert_once() -> None:
    function, calls = product(), []
    real = conversion.convert_for_running
    with tfmp.mixed_precision(**ON):
        concrete = function.get_concrete_function(X)

    def counted(*arguments: object) -> object:
        calls.append(arguments)
        return real(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "convert_for_running", counted)
        threads = [threading.Thread(target=concrete, args=(X,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(calls) == 1


def test_converted_functions_leave_with_their_original() -> None:
    def names() -> set[str]:
        return {name for name in map(str, context.context().list_function_names()) if "tfmp" in name}

    before = names()
    function = product()
    with tfmp.mixed_precision(**ON):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(X))
        tape.gradient(loss, function.weight)
    assert names() - before
    del function, tape, loss
    gc.collect()
    assert names() <= before
