"""The table of float formats says what NumPy, ml_dtypes and TensorFlow say."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from tfmp import dtypes
from tfmp.dtypes import BFLOAT16, FLOAT16, FLOAT32, FloatFormat
from tfmp.errors import SettingsError

FORMATS = (FLOAT32, FLOAT16, BFLOAT16)


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_limits_are_those_of_the_type(row: FloatFormat) -> None:
    limits = ml_dtypes.finfo(tf.dtypes.as_dtype(row.name).as_numpy_dtype)
    assert row.unit_roundoff == float(limits.eps) / 2
    assert row.largest == float(limits.max)
    assert row.smallest_normal == float(limits.tiny)
    assert row.smallest == float(limits.smallest_subnormal)


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_the_next_integer_after_the_largest_exact_one_is_rounded(row: FloatFormat) -> None:
    kind = tf.dtypes.as_dtype(row.name).as_numpy_dtype
    exact = np.arange(row.largest_integer - 100, row.largest_integer + 2, dtype=np.float64)
    kept = exact.astype(kind).astype(np.float64)
    assert list(kept[:-1]) == list(exact[:-1])
    assert kept[-1] != exact[-1]


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_numbers_are_tensorflows(row: FloatFormat) -> None:
    assert row.number == tf.dtypes.as_dtype(row.name).as_datatype_enum


def test_other_type_numbers_are_tensorflows() -> None:
    assert (dtypes.DT_FLOAT, dtypes.DT_INT32, dtypes.DT_HALF, dtypes.DT_BFLOAT16, dtypes.DT_RESOURCE, dtypes.DT_VARIANT) == (
        types_pb2.DT_FLOAT,
        types_pb2.DT_INT32,
        types_pb2.DT_HALF,
        types_pb2.DT_BFLOAT16,
        types_pb2.DT_RESOURCE,
        types_pb2.DT_VARIANT,
    )
    assert dtypes.REF_OFFSET == types_pb2.DT_FLOAT_REF - types_pb2.DT_FLOAT == types_pb2.DT_VARIANT_REF - types_pb2.DT_VARIANT


def test_quantized_types_are_all_of_them() -> None:
    quantized = {number for name, number in types_pb2.DataType.items() if name.startswith(("DT_QINT", "DT_QUINT")) and not name.endswith("_REF")}
    assert quantized == dtypes.QUANTIZED


def test_only_two_formats_are_sixteen_bit() -> None:
    assert [dtypes.sixteen_bit(name) for name in ("float16", "bfloat16")] == [FLOAT16, BFLOAT16]
    for name in ("float32", "half", "auto"):
        with pytest.raises(SettingsError) as error:
            dtypes.sixteen_bit(name)
        assert str(error.value) == f"dtype is {name!r}; tfmp converts to one of 'float16', 'bfloat16'."
