"""What `benchmarks/quality.py` measures with: figures by hand, the bound against trying every colouring, and the lists that it reads off TensorFlow's pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import bound, flips
from benchmarks.costs import FLOPS, costs, redundant_casts, rounded_slots, unsafe_ops
from benchmarks.flat import Flat, Program
from benchmarks.steps import UPDATE
from tests.oracle.tf_pass import unavailable_reason
from tfmp import oplists, tf_api
from tfmp.colouring.network import PER_CAST, SAVED

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason() or "there")

ROWS, WIDTH = 4, 8
FLOAT, HALF = 4, 2
HANDLE = {"dtype": tf.float32, "shape": [WIDTH, WIDTH]}


def program(build: Callable[[Any], Any]) -> Program:
    """Returns what `build` makes of a placeholder "x"; its result is fetched, in float32, and so are all assignments."""
    with tf.Graph().as_default() as graph:
        result = tf.cast(build(tf.compat.v1.placeholder(tf.float32, [ROWS, WIDTH], name="x")), tf.float32)
        tf.identity(result, name="result_0")
        tf.group(*(one for one in graph.get_operations() if one.type.startswith("Assign")), name="effects")
    return Program(Flat(graph.as_graph_def(), ["result_0", "effects"]))


def handle(name: str = "v") -> Any:
    """Returns a variable's handle."""
    return tf.raw_ops.VarHandleOp(shared_name=name, name=name, **HANDLE)


def read(of: Any, name: str) -> Any:
    """Returns a read of a variable."""
    return tf.raw_ops.ReadVariableOp(resource=of, dtype=tf.float32, name=name)


def test_traffic_casts_and_coverage_by_hand() -> None:
    def build(x: Any) -> Any:
        y = tf.matmul(tf.cast(x, tf.float16), tf.cast(read(handle(), "w"), tf.float16))
        with tf.name_scope(UPDATE):
            tf.raw_ops.AssignSubVariableOp(resource=handle(), value=tf.fill([WIDTH, WIDTH], 1.0))
        return tf.matmul(tf.reshape(tf.cast(tf.nn.relu(y), tf.float32), [ROWS, WIDTH]), tf.ones([WIDTH, WIDTH]))

    found = costs(program(build))
    x, w = ROWS * WIDTH, WIDTH * WIDTH
    assert (found.casts, found.coverage) == (3, 0.5)
    assert found.cast_bytes == (2 * x + w) * (FLOAT + HALF)
    fill = w * FLOAT + FLOAT
    products = (x + w + x) * HALF + (x + w + x) * FLOAT
    assert found.without_update == found.cast_bytes + products + 2 * x * HALF
    assert found.traffic == found.without_update + fill + 3 * w * FLOAT  # reads value and variable, writes the variable


def test_a_cast_belongs_to_the_update_only_if_the_update_made_what_it_casts() -> None:
    def build(x: Any) -> Any:
        with tf.name_scope(UPDATE):
            gradient = tf.cast(tf.identity(tf.cast(x, tf.float16, name="gradient")), tf.float32, name="handed_over")
            return tf.cast(tf.multiply(gradient, 2.0, name="made"), tf.float16, name="cast")

    found = program(build)
    assert {name for name in found.update if found.nodes[name].op != "Const"} == {f"{UPDATE}/{name}" for name in ("Identity", "made", "cast")} | {"Cast"}


def test_casts_are_redundant_in_chains_and_twice_of_one_tensor() -> None:
    def build(x: Any) -> Any:
        first = tf.cast(x, tf.float16, name="first")
        second = tf.cast(tf.reshape(x, [-1]), tf.float16, name="second")
        other = tf.cast(x, tf.bfloat16, name="other")
        chain = tf.cast(tf.reshape(tf.cast(first * 2.0, tf.float32, name="up"), [-1]), tf.float16, name="down")
        return sum(tf.reduce_max(tf.cast(one, tf.float32, name=f"end{number}")) for number, one in enumerate((second * 2.0, other * 2.0, chain * 2.0)))

    assert set(redundant_casts(program(build))) == {"second", "down"}


def test_two_reads_of_a_variable_are_one_tensor_unless_a_write_comes_between() -> None:
    def build(x: Any) -> Any:
        of = handle()
        first, second = (tf.cast(read(of, f"read{number}"), tf.float16, name=f"cast{number}") for number in (0, 1))
        with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=of, value=tf.ones([WIDTH, WIDTH]))]):
            third = tf.cast(read(of, "read2"), tf.float16, name="cast2")
        return tf.matmul(tf.cast(x, tf.float16), first * second * third)

    assert list(redundant_casts(program(build))) == ["cast1"]


def test_slots_are_rounded_between_read_and_write_but_not_through_products() -> None:
    def build(x: Any) -> Any:
        slot, weight = handle("slot"), handle("weight")
        gradient = tf.matmul(tf.cast(x, tf.float16), tf.cast(x, tf.float16), transpose_a=True, name="gradient")
        moved = tf.subtract(gradient, tf.cast(read(slot, "m"), tf.float16, name="rounded_m"), name="rounded")
        tf.raw_ops.AssignAddVariableOp(resource=slot, value=tf.cast(moved, tf.float32))
        product = tf.matmul(gradient, tf.cast(read(weight, "w"), tf.float16), name="product")
        tf.raw_ops.AssignSubVariableOp(resource=weight, value=tf.cast(product, tf.float32))
        return x

    assert rounded_slots(program(build)) == {"rounded_m", "rounded"}


def test_what_is_unsafe() -> None:
    def build(x: Any) -> Any:
        half = tf.cast(x, tf.float16)
        narrow = tf.exp(half, name="exp"), tf.reduce_sum(half, name="sum"), tf.reduce_mean(half, name="mean"), tf.nn.softmax(half, name="softmax")
        wide = tf.exp(x, name="wide_exp")
        return sum(tf.reduce_max(tf.cast(one, tf.float32)) for one in (*narrow, wide))

    assert unsafe_ops(program(build)) == {"exp", "sum", "mean"}


@pytest.mark.parametrize(("dtype", "found"), [(tf.float16, 1), (tf.float32, 0)])
def test_a_sum_over_the_steps_of_a_loop_is_unsafe_in_16_bit(dtype: Any, found: int) -> None:
    def build(x: Any) -> Any:
        body = lambda step, total: (step + 1, total + tf.cast(tf.cast(x, tf.float16) * 2.0, dtype))  # noqa: E731
        tf.compat.v1.disable_control_flow_v2()
        try:
            return tf.compat.v1.while_loop(lambda step, _: step < 3, body, (0, tf.zeros([ROWS, WIDTH], dtype)))[1]
        finally:
            tf.compat.v1.enable_control_flow_v2()

    assert len(unsafe_ops(program(build))) == found


IMAGE, VOLUME = [2, 8, 8, 3], [2, 4, 4, 4, 3]


@pytest.mark.parametrize(
    ("build", "flops"),
    [
        (lambda: tf.matmul(tf.ones([5, 4]), tf.ones([4, 6])), 2 * 5 * 4 * 6),
        (lambda: tf.matmul(tf.ones([3, 4, 5]), tf.ones([3, 4, 6]), transpose_a=True), 2 * 3 * 5 * 4 * 6),
        (lambda: tf.raw_ops.Einsum(inputs=[tf.ones([2, 5, 3, 4]), tf.ones([2, 6, 3, 4])], equation="btnh,bfnh->bnft"), 2 * 2 * 5 * 3 * 4 * 6),
        (lambda: tf.nn.conv2d(tf.ones(IMAGE), tf.ones([3, 3, 3, 7]), 2, "SAME"), 2 * (2 * 4 * 4 * 7) * 3 * 3 * 3),
        (lambda: tf.raw_ops.Conv2DBackpropInput(input_sizes=IMAGE, filter=tf.ones([3, 3, 3, 7]), out_backprop=tf.ones([2, 4, 4, 7]), strides=[1, 2, 2, 1],
                                                padding="SAME"), 2 * (2 * 4 * 4 * 7) * 3 * 3 * 3),
        (lambda: tf.raw_ops.Conv2DBackpropFilter(input=tf.ones(IMAGE), filter_sizes=[3, 3, 3, 7], out_backprop=tf.ones([2, 4, 4, 7]), strides=[1, 2, 2, 1],
                                                 padding="SAME"), 2 * (2 * 4 * 4 * 7) * 3 * 3 * 3),
        (lambda: tf.nn.conv3d(tf.ones(VOLUME), tf.ones([3, 3, 3, 3, 5]), [1] * 5, "SAME"), 2 * (2 * 4 * 4 * 4 * 5) * 3**3 * 3),
        (lambda: tf.nn.depthwise_conv2d(tf.ones(IMAGE), tf.ones([3, 3, 3, 2]), [1] * 4, "SAME"), 2 * (2 * 8 * 8 * 6) * 3 * 3),
    ],
)  # fmt: skip
def test_flops_by_hand(build: Callable[[], Any], flops: int) -> None:
    runs = program(lambda x: tf.reduce_max(build())).executions
    assert sum(FLOPS[one.node.op](one) for one in runs if one.node.op in FLOPS) == flops


def _two_products(x: Any) -> Any:
    """A product, ops of every kind between it and a second one, and a branch that the first one's result takes past the dangerous op."""
    first = tf.matmul(x, tf.ones([WIDTH, 64]), name="first")
    wide = tf.nn.relu(first + 1.0)
    slow = tf.exp(tf.reduce_max(wide * 0.5, -1, keepdims=True)) * wide
    return tf.matmul(tf.tanh(slow) + first, tf.ones([64, WIDTH]), name="second") * 2.0


def _branching(x: Any) -> Any:
    """A small tensor that both a float32 op and a product read, and a large one that only looks at shapes."""
    scale = tf.reduce_mean(x, 0, keepdims=True)
    spread = tf.tile(scale, [ROWS, 1]) + tf.nn.relu(x)
    return tf.matmul(spread, tf.ones([WIDTH, WIDTH])) + tf.reduce_sum(spread * spread)


@pytest.mark.parametrize("build", [_two_products, _branching])
def test_no_colouring_at_all_moves_less_than_the_bound(build: Callable[[Any], Any]) -> None:
    found = bound.problem(program(build))
    free = sorted({end for cell in found.cells.values() for end in (cell.maker, *cell.readers) if end} - found.forced.keys())
    assert 3 < len(free) < 15
    choices = (found.forced | dict(zip(free, colours, strict=True)) for colours in itertools.product([False, True], repeat=len(free)))
    chosen = bound.least(found)
    assert all(chosen[vertex] == sixteen for vertex, sixteen in found.forced.items())
    assert found.traffic(chosen) == min(map(found.traffic, choices))
    assert found.traffic({}) == costs_in_float32(build)


def test_the_loose_bound_frees_what_is_on_no_list_and_keeps_sums_and_the_update() -> None:
    def build(x: Any) -> Any:
        first = tf.matmul(x, tf.ones([WIDTH, WIDTH]), name="first")
        middle = tf.square(first, name="unlisted")
        with tf.name_scope(UPDATE):
            slot = handle()
            tf.raw_ops.AssignAddVariableOp(resource=slot, value=tf.multiply(read(slot, "m"), 2.0, name="slot"))
        return tf.reduce_sum(tf.matmul(middle, tf.ones([WIDTH, WIDTH]), name="second"))

    found = program(build)
    strict, loose = (bound.problem(found, kind_of=kind) for kind in (bound.strict, bound.loose))
    colours = {kind: {vertex[0]: sixteen for vertex, sixteen in bound.least(one).items()} for kind, one in (("strict", strict), ("loose", loose))}
    assert [colours[kind]["unlisted"] for kind in ("strict", "loose")] == [False, True]
    assert not colours["loose"]["Sum"] and not colours["loose"][f"{UPDATE}/slot"]
    size = ROWS * WIDTH
    assert strict.traffic(bound.least(strict)) - loose.traffic(bound.least(loose)) == 2 * size * (FLOAT + HALF) + 2 * size * HALF


def costs_in_float32(build: Callable[[Any], Any]) -> int:
    """Returns the traffic of the program as it is."""
    return sum(one.traffic for one in program(build).executions)


def test_lists_are_those_of_tensorflow() -> None:
    ours = {row.op: row.float16 for row in oplists.ROWS if row.float16}
    theirs = dict(bound.lists())
    assert theirs == {op: kind for op, kind in ours.items() if op in theirs or tf_api.op_def(op) is not None}  # older versions know fewer ops


class _Silent:
    """A conversion that gives no reason for any colour."""

    @staticmethod
    def decisions() -> list[Any]:
        """Returns no reason."""
        return []


def test_a_flip_that_pays_is_found_and_the_best_colouring_has_none() -> None:
    def build(middle: Any) -> Callable[[Any], Any]:
        def made(x: Any) -> Any:
            first = tf.matmul(tf.cast(x, tf.float16), tf.ones([WIDTH, WIDTH], tf.float16))
            between = tf.cast(tf.nn.relu(tf.cast(first, middle), name="between"), tf.float16)
            return tf.cast(tf.matmul(between, tf.ones([WIDTH, WIDTH], tf.float16)), tf.float32)

        return made

    wide, narrow = program(build(tf.float32)), program(build(tf.float16))
    found = flips.flips(wide, _Silent)
    size = ROWS * WIDTH
    assert found.traffic == sum(one.traffic for one in wide.executions)
    assert found.best[0] == found.together == 2 * size * (FLOAT + HALF) + 2 * size * HALF  # two casts, and the op at half its width
    assert "between (new)" in found.best[1] and not found.pays
    assert found.paying == (found.best[0] + 2 * PER_CAST, found.best[1])
    assert flips.flips(narrow, _Silent).pays
    np.testing.assert_equal(flips.flips(narrow, _Silent).together, 0)


def test_a_flip_that_saves_bytes_but_costs_a_cast_or_memory_does_not_pay() -> None:
    def with_bias(x: Any) -> Any:
        product = tf.matmul(tf.cast(x, tf.float16), tf.ones([WIDTH, WIDTH], tf.float16))
        return tf.add(tf.cast(product, tf.float32), tf.reduce_mean(read(handle(), "w"), 0), name="biased")

    def saved(x: Any) -> Any:
        first = tf.matmul(tf.cast(x, tf.float16), tf.ones([WIDTH, WIDTH], tf.float16))
        kept = tf.tanh(first, name="kept")
        total = tf.reduce_sum(tf.cast(kept, tf.float32))
        with tf.name_scope("gradient_tape"):
            narrow = tf.cast(tf.matmul(kept, tf.ones([WIDTH, WIDTH], tf.float16)), tf.float32)
            return total + tf.reduce_sum(narrow) + tf.reduce_sum(tf.cast(tf.nn.relu(kept, name="also"), tf.float32))

    found, size = flips.flips(program(with_bias), _Silent), ROWS * WIDTH
    assert found.best[0] == 2 * (2 * size + WIDTH) - WIDTH * (FLOAT + HALF) > 0
    assert found.pays
    assert found.paying == (0, ())

    whole = program(saved)
    before, colours = flips.undone(whole)
    cost_model = bound.problem(before)
    (edge,) = (edge for edge in cost_model.cells if edge[0] == "kept")
    later = {edge: [one for one in cost_model.cells[edge].readers if one and one[0].startswith("gradient_tape")]}
    region = frozenset(one for one in later[edge] if one[0].endswith("also"))
    dearer = flips._dearer(cost_model, later, colours, region)
    assert dearer == SAVED * size * FLOAT - PER_CAST  # `kept` waits in both widths then; it is cast up already, and `also` is no longer
