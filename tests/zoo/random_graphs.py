"""Random graphs over all four op lists, tensor lists, existing casts, variables and loops: whatever nobody thought of.

Every tensor in the pool is a float32 [4, 4], so any op may read any tensor. The same seed gives the same graph.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.zoo.case import Built, GraphCase, case, constant, in_graph, square, unary
from tests.zoo.loops import raw_loop, with_back_edges

Pick = Callable[[], Any]  # returns a tensor of the pool
Maker = Callable[[Pick, str], Sequence[Any]]  # takes a Pick and a node name, returns new tensors for the pool


def _raw() -> Any:
    import tensorflow as tf

    return tf.raw_ops


def _unary(op_type: str) -> Maker:
    return lambda pick, name: [unary(op_type, pick(), name)]


def _binary(op_type: str) -> Maker:
    return lambda pick, name: [getattr(_raw(), op_type)(x=pick(), y=pick(), name=name)]


def _product(op_type: str) -> Maker:
    return lambda pick, name: [getattr(_raw(), op_type)(a=pick(), b=pick(), name=name)]


def _add_n(pick: Pick, name: str) -> Sequence[Any]:
    return [_raw().AddN(inputs=[pick(), pick(), pick()], name=name)]


def _identity_n(pick: Pick, name: str) -> Sequence[Any]:
    return list(_raw().IdentityN(input=[pick(), pick()], name=name))


def _reduction(op_type: str) -> Maker:
    def make(pick: Pick, name: str) -> Sequence[Any]:
        reduced = getattr(_raw(), op_type)(input=pick(), axis=[0], keep_dims=True, name=name)
        return [_raw().Add(x=pick(), y=reduced, name=f"{name}_spread")]

    return make


def _bias_add(pick: Pick, name: str) -> Sequence[Any]:
    return [_raw().BiasAdd(value=pick(), bias=_raw().Reshape(tensor=pick()[0], shape=[4]), name=name)]


def _join_and_split(pick: Pick, name: str) -> Sequence[Any]:
    joined = _raw().ConcatV2(values=[pick(), pick()], axis=1, name=name)
    return list(_raw().Split(axis=1, value=joined, num_split=2, name=f"{name}_split"))


def _turn(pick: Pick, name: str) -> Sequence[Any]:
    return [_raw().Transpose(x=_raw().Reshape(tensor=pick(), shape=[4, 4], name=f"{name}_r"), perm=[1, 0], name=name)]


def _select(pick: Pick, name: str) -> Sequence[Any]:
    above = _raw().Greater(x=pick(), y=pick(), name=f"{name}_above")
    return [_raw().SelectV2(condition=above, t=pick(), e=pick(), name=name)]


def _shapes(pick: Pick, name: str) -> Sequence[Any]:
    shape, _ = _raw().ShapeN(input=[pick(), pick()], name=name)
    return [_raw().Fill(dims=shape, value=0.5, name=f"{name}_fill")]


def _there_and_back(through: str) -> Maker:
    def make(pick: Pick, name: str) -> Sequence[Any]:
        import tensorflow as tf

        other = _raw().Cast(x=pick(), DstT=tf.dtypes.as_dtype(through), name=name)
        return [_raw().Cast(x=other, DstT=tf.float32, name=f"{name}_back")]

    return make


def _batch_norm(pick: Pick, name: str) -> Sequence[Any]:
    vector = constant(f"{name}_vector", 4)
    image = _raw().Reshape(tensor=pick(), shape=[1, 2, 2, 4], name=f"{name}_image")
    norm = _raw().FusedBatchNormV3(x=image, scale=vector, offset=vector, mean=[], variance=[], name=name)
    return [_raw().Reshape(tensor=norm.y, shape=[4, 4], name=f"{name}_flat")]


def _tensor_list(pick: Pick, name: str) -> Sequence[Any]:
    import tensorflow as tf

    shape: Mapping[str, Any] = {"element_shape": [4, 4], "element_dtype": tf.float32}
    handle = _raw().TensorListReserve(num_elements=2, name=name, **shape)
    for index in range(2):
        handle = _raw().TensorListSetItem(input_handle=handle, index=index, item=pick(), name=f"{name}_set{index}")
    return [_raw().TensorListGetItem(input_handle=handle, index=index, name=f"{name}_get{index}", **shape) for index in range(2)]


def _variable(pick: Pick, name: str) -> Sequence[Any]:
    import tensorflow as tf

    handle = _raw().VarHandleOp(dtype=tf.float32, shape=[4, 4], shared_name=name, name=f"{name}_handle")
    with tf.control_dependencies([_raw().AssignVariableOp(resource=handle, value=pick(), name=f"{name}_assign")]):
        return [_raw().ReadVariableOp(resource=handle, dtype=tf.float32, name=name)]


# Ops without constants of their own, and so fit for a loop's frame; MatMul is frequent, as in real graphs.
_PLAIN: dict[str, Maker] = {
    **{op: _unary(op) for op in ("Exp", "Expm1", "Sqrt", "Tanh", "Softmax", "Elu", "Relu", "Neg", "Identity", "Sin")},
    **{op: _binary(op) for op in ("Pow", "Mul", "AddV2", "Sub", "RealDiv", "Maximum", "Xdivy")},
    **{name: _product("MatMul") for name in ("MatMul", "MatMul_2", "MatMul_3", "MatMul_4")},
    "SparseMatMul": _product("SparseMatMul"),
    "AddN": _add_n,
    "IdentityN": _identity_n,
    "Select": _select,
    "CastHalf": _there_and_back("float16"),
    "CastInt": _there_and_back("int32"),
}
_ALL: dict[str, Maker] = {
    **_PLAIN,
    "Sum": _reduction("Sum"),
    "Mean": _reduction("Mean"),
    "Max": _reduction("Max"),
    "BiasAdd": _bias_add,
    "Concat": _join_and_split,
    "Transpose": _turn,
    "ShapeN": _shapes,
    "FusedBatchNorm": _batch_norm,
    "TensorList": _tensor_list,
    "Variable": _variable,
}


def _grow(rng: random.Random, pool: list[Any], makers: Mapping[str, Maker], steps: int, prefix: str) -> None:
    """Adds `steps` random ops to the graph and their outputs to `pool`; recent tensors are read more often."""
    names = sorted(makers)

    def pick() -> Any:
        return pool[max(rng.randrange(len(pool)), rng.randrange(len(pool)))]

    for index in range(steps):
        name = rng.choice(names)
        pool.extend(makers[name](pick, f"{prefix}{index}_{name}"))


def random_graph(seed: int, steps: int) -> Built:
    """Returns a random graph of about 1.5 `steps` nodes with three fetches; every third seed has a loop in the middle."""
    rng = random.Random(seed)
    has_loop = seed % 3 == 0

    def build() -> list[Any]:
        pool = [constant("x"), unary("Relu", constant("y"), "start"), square(constant("z"), "start_product")]
        _grow(rng, pool, _ALL, steps // 2, "before")
        if has_loop:
            pool.extend(raw_loop(rng.sample(pool, 2), body, ["p", "q"]))
        _grow(rng, pool, _ALL, steps // 2, "after")
        return rng.sample(pool[-6:], 3)

    def body(values: Sequence[Any]) -> list[Any]:
        pool = list(values)
        _grow(rng, pool, _PLAIN, 8, "body")
        return rng.sample(pool[-4:], 2)

    return with_back_edges(build, {"p": "p", "q": "q"})() if has_loop else in_graph(build)


CASES: tuple[GraphCase, ...] = tuple(
    case(f"random/{seed:02}", functools.partial(random_graph, seed, 20 + 4 * seed), "random" + " loop" * (seed % 3 == 0)) for seed in range(30)
)
