"""Ops that have no 16-bit form or kernel, between two matrix multiplications: they stay float32 and everything runs (R11, R16 to R20, R29)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run

X, W = normal(8, 8), normal(8, 8, seed=12)


def positive(y: tf.Tensor) -> tf.Tensor:
    """Returns a well-conditioned symmetric positive matrix that hangs on `y`."""
    return 0.01 * tf.matmul(y, y, transpose_b=True) + tf.eye(8)


LINEAR_ALGEBRA: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "MatrixInverse": lambda y: tf.linalg.inv(positive(y)),
    "Cholesky": lambda y: tf.linalg.cholesky(positive(y)),
    "MatrixSolve": lambda y: tf.linalg.solve(positive(y), X),
    "MatrixTriangularSolve": lambda y: tf.linalg.triangular_solve(tf.linalg.cholesky(positive(y)), X),
    "MatrixDeterminant": lambda y: tf.linalg.det(positive(y)) * tf.ones([8, 8]),
    "Qr": lambda y: tf.abs(tf.linalg.qr(positive(y))[1]),
    "Svd": lambda y: tf.linalg.svd(positive(y), compute_uv=False) * tf.ones([8, 8]),
    "SelfAdjointEigV2": lambda y: tf.linalg.eigh(positive(y))[0] * tf.ones([8, 8]),
    "MatrixExponential": lambda y: tf.linalg.expm(positive(y) / 4.0),
}

UNLISTED: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "Cumsum": lambda y: tf.cumsum(tf.nn.relu(y)),
    "Digamma": lambda y: tf.math.digamma(tf.abs(y) + 1.0),
    "Betainc": lambda y: tf.math.betainc(2.0, 3.0, tf.sigmoid(y)),
    "Atan2": lambda y: tf.atan2(y, 1.0 + tf.abs(y)),
    "Cross": lambda y: tf.concat([tf.linalg.cross(y[:, :3], y[:, 1:4]), y[:, 3:]], 1),
    "InvertPermutation": lambda y: tf.gather(y, tf.math.invert_permutation(tf.constant([1, 0, 3, 2, 5, 4, 7, 6]))),
    "SegmentSum": lambda y: tf.gather(tf.math.segment_sum(y, tf.constant([0, 0, 1, 1, 2, 2, 3, 3])), [0, 1, 2, 3, 0, 1, 2, 3]),
    "LinSpace": lambda y: y + tf.linspace(0.0, 1.0, 8),
    "MatrixBandPart": lambda y: tf.linalg.band_part(y, 1, 1),
    "Roll": lambda y: tf.roll(y, 1, 0),
    "Sort": lambda y: tf.sort(y, axis=1),
    "Bucketize": lambda y: y + tf.cast(tf.raw_ops.Bucketize(input=y, boundaries=[-1.0, 0.0, 1.0]), tf.float32) * 0.0,
    "Quantize": lambda y: tf.quantization.fake_quant_with_min_max_args(y, min=-30.0, max=30.0, num_bits=16),
}


def step(middle: Callable[[tf.Tensor], tf.Tensor], jit: bool = False) -> Any:
    """Returns a function that computes `middle` between two products, and the gradient."""

    def f(w: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(w)
            result = middle(X @ w) @ w
            loss = tf.reduce_mean(result**2)
        return result, tape.gradient(loss, w)

    return tf.function(f, jit_compile=jit)


@pytest.mark.parametrize("op", LINEAR_ALGEBRA)
def test_linear_algebra_stays_in_float32(dtype: str, op: str) -> None:  # R18
    run(lambda: step(LINEAR_ALGEBRA[op])(W), dtype).check(4 * on_off.ROUNDINGS)


@pytest.mark.parametrize("op", UNLISTED)
def test_ops_on_no_list_stay_in_float32(dtype: str, op: str) -> None:  # R11
    run(lambda: step(UNLISTED[op])(W), dtype).check()


def test_an_unlisted_op_with_a_half_kernel_gets_float32(dtype: str) -> None:  # R11
    nodes = on_off.convert(tf.function(lambda w: tf.math.atan2(X @ w, W) @ w), W, dtype=dtype)
    assert nodes.types("Atan2") == ["float32"]
    assert nodes.types("MatMul") == [dtype]


def test_an_op_that_only_knows_float_is_left_as_it_is(dtype: str) -> None:  # R16
    def detect(w: tf.Tensor) -> Any:
        boxes = tf.reshape(tf.sigmoid(X @ w), [1, 16, 1, 4])
        scores = tf.reshape(tf.sigmoid((X @ w)[:, :4]), [1, 16, 2])
        found = tf.image.combined_non_max_suppression(boxes, scores, 5, 5, iou_threshold=0.5, score_threshold=0.1)
        return tf.reduce_sum(found.nmsed_boxes, 0) @ w[:4], found.valid_detections

    def crop(w: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(w)
            image = tf.reshape(X @ w, [1, 8, 8, 1])
            patch = tf.image.crop_and_resize(image, [[0.1, 0.1, 0.9, 0.8]], [0], [8, 8])
            result = tf.reshape(patch, [8, 8]) @ w
        return result, tape.gradient(result, w)

    run(lambda: (tf.function(detect)(W), tf.function(crop)(W)), dtype).check()
    before = [node for node in tf.function(detect).get_concrete_function(W).graph.as_graph_def().node if node.op == "CombinedNonMaxSuppression"]
    (after,) = on_off.convert(tf.function(detect), W, dtype=dtype).of("CombinedNonMaxSuppression")
    assert {name: value for name, value in after.attr.items() if name != "_output_shapes"} == dict(before[0].attr.items())
    assert on_off.convert(tf.function(crop), W, dtype=dtype).types("CropAndResize") == ["float32"]


@pytest.mark.parametrize("labels", ["dense", "sparse"])
def test_ctc_loss(dtype: str, labels: str) -> None:  # R17
    features, w = normal(2, 10, 8), normal(8, 6, seed=12, scale=0.3)
    ids, lengths = tf.constant([[1, 2, 3], [2, 2, 0]]), tf.constant([3, 2])
    dense = {"labels": ids, "label_length": lengths}
    sparse = {"labels": tf.sparse.from_dense(ids), "label_length": None}

    def program() -> Any:
        @tf.function
        def f(w: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(w)
                arguments = dense if labels == "dense" else sparse
                losses = tf.nn.ctc_loss(logits=features @ w, logit_length=tf.constant([10, 9]), logits_time_major=False, blank_index=5, **arguments)
            return losses, tape.gradient(losses, w)

        program.f = f
        return f(w)

    run(program, dtype).check()
    if labels == "sparse":
        assert on_off.convert(program.f, w, dtype=dtype).types("CTCLoss", "CTCLossV2") == ["float32"]


def test_sparse_times_dense_and_sparse_softmax(dtype: str) -> None:  # R19
    sparse = tf.sparse.from_dense(tf.where(X > 0.3, X, 0.0))

    def program() -> Any:
        @tf.function
        def f(w: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(w)
                y = tf.sparse.sparse_dense_matmul(sparse, X @ w)
                weights = tf.sparse.softmax(tf.SparseTensor(sparse.indices, tf.gather_nd(y, sparse.indices), sparse.dense_shape))
                result = tf.sparse.to_dense(weights) @ w
            return result, tape.gradient(result, w)

        program.f = f
        return f(W)

    run(program, dtype).check()
    assert on_off.convert(program.f, W, dtype=dtype).types("SparseTensorDenseMatMul", "SparseSoftmax") == ["float32"]


def test_fourier_transforms_and_complex_numbers(dtype: str) -> None:  # R20
    filters = tf.complex(normal(5, seed=21), normal(5, seed=22))

    def spectral(y: tf.Tensor) -> tf.Tensor:
        return tf.signal.irfft(tf.signal.rfft(y) * filters)

    def framed(y: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.abs(tf.signal.stft(tf.reshape(y, [64]), 16, 8, 16)), [7, 9])[:, :8]

    run(lambda: (step(spectral)(W), step(framed)(W)), dtype).check()
    nodes = on_off.convert(step(spectral), W, dtype=dtype)
    assert nodes.types("RFFT", attr="Treal") == ["float32"]
    assert nodes.types("MatMul") == [dtype]


def test_bilinear_upsampling_between_convolutions(dtype: str, jit: bool) -> None:  # R29, R112
    images, kernel, narrow = normal(2, 8, 8, 3), normal(3, 3, 3, 4, seed=12), normal(3, 3, 8, 2, seed=13)

    def program() -> Any:
        @tf.function(jit_compile=jit)
        def f(kernel: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(kernel)
                low = tf.tanh(tf.nn.conv2d(images, kernel, 2, "SAME"))
                high = tf.nn.conv2d(images, kernel, 1, "SAME")
                both = tf.concat([tf.image.resize(low, [8, 8]), high], -1)
                result = tf.nn.conv2d(both, narrow, 1, "SAME")
            return result, tape.gradient(result, kernel)

        program.f = f
        return f(kernel)

    run(program, dtype).check()
    assert len(on_off.convert(program.f, kernel, dtype=dtype).types("ConcatV2")) == 1


@pytest.mark.parametrize("op", ["MatrixInverse", "Cholesky", "Cumsum", "Sort"])
def test_the_same_compiled(dtype: str, op: str) -> None:
    run(lambda: step((LINEAR_ALGEBRA | UNLISTED)[op], jit=True)(W), dtype).check(4 * on_off.ROUNDINGS)


def test_lookup_tables_and_strings_are_left_alone(dtype: str) -> None:  # R26
    def program() -> Any:
        keys, values = tf.constant(["a", "b"]), tf.constant([3, 2909], tf.int64)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), default_value=-1)
        f = tf.function(lambda words: (table.lookup(words), tf.gather(normal(3000, 8), table.lookup(words)) @ W, tf.strings.upper(words)))
        return f(tf.constant(["b", "a"]))

    run(program, dtype).check()
