"""`with tfmp.float32():`: what is traced inside stays in float32, forward and backward, wherever it is; everything else is as it was."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tfmp.conversion import Conversion
from tfmp.hooks import notices, tf_function

ON = {"dtype": "float16", "ignore_performance": True, "loss_scaling": False}
X = tf.constant(np.linspace(-1, 1, 16).reshape(4, 4).astype("float32"))


def products(conversion: Conversion) -> dict[str, tuple[int, int]]:
    """Returns, for the forward and the backward matrix multiplications, how many there are in 16 bit and how many in float32."""
    found: dict[str, collections.Counter[bool]] = {"forward": collections.Counter(), "backward": collections.Counter()}
    for decision in conversion.decisions({"MatMul", "BatchMatMulV2"}):
        backward = "grad" in decision.node or "backward" in decision.function or "_grad_" in decision.function
        found["backward" if backward else "forward"][decision.converted] += 1
        assert decision.converted or decision.reason.endswith("a rule keeps it in float32: with tfmp.float32()")
    return {name: (counts[True], counts[False]) for name, counts in found.items()}


def gradient_of(function: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    weight = tf.Variable(np.linspace(-1, 1, 16).reshape(4, 4).astype("float32"))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(x, weight))
        return tape.gradient(loss, weight)

    return tf.function(step)


def converted(function: Callable[[Any, Any], Any], **settings: Any) -> dict[str, tuple[int, int]]:
    step = gradient_of(function)
    conversion = tfmp.convert_function(step.get_concrete_function(tf.TensorSpec([None, 4])), **settings)
    return products(conversion)


@tf.function
def inner(x: Any, w: Any) -> Any:
    return tf.tanh(x @ w)


def plain(x: Any, w: Any) -> Any:
    with tfmp.float32():
        y = tf.tanh(x @ w)
    return tf.tanh(y @ w)


def loop(x: Any, w: Any) -> Any:
    with tfmp.float32():
        for _ in tf.range(3):
            x = tf.tanh(x @ w)
    return x @ w


def in_loop(x: Any, w: Any) -> Any:
    for _ in tf.range(3):
        x = tf.tanh(x @ w)
        with tfmp.float32():
            x = tf.tanh(x @ w)
    return x


def branch(x: Any, w: Any) -> Any:
    with tfmp.float32():
        if tf.reduce_sum(x) > 0:
            x = tf.tanh(x @ w)
    return x @ w


def nested(x: Any, w: Any) -> Any:
    with tfmp.float32():
        y = inner(x, w)
    return inner(y, w)


def custom_gradient(x: Any, w: Any) -> Any:
    @tf.custom_gradient
    def product(a: Any) -> Any:
        return a @ a, lambda g: (g @ a, None)[0] + tf.transpose(a) @ g

    with tfmp.float32():
        y = product(x @ w)
    return y @ w


def decorated(x: Any, w: Any) -> Any:
    @tfmp.float32()
    def part(a: Any) -> Any:
        if tf.reduce_sum(a) > 0:  # AutoGraph sees it
            a = tf.tanh(a @ w)
        return a

    return part(x) @ w


CASES = {  # (in 16 bit, in float32), forward and backward; x has no gradient
    plain: {"forward": (1, 1), "backward": (2, 1)},
    loop: {"forward": (1, 1), "backward": (2, 2)},
    in_loop: {"forward": (1, 1), "backward": (2, 2)},
    branch: {"forward": (1, 1), "backward": (2, 2)},
    nested: {"forward": (1, 1), "backward": (2, 2)},
    custom_gradient: {"forward": (1, 4), "backward": (2, 1)},  # the two products of its gradient function have no name that says so
    decorated: {"forward": (1, 1), "backward": (2, 2)},
}


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_what_is_traced_inside_stays_in_float32_with_its_gradient(function: Callable[[Any, Any], Any]) -> None:
    assert converted(function) == CASES[function]


@pytest.mark.parametrize("function", [plain, in_loop], ids=lambda function: function.__name__)
def test_the_tensorflow_level_honours_regions(function: Callable[[Any, Any], Any]) -> None:
    assert converted(function, level="tensorflow") == CASES[function]


def test_a_step_with_a_region_computes_and_its_numbers_are_those_of_float32_where_all_is_inside() -> None:
    other = tf.Variable(tf.eye(4))
    weight = tf.Variable(np.linspace(-1, 1, 16).reshape(4, 4).astype("float32"))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape, tfmp.float32():
            loss = tf.reduce_sum(tf.nn.silu(x @ weight) @ weight)
        return tape.gradient(loss, weight), x @ other

    expected = tf.function(step)(X)
    before = len(tfmp.report())
    with tfmp.mixed_precision(**ON):
        found = tf.function(step)(X)
    (record,) = tfmp.report()[before:]
    assert record.converted == 1 and len(record.kept) == 5, "the product"
    np.testing.assert_array_equal(found[0], expected[0])


def test_a_tape_outside_of_the_function_meets_marked_gradients() -> None:
    weight = tf.Variable(np.linspace(-1, 1, 16).reshape(4, 4).astype("float32"))

    def run() -> list[Any]:
        function = tf.function(lambda x: plain(x, weight))
        with tf.GradientTape() as tape:
            y = function(X)
        return [y, tape.gradient(y, weight), function]

    before = len(tfmp.report())
    expected = run()
    with tfmp.mixed_precision(**ON):
        found = run()
    records = tfmp.report()[before:]
    assert sum("with tfmp.float32()" in decision.reason for record in records for decision in record.kept) == 3, "the product and both of its gradients"
    for one, other in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-2, atol=2e-2)


def test_a_keras_layer_with_a_region_in_its_call() -> None:
    @keras.saving.register_keras_serializable("test_regions")
    class Head(keras.layers.Dense):
        def call(self, inputs: Any) -> Any:
            with tfmp.float32():
                return super().call(inputs)

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, activation="relu"), Head(4)])
    model.compile("sgd", "mse", jit_compile=False)
    before = len(tfmp.report())
    with tfmp.mixed_precision(**ON):
        model.fit(np.ones((8, 8), "float32"), np.ones((8, 4), "float32"), verbose=0)
    (record,) = [record for record in tfmp.report()[before:] if record.kept]
    assert len([d for d in record.kept if "with tfmp.float32()" in d.reason]) == 3
    assert 0 < record.flop_share < 1


def test_around_eager_code_what_is_traced_inside_stays_in_float32() -> None:
    first, second = tf.function(lambda x: x @ x), tf.function(lambda x: x @ x)
    with tfmp.mixed_precision(**ON):
        with tfmp.float32():
            first(X)
        second(X)
    assert not tf_function.is_attached(first.get_concrete_function(X))
    assert tf_function.is_attached(second.get_concrete_function(X))


def test_a_decorated_tf_function_is_float32_when_called_and_when_part_of_another() -> None:
    function = tfmp.float32()(tf.function(lambda x: x @ x))
    with tfmp.mixed_precision(**ON):
        function(X)
    assert not tf_function.is_attached(function.get_concrete_function(X))
    outer = tf.function(lambda x: function(x) @ x)
    assert products(tfmp.convert_function(outer.get_concrete_function(X)))["forward"] == (1, 1)


def test_regions_nest_end_with_an_exception_and_belong_to_their_thread() -> None:
    marks: list[Any] = []

    def mark(name: str) -> None:
        marks.append((name, "_tfmp_float32" in tf.compat.v1.get_default_graph().create_op("NoOp", [], []).node_def.attr))

    @tf.function
    def function() -> None:
        region = tfmp.float32()
        with region:
            with region:
                mark("inside")
            mark("still inside")
        try:
            with tfmp.float32():
                raise KeyError
        except KeyError:
            mark("after an exception")
        with tfmp.float32():
            thread = threading.Thread(target=lambda: other())
            thread.start()
            thread.join()

    @tf.function
    def other() -> None:
        mark("in another thread's function")

    function.get_concrete_function()
    assert marks == [("inside", True), ("still inside", True), ("after an exception", False), ("in another thread's function", False)]


@pytest.mark.parametrize(("rule", "forward"), [("variable:body/first", (1, 1)), ("variable:*", (0, 2)), ("variable:first", (2, 0))])
def test_variables_are_known_by_their_names_through_functions_and_loops(rule: str, forward: tuple[int, int]) -> None:
    with tf.name_scope("body"):
        first, second = (tf.Variable(np.ones((4, 4), "float32"), name=name) for name in ("first", "second"))

    @tf.function
    def apply(x: Any) -> Any:
        return tf.tanh(x @ first)

    @tf.function
    def function(x: Any) -> Any:
        for _ in tf.range(2):
            x = apply(x)
        return x @ second

    conversion = tfmp.convert_function(function.get_concrete_function(X), keep_float32=rule)
    found = collections.Counter(decision.converted for decision in conversion.decisions({"MatMul"}))
    assert (found[True], found[False]) == forward
    assert conversion.unused_rules == ((rule,) if forward == (2, 0) else ())


def test_variable_rules_reach_both_halves_of_a_tape_outside() -> None:
    weight = tf.Variable(np.ones((4, 4), "float32"), name="w")
    before = len(tfmp.report())
    with tfmp.mixed_precision(**ON, keep_float32="variable:w"):
        function = tf.function(lambda x: tf.tanh(tf.tanh(x @ weight) @ (x + 1)))
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = function(X)
        tape.gradient(y, [X, weight])
    kept = [decision for record in tfmp.report()[before:] for decision in record.kept]
    assert len(kept) == 2, "the product with the weight, and the gradient of its input, which reads it too"


def test_what_rules_do_in_a_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_state", notices._State(on=True, converted=True))
    before = len(tfmp.report())
    with (
        tfmp.mixed_precision(**ON, keep_float32="op:Tanh,op:Sofmax,layer:nowhere"),
        pytest.warns(tfmp.MixedPrecisionWarning, match="'op:Sofmax' names an op that TensorFlow does not have"),
    ):
        tf.function(lambda x: tf.tanh(x @ x) @ x)(X)
    assert "rules that cover nothing here: op:Sofmax, layer:nowhere" in repr(tfmp.report()[before:])
    with pytest.warns(tfmp.MixedPrecisionWarning, match="covered nothing in any converted program: layer:nowhere, op:Sofmax"):
        notices.nothing_at_all()


def test_a_conflict_of_rules_falls_back_with_a_warning_that_names_both() -> None:
    function = tf.function(lambda x: tf.tanh(x @ x))
    with (
        tfmp.mixed_precision(**ON, keep_float32="op:MatMul", force_16bit="name:*"),
        pytest.warns(tfmp.MixedPrecisionWarning, match=r"'op:MatMul' and forced into 16 bit by 'name:\*'"),
    ):
        np.testing.assert_array_equal(function(X), tf.tanh(X @ X))
