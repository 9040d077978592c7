"""One program run twice, with tfmp off and with tfmp on, and the two results compared.

A program is a Python function without arguments that makes everything it needs (variables, models, `tf.function`s), runs it and returns what is
to be compared: any structure of tensors, arrays and numbers. Both runs start from the same seeds.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tfmp
from tfmp.dtypes import FLOAT32, SIXTEEN_BIT

DTYPES = tuple(SIXTEEN_BIT)
SEED = 11

ROUNDINGS = 8
"""Unit roundoffs, relative to a tensor's largest element, that a program of a few 16-bit ops may be away from float32: each op rounds its inputs and
its result once, and the errors add up. For float16 that is 0.4 %, for bfloat16 3 %."""


@dataclasses.dataclass(frozen=True)
class Runs:
    """What a program returned with tfmp off and on, and the records that the second run left in tfmp's account."""

    off: Any
    on: Any
    records: tuple[Any, ...]
    dtype: str

    @property
    def converted(self) -> int:
        """Number of nodes that ran in 16 bit."""
        return sum(record.converted for record in self.records)

    def check(self, roundings: float = ROUNDINGS) -> Runs:
        """Asserts that something was converted and that both results have one structure, the same dtypes and shapes, and close values; returns self."""
        assert self.converted > 0, "tfmp was on but nothing was converted"
        assert_alike(self.off, self.on, roundings * SIXTEEN_BIT[self.dtype].unit_roundoff)
        return self

    def check_untouched(self) -> Runs:
        """Asserts that nothing was converted and that both results are the same to the last bit; returns self."""
        assert self.converted == 0, f"tfmp converted {self.converted} nodes of {[record.function for record in self.records]}"
        assert_alike(self.off, self.on, 0.0)
        return self


def run(program: Callable[[], Any], dtype: str, **settings: Any) -> Runs:
    """Returns what `program` does in a scope in which tfmp is off, and in one in which it converts to `dtype`."""
    off = _run(program, tfmp.mixed_precision(enabled=False))
    before = len(tfmp.report())
    on = _run(program, scope(dtype, **settings))
    return Runs(off, on, tuple(tfmp.report()[before:]), dtype)


def scope(dtype: str, **settings: Any) -> tfmp.mixed_precision:
    """Returns the scope in which tfmp converts to `dtype`, on any hardware and without loss scaling."""
    return tfmp.mixed_precision(**({"dtype": dtype, "ignore_performance": True, "loss_scaling": False} | settings))


def _run(program: Callable[[], Any], scope: tfmp.mixed_precision) -> Any:
    with scope:
        set_seeds()
        return program()


def set_seeds() -> None:
    """Starts every random number generator that a program may use from `SEED`."""
    tf.random.set_seed(SEED)
    np.random.seed(SEED)
    for keras in ("keras", "tf_keras"):
        if keras in sys.modules:
            sys.modules[keras].utils.set_random_seed(SEED)


def assert_alike(expected: Any, actual: Any, tolerance: float) -> None:
    """Asserts the same structure, dtypes and shapes; equal integers, booleans and strings; infinities and NaNs in the same places; and floats that
    differ by at most `tolerance` times the largest magnitude in the expected tensor, plus the rounding of float32 itself."""
    tf.nest.assert_same_structure(expected, actual, check_types=True, expand_composites=True)
    leaves = (tf.nest.flatten(tree, expand_composites=True) for tree in (expected, actual))
    for number, (one, other) in enumerate(zip(*leaves, strict=True)):
        _assert_leaf_alike(np.asarray(one), np.asarray(other), tolerance, f"leaf {number}")


def _assert_leaf_alike(expected: np.ndarray, actual: np.ndarray, tolerance: float, where: str) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), f"{where}: dtype or shape differs"
    if not np.issubdtype(expected.dtype, np.inexact) or tolerance == 0:
        np.testing.assert_array_equal(actual, expected, err_msg=where)
        return
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite], err_msg=f"{where}: other infinities or NaNs")
    if finite.any():
        largest = np.abs(expected[finite]).max()
        error = np.abs(actual[finite].astype(np.complex128) - expected[finite]).max()
        allowed = (tolerance + ROUNDINGS * FLOAT32.unit_roundoff) * largest
        assert error <= allowed, f"{where}: differs by {error:.3g}, {allowed:.3g} is allowed; the largest element is {largest:.3g}"


def in_turn(cases: Iterable[Any]) -> list[tuple[str, Any]]:
    """Returns each case with one of the 16-bit types, in turn: for tests in which tracing takes the time and the type makes little difference."""
    return list(zip(itertools.cycle(DTYPES), cases))  # noqa: B905  (the types never end)


class Nodes:
    """The nodes of a converted program, its own and those of every function that it reaches."""

    def __init__(self, conversion: tfmp.Conversion) -> None:
        """Collects the nodes of `conversion`."""
        self.conversion = conversion
        self.all = [node for body in conversion.bodies.values() for node in body.proto.node_def]

    def of(self, *ops: str) -> Iterator[Any]:
        """Yields the nodes whose op is one of `ops`."""
        return (node for node in self.all if node.op in ops)

    def types(self, *ops: str, attr: str = "T") -> list[str]:
        """Returns the names of the types ("float32", "float16", ...) that the nodes of `ops` have in `attr`, each once, sorted; fails if there is no node."""
        found = {tf.dtypes.as_dtype(node.attr[attr].type).name for node in self.of(*ops)}
        assert found, f"the program has no {' or '.join(ops)}; it has {sorted({node.op for node in self.all})}"
        return sorted(found)


def convert(function: Any, *arguments: Any, dtype: str, **settings: Any) -> Nodes:
    """Returns the converted nodes of a `tf.function`, traced for `arguments` while tfmp is off."""
    with tfmp.mixed_precision(enabled=False):
        concrete = function.get_concrete_function(*arguments)
    return Nodes(tfmp.convert_function(concrete, dtype=dtype, **settings))


def normal(*shape: int, scale: float = 1.0, seed: int = SEED) -> tf.Tensor:
    """Returns float32 numbers of a normal distribution, the same for the same arguments."""
    return tf.constant(np.random.default_rng(seed).normal(0.0, scale, shape), tf.float32)
