"""The float formats that tfmp knows, as one table.

Type numbers are those of `tensorflow/core/framework/types.proto`; they are part of TensorFlow's stable file format, so they are
written here rather than read from TensorFlow, which keeps this module importable without it.
"""

from __future__ import annotations

import dataclasses

from tfmp.errors import SettingsError

DT_FLOAT = 1
DT_INT32 = 3
DT_HALF = 19
DT_BFLOAT16 = 14
DT_RESOURCE = 20
DT_VARIANT = 21
REF_OFFSET = 100
"""A reference type (`DT_FLOAT_REF`, ...) is the plain type's number plus this (types.proto)."""

QUANTIZED = frozenset({11, 12, 13, 15, 16})
"""DT_QINT8, DT_QUINT8, DT_QINT32, DT_QINT16, DT_QUINT16."""


@dataclasses.dataclass(frozen=True)
class FloatFormat:
    """One binary float format (IEEE 754-2019 for float16; Google's brain float for bfloat16).

    Attributes:
      name: TensorFlow's and NumPy's name, as users write it.
      number: value of the `DataType` enum.
      cast_name: how casts to it are called in node names (the names TensorFlow's own pass uses).
      unit_roundoff: half the distance from 1 to the next larger number; the largest relative rounding error of a normal number.
      largest: largest finite number.
      smallest_normal: smallest positive number with full precision.
      smallest: smallest positive number.
      largest_integer: every integer up to this one is exact.
    """

    name: str
    number: int
    cast_name: str
    unit_roundoff: float
    largest: float
    smallest_normal: float
    smallest: float
    largest_integer: int


FLOAT32 = FloatFormat("float32", DT_FLOAT, "CastToFp32", 2.0**-24, (2 - 2.0**-23) * 2.0**127, 2.0**-126, 2.0**-149, 2**24)
FLOAT16 = FloatFormat("float16", DT_HALF, "CastToFp16", 2.0**-11, 65504.0, 2.0**-14, 2.0**-24, 2**11)
BFLOAT16 = FloatFormat("bfloat16", DT_BFLOAT16, "CastToBf16", 2.0**-8, (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133, 2**8)

SIXTEEN_BIT = {f.name: f for f in (FLOAT16, BFLOAT16)}


def sixteen_bit(name: str) -> FloatFormat:
    """Returns the 16-bit format called `name` ("float16" or "bfloat16"); raises `SettingsError` for any other name."""
    if name not in SIXTEEN_BIT:
        raise SettingsError(f"dtype is {name!r}; tfmp converts to one of {', '.join(map(repr, SIXTEEN_BIT))}.")
    return SIXTEEN_BIT[name]
