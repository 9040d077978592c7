"""What goes in and comes out of a function keeps its structure, its dtypes and its types (R41)."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import tfmp
from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run, scope

X, W = normal(4, 8), normal(8, 8, seed=12)

Attributes = collections.namedtuple("Attributes", ["logits", "ids"])


class Typed(NamedTuple):
    """A named tuple with types, as in many training loops."""

    logits: Any
    rest: Any


STRUCTURES = {
    "list": lambda y, n: [y, n],
    "tuple": lambda y, n: (n, y, (y, ())),
    "dict": lambda y, n: {"b": y, "a": {"n": n, "none": None}},
    "ordered dict": lambda y, n: collections.OrderedDict(z=y, a=n),
    "namedtuple": lambda y, n: Attributes(y, n),
    "NamedTuple": lambda y, n: Typed(y, {"n": [n]}),
    "the same tensor twice": lambda y, n: (y, y, n),
    "nothing": lambda y, n: (tf.debugging.assert_non_negative(y), None)[1],
    "an argument": lambda y, n: (y, n, tf.constant([1.5])),
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_outputs_keep_structure_and_types(dtype: str, case: str) -> None:
    def program() -> Any:
        f = tf.function(lambda x, n: STRUCTURES[case](tf.nn.relu(x @ W), n + 1))
        concrete = f.get_concrete_function(X, tf.constant([1, 2]))
        return f(X, tf.constant([1, 2])), [spec.dtype.name for spec in tf.nest.flatten(concrete.structured_outputs) if spec is not None]

    run(program, dtype).check()


@pytest.mark.parametrize("case", ["dict", "namedtuple", "nested", "numpy"])
def test_inputs_keep_structure(dtype: str, case: str) -> None:
    inputs = {"dict": {"x": X, "w": W}, "namedtuple": Attributes(X, W), "nested": [{"x": (X,)}, [W]], "numpy": [np.asarray(X), np.asarray(W)]}[case]

    def program() -> Any:
        return tf.function(lambda tree: tf.matmul(*reversed(tf.nest.flatten(tree))) if case == "dict" else tf.matmul(*tf.nest.flatten(tree)))(inputs)

    run(program, dtype).check()


def test_variables_as_inputs_and_outputs_of_assignments(dtype: str) -> None:
    def program() -> Any:
        weight = tf.Variable(W)

        @tf.function
        def f(variable: tf.Variable, x: tf.Tensor) -> Any:
            y = x @ variable
            return y, variable.assign_add(tf.transpose(x) @ y), variable.read_value()

        result = f(weight, X)
        return [tf.convert_to_tensor(part) for part in result], weight

    runs = run(program, dtype).check()
    assert runs.on[1].dtype == tf.float32


def test_ragged_tensors(dtype: str) -> None:
    rows = tf.RaggedTensor.from_row_lengths(X, [1, 3])

    def program() -> Any:
        f = tf.function(lambda ragged: tf.ragged.map_flat_values(tf.matmul, ragged, W))
        g = tf.function(lambda ragged: tf.reduce_sum(ragged.to_tensor() @ W, 1))
        return f(rows), g(rows)

    runs = run(program, dtype).check()
    assert isinstance(runs.on[0], tf.RaggedTensor)


def test_sparse_tensors_and_indexed_slices(dtype: str) -> None:
    sparse = tf.sparse.from_dense(tf.where(X > 0.5, X, 0.0))

    def program() -> Any:
        f = tf.function(lambda s: (tf.sparse.map_values(tf.multiply, s, 2.0), tf.sparse.to_dense(s) @ W))
        g = tf.function(lambda x: tf.IndexedSlices(x @ W, tf.range(4), dense_shape=tf.constant([10, 8])))
        return f(sparse), g(X)

    runs = run(program, dtype).check()
    assert isinstance(runs.on[0][0], tf.SparseTensor)
    assert isinstance(runs.on[1], tf.IndexedSlices)


def test_optionals_and_datasets_as_inputs(dtype: str) -> None:
    def program() -> Any:
        optional = tf.function(lambda x: tf.experimental.Optional.from_value(x @ W))(X)
        inside = tf.function(lambda x: tf.experimental.Optional.from_value(x @ W).get_value() @ W)
        unpack = tf.function(lambda o: o.get_value() @ W)
        dataset = tf.data.Dataset.from_tensor_slices(X).batch(2)

        @tf.function
        def total(batches: tf.data.Dataset) -> tf.Tensor:
            result = tf.zeros([8])
            for batch in batches:
                result += tf.reduce_sum(batch @ W, 0)
            return result

        iterator = iter(dataset)
        step = tf.function(lambda it: next(it) @ W)
        return optional.get_value(), unpack(optional), inside(X), total(dataset), step(iterator), step(iterator)

    run(program, dtype).check()


def test_optionals_of_an_iterator_in_a_loop(dtype: str) -> None:
    def program() -> Any:
        pairs = tf.data.Dataset.from_tensor_slices((X, X[:, :2])).batch(2)

        @tf.function
        def total(iterator: Any, single: Any) -> tf.Tensor:
            result = tf.zeros([8])
            for _ in tf.range(3):
                batch, alone = iterator.get_next_as_optional(), single.get_next_as_optional()
                if batch.has_value():
                    result += tf.reduce_sum(batch.get_value()[0] @ W, 0) + tf.reduce_sum(alone.get_value() @ W, 0)
            return result

        return total(iter(pairs), iter(pairs.map(lambda x, y: x)))

    run(program, dtype).check()


def test_extension_types(dtype: str) -> None:
    class Pair(tf.experimental.ExtensionType):
        left: tf.Tensor
        right: tf.Tensor

    def program() -> Any:
        f = tf.function(lambda pair: Pair(pair.left @ pair.right, pair.right))
        return f(Pair(X, W))

    run(program, dtype).check()


@pytest.mark.parametrize("kind", ["py_function", "numpy_function"])
def test_python_code_inside_sees_float32(dtype: str, kind: str) -> None:
    seen = []

    def erf(value: Any) -> Any:
        seen.append(np.asarray(value).dtype)
        return scipy.special.erf(np.asarray(value)).astype(np.float32)

    def program() -> Any:
        f = tf.function(lambda x: tf.ensure_shape(getattr(tf, kind)(erf, [tf.nn.relu(x @ W)], tf.float32), [4, 8]) @ W)
        return f(X)

    run(program, dtype).check()
    assert seen == [np.float32, np.float32]


def test_other_dtypes_pass_through_untouched(dtype: str) -> None:
    values = [tf.constant([1, 2], dtype=t) for t in (tf.uint8, tf.int8, tf.int64, tf.float64, tf.float16, tf.bfloat16, tf.complex64)]

    def program() -> Any:
        f = tf.function(lambda x, *rest: (x @ W, [value + value for value in rest], tf.cast(x, tf.float64) @ tf.cast(W, tf.float64), x > 0))
        return f(X, *values), tf.function(lambda x, text: (x @ W, tf.strings.join([text, text])))(X, tf.constant("id"))

    runs = run(program, dtype).check()
    on_off.assert_alike(runs.off[0][1:], runs.on[0][1:], 0.0)


def test_results_feed_numpy_code_that_knows_no_half(dtype: str) -> None:
    with scope(dtype):
        covariance = tf.function(lambda x: tf.matmul(x, x, transpose_a=True))(normal(64, 8)).numpy()
    assert covariance.dtype == np.float32
    with pytest.raises(TypeError, match="unsupported"):
        np.linalg.eigh(covariance.astype(np.float16))
    expected = np.linalg.eigvalsh(np.asarray(normal(64, 8), np.float64).T @ np.asarray(normal(64, 8), np.float64))
    on_off.assert_alike(expected.astype(np.float32), np.linalg.eigvalsh(covariance), on_off.ROUNDINGS * on_off.SIXTEEN_BIT[dtype].unit_roundoff)


def test_a_function_without_inputs_or_outputs(dtype: str) -> None:
    def program() -> Any:
        total = tf.Variable(tf.zeros([4, 8]))

        @tf.function
        def f() -> None:
            total.assign(X @ W)

        assert f() is None
        return total.read_value()

    run(program, dtype).check()


def test_the_conversion_reports_the_signature_it_found(dtype: str) -> None:
    f = tf.function(lambda x, n: {"y": x @ W, "n": n})
    nodes = on_off.convert(f, X, tf.constant(1), dtype=dtype)
    before = tfmp.convert_function(f.get_concrete_function(X, tf.constant(1)), dtype=dtype).originals[nodes.conversion.root]
    after = nodes.conversion.bodies[nodes.conversion.root].proto
    assert before.signature == after.signature
