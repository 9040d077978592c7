"""Small chains and joins without loops, lists or functions: one rule of the pass each.

Names tell the list an op is on: `a` allow, `d` deny, `i` infer, `c` clear, `u` in no list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tests.zoo.case import LEVEL, Built, GraphCase, case, constant, in_graph, square, unary

# What stands for each colour in a chain. SparseMatMul is in no list; it is handled apart, since it has two inputs.
_CHAIN_OPS = {"a": "MatMul", "d": "Exp", "i": "Sqrt", "c": "Relu", "l": "Log", "u": "SparseMatMul"}


def _step(letter: str, tensor: Any, name: str) -> Any:
    import tensorflow as tf

    if letter == "a":
        return square(tensor, name)
    if letter == "u":
        return tf.raw_ops.SparseMatMul(a=tensor, b=tensor, name=name)
    return unary(_CHAIN_OPS[letter], tensor, name)


def chain(letters: str) -> Callable[[], Built]:
    """Returns a builder of one chain, a node per letter ("l" is Log, infer), named letter and position: a0, c1, ..."""

    def build() -> list[Any]:
        tensor = constant("x")
        for index, letter in enumerate(letters):
            tensor = _step(letter, tensor, f"{letter}{index}")
        return [tensor]

    return functools.partial(in_graph, build)


def _already(dtype: str) -> Callable[[], Built]:
    def build() -> list[Any]:
        import tensorflow as tf

        low = tf.cast(constant("x"), dtype, name="down")
        product = unary("Relu", square(low, "a0"), "c0")
        return [unary("Exp", tf.cast(product, tf.float32, name="up"), "d0")]

    return functools.partial(in_graph, build)


def _bidirectional() -> list[Any]:
    import tensorflow as tf

    x = constant("x")
    c0, c1 = unary("Relu", x, "c0"), unary("Relu", x, "c1")
    shapes = tf.raw_ops.ShapeN(input=[c0, c1], name="shapes")
    return [square(c0, "a0"), unary("Relu", c1, "c2"), *shapes]


def _preserved_fetches() -> Built:
    graph_def, fetches = in_graph(lambda: [square(unary("Relu", square(constant("x"), "a0"), "c0"), "a1")])
    return graph_def, ("a1", *fetches)


def _on_cpu(*pinned: str) -> Callable[[], Built]:
    def build() -> Built:
        graph_def, fetches = chain("caiac")()
        for node in graph_def.node:
            if not pinned or node.name in pinned:
                node.device = "/job:localhost/replica:0/task:0/device:CPU:0"
        return graph_def, fetches

    return build


def _identity_after_variable() -> list[Any]:
    import tensorflow as tf

    x = constant("x")
    variable = tf.raw_ops.VariableV2(shape=[4, 4], dtype=tf.float32, name="variable")
    read = tf.raw_ops.Identity(input=variable, name="read")
    copy = tf.raw_ops.Identity(input=constant("y"), name="copy")
    return [tf.raw_ops.MatMul(a=x, b=read, name="a0"), tf.raw_ops.MatMul(a=x, b=copy, name="a1")]


def _fused_batch_norm(version: str) -> Callable[[], Built]:
    def build() -> list[Any]:
        import tensorflow as tf

        x, filters, vector = constant("x", 2, 8, 8, 1), constant("filters", 3, 3, 1, 4), constant("vector", 4)
        conv = tf.raw_ops.Conv2D(input=x, filter=filters, strides=[1] * 4, padding="SAME", name="a0")
        forward = getattr(tf.raw_ops, f"FusedBatchNorm{version}")
        backward = getattr(tf.raw_ops, f"FusedBatchNormGrad{version}")
        norm = forward(x=conv, scale=vector, offset=vector, mean=[], variance=[], is_training=True, name="i0")
        saved = [norm.reserve_space_1, norm.reserve_space_2]
        if version == "V3":
            saved.append(norm.reserve_space_3)
        named = {f"reserve_space_{index}": tensor for index, tensor in enumerate(saved, 1)}
        grad = backward(y_backprop=norm.y, x=conv, scale=vector, is_training=True, name="i1", **named)
        return [norm.y, norm.batch_mean, grad.x_backprop, grad.scale_backprop]

    return functools.partial(in_graph, build)


def _repeated_and_listed() -> list[Any]:
    import tensorflow as tf

    product = square(constant("x"), "a0")
    copies = tf.raw_ops.IdentityN(input=[product, product, product], name="c0")
    return [square(tf.raw_ops.AddN(inputs=copies, name="i0"), "a1")]


def _mixed_list() -> list[Any]:
    import tensorflow as tf

    danger = unary("Exp", constant("x"), "d0")
    copies = tf.raw_ops.IdentityN(input=[square(constant("y"), "a0"), danger, tf.constant(3)], name="c0")
    return [square(copies[0], "a1"), unary("Relu", copies[1], "c1"), copies[2]]


def _existing_cast() -> list[Any]:
    import tensorflow as tf

    flags = tf.constant(True, shape=(4, 4), name="flags")
    return [square(tf.raw_ops.Cast(x=flags, DstT=tf.float32, name="cast"), "a0")]


def _cast_with_two_readers() -> list[Any]:
    import tensorflow as tf

    flags = tf.constant(True, shape=(4, 4), name="flags")
    cast = tf.raw_ops.Cast(x=flags, DstT=tf.float32, name="cast")
    return [square(cast, "a0"), unary("Exp", cast, "d0")]


def _batch_matmul() -> list[Any]:
    import tensorflow as tf

    x = constant("x", 2, 4, 4)
    return [tf.raw_ops.BatchMatMul(x=x, y=x, name="a0"), tf.raw_ops.BatchMatMulV2(x=x, y=x, name="a1")]


def _between(op_type: str) -> Callable[[], Built]:
    return functools.partial(in_graph, lambda: [square(unary(op_type, square(constant("x"), "a0"), "op"), "a1")])


def _mixed_fanout() -> list[Any]:
    product = square(constant("x"), "a0")
    return [square(product, "a1"), unary("Exp", product, "d0")]


def _follow(first: str) -> Callable[[], Built]:
    def build() -> list[Any]:
        import tensorflow as tf

        x, bias = constant("x", 2, 8, 8, 1), constant("bias", 1)
        if first == "Conv2D":
            filters = constant("filters", 3, 3, 1, 1)
            start = tf.raw_ops.Conv2D(input=x, filter=filters, strides=[1] * 4, padding="SAME", name="start")
        else:
            start = tf.raw_ops.Pow(x=x, y=constant("power", 1), name="start")
        biased = tf.raw_ops.BiasAdd(value=start, bias=bias, name="i0")
        return [unary("Exp", biased, "d0") if first == "Conv2D" else unary("Relu", biased, "c0")]

    return functools.partial(in_graph, build)


# The ops that TensorFlow's tests put between two MatMuls, each in a case of its own there (EluOp, ErfOp, ...).
BETWEEN_OPS = (
    "Elu", "Erf", "Erfc", "Inv", "Log", "Log1p", "LogSoftmax", "Reciprocal", "Sigmoid", "Softmax", "Softplus", "Sqrt",
    "Tanh",
)  # fmt: skip

_SIMPLE = "dcicaclcuc"

CASES: tuple[GraphCase, ...] = (
    case("chain/no_op", chain("dcic"), "hand chain", half="", casts=0, covers="NoOp"),
    case("chain/already_float16", _already("float16"), "hand chain", half="", casts=0, covers="AlreadyFp16"),
    case("chain/simple", chain(_SIMPLE), "hand chain", half="c3 a4 c5", casts=2, covers="Simple Cpu.Simple SimulateGpu.Simple_SimulatedGpu"),
    case(
        "chain/infer_as_deny", chain("cacicac"), "hand chain",
        environment={LEVEL: "TREAT_INFER_AS_DENY"}, half="c0 a1 c2 c4 a5 c6", casts=4, covers="NoInferOp",
    ),
    case(
        "chain/both_directions", functools.partial(in_graph, _bidirectional), "hand chain",
        half="c0 c1 shapes a0 c2", casts=3, covers="BidirectionalClearChain",
    ),
    case("chain/fetched", _preserved_fetches, "hand chain", half="a0 c0", casts=2, covers="PreserveFetches"),
    case("chain/one_on_cpu", _on_cpu("a3"), "hand chain device", half="c0 a1 i2", following="i2", casts=2, covers="PreserveCPUNodes"),
    case("chain/all_on_cpu", _on_cpu(), "hand chain device", half="", casts=0, covers="SimulateGpu.Simple_SimulatedGpu_CpuScope SimulateGpu.Simple_NoGpu",
         note="without a GPU, the colours are the same: none"),
    case(
        "chain/reference_variable", functools.partial(in_graph, _identity_after_variable), "hand chain variables",
        half="copy a0 a1", casts=5, covers="PreserveIdentityAfterVariable",
    ),
    *(
        case(
            f"chain/fused_batch_norm{version.lower()}", _fused_batch_norm(version), "hand chain",
            half="a0 i0 i1", following="i0 i1", casts=4, covers="FusedBatchNorm",
        )
        for version in ("", "V2", "V3")
    ),
    case(
        "chain/repeated_and_listed", functools.partial(in_graph, _repeated_and_listed), "hand chain",
        half="a0 c0 i0 a1", casts=2, covers="RepeatedAndListTypeAttrs",
    ),
    case(
        "chain/list_of_two_colours", functools.partial(in_graph, _mixed_list), "hand chain",
        half="a0 c0 a1", casts=2, note="one IdentityN of which only the first entry may turn",
    ),
    case(
        "chain/existing_cast", functools.partial(in_graph, _existing_cast), "hand chain",
        half="cast a0", casts=1, covers="ExistingCast",
    ),
    case(
        "chain/existing_cast_shared", functools.partial(in_graph, _cast_with_two_readers), "hand chain",
        half="a0", casts=2, note="the Cast has a float32 reader, too, and stays",
    ),
    case("chain/batch_matmul", functools.partial(in_graph, _batch_matmul), "hand chain", half="a0 a1", casts=3,
         covers="BatchMatMul"),
    *(
        case(f"chain/{op_type.lower()}", _between(op_type), "hand chain", half="a0 op a1", casts=2, covers=f"{op_type}Op")
        for op_type in BETWEEN_OPS
    ),
    case(
        "chain/mixed_fanout", functools.partial(in_graph, _mixed_fanout), "hand chain", half="a0 a1", casts=3,
        covers="Cpu.MixedFanout",
    ),
    case("chain/already_bfloat16", _already("bfloat16"), "hand chain", dtype="bfloat16", half="", casts=0,
         covers="Mkl.AlreadyBf16"),
    case("chain/simple_bfloat16", chain(_SIMPLE), "hand chain", dtype="bfloat16", half="c3 a4 c5", casts=2,
         covers="Mkl.Simple"),
    case("chain/infer_after_allow", _follow("Conv2D"), "hand chain", dtype="bfloat16", half="start i0", casts=4,
         covers="Mkl.InferFollowUpStreamAllow"),
    case("chain/infer_after_deny", _follow("Pow"), "hand chain", dtype="bfloat16", half="", casts=0,
         covers="Mkl.InferFollowUpStreamDeny"),
)  # fmt: skip
