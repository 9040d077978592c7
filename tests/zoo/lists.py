"""Tensor lists: handles of type variant, whose element type the pass must colour for the whole list at once.

Names: `tl...` belong to the list that meets an allow op, `other...` to a list that does not.
"""

from __future__ import annotations

import functools
from typing import Any

from tests.zoo.case import Built, GraphCase, case, constant, from_function, functional, in_graph, square, unary


def _raw() -> Any:
    import tensorflow as tf

    return tf.raw_ops


def _reserve(name: str, elements: int = 2) -> Any:
    import tensorflow as tf

    return _raw().TensorListReserve(element_shape=[4, 4], num_elements=elements, element_dtype=tf.float32, name=name)


def _set(handle: Any, index: int, item: Any, name: str) -> Any:
    return _raw().TensorListSetItem(input_handle=handle, index=index, item=item, name=name)


def _get(handle: Any, index: int, name: str) -> Any:
    import tensorflow as tf

    return _raw().TensorListGetItem(input_handle=handle, index=index, element_shape=[4, 4], element_dtype=tf.float32, name=name)


def _other_list(name: str = "other") -> Any:
    """Returns what is read from a list that only float32 ops use."""
    handle = _set(_reserve(name), 0, unary("Exp", constant(f"{name}_x"), f"{name}_exp"), f"{name}_set")
    return unary("Exp", _get(handle, 0, f"{name}_get"), f"{name}_end")


def _set_get() -> list[Any]:
    first = square(unary("Relu", constant("x"), "c0"), "a0")
    handle = _set(_reserve("tl"), 0, first, "tl_set0")
    handle = _raw().TensorListResize(input_handle=handle, size=6, name="tl_resize")
    handle = _set(handle, 1, square(unary("Relu", first, "c1"), "a1"), "tl_set1")
    return [unary("Exp", unary("Relu", _get(handle, 0, "tl_get"), "c2"), "d0"), _other_list()]


def _push_pop() -> list[Any]:
    import tensorflow as tf

    empty = _raw().EmptyTensorList(element_shape=[4, 4], max_num_elements=8, element_dtype=tf.float32, name="tl")
    handle = _raw().TensorListPushBack(input_handle=empty, tensor=square(constant("x"), "a0"), name="tl_push0")
    handle = _raw().TensorListPushBack(input_handle=handle, tensor=unary("Relu", constant("y"), "c0"), name="tl_push1")
    handle, item = _raw().TensorListPopBack(input_handle=handle, element_shape=[4, 4], element_dtype=tf.float32, name="tl_pop0")
    last = _raw().TensorListPopBack(input_handle=handle, element_shape=[4, 4], element_dtype=tf.float32, name="tl_pop1").tensor
    return [unary("Exp", item, "d0"), unary("Exp", unary("Relu", last, "c1"), "d1"), _other_list()]


def _from_tensor() -> list[Any]:
    import tensorflow as tf

    product = square(unary("Relu", constant("x"), "c0"), "a0")
    handle = _raw().TensorListFromTensor(tensor=product, element_shape=[4], name="tl")
    stacked = _raw().TensorListStack(input_handle=handle, element_shape=[4], element_dtype=tf.float32, num_elements=4, name="tl_stack")
    return [unary("Exp", unary("Relu", stacked, "c1"), "d0"), _other_list()]


def _batch_and_concat() -> list[Any]:
    import tensorflow as tf

    first = _raw().TensorListFromTensor(tensor=square(constant("x"), "a0"), element_shape=[4], name="tl_first")
    second = _raw().TensorListFromTensor(tensor=constant("y"), element_shape=[4], name="tl_second")
    handles = tf.stack([first, second], name="pack")
    pushed = _raw().TensorListPushBackBatch(input_handles=handles, tensor=constant("z", 2, 4), name="tl_batch")
    one, two = tf.unstack(pushed, name="unpack")
    joined = _raw().TensorListConcatLists(input_a=one, input_b=two, element_dtype=tf.float32, name="tl_joined")
    item = _raw().TensorListGetItem(input_handle=joined, index=0, element_shape=[4], element_dtype=tf.float32, name="tl_get")
    return [unary("Exp", item, "d0"), _other_list()]


def _stopped_by_deny() -> list[Any]:
    """The list lies between two deny ops and between two allow ops: one denied member forbids the colour to all."""
    handle = _set(_reserve("tl"), 0, unary("Exp", constant("x"), "d0"), "tl_set0")
    handle = _set(handle, 1, square(constant("y"), "a0"), "tl_set1")
    return [square(_get(handle, 1, "tl_get1"), "a1"), unary("Exp", _get(handle, 0, "tl_get0"), "d1")]


def _fetched_member() -> Built:
    """A member of the list is fetched and so must stay float32; the rest of the list must stay with it."""

    def build() -> list[Any]:
        handle = _set(_reserve("tl"), 0, square(constant("x"), "a0"), "tl_set0")
        return [square(_get(handle, 0, "tl_get"), "a1")]

    graph_def, fetches = in_graph(build)
    return graph_def, ("tl_get", *fetches)


def _through_function() -> Built:
    import tensorflow as tf

    @tf.function(autograph=False)
    def push_and_pop(handle: Any) -> Any:
        handle = _raw().TensorListPushBack(input_handle=handle, tensor=square(constant("inner_x"), "inner_a"))
        handle, _ = _raw().TensorListPopBack(input_handle=handle, element_shape=[4, 4], element_dtype=tf.float32)
        return handle

    @tf.function(autograph=False)
    def outer(x: Any) -> tuple[Any, Any]:
        handle = _set(_reserve("tl"), 0, square(x, "a0"), "tl_set0")
        item = _get(push_and_pop(handle), 0, "tl_get")
        lone = _set(_reserve("lone"), 0, square(item, "a1"), "lone_set")
        return square(_get(lone, 0, "lone_get"), "a2"), unary("Exp", item, "d0")

    return from_function(outer, tf.TensorSpec([4, 4], tf.float32, name="x"))


def _through_while() -> Built:
    """A list whose elements come from an allow op before a functional loop and from a deny op inside it."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def fill(x: Any) -> Any:
        handle = _set(_reserve("tl", 3), 0, square(x, "a0"), "tl_set0")
        _, handle = tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, _set(h, i, tf.exp(x), "inner_set")), (1, handle))
        return square(_get(handle, 0, "tl_get"), "a1")

    return from_function(fill, tf.TensorSpec([4, 4], tf.float32, name="x"))


CASES: tuple[GraphCase, ...] = (
    case("list/set_get", functools.partial(in_graph, _set_get), "hand list",
         half="c0 a0 tl tl_set0 c1 a1 tl_set1 tl_get c2", casts=2, covers="TensorListSetGet"),
    case("list/set_get_bfloat16", functools.partial(in_graph, _set_get), "hand list", dtype="bfloat16",
         half="c0 a0 tl tl_set0 c1 a1 tl_set1 tl_get c2", casts=2, covers="Mkl.TensorListSetGet"),
    case("list/push_pop", functools.partial(in_graph, _push_pop), "hand list",
         half="a0 tl tl_push0 c0 tl_push1 tl_pop0 tl_pop1 c1", casts=4, covers="TensorListPushPop"),
    case("list/from_tensor", functools.partial(in_graph, _from_tensor), "hand list",
         half="c0 a0 tl tl_stack c1", casts=2, covers="TensorListFromTensor"),
    case("list/batch_and_concat", functools.partial(in_graph, _batch_and_concat), "hand list",
         half="a0 tl_first tl_second tl_batch tl_joined tl_get", casts=4,
         covers="TensorListPushBackBatchAndConcatLists"),
    case("list/stopped_by_deny", functools.partial(in_graph, _stopped_by_deny), "hand list",
         half="a0 a1", casts=4, note="the list lies between deny ops, too"),
    case("list/fetched_member", _fetched_member, "hand list", half="a0 a1", casts=4, note="a fetched list member"),
    *functional("list/through_function", _through_function, "hand list function",
                half="a0 a1 lone lone_set lone_get a2 Identity", casts=6, covers="TensorListThroughFunction"),
    *functional("list/through_while", _through_while, "hand list loop function", half="a0 tl tl_set0 tl_get a1 Identity", casts=2,
                note="the C++ pass does not see the list inside the functional loop, and its result does not run"),
)  # fmt: skip
