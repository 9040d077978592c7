"""What the rewritten graphs look like: lists against the op registry, one cast a tensor, idempotence, and grappler working on the result."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels, op_def_registry

import tfmp
from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run
from tfmp.oplists import NOT_IN_PIP_TENSORFLOW, ROWS

X, W = normal(4, 8), normal(8, 8, seed=12)

HEAVY = ("MatMul", "Conv", "Einsum", "RNN", "LSTM", "GRU")
LEFT_OUT = {
    "_": "made by later graph optimizers and by oneDNN's own pass, never by a user's graph",
    "Quantized": "multiplies integers",
    "UniformQuantized": "multiplies integers",
    "Xla": "made by the XLA bridge, inside what is compiled already",
    "CudnnRNNCanonicalToParams": "packs weights",
    "CudnnRNNParams": "packs weights, or says how large they are",
    "BatchMatMulV3": "has an output type of its own; no Python API makes it",
    "Conv": "the generic convolution, which no Python API makes",
    "FusedResizeAndPadConv2D": "made for mobile inference by the graph transform tool; CPU only",
    "SparseMatMul": "has bfloat16 in its definition but no half",
    "SparseMatrix": "works on CSR matrices, which are variants",
    "SparseTensorDenseMatMul": "has no mixed kernel for values and dense operand",
    "TridiagonalMatMul": "is a stencil: bound by memory",
}
"""Heavy ops that are on no list, by the beginning of their name, and why."""


def test_every_listed_op_is_registered() -> None:  # R8
    assert {row.op for row in ROWS if op_def_registry.get(row.op) is None} == NOT_IN_PIP_TENSORFLOW


def test_every_heavy_op_with_a_kernel_is_listed_or_left_out_for_a_reason() -> None:  # R8
    registered = {kernel.op for kernel in kernels.get_all_registered_kernels().kernel}
    heavy = {op for op in registered if any(word in op for word in HEAVY)} - {row.op for row in ROWS}
    exact = {"BatchMatMulV3", "Conv", "SparseMatMul"}
    reasons = {op: [start for start in LEFT_OUT if op == start or (start not in exact and op.startswith(start))] for op in heavy}
    assert heavy
    assert not [op for op, starts in reasons.items() if not starts]
    assert {start for starts in reasons.values() for start in starts} == set(LEFT_OUT)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_products_of_every_rank(dtype: str, jit: bool, rank: int) -> None:  # R8
    x, w = normal(*[2] * (rank - 2), 4, 8), normal(*[2] * (rank - 2), 8, 4, seed=12)

    def program() -> Any:
        f = tf.function(lambda x, w: (tf.matmul(x, w), tf.einsum("...ij,...jk->...ik", x, w), tf.linalg.matvec(x, w[..., 0])), jit_compile=jit)
        program.f = f
        return f(x, w)

    run(program, dtype).check()
    nodes = on_off.convert(program.f, x, w, dtype=dtype)
    assert nodes.types("MatMul", "BatchMatMulV2", "Einsum") == [dtype]


def test_every_kind_of_convolution_and_its_gradient(dtype: str, jit: bool) -> None:  # R115
    images, seven, three = normal(2, 9, 7, 3), normal(7, 7, 3, 5, seed=12), normal(3, 3, 3, 2, seed=13)
    convolutions = {
        "1x1": lambda three, seven: tf.nn.conv2d(images, three[:1, :1], 1, "VALID"),
        "7x7": lambda three, seven: tf.nn.conv2d(images, seven, 1, "SAME"),
        "strided": lambda three, seven: tf.nn.conv2d(images, seven, 2, "SAME"),
        "depthwise": lambda three, seven: tf.nn.depthwise_conv2d(images, three, [1, 1, 1, 1], "SAME"),
        "transposed": lambda three, seven: tf.nn.conv2d_transpose(images, tf.transpose(three, [0, 1, 3, 2]), [2, 18, 14, 2], 2),
        "three-dimensional": lambda three, seven: tf.nn.conv3d(images[None], three[None], [1] * 5, "SAME"),
    }

    def program() -> Any:
        @tf.function(jit_compile=jit)
        def f(three: tf.Tensor, seven: tf.Tensor) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                tape.watch([three, seven])
                results = {name: convolution(three, seven) for name, convolution in convolutions.items()}
                losses = [tf.reduce_mean(result**2) for result in results.values()]
            return results, tape.gradient(losses, [three, seven])

        program.f = f
        return f(three, seven)

    run(program, dtype).check()
    nodes = on_off.convert(program.f, three, seven, dtype=dtype)
    assert nodes.types("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "DepthwiseConv2dNative", "Conv3D") == [dtype]


AFTER_A_PRODUCT = {
    "relu": tf.nn.relu, "relu6": tf.nn.relu6, "leaky": tf.nn.leaky_relu, "elu": tf.nn.elu, "selu": tf.nn.selu, "gelu": tf.nn.gelu, "swish": tf.nn.swish,
    "softplus": tf.nn.softplus, "softsign": tf.nn.softsign, "tanh": tf.tanh, "sigmoid": tf.sigmoid, "softmax": tf.nn.softmax, "log": tf.nn.log_softmax,
    "mean": lambda y: tf.reduce_mean(y, -1), "max": lambda y: tf.reduce_max(y, -1), "abs": tf.abs, "square": tf.square, "minimum": lambda y: tf.minimum(y, 0.5),
    "where": lambda y: tf.where(y > 0, y, 0.5 * y), "concat": lambda y: tf.concat([y, 2.0 * y], -1), "pad": lambda y: tf.pad(y, [[0, 0]] * 3 + [[1, 2]]),
    "transpose": lambda y: tf.transpose(y, [0, 3, 1, 2]), "slice": lambda y: y[..., 1:3], "gather": lambda y: tf.gather(y, [2, 0, 2], axis=-1),
    "tile": lambda y: tf.tile(y, [1, 1, 1, 2]), "one hot": lambda y: tf.one_hot(tf.argmax(y, -1), 8) * y, "bias": lambda y: tf.nn.bias_add(y, W[0]),
    "local response": lambda y: tf.nn.local_response_normalization(y, 2), "max pool": lambda y: tf.nn.max_pool2d(y, 2, 1, "SAME"),
    "average pool": lambda y: tf.nn.avg_pool2d(y, 2, 1, "SAME"), "resize": lambda y: tf.image.resize(y, [7, 5]), "depth": lambda y: tf.nn.space_to_depth(y, 2),
    "batch norm": lambda y: tf.compat.v1.nn.fused_batch_norm(y, tf.ones([8]), tf.zeros([8]))[0], "normalise": lambda y: tf.math.l2_normalize(y, -1),
    "top": lambda y: tf.math.top_k(y, 3).values, "clip": lambda y: tf.clip_by_value(y, -1.0, 1.0), "cumulative": lambda y: tf.cumsum(y, -1),
}  # fmt: skip
"""What people do with what a matrix multiplication or convolution gives."""


def test_xla_compiles_whatever_follows_a_product_and_its_gradient(dtype: str) -> None:  # R113
    """XLA wants all operands of an op in one type, and has no 16-bit form of some: all in one program, since compiling takes the time."""
    images = normal(2, 4, 4, 8, scale=0.5)

    def program() -> Any:
        @tf.function(jit_compile=True, autograph=False)
        def f(w: tf.Tensor) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(w)
                results = {name: make(tf.matmul(images, w)) for name, make in AFTER_A_PRODUCT.items()}
                losses = [tf.reduce_mean(result**2) for result in results.values()]
            return losses, tape.gradient(losses, w)

        return f(W * 0.25)

    run(program, dtype).check(4 * on_off.ROUNDINGS)


def test_a_weight_is_cast_once_for_all_its_readers_and_in_its_own_shape(dtype: str) -> None:  # R131
    f = tf.function(lambda x, w: tf.einsum("bij,jk->bik", tf.reshape(x @ w, [1, 4, 8]), w) @ w)
    nodes = on_off.convert(f, X, W, dtype=dtype)
    sources = [node.input[0] for node in nodes.of("Cast") if node.attr["SrcT"].type == tf.float32.as_datatype_enum]
    assert sorted(sources) == ["w", "x"]


def test_no_transposes_are_added_and_layouts_stay(dtype: str) -> None:  # R125
    f = tf.function(lambda x: tf.nn.relu(tf.nn.conv2d(x, normal(3, 3, 3, 4), 1, "SAME")))
    nodes = on_off.convert(f, normal(1, 8, 8, 3), dtype=dtype)
    assert not list(nodes.of("Transpose"))
    assert [node.attr["data_format"].s for node in nodes.of("Conv2D")] == [b"NHWC"]


def test_rewriting_twice_changes_nothing(dtype: str) -> None:  # R10
    graph = tf.function(lambda x: tf.nn.softmax(tf.nn.relu(x @ W) @ W)).get_concrete_function(X).graph.as_graph_def()
    once = tfmp.convert_graph_def(graph, dtype=dtype, device="CPU")
    twice = tfmp.convert_graph_def(once.graph_def, dtype=dtype, device="CPU")
    assert once.changed
    assert not twice.changed
    assert twice.graph_def.SerializeToString(deterministic=True) == once.graph_def.SerializeToString(deterministic=True)


def test_no_cast_reads_a_cast_that_tfmp_added(dtype: str) -> None:  # R10
    f = tf.function(lambda x: tf.reduce_mean(tf.exp(tf.nn.relu(x @ W) @ W) @ W) + tf.reduce_sum(x @ W))
    nodes = on_off.convert(f, X, dtype=dtype)
    casts = {f"{node.name}:y:0" for node in nodes.of("Cast")}
    assert casts
    assert not [node.name for node in nodes.of("Cast") if node.input[0] in casts]


def test_what_runs_has_no_round_trip_between_convolution_and_activation(dtype: str) -> None:  # R7
    kernel, ones, zeros = normal(3, 3, 3, 4, seed=12), tf.ones([4]), tf.zeros([4])

    def block(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        y = tf.nn.conv2d(x, kernel, 1, "SAME")
        return tf.nn.relu(tf.compat.v1.nn.fused_batch_norm(y, ones, zeros, zeros, ones, is_training=False)[0])

    def program() -> Any:
        f = tf.function(block)
        context.enable_run_metadata()
        result = f(normal(2, 8, 8, 3), kernel)
        program.graphs = context.export_run_metadata().partition_graphs
        context.disable_run_metadata()
        return result

    run(program, dtype).check()
    casts = [node for graph in program.graphs for node in graph.node if node.op == "Cast"]
    assert len(casts) == 3  # the images and the kernel in, the result out


def test_an_op_that_the_user_denies_stays_float32(dtype: str) -> None:  # R124
    f = tf.function(lambda x: tf.nn.depthwise_conv2d(x, normal(3, 3, 3, 2), [1, 1, 1, 1], "SAME"))
    x = normal(1, 8, 8, 3)
    assert on_off.convert(f, x, dtype=dtype).types("DepthwiseConv2dNative") == [dtype]
    assert on_off.convert(f, x, dtype=dtype, denylist_add="DepthwiseConv2dNative").types("DepthwiseConv2dNative") == ["float32"]


def test_the_enabling_function_says_what_dynamic_means() -> None:  # R143
    text = tfmp.enable_mixed_precision_graph_rewrite.__doc__
    assert "starts at 2**15, doubles after 2000 good steps, halves at an overflow" in text
