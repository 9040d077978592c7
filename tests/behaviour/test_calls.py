"""How functions are called: nested, as methods, with signatures, from threads, through copies; and what they raise."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run, scope

X, W = normal(4, 8), normal(8, 8, seed=12)


def test_a_call_of_an_inner_function_that_is_not_inlined(dtype: str, jit: bool) -> None:  # R1
    def program() -> Any:
        inner = tf.function(lambda x, w: tf.matmul(x, w), experimental_attributes={"_noinline": True})
        weight = tf.Variable(W)

        @tf.function(jit_compile=jit)
        def step(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(inner(tf.nn.swish(x @ weight), weight) ** 2)
            return loss, tape.gradient(loss, weight)

        program.step = step
        return step(X)

    run(program, dtype).check()
    nodes = on_off.convert(program.step, X, dtype=dtype)
    forward = [node for node in nodes.of("MatMul") if "Grad" not in node.name and "grad" not in node.name]
    assert len(forward) >= 2
    assert nodes.types("MatMul") == [dtype]


def test_a_function_is_traced_again_for_new_shapes(dtype: str) -> None:
    def program() -> Any:
        f = tf.function(lambda x: tf.nn.relu(x @ W) @ W)
        return [f(normal(rows, 8)) for rows in (1, 2, 3)]

    runs = run(program, dtype).check()
    assert len(runs.records) == 3


def test_reduce_retracing_relaxes_shapes(dtype: str, jit: bool) -> None:
    def program() -> Any:
        f = tf.function(lambda x: tf.nn.relu(x @ W) @ W, reduce_retracing=True, jit_compile=jit)
        return [f(normal(rows, 8)) for rows in (1, 2, 3, 4)]

    runs = run(program, dtype).check()
    assert len(runs.records) == 2


def test_an_input_signature_with_unknown_dimensions(dtype: str) -> None:
    def program() -> Any:
        f = tf.function(lambda x: x @ W, input_signature=[tf.TensorSpec([None, 8])])
        g = tf.function(lambda x: tf.reshape(x, [-1, 8]) @ W, input_signature=[tf.TensorSpec(None)])
        return [f(normal(3, 8)), f(normal(5, 8)), g(normal(2, 3, 8)), g(normal(8))]

    run(program, dtype).check()


def test_a_concrete_function_is_called_by_position_and_by_name(dtype: str) -> None:
    def program() -> Any:
        f = tf.function(lambda x, *, scale: (x @ W) * scale)
        concrete = f.get_concrete_function(tf.TensorSpec([None, 8], name="x"), scale=tf.TensorSpec([], name="scale"))
        return concrete(X, scale=tf.constant(2.0)), concrete(x=X, scale=tf.constant(3.0))

    run(program, dtype).check()


def test_captured_tensors_variables_and_constants(dtype: str, jit: bool) -> None:
    def program() -> Any:
        weight, bias = tf.Variable(W), tf.constant(0.5, shape=[8])
        f = tf.function(lambda x: x @ weight + bias + X @ np.asarray(W), jit_compile=jit)
        return f(X), f.get_concrete_function(X).captured_inputs[0].dtype.name == "resource"

    run(program, dtype).check()


def test_a_variable_made_in_the_first_call_and_a_method(dtype: str) -> None:
    class Layer(tf.Module):
        weight: Any = None

        @tf.function
        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            if self.weight is None:
                self.weight = tf.Variable(W)
            return x @ self.weight

    def program() -> Any:
        one, two = Layer(), Layer()
        first = one(X), two(X)
        one.weight.assign(2 * W)
        return first, one(X), two(X)

    run(program, dtype).check()


def test_a_decorated_method_and_function(dtype: str) -> None:
    class Net:
        @scope(dtype)
        @tf.function
        def apply(self, x: tf.Tensor) -> tf.Tensor:
            return x @ W

    with tfmp.mixed_precision(enabled=False):
        before = len(tfmp.report())
        on_off.assert_alike(X @ W, Net().apply(X), on_off.ROUNDINGS * on_off.SIXTEEN_BIT[dtype].unit_roundoff)
        assert sum(record.converted for record in tfmp.report()[before:]) > 0


def test_partial_functions_and_default_arguments(dtype: str) -> None:
    def affine(x: tf.Tensor, w: tf.Tensor = W, power: int = 1, negate: bool = False) -> tf.Tensor:
        for _ in range(power):
            x = x @ w
        return -x if negate else x

    def program() -> Any:
        f = tf.function(affine)
        return f(X), f(X, power=2), f(X, W, 1, True), tf.function(functools.partial(affine, power=3))(X)

    run(program, dtype).check()


def test_a_recursive_choice_of_functions(dtype: str) -> None:
    def program() -> Any:
        first, second = tf.function(lambda x: x @ W), tf.function(lambda x: tf.nn.relu(x) @ W)
        both = tf.function(lambda x: second(first(x)) + first(x))
        return tf.function(lambda x: both(first(x)))(X), first(X), both(X)

    run(program, dtype).check()


def test_many_threads_call_one_function_for_the_first_time(dtype: str) -> None:
    count = 8

    def program() -> Any:
        f = tf.function(lambda x: tf.nn.relu(x @ W) @ W, input_signature=[tf.TensorSpec([None, 8])])
        f.get_concrete_function()
        barrier, results = threading.Barrier(count), [None] * count

        def call(number: int) -> None:
            barrier.wait()
            results[number] = f(X).numpy()

        threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    runs = run(program, dtype).check()
    assert len(runs.records) == 1
    assert all(np.array_equal(runs.on[0], other) for other in runs.on)


def _below(x: tf.Tensor, bound: float) -> tf.Tensor:
    tf.debugging.assert_less(x, bound, message="too large")
    return x


RAISING = {
    "a kernel": (tf.errors.InvalidArgumentError, "32 values, but the requested shape has 28", lambda x, n: tf.reshape(x @ W, [n, 4])),
    "python code": (tf.errors.UnknownError, "KeyError: 77", lambda x, n: tf.numpy_function(lambda value: {}[77], [x @ W], tf.float32)),
    "an assertion": (tf.errors.InvalidArgumentError, "too large", lambda x, n: _below(x @ W, -1e3)),
    "a bad value": (tf.errors.InvalidArgumentError, "Tensor had NaN", lambda x, n: tf.debugging.check_numerics(tf.sqrt(x @ W - 1e3), "roots")),
}


@pytest.mark.parametrize("case", RAISING)
def test_a_function_that_raises_raises_the_same(dtype: str, case: str) -> None:
    error, message, function = RAISING[case]

    def program() -> str:
        f = tf.function(function)
        with pytest.raises(error, match=message) as caught:
            f(X, tf.constant(7))
        return type(caught.value).__name__

    run(program, dtype).check()


def test_a_trace_that_raises_leaves_the_function_usable(dtype: str) -> None:
    def program() -> Any:
        f = tf.function(lambda x: x @ W)
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="[Dd]imension|size"):
            f(normal(3, 5))
        return f(X)

    run(program, dtype).check()


def test_modules_are_copied_and_pickled(dtype: str) -> None:
    def program() -> Any:
        import keras

        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2)])
        first = model.predict(X, verbose=0)
        again = pickle.loads(pickle.dumps(model)).predict(X, verbose=0)
        return first, again, copy.deepcopy(model).predict(X, verbose=0), keras.models.clone_model(model)(X).shape.as_list()

    runs = run(program, dtype).check()
    np.testing.assert_array_equal(runs.on[0], runs.on[1])


def test_a_module_with_functions_is_deep_copied(dtype: str) -> None:
    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(W)
            self.apply = tf.function(lambda x: x @ self.weight)

    def program() -> Any:
        net = Net()
        twin = copy.deepcopy(net)
        twin.weight.assign(3 * W)
        return net.apply(X), twin.apply(X), twin.weight.numpy()

    run(program, dtype).check()


@pytest.mark.parametrize("outer_jit", [False, True])
def test_a_compiled_function_inside_another_one(dtype: str, outer_jit: bool) -> None:
    def program() -> Any:
        w = tf.Variable(W)
        inner = tf.function(lambda x: tf.nn.relu(x @ w), jit_compile=True)
        outer = tf.function(lambda x: inner(tf.linalg.matmul(x, w)) @ w + inner(x), jit_compile=outer_jit)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(outer(X) ** 2)
        return outer(X), inner(X), tape.gradient(loss, w)

    run(program, dtype).check()


def test_functions_that_run_eagerly_stay_float32(dtype: str) -> None:
    def program() -> Any:
        tf.config.run_functions_eagerly(True)
        try:
            return tf.function(lambda x: x @ W)(X)
        finally:
            tf.config.run_functions_eagerly(False)

    run(program, dtype).check_untouched()


def test_symbolic_gradients_and_eager_code_inside(dtype: str) -> None:
    def program() -> Any:
        @tf.function
        def f(x: tf.Tensor) -> Any:
            with tf.init_scope():
                constant = tf.linalg.matmul(W, W)
            y = tf.tanh(x @ W) @ constant
            return y, tf.gradients(y, [x])

        return f(X)

    run(program, dtype).check()


def test_without_autograph_and_with_arrays(dtype: str) -> None:
    def affine(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        return x @ w

    run(lambda: (tf.function(affine, autograph=False)(X, W), tf.function(affine)(X.numpy(), W.numpy())), dtype).check()


def test_wrapped_v1_functions_run(dtype: str) -> None:
    def program() -> Any:
        wrapped = tf.compat.v1.wrap_function(lambda x: tf.matmul(x, W), [tf.TensorSpec([None, 8], tf.float32)])
        return wrapped(X), wrapped.prune(wrapped.inputs[0], wrapped.outputs[0])(X)

    run(program, dtype).check()
