"""What happens beside the arithmetic stays the same: input pipelines, printing, checks, Python calls, devices, policies of Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run, scope

X, W = normal(8, 8), normal(8, 8, seed=12)

PIPELINES = {
    "map": lambda data: data.map(lambda x: tf.linalg.matvec(W, x, transpose_a=True)),
    "parallel map": lambda data: data.map(lambda x: tf.linalg.matvec(W, x), num_parallel_calls=2, deterministic=True),
    "filter": lambda data: data.filter(lambda x: tf.reduce_sum(tf.linalg.matvec(W, x)) > 0.0),
    "flat_map": lambda data: data.flat_map(lambda x: tf.data.Dataset.from_tensors(tf.linalg.matvec(W, x))),
    "interleave": lambda data: data.interleave(lambda x: tf.data.Dataset.from_tensors(tf.linalg.matvec(W, x)), cycle_length=2),
    "scan": lambda data: data.scan(tf.zeros([8]), lambda state, x: (tf.linalg.matvec(W, x) + state, x)),
    "batched map": lambda data: data.batch(4).map(lambda x: x @ W),
    "images": lambda data: data.map(lambda x: tf.image.resize(tf.reshape(x, [2, 4, 1]), [4, 8]) * 0.3),
}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_input_pipelines_are_left_alone(dtype: str, pipeline: str) -> None:  # R28
    def program() -> Any:
        data = PIPELINES[pipeline](tf.data.Dataset.from_tensor_slices(X))
        return [str(data.element_spec), *data]

    run(program, dtype).check_untouched()


def test_a_reduction_of_a_dataset_is_left_alone(dtype: str) -> None:  # R28
    run(lambda: tf.data.Dataset.from_tensor_slices(X).reduce(tf.zeros([8]), lambda total, x: total + tf.linalg.matvec(W, x)), dtype).check_untouched()


def test_a_tf_function_used_in_a_pipeline_and_outside(dtype: str) -> None:  # R28
    def program() -> Any:
        f = tf.function(lambda x: x @ W)
        return list(tf.data.Dataset.from_tensors(X).map(f)), f(X), list(tf.data.Dataset.from_tensors(X).map(f))

    runs = run(program, dtype).check()
    on_off.assert_alike(runs.off[0] + runs.off[2], runs.on[0] + runs.on[2], 0.0)


def test_a_pipeline_made_inside_a_converted_function(dtype: str) -> None:  # R28
    def program() -> Any:
        @tf.function
        def f(x: tf.Tensor) -> Any:
            total = tf.zeros([8])
            for row in tf.data.Dataset.from_tensor_slices(x).map(lambda row: tf.linalg.matvec(W, row)):
                total += row
            return total, x @ W

        program.f = f
        return f(X)

    runs = run(program, dtype).check()
    on_off.assert_alike(runs.off[0], runs.on[0], 0.0)


def test_printing_and_checks_inside(dtype: str, capfd: pytest.CaptureFixture[str]) -> None:
    def program() -> Any:
        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            y = x @ W
            tf.print("rows:", tf.shape(y)[0], "dtype:", y.dtype.name)
            tf.debugging.assert_all_finite(y, "infinite")
            tf.debugging.assert_type(y, tf.float32)
            tf.debugging.assert_shapes([(y, ("N", 8))])
            tf.debugging.assert_near(y, y + 0.0)
            return tf.debugging.check_numerics(y, "not a number")

        return f(X)

    run(program, dtype).check()
    assert capfd.readouterr().err.count("rows: 8 dtype: float32") == 2


def test_python_code_runs_once_a_call_and_sees_float32(dtype: str) -> None:
    seen: list[Any] = []

    def note(value: Any) -> Any:
        seen.append(np.asarray(value).dtype)
        return np.float32(2.0) * value

    def program() -> Any:
        f = tf.function(lambda x: tf.ensure_shape(tf.py_function(note, [x @ W], tf.float32), [8, 8]) @ W)
        return f(X), f(X)

    run(program, dtype).check()
    assert seen == [np.dtype(np.float32)] * 4


def test_devices_and_names_that_the_user_gave(dtype: str) -> None:
    def f(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:0"), tf.name_scope("mine"):
            return tf.matmul(x, W, name="product")

    nodes = on_off.convert(tf.function(f), X, dtype=dtype)
    (product,) = nodes.of("MatMul")
    assert product.name == "mine/product"
    assert product.device.endswith("CPU:0")
    run(lambda: tf.function(f)(X), dtype).check()


@pytest.mark.filterwarnings("ignore:tfmp. model .* already has the dtype policy:tfmp.MixedPrecisionWarning")
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_policy_of_keras_together_with_tfmp(dtype: str, policy: str) -> None:  # R13
    def program() -> Any:
        import keras

        layers = [
            keras.layers.Dense(8, activation="relu", dtype=policy), keras.layers.GaussianNoise(0.1, dtype=policy), keras.layers.Dropout(0.2, dtype=policy),
            keras.layers.LayerNormalization(dtype=policy), keras.layers.Dense(2, dtype="float32"),
        ]  # fmt: skip
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile("sgd", "mse", jit_compile=False)
        losses = [float(model.train_on_batch(X.numpy(), X.numpy()[:, :2])) for _ in range(2)]
        return losses, model.predict(X.numpy(), verbose=0), [weight.dtype.name for weight in model.get_weights()]

    runs = run(program, dtype)
    looser = max(on_off.SIXTEEN_BIT[name].unit_roundoff for name in (dtype, policy.removeprefix("mixed_")))
    on_off.assert_alike(runs.off, runs.on, 2 * on_off.ROUNDINGS * looser)


def test_models_in_float64_and_float16_are_left_alone(dtype: str) -> None:
    def program() -> Any:
        f = tf.function(lambda x, w: tf.nn.relu(x @ w) @ w)
        return [f(tf.cast(X, kind), tf.cast(W, kind)) for kind in (tf.float64, tf.float16, tf.bfloat16)]

    run(program, dtype).check_untouched()


def test_global_state_of_keras_and_tensorflow_is_as_before(dtype: str) -> None:
    import keras

    before = keras.config.dtype_policy().name, keras.config.floatx(), keras.config.epsilon(), tf.config.optimizer.get_experimental_options()
    with scope(dtype):
        tf.function(lambda x: x @ W)(X)
        inside = keras.config.dtype_policy().name, keras.config.floatx(), keras.config.epsilon(), tf.config.optimizer.get_experimental_options()
    assert before == inside


def test_functions_traced_off_stay_float32_when_called_on(dtype: str) -> None:  # R140
    with tfmp.mixed_precision(enabled=False):
        f = tf.function(lambda x: x @ W)
        expected = f(X)
    before = len(tfmp.report())
    with scope(dtype):
        on_off.assert_alike(expected, f(X), 0.0)
        converted = tf.function(lambda x: x @ W)
        inside = converted(X)
    assert len(tfmp.report()) == before + 1
    on_off.assert_alike(inside, converted(X), 0.0)
    assert np.abs(inside - expected).max() > 0


def test_a_scope_is_left_when_an_exception_passes(dtype: str) -> None:  # R140
    with pytest.raises(RuntimeError, match="planned"), scope(dtype):
        raise RuntimeError("planned")
    before = len(tfmp.report())
    with tfmp.mixed_precision(enabled=False):
        tf.function(lambda x: x @ W)(X)
    assert len(tfmp.report()) == before


def test_small_helper_functions_leave_no_record(dtype: str) -> None:  # R140
    def program() -> Any:
        helper = tf.function(lambda x: tf.reduce_mean(x * 2.0))
        return helper(X), tf.function(lambda n: n + 1)(tf.constant(1))

    runs = run(program, dtype)
    runs.check_untouched()
    assert runs.records == ()
