"""What XLA is given: the HLO of converted programs multiplies in 16 bit only, and functions that are compiled stay so, inside out and outside in."""

from __future__ import annotations

import collections
import re
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import tfmp
from tests.behaviour.on_off import ROUNDINGS, assert_alike, normal, scope
from tests.programs.constructs import CONSTRUCTS, Construct, program
from tests.programs.constructs.construct import V, W, X
from tests.programs.written import Written
from tfmp import tf_api
from tfmp.dtypes import SIXTEEN_BIT

HLO_NAME = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
_PRODUCT = re.compile(r"= (\w+)\[[^ ]* (dot|convolution)\(")


def hlo(program: Written, concrete: Any, *arguments: tf.Tensor) -> str:
    """Returns the HLO, before XLA's own passes, of a converted function whose arguments and captured inputs are those of `concrete`."""
    for name, version in program.versions.items():
        if not tf_api.has_function(name):
            tf_api.add_function(version.after)
    root, device = next(iter(program.versions)), "/job:localhost/replica:0/task:0/device:CPU:0"
    return context.context().get_compiler_ir(device, None, root, list(arguments), concrete.captured_inputs, "hlo").decode()


def products(text: str) -> collections.Counter[str]:
    """Returns the element types of the dots and convolutions in an HLO text, each with their number."""
    return collections.Counter(match[1] for match in _PRODUCT.finditer(text))


@pytest.mark.parametrize("construct", [one for one in CONSTRUCTS if not one.no_xla], ids=str)
def test_every_dot_is_16_bit_forwards_and_backwards(construct: Construct, dtype: str) -> None:
    with tfmp.mixed_precision(enabled=False):
        made = program(construct, jit_compile=True)
        concrete = made.gradient.get_concrete_function(X)
    found = products(hlo(Written(tfmp.convert_function(concrete, dtype=dtype)), concrete, X))
    assert set(found) == {HLO_NAME[dtype], *(["f32"] if construct.kept else [])}
    assert found["f32"] == sum(construct.kept.values())


def test_convolutions_are_16_bit_forwards_and_backwards(dtype: str) -> None:
    kernel = tf.Variable(normal(3, 3, 2, 4))
    image = normal(2, 6, 6, 2)

    @tf.function(autograph=False)
    def layer(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_mean(layer(layer(x)[..., :2]) ** 2)
        return tape.gradient(loss, [x, kernel])

    with tfmp.mixed_precision(enabled=False):
        concrete = step.get_concrete_function(tf.TensorSpec(image.shape))
    kept = tfmp.convert_function(concrete, dtype=dtype, denylist_add="Conv2D,Conv2DBackpropInput,Conv2DBackpropFilter")
    before = products(hlo(Written(kept), concrete, image))
    after = products(hlo(Written(tfmp.convert_function(concrete, dtype=dtype)), concrete, image))
    assert before == {"f32": sum(after.values())}
    assert after == {HLO_NAME[dtype]: 6}


@pytest.mark.parametrize("inner_jit", [False, True], ids=["inner_interpreted", "inner_compiled"])
@pytest.mark.parametrize("outer_jit", [False, True], ids=["outer_interpreted", "outer_compiled"])
def test_compiled_functions_stay_compiled(inner_jit: bool, outer_jit: bool, dtype: str) -> None:
    def run() -> Any:
        w, v = tf.Variable(W), tf.Variable(V)
        inner = tf.function(lambda x: tf.nn.relu(x @ w), jit_compile=inner_jit)

        @tf.function(jit_compile=outer_jit)
        def outer(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((inner(x) @ v) ** 2)
            return loss, tape.gradient(loss, [w, v])

        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((inner(X) @ v) ** 2)
        return outer(X), tape.gradient(loss, [w, v]), outer.get_concrete_function(X)

    with tfmp.mixed_precision(enabled=False):
        *expected, concrete = run()
    with scope(dtype):
        *actual, _ = run()
    assert_alike(expected, actual, ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff)
    program = Written(tfmp.convert_function(concrete, dtype=dtype))
    compiled = [version.before.attr["_XlaMustCompile"].b for version in program.versions.values()]
    assert compiled == [version.after.attr["_XlaMustCompile"].b for version in program.versions.values()]
    assert compiled[0] == outer_jit
    assert any(compiled[1:]) == inner_jit
    assert program.types("MatMul") == {dtype}


def test_autoclustering_is_left_working(dtype: str) -> None:
    before = tf.config.optimizer.get_jit()
    step = tf.function(lambda x, w: tf.nn.relu(tf.nn.relu(x @ w) @ w))
    try:
        tf.config.optimizer.set_jit("autoclustering")
        with scope(dtype):
            result = step(X, W)
    finally:
        tf.config.optimizer.set_jit(before)
    assert_alike(tf.nn.relu(tf.nn.relu(X @ W) @ W), result, ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff)
