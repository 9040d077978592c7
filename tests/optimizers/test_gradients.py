"""Unscaling and the finite test, against NumPy in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.families import MODES, make_function
from tfmp.optimizers.gradients import cast_like, finite_each, scale_loss, unscale

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
BAD = {"inf": np.inf, "-inf": -np.inf, "nan": np.nan}


def values(dtype: str, shape: tuple[int, ...] = (3, 5)) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=shape) * 8).astype(DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 2.0**15, 2.0**-3])
def test_unscaling_by_a_power_of_two_is_exact(dtype: str, scale: float) -> None:
    gradient = values(dtype)
    (result,) = unscale([tf.constant(gradient)], tf.constant(scale), widen=True)
    assert result.dtype == (tf.float32 if dtype.endswith("float16") else dtype)
    np.testing.assert_array_equal(result.numpy().astype(np.float64), gradient.astype(np.float64) / scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_unscaling_by_another_scale_is_rounded_at_most_twice(dtype: str) -> None:
    gradient, scale = values(dtype), 1000.0
    (result,) = unscale([tf.constant(gradient)], tf.constant(scale), widen=True)
    unit = np.finfo(result.dtype.as_numpy_dtype).eps / 2
    np.testing.assert_allclose(result.numpy().astype(np.float64), gradient.astype(np.float64) / scale, rtol=2 * unit, atol=0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_gradients_can_keep_their_dtype_and_are_rounded_once(dtype: str) -> None:
    gradient = values(dtype)
    (result,) = unscale([tf.constant(gradient)], tf.constant(2.0**16), widen=False)
    assert result.dtype == dtype
    expected = (gradient.astype(np.float64) / 2.0**16).astype(DTYPES[dtype])  # 2^16 itself is infinite in float16
    np.testing.assert_array_equal(result.numpy().astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("mode", MODES)
def test_sparse_gradients_stay_sparse_and_untouched_rows_are_never_made(mode: str) -> None:
    rows = 10**6
    results = []

    def step() -> None:
        gradient = tf.IndexedSlices(tf.ones([4, 8]), tf.constant([1, 5, 5, 9]), tf.constant([rows, 8]))
        (result,) = unscale([gradient], tf.constant(4.0), widen=True)
        assert isinstance(result, tf.IndexedSlices)
        assert result.values.shape == [4, 8]
        finite = finite_each([gradient], tf.constant(4.0), replicas=2)
        results.append(finite)
        if mode != "eager":
            sizes = [output.shape.num_elements() for operation in finite.graph.get_operations() for output in operation.outputs]
            assert max(size for size in sizes if size is not None) == 32
        else:
            np.testing.assert_array_equal(result.values, np.full((4, 8), 0.25))
            assert result.indices.numpy().tolist() == [1, 5, 5, 9]
            assert result.dense_shape.numpy().tolist() == [rows, 8]

    make_function(step, mode)()
    assert results


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", BAD)
def test_one_bad_element_of_any_kind_is_found(dtype: str, bad: str, mode: str) -> None:
    good, spoilt = values(dtype), values(dtype)
    spoilt[2, 3] = BAD[bad]
    indices, shape = tf.constant([0, 4, 9]), tf.constant([10, 5])
    result = tf.Variable([False] * 4)

    def step(good: tf.Tensor, spoilt: tf.Tensor) -> None:
        sparse = [tf.IndexedSlices(one, indices, shape) for one in (good, spoilt)]
        result.assign(finite_each([good, spoilt, *sparse]))

    make_function(step, mode)(tf.constant(good), tf.constant(spoilt))
    assert result.numpy().tolist() == [True, False, True, False]


def test_none_is_kept_and_not_tested() -> None:
    gradient = tf.constant([2.0])
    assert [result is None for result in unscale([None, gradient, None], tf.constant(2.0), widen=True)] == [True, False, True]
    assert finite_each([None, gradient, None]).numpy().tolist() == [True]
    assert finite_each([None]).shape == finite_each([]).shape == [0]


def test_an_empty_gradient_is_finite() -> None:
    assert finite_each([tf.zeros([0, 3])]).numpy().tolist() == [True]


def test_complex_gradients_are_tested_in_both_parts() -> None:
    gradients = [tf.constant([1 + 1j]), tf.constant([complex(1, np.inf)]), tf.constant([complex(np.nan, 0)])]
    assert finite_each(gradients).numpy().tolist() == [True, False, False]
    (result,) = unscale(gradients[:1], tf.constant(2.0), widen=True)
    assert result.numpy().tolist() == [0.5 + 0.5j]


def test_a_gradient_that_unscaling_makes_infinite_is_found() -> None:
    gradient = tf.constant([1e38])
    assert finite_each([gradient], tf.constant(0.5)).numpy().tolist() == [True]
    assert finite_each([gradient], tf.constant(0.125)).numpy().tolist() == [False]


def test_gradients_whose_sum_over_the_replicas_would_be_infinite_are_found() -> None:
    gradient = tf.constant([2e38])
    assert finite_each([gradient], tf.constant(1.0), replicas=1).numpy().tolist() == [True]
    assert finite_each([gradient], tf.constant(1.0), replicas=2).numpy().tolist() == [False]
    half = tf.constant([40000.0], tf.float16)
    assert finite_each([half], tf.constant(1.0), replicas=2).numpy().tolist() == [False]


@pytest.mark.parametrize("exponent", [15, 16, 20])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_sixteen_bit_loss_is_scaled_in_float32(dtype: str, exponent: int) -> None:  # R88
    scaled = scale_loss(tf.constant(1.5, dtype), tf.constant(2.0**exponent))
    assert scaled.dtype == tf.float32
    assert float(scaled) == 1.5 * 2.0**exponent


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_wider_loss_keeps_its_dtype_and_shape(dtype: str) -> None:
    scaled = scale_loss(tf.constant([1.5, -2.0], dtype), tf.constant(8.0))
    assert scaled.dtype == dtype
    assert scaled.numpy().tolist() == [12.0, -16.0]


def test_a_gradient_takes_the_dtype_of_its_variable() -> None:
    variable = tf.Variable(tf.zeros([2], tf.float16))
    assert cast_like(tf.constant([1.0, 2.0]), variable).dtype == tf.float16
    assert cast_like(None, variable) is None


@pytest.mark.parametrize("mode", ["function", "jit"])
def test_nothing_goes_to_the_host(mode: str) -> None:
    """No operation that copies to Python or the host is in the graph of unscale and test."""

    @tf.function(jit_compile=mode == "jit")
    def both(gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        (result,) = unscale([gradient], tf.constant(4.0), widen=True)
        return result, finite_each([result])

    types = {operation.type for operation in both.get_concrete_function(tf.zeros([3])).graph.get_operations()}
    assert not types & {"PyFunc", "EagerPyFunc", "PyFuncStateless", "HostConst", "Send", "Recv", "CheckNumerics", "PrintV2"}
    assert both(tf.constant([np.inf]))[1].numpy().tolist() == [False]
