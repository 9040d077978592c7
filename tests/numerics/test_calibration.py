"""Calibration: every tensor wherever it is computed, exactly; the user's variables, traces and settings stay as they were."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfmp
from tests.numerics.faults import FAULTS
from tfmp import layer_marks, numerics
from tfmp.measured import record
from tfmp.measured.counts import Counts
from tfmp.numerics.calibration import count, plain_name
from tfmp.optimizers import wrap

FAMILIES = {"keras": keras, "tf_keras": tf_keras}


def counts_of(ranges: numerics.Ranges, node: str, port: int = 0) -> list[Counts]:
    """Returns the counts of every op called `node`, in order."""
    return [one.outputs[port] for one in ranges if one.node == node]


@functools.cache
def everything() -> tuple[numerics.Ranges, list[Any]]:
    """Returns the ranges of a function with a loop in a loop, branches, an inner function and a gradient, and its variables, after three batches."""
    weight = tf.Variable(tf.fill([3, 3], 0.5))
    steps = tf.Variable(0, dtype=tf.int64)
    table = tf.Variable(tf.zeros([4, 3]))

    @tf.function
    def inner(x: Any) -> Any:
        return tf.sin(x, name="sine")

    @tf.function
    def outer(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.matmul(x, weight, name="product")
            for _ in tf.range(3):
                y = inner(y) + 1.0
                for _ in tf.range(2):
                    y = tf.multiply(y, 2.0, name="double")
            y = tf.exp(y, name="grown") if tf.reduce_sum(x) > 0.0 else tf.negative(y, name="turned")
            loss = tf.reduce_sum(y, name="total")
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(0.001 * gradient)
        steps.assign_add(1)
        table.scatter_nd_add([[1]], [gradient[0]])
        return loss

    ranges = numerics.calibrate(outer, [(sign * X,) for sign in (1, 1, -1)])
    return ranges, [weight, steps, table]


X = np.array([[0.1, 0.2, 0.3], [0.25, 0.5, 1.0]], "float32")


def by_hand(sign: float) -> dict[str, Any]:
    """The same in NumPy, value by value in float32; lists hold the runs of what is in a loop."""
    found: dict[str, Any] = {"product": tf.matmul(sign * X, tf.fill([3, 3], 0.5)).numpy(), "sine": [], "double": []}
    y = found["product"]
    for _ in range(3):
        found["sine"].append(tf.sin(y).numpy())
        y = found["sine"][-1] + np.float32(1)
        for _ in range(2):
            y = y * np.float32(2)
            found["double"].append(y)
    found["grown" if sign > 0 else "turned"] = y = tf.exp(y).numpy() if sign > 0 else -y
    found["total"] = tf.reduce_sum(y).numpy()
    return found


def test_counts_are_numpys_on_the_same_tensors() -> None:
    ranges, _ = everything()
    runs = [by_hand(sign) for sign in (1, 1, -1)]
    names = {"product": "product", "sine": "sine", "double": "while/while/double", "grown": "cond/grown", "turned": "cond/turned", "total": "total"}
    for name, node in names.items():
        values = [value for run in runs if name in run for value in (run[name] if isinstance(run[name], list) else [run[name]])]
        assert counts_of(ranges, node) == [sum((count(value) for value in values), Counts())], node
    assert ranges.batches == 3


def test_nothing_of_the_users_changes() -> None:
    _, (weight, steps, table) = everything()
    assert np.array_equal(weight.numpy(), np.full([3, 3], 0.5))
    assert (steps.numpy(), np.abs(table.numpy()).max()) == (0, 0)


def test_kinds_tell_what_a_tensor_is_for() -> None:
    ranges, _ = everything()
    kinds = {one.node: one.kind for one in ranges}
    assert {kinds[name] for name in ("product", "sine", "while/while/double", "cond/grown", "total")} == {record.ACTIVATION}
    assert kinds["product/ReadVariableOp"] == record.WEIGHT
    assert kinds["gradient_tape/product/MatMul"] == record.WEIGHT_GRADIENT
    assert kinds["mul"] == record.UPDATE
    loops = {one.kind for one in ranges if one.node.endswith("double_grad/Mul")}
    assert loops == {record.ACTIVATION_GRADIENT}
    popped = {one.kind for one in ranges if one.op == "TensorListPopBack"}
    assert popped == {record.ACTIVATION}, "what a gradient reads of the forward pass is not a gradient"


def test_places_say_through_which_calls_an_op_is_reached() -> None:
    ranges, _ = everything()
    places = {one.node: one.place for one in ranges}
    assert places["total"] == ()
    assert places["sine"] == ("while:body", "while/PartitionedCall:f")
    assert places["while/while/double"] == ("while:body", "while/while:body")
    assert places["cond/grown"] == ("cond:then_branch",)


def test_ranges_add_up_over_batches_and_shapes() -> None:
    @tf.function
    def square(x: Any) -> Any:
        return tf.square(x, name="squared")

    batches = [np.float32([1, 2, 3]), np.float32([[100]]), np.float32([0, np.inf])]
    parts = [numerics.calibrate(square, [batch]) for batch in batches]
    together = numerics.calibrate(square, batches)
    for ranges in (together, parts[0] + parts[1] + parts[2], parts[0].merge(*parts[1:]), sum(parts, numerics.Ranges())):
        assert (ranges.batches, counts_of(ranges, "squared")) == (3, [sum((count(np.square(batch)) for batch in batches), Counts())])


def test_ranges_of_different_programs_do_not_add_up() -> None:
    sine = numerics.calibrate(lambda x: tf.sin(x, name="it"), [np.float32(1)])
    cosine = numerics.calibrate(lambda x: tf.cos(x, name="it"), [np.float32(1)])
    with pytest.raises(tfmp.TfmpError, match="node 'it' is a Sin in one and a Cos in the other"):
        sine + cosine


def test_each_batch_starts_from_the_same_variables() -> None:
    counter = tf.Variable(1.0)
    grown = numerics.calibrate(tf.function(lambda x: counter.assign(counter * x)), [np.float32(2)] * 3)
    assert {(c.smallest, c.largest) for one in grown if one.op == "Mul" for c in one.outputs.values()} == {(2.0, 2.0)}
    assert counter.numpy() == 1


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Any:
    return FAMILIES[request.param]


def model_of(family: Any) -> Any:
    layers = family.layers
    return family.Sequential([layers.Input((4,)), layers.Dense(8, activation="relu", name="dense_1"), layers.Dropout(0.5), layers.Dense(3, name="dense")])


def test_a_model_stands_for_its_training_step(family: Any) -> None:
    family.utils.set_random_seed(1)
    model = model_of(family)
    model.compile("adam", "mse", jit_compile=False)
    x, y = np.random.default_rng(0).normal(size=(8, 4)), np.zeros((8, 3), "float32")
    model.predict(x, verbose=0)
    original = layer_marks.owner(family.__name__).__call__
    weights = [w.copy() for w in model.get_weights()]
    ranges = numerics.calibrate(model, [(x, y), (x, y)])
    assert all(np.array_equal(one, other) for one, other in zip(weights, model.get_weights(), strict=True))
    assert int(np.asarray(model.optimizer.iterations)) == 0
    assert layer_marks.owner(family.__name__).__call__ is original
    products = {(one.layer, one.kind) for one in ranges if one.op == "MatMul"}
    name = model.name
    assert products == {
        (f"{name}/dense_1", record.ACTIVATION), (f"{name}/dense", record.ACTIVATION), (f"{name}/dense", record.ACTIVATION_GRADIENT),
        (f"{name}/dense", record.WEIGHT_GRADIENT), (f"{name}/dense_1", record.WEIGHT_GRADIENT),
    }  # fmt: skip
    with pytest.raises(tfmp.TfmpError, match="loss scales"):
        numerics.calibrate(model, [(x, y)]) + numerics.calibrate(model, [(x, y)], loss_scale=8.0)
    model.fit(x, y, verbose=0)


def test_a_model_without_a_loss_stands_for_its_forward_pass(family: Any) -> None:
    model = model_of(family)
    ranges = numerics.calibrate(model, [np.ones((2, 4))])
    assert [one.op for one in ranges if one.op == "MatMul"] == ["MatMul"] * 2
    assert {one.kind for one in ranges} <= {record.ACTIVATION, record.WEIGHT}


def test_gradients_are_told_with_the_scale_they_were_recorded_under(family: Any) -> None:
    family.utils.set_random_seed(1)
    model = model_of(family)
    model.layers[1].rate = 0.0
    x, y = np.ones((8, 4), "float32"), np.zeros((8, 3), "float32")
    model.compile(family.optimizers.SGD(), "mse", jit_compile=False)
    plain = numerics.calibrate(model, [(x, y)])
    model.compile(wrap.wrap(family.optimizers.SGD(), 1024.0), "mse", jit_compile=False)
    scaled = numerics.calibrate(model, [(x, y)])
    assert (plain.loss_scale, scaled.loss_scale) == (1.0, 1024.0)
    assert numerics.proposed_loss_scale(plain) == numerics.proposed_loss_scale(scaled)
    largest = [max(c.largest for one in r if one.kind == record.WEIGHT_GRADIENT for c in one.outputs.values()) for r in (plain, scaled)]
    assert largest[1] == 1024 * largest[0]


def test_calibrating_first_does_not_keep_a_function_from_being_converted() -> None:
    step, _ = FAULTS[6].step()
    numerics.calibrate(step, FAULTS[6].batches(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tfmp.mixed_precision(dtype="float16", device="CPU", ignore_performance=True, strict=True):
            before = len(tfmp.report())
            step(*FAULTS[6].batches(1)[0])
    assert len(tfmp.report()) == before + 1


def test_functions_are_handed_arguments_by_position_name_or_alone() -> None:
    def difference(a: Any, b: Any) -> Any:
        return tf.subtract(a, b, name="difference")

    for batch in ((np.float32(5), np.float32(3)), {"a": np.float32(5), "b": np.float32(3)}):
        assert counts_of(numerics.calibrate(difference, [batch]), "difference")[0].largest == 2
    assert counts_of(numerics.calibrate(lambda x: tf.abs(x, name="size"), [np.float32([-7])]), "size")[0].largest == 7


def test_functions_compiled_by_xla_are_run_without_it() -> None:
    @tf.function(jit_compile=True)
    def compiled(x: Any) -> Any:
        return tf.exp(x, name="power") + tf.function(lambda v: tf.sqrt(v, name="root"), jit_compile=True)(x)

    ranges = numerics.calibrate(compiled, [np.float32([0, 1])])
    assert (counts_of(ranges, "power")[0].largest, counts_of(ranges, "root")[0].largest) == (pytest.approx(np.e), 1)


def test_what_cannot_be_calibrated_is_named() -> None:
    with pytest.raises(tfmp.TfmpError, match="3 is neither a Keras model nor a function"):
        numerics.calibrate(3, [])
    with pytest.raises(tfmp.TfmpError, match="no batches"):
        numerics.calibrate(lambda x: x, [])


@pytest.mark.parametrize(
    ("name", "plain"),
    [("__inference_train_step_12", "train_step"), ("__inference___backward_f_3_17", "f_3"), ("while_body_24_grad_94", "while_body_grad"), ("f_2", "f")],
)
def test_plain_names(name: str, plain: str) -> None:
    assert plain_name(name) == plain
