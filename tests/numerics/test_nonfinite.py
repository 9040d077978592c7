"""The first op that computed something infinite or NaN: what is said of it, and when nothing is."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.numerics.faults import FAULTS
from tfmp import numerics
from tfmp.numerics.nonfinite import describe

A = np.random.default_rng(2).normal(size=(8, 8)).astype("float32")


@tf.function
def product(a: Any, b: Any) -> Any:
    return tf.matmul(a, b, name="product") * 2.0


def test_nothing_is_found_where_all_is_finite() -> None:
    assert numerics.find_nonfinite(product, (A, A)) is None


def test_the_finding_says_what_was_read_and_computed() -> None:
    found = numerics.find_nonfinite(product, (A, np.full((8, 8), 60000.0, "float32")))
    assert found is not None
    assert (found.node, found.op, found.run, found.place, found.by_cast, found.also_in_float32) == ("product", "MatMul", 1, (), False, False)
    assert [value.name for value in found.inputs] == ["a", "b"]
    assert found.inputs[1].mixed.largest == 60000 and found.inputs[1].full is not None and found.inputs[1].full.largest == 60000
    assert found.output.dtype == "float16" and found.output.full is not None and found.output.full.largest > 65504
    assert str(found) == (
        "The first value that is not finite comes from MatMul node 'product' (function product; activation).\n"
        f"  computed product (MatMul, float16): {describe(found.output.mixed)}; in float32 magnitudes "
        f"{found.output.full.smallest:.3g} to {found.output.full.largest:.3g} of 64\n"
        f"  read     a (_Arg, float16): magnitudes {found.inputs[0].mixed.smallest:.3g} to {found.inputs[0].mixed.largest:.3g} of 64; in float32 magnitudes "
        f"{found.inputs[0].full.smallest:.3g} to {found.inputs[0].full.largest:.3g} of 64\n"
        "  read     b (_Arg, float16): magnitudes 6e+04 to 6e+04 of 64; in float32 magnitudes 6e+04 to 6e+04 of 64\n"
        '  Keep it in float32: keep_float32="name:product", or calibrate and use the ranges.'
    )


def test_a_cast_that_overflows_is_told_of_the_op_that_reads_it() -> None:
    found = numerics.find_nonfinite(product, (A, np.full((8, 8), 1e6, "float32")))
    assert found is not None
    assert (found.node, found.by_cast) == ("product", True)
    assert "An input becomes infinite when it is rounded to float16. Keep it in float32" in str(found)
    assert found.inputs[1].mixed.infs == 64 and found.inputs[1].full is not None and found.inputs[1].full.largest == 1e6


def test_the_advice_helps() -> None:
    arguments = (A, np.full((8, 8), 1e6, "float32"))
    found = numerics.find_nonfinite(product, arguments)
    assert found is not None
    assert numerics.find_nonfinite(product, arguments, keep_float32=f"name:{found.node}") is None


def test_what_float32_has_too_is_told_last() -> None:
    @tf.function
    def masked(a: Any, mask: Any) -> Any:
        return tf.nn.softmax(tf.matmul(a, a, name="product") + mask)

    mask = np.where(np.eye(8) > 0, 0, -np.inf).astype("float32")
    only_mask = numerics.find_nonfinite(masked, (A, mask))
    assert only_mask is not None and only_mask.also_in_float32 and only_mask.op == "_Arg"
    assert "It is so in float32 too: the value was there before anything was computed." in str(only_mask)
    overflow = numerics.find_nonfinite(masked, (A * 1000, mask))
    assert overflow is not None and (overflow.node, overflow.also_in_float32) == ("product", False)


def test_weights_that_are_nan_already_are_told() -> None:
    weight = tf.Variable(A * np.nan)
    found = numerics.find_nonfinite(tf.function(lambda x: tf.matmul(x, weight)), (A,))
    assert found is not None and found.also_in_float32 and found.op == "ReadVariableOp"
    assert "Go back to weights, or data, that are finite." in found.advice


def test_an_op_that_fails_in_float32_is_no_matter_of_precision() -> None:
    found = numerics.find_nonfinite(tf.function(lambda x: tf.math.log(tf.matmul(x, x) * 0.0, name="log")), (A,))
    assert found is not None and found.also_in_float32 and found.op == "Log"
    assert found.advice == "It is so in float32 too: mixed precision is not the cause."


def test_the_run_of_a_loop_is_told() -> None:
    step, _ = FAULTS[8].step()
    found = numerics.find_nonfinite(step, FAULTS[8].batches(1)[0])
    assert found is not None and found.run > 1 and found.place == ("while:body",)
    assert f"run {found.run}" in str(found) and "in while:body" in str(found)


def test_a_skipped_step_of_a_model_names_the_layer() -> None:
    keras.utils.set_random_seed(0)
    large = keras.initializers.Constant(30000.0)
    layers = [keras.layers.Dense(8, name="calm"), keras.layers.Dense(8, name="wild", kernel_initializer=large)]
    model = keras.Sequential([keras.layers.Input((8,)), *layers])
    model.compile(tfmp.LossScaleOptimizer(keras.optimizers.SGD(1e-12)), "mse", jit_compile=False)
    found = numerics.find_nonfinite(model, (A, A))
    assert found is not None and found.layer == f"{model.name}/wild" and found.op == "MatMul" and found.kind == "activation"
    assert f"layer {model.name}/wild" in str(found)


def test_functions_that_stop_on_a_nan_are_told_of_too() -> None:
    @tf.function
    def checked(x: Any) -> Any:
        return tf.debugging.check_numerics(tf.matmul(x, x, name="product"), "stop")

    from_float32 = numerics.find_nonfinite(checked, (A * np.nan,))
    assert from_float32 is not None and from_float32.also_in_float32 and from_float32.node == "x"
    found = numerics.find_nonfinite(checked, (A * 1000,))
    assert found is not None and found.node == "product"


def test_an_error_before_anything_went_wrong_is_raised() -> None:
    @tf.function
    def failing(x: Any) -> Any:
        tf.debugging.assert_less(tf.reduce_max(x), 0.0, message="too large")
        return tf.matmul(x, x)

    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        numerics.find_nonfinite(failing, (A,))
