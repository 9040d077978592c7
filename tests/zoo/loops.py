"""Loops and branches, drawn as v1 control flow (Enter, Merge, Switch, NextIteration, Exit) or as functional ops.

Loop bodies and what surrounds them are written as words of colour letters: "w" is MatMul (allow), "g" Sqrt (infer), "c"
Relu (clear), "b" Exp (deny).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.zoo.case import Built, GraphCase, case, close_loop, constant, from_function, functional, in_graph, square, unary

_OPS = {"g": "Sqrt", "c": "Relu", "b": "Exp"}


def sequence(tensor: Any, letters: str, prefix: str) -> Any:
    """Returns `tensor` after one op per letter, named `prefix`, letter and position, such as "body_w0"."""
    for index, letter in enumerate(letters):
        name = f"{prefix}_{letter}{index}"
        tensor = square(tensor, name) if letter == "w" else unary(_OPS[letter], tensor, name)
    return tensor


def raw_loop(starts: Sequence[Any], body: Callable[[Sequence[Any]], Sequence[Any]], names: Sequence[str]) -> list[Any]:
    """Returns the exits of a v1 loop that runs until a counter reaches 3; `with_back_edges` closes it.

    Nodes of the loop variable `n` are named enter_n, merge_n, switch_n, next_n and exit_n.
    """
    import tensorflow as tf

    raw = tf.raw_ops
    merged = []
    for start, name in zip((tf.constant(0), *starts), ("count", *names), strict=True):
        enter = raw.Enter(data=start, frame_name="loop", name=f"enter_{name}")
        merged.append(raw.Merge(inputs=[enter, enter], name=f"merge_{name}").output)
    # The limit enters the frame as a loop invariant, as every tensor from outside must.
    limit = raw.Enter(data=tf.constant(3), frame_name="loop", is_constant=True, name="enter_limit")
    runs_on = raw.LoopCond(input=raw.Less(x=merged[0], y=limit, name="less"), name="loop_cond")
    switches = [raw.Switch(data=tensor, pred=runs_on, name=f"switch_{name}") for tensor, name in zip(merged, ("count", *names), strict=True)]
    step = raw.Enter(data=tf.constant(1), frame_name="loop", is_constant=True, name="enter_step")
    results = [switches[0].output_true + step, *body([switch.output_true for switch in switches[1:]])]
    for result, name in zip(results, ("count", *names), strict=True):
        raw.NextIteration(data=result, name=f"next_{name}")
    return [raw.Exit(data=switch.output_false, name=f"exit_{name}") for switch, name in zip(switches[1:], names, strict=True)]


def with_back_edges(build: Callable[[], list[Any]], back_edges: Mapping[str, str]) -> Callable[[], Built]:
    """Returns a builder that makes the graph of `build` and closes its loop: merge_x reads next_y for each x: y given."""

    def builder() -> Built:
        graph_def, fetches = in_graph(build)
        for merge, following in {"count": "count", **back_edges}.items():
            close_loop(graph_def, f"merge_{merge}", f"next_{following}")
        return graph_def, fetches

    return builder


def _simple_raw_loop(before: str, inside: str, after: str) -> Callable[[], Built]:
    def build() -> list[Any]:
        start = sequence(constant("x"), before, "before")
        (exit_v,) = raw_loop([start], lambda values: [sequence(values[0], inside, "body")], ["v"])
        return [sequence(exit_v, after, "after")]

    return with_back_edges(build, {"v": "v"})


def _two_variables() -> list[Any]:
    """Loop variable p lies between a deny and an infer op, q between allow ops; the body computes each from the other."""
    starts = [unary("Exp", constant("x"), "before_b"), square(constant("y"), "before_w")]

    def body(values: Sequence[Any]) -> list[Any]:
        return [square(values[1], "body_w"), unary("Relu", values[0], "body_c")]

    one, two = raw_loop(starts, body, ["p", "q"])
    return [unary("Sqrt", one, "after_g"), square(two, "after_w")]


def _functional_loop(before: str, inside: str, after: str) -> Callable[[], Built]:
    def build() -> Built:
        import tensorflow as tf

        @tf.function(autograph=False)
        def loop(x: Any) -> Any:
            start = sequence(x, before, "before")
            _, end = tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, sequence(v, inside, "body")), (tf.constant(0), start))
            return sequence(end, after, "after")

        return from_function(loop, tf.TensorSpec([4, 4], tf.float32, name="x"))

    return build


def _branches(then: str, otherwise: str) -> Callable[[], Built]:
    def build() -> Built:
        import tensorflow as tf

        @tf.function(autograph=False)
        def branch(x: Any) -> Any:
            start = sequence(x, "w", "before")
            end = tf.cond(tf.reduce_sum(x) > 0, lambda: sequence(start, then, "then"), lambda: sequence(start, otherwise, "else"))
            return sequence(end, "w", "after")

        return from_function(branch, tf.TensorSpec([4, 4], tf.float32, name="x"))

    return build


def _switch_case() -> Built:
    import tensorflow as tf

    @tf.function(autograph=False)
    def choose(x: Any, index: Any) -> Any:
        branches = [functools.partial(sequence, x, letters, f"branch{i}") for i, letters in enumerate(("wcw", "b", "c"))]
        return sequence(tf.switch_case(index, branches), "cw", "after")

    return from_function(choose, tf.TensorSpec([4, 4], tf.float32), tf.TensorSpec([], tf.int32))


def _gradient_through_loop() -> Built:
    import tensorflow as tf

    @tf.function(autograph=False)
    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, end = tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, tf.tanh(tf.matmul(v, x))), (0, x))
            loss = tf.reduce_mean(end)
        return loss, tape.gradient(loss, x)

    return from_function(gradient, tf.TensorSpec([4, 4], tf.float32, name="x"))


# Words before, inside and after the loop, in the spirit of the eight python cases propagation_through_simple_loop_1..8;
# beside them, what becomes half in the v1 drawing. All control flow nodes are half where an allow op is the loop's only
# influence; a deny op that reaches an infer op through the back edge keeps Merge and Switch float32.
_FLOW = " enter_v merge_v switch_v next_v exit_v"
_WORDS = (
    ("w", "c", "c", "before_w0 body_c0 after_c0" + _FLOW),
    ("c", "c", "w", "before_c0 body_c0 after_w0" + _FLOW),
    ("w", "g", "w", "before_w0 body_g0 after_w0" + _FLOW),
    ("w", "gbg", "w", "before_w0 enter_v exit_v after_w0"),
    ("b", "gwc", "c", "body_w1 body_c2"),
    ("b", "cwcg", "c", "body_c0 body_w1 body_c2 body_g3 after_c0" + _FLOW),
    ("c", "gwcg", "c", "before_c0 body_g0 body_w1 body_c2 body_g3 after_c0" + _FLOW),
    ("c", "cgbgwc", "g", "before_c0 body_c0 body_w4 body_c5" + _FLOW),
)

CASES: tuple[GraphCase, ...] = (
    *(
        case(
            f"loop/v1_{number}_{before}_{inside}_{after}", _simple_raw_loop(before, inside, after), "hand python loop",
            half=half, covers=f"propagation_through_simple_loop_{number}",
        )
        for number, (before, inside, after, half) in enumerate(_WORDS, 1)
    ),
    case("loop/colour_mismatch", with_back_edges(_two_variables, {"p": "p", "q": "q"}), "hand loop",
         half="before_w enter_q merge_q switch_q body_w body_c next_q exit_q after_w", casts=4,
         covers="RecurrentEdgeColorMismatch", note="next_p is between allow and clear ops, but its Merge is denied"),
    case("loop/shared_back_edge", with_back_edges(_two_variables, {"p": "p", "q": "p"}), "hand loop",
         half="before_w enter_q switch_q body_w next_q exit_q after_w",
         covers="RecurrentEdgeColorMismatch", note="one NextIteration, two Merges, of which one is denied; next_q, which feeds no "
              "Merge at all, has none that is denied"),
    *itertools.chain.from_iterable(
        functional(f"loop/while_{before}_{inside}_{after}", _functional_loop(before, inside, after), "python loop function")
        for before, inside, after in (("w", "gw", "c"), ("b", "cwcg", "w"), ("c", "w", "c"))
    ),
    *itertools.chain.from_iterable(
        functional(f"branch/if_{then}_{otherwise}", _branches(then, otherwise), "hand branch function")
        for then, otherwise in (("cw", "c"), ("gbg", "wc"), ("c", "g"))
    ),
    *functional("branch/case", _switch_case, "hand branch function"),
    *functional("loop/gradient", _gradient_through_loop, "hand loop function"),
)  # fmt: skip
