"""Normalisations are found however they are spelled, run by one kernel each way, and compute what they did; what only looks like one is left alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.fusion.running import FusedFunction, agree, with_gradients
from tfmp.fusion.groups import UNKNOWN_SIZES

IMAGE, VOLUME, ROWS = (None, 6, 5, 4), (None, 3, 4, 2, 4), (None, 5, 16)
FORWARD, BACKWARD = "FusedBatchNormV3", "FusedBatchNormGradV3"


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(1.0, 2.0, shape).astype(np.float32)


def parameters(channels: int) -> tuple[tf.Variable, tf.Variable]:
    return tf.Variable(random(channels, seed=1)), tf.Variable(random(channels, seed=2))


def keras_batch_norm(**settings: Any) -> tuple[Callable[..., Any], list[Any]]:
    layer = keras.layers.BatchNormalization(**settings)
    layer.build((None, 1, 1, 4))
    for weight in layer.trainable_weights:
        weight.assign(random(4, seed=3))
    return lambda x: layer(x, training=True), [weight.value for weight in layer.trainable_weights]


def keras_layer_norm(**settings: Any) -> tuple[Callable[..., Any], list[Any]]:
    layer = keras.layers.LayerNormalization(**settings)
    layer.build((None, 5, 16))
    for weight in layer.trainable_weights:
        weight.assign(random(16, seed=3))
    return layer, [weight.value for weight in layer.trainable_weights]


def by_nn(axes: tuple[int, ...], channels: int, keep: bool = True) -> tuple[Callable[..., Any], list[Any]]:
    scale, offset = parameters(channels)

    def forward(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, axes, keepdims=keep)
        return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-4)

    return forward, [scale, offset]


def by_hand(axes: tuple[int, ...], channels: int) -> tuple[Callable[..., Any], list[Any]]:
    """The variance as mean square less squared mean, the root as a division, centred first."""
    scale, offset = parameters(channels)

    def forward(x: tf.Tensor) -> tf.Tensor:
        mean = tf.reduce_mean(x, axes, keepdims=True)
        variance = tf.reduce_mean(x * x, axes, keepdims=True) - tf.square(mean)
        return offset + scale * ((x - mean) / tf.sqrt(variance + 1e-2))

    return forward, [scale, offset]


def bare(axes: tuple[int, ...]) -> tuple[Callable[..., Any], list[Any]]:
    def forward(x: tf.Tensor) -> tf.Tensor:
        mean = tf.reduce_mean(x, axes, keepdims=True)
        return (x - mean) * tf.math.rsqrt(tf.reduce_mean(tf.math.squared_difference(x, mean), axes, keepdims=True) + 1e-3)

    return forward, []


def beside_a_shortcut(axes: tuple[int, ...], channels: int) -> tuple[Callable[..., Any], list[Any]]:
    """The data go on past the normalisation, so that its gradient is one summand of several."""
    forward, variables = by_nn(axes, channels)
    return lambda x: tf.nn.relu(forward(x)) + tf.sin(x), variables


def reshaped_after(axes: tuple[int, ...], channels: int) -> tuple[Callable[..., Any], list[Any]]:
    """The gradient comes back through a Reshape."""
    forward, variables = by_nn(axes, channels)
    return lambda x: tf.reshape(tf.reverse(tf.reshape(forward(x), [-1, 30, channels]), [1]), tf.shape(x)), variables


SPELLINGS = {
    "Keras": (keras_batch_norm, IMAGE),
    "Keras, no scale": (lambda: keras_batch_norm(scale=False), IMAGE),
    "Keras, no offset": (lambda: keras_batch_norm(center=False), IMAGE),
    "Keras, neither": (lambda: keras_batch_norm(center=False, scale=False, epsilon=1e-5), IMAGE),
    "tf.nn": (lambda: by_nn((0, 1, 2), 4), IMAGE),
    "tf.nn, axes left out": (lambda: by_nn((0, 1, 2), 4, keep=False), IMAGE),
    "tf.nn, negative axes": (lambda: by_nn((-4, -3, -2), 4), IMAGE),
    "by hand": (lambda: by_hand((0, 1, 2), 4), IMAGE),
    "bare": (lambda: bare((0, 1, 2)), IMAGE),
    "beside a shortcut": (lambda: beside_a_shortcut((0, 1, 2), 4), IMAGE),
    "reshaped after": (lambda: reshaped_after((0, 1, 2), 4), IMAGE),
    "volumes": (lambda: by_nn((0, 1, 2, 3), 4), VOLUME),
    "volumes by hand": (lambda: by_hand((0, 1, 2, 3), 4), VOLUME),
    "Keras rows": (keras_layer_norm, ROWS),
    "Keras rows, no scale": (lambda: keras_layer_norm(scale=False), ROWS),
    "Keras rows, no offset": (lambda: keras_layer_norm(center=False), ROWS),
    "Keras rows, neither": (lambda: keras_layer_norm(center=False, scale=False), ROWS),
    "tf.nn rows": (lambda: by_nn((-1,), 16), ROWS),
    "rows by hand": (lambda: by_hand((2,), 16), ROWS),
    "bare rows": (lambda: bare((-1,)), ROWS),
    "rows beside a shortcut": (lambda: beside_a_shortcut((-1,), 16), ROWS),
    "rows of a matrix": (lambda: by_nn((-1,), 16), (None, 16)),
}


def traced(spelling: str, batch: int | None, **options: Any) -> FusedFunction:
    make, shape = SPELLINGS[spelling]
    forward, variables = make()
    spec = tf.TensorSpec([batch, *shape[1:]])
    return FusedFunction(with_gradients(forward, variables), spec, spec, **options)


@pytest.mark.parametrize("batch", [3, None], ids=["batch known", "batch unknown"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelling_is_found_and_computes_the_same(spelling: str, batch: int | None) -> None:
    function, shape = traced(spelling, batch), SPELLINGS[spelling][1]
    by_row = len(shape) < 4
    scaled = by_row and "neither" not in spelling and "bare" not in spelling
    ops = function.live_ops
    assert (ops[FORWARD], ops[BACKWARD]) == ((2, 2) if scaled else (1, 1)), ops
    assert not {"Rsqrt", "SquaredDifference", "RsqrtGrad"} & ops.keys()
    for size in [3] if batch else [1, 2, 7]:
        arguments = random(size, *shape[1:]), random(size, *shape[1:], seed=5)
        agree(function(*arguments), function.before(*arguments))


@pytest.mark.parametrize("spelling", ["Keras", "by hand", "Keras rows", "rows by hand"])
def test_xla_computes_the_same(spelling: str) -> None:
    function, shape = traced(spelling, 3), SPELLINGS[spelling][1]
    arguments = random(3, *shape[1:]), random(3, *shape[1:], seed=5)
    agree(function(*arguments, compiled=True), function.before(*arguments), 1e-4)


def test_two_unknown_sizes_of_rows() -> None:
    forward, variables = by_nn((-1,), 16)
    spec = tf.TensorSpec([None, None, 16])
    function = FusedFunction(with_gradients(forward, variables), spec, spec)
    assert function.live_ops[BACKWARD] == 2
    for size in (1, 4):
        arguments = random(2, size, 16), random(2, size, 16, seed=5)
        agree(function(*arguments), function.before(*arguments))


@pytest.mark.parametrize("spelling", ["Keras", "Keras rows"])
def test_no_examples_at_all(spelling: str) -> None:
    function, shape = traced(spelling, None), SPELLINGS[spelling][1]
    empty = np.zeros((0, *shape[1:]), np.float32)
    found, wanted = function(empty, empty), function.before(empty, empty)
    assert [one.shape for one in found] == [one.shape for one in wanted]


def test_moving_averages_get_the_statistics_of_the_data() -> None:
    layer = keras.layers.BatchNormalization(momentum=0.5)
    layer.build((None, 1, 1, 4))
    function = FusedFunction(lambda x: layer(x, training=True), tf.TensorSpec([None, 2, 1, 4]))
    assert function.live_ops[FORWARD] == 1
    x = random(1, 2, 1, 4)  # two elements: the variance of a sample is twice as large
    function(x)
    np.testing.assert_allclose(layer.moving_mean, 0.5 * x.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(layer.moving_variance, 0.5 + 0.5 * x.astype(np.float64).var((0, 1, 2)), rtol=1e-6)


def test_a_second_derivative_stays_what_it_is() -> None:
    forward, _ = by_nn((0, 1, 2), 4)

    def penalty(x: tf.Tensor) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                total = tf.reduce_sum(tf.sin(forward(x)))
            slope = tf.reduce_sum(tf.square(inner.gradient(total, x)))
        return slope, outer.gradient(slope, x)

    function = FusedFunction(penalty, tf.TensorSpec([3, 6, 5, 4]))
    assert function.found
    agree(function(random(3, 6, 5, 4)), function.before(random(3, 6, 5, 4)), 1e-3)


def test_one_normalisation_after_another() -> None:
    first, of_first = by_nn((0, 1, 2), 4)
    second, of_second = by_hand((0, 1, 2), 4)
    spec = tf.TensorSpec([None, 6, 5, 4])
    function = FusedFunction(with_gradients(lambda x: second(first(x)) + first(x), [*of_first, *of_second]), spec, spec)
    assert (function.live_ops[FORWARD], function.live_ops[BACKWARD]) == (3, 3)  # the first is there twice
    arguments = random(3, 6, 5, 4), random(3, 6, 5, 4, seed=5)
    agree(function(*arguments), function.before(*arguments), 1e-4)


@pytest.mark.parametrize("batch", [3, None], ids=["batch known", "batch unknown"])
@pytest.mark.parametrize("first", [True, False], ids=["its data before", "its data after"])
@pytest.mark.parametrize(("axes", "shape"), [((0, 1, 2), (6, 5, 4)), ((-1,), (6, 16))], ids=["channels", "rows"])
def test_a_gradient_that_is_added_to_another_ones(axes: tuple[int, ...], shape: tuple[int, ...], first: bool, batch: int | None) -> None:
    """One kernel's result takes the place of several summands, and another one's that of the last."""
    one, of_one = by_nn(axes, shape[-1])
    other, of_other = by_nn(axes, shape[-1])
    noise = tf.constant(random(1, *shape))

    def forward(x: tf.Tensor) -> tf.Tensor:
        more = x + noise if first else None
        y = tf.sin(one(x))
        return tf.add_n([y, tf.cos(other(x + noise if more is None else more))])

    spec = tf.TensorSpec([batch, *shape])
    function = FusedFunction(with_gradients(forward, [*of_one, *of_other]), spec, spec)
    assert function.live_ops[FORWARD] == function.live_ops[BACKWARD] == (2 if len(shape) == 3 else 4)
    arguments = random(3, *shape), random(3, *shape, seed=5)
    agree(function(*arguments), function.before(*arguments), 1e-4)


def sample_variance(x: tf.Tensor) -> tf.Tensor:
    mean = tf.reduce_mean(x, (0, 1, 2), keepdims=True)
    return (x - mean) * tf.math.rsqrt(tf.reduce_sum(tf.math.squared_difference(x, mean), (0, 1, 2), keepdims=True) / 89.0 + 1e-3)


def epsilon_outside(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, (0, 1, 2), keepdims=True)
    return (x - mean) / (tf.sqrt(variance) + 1e-3)


def not_centred(x: tf.Tensor) -> tf.Tensor:
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), (0, 1, 2), keepdims=True) + 1e-3)


def statistics_of_something_else(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(tf.abs(x), (0, 1, 2), keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)


def counted_by_a_number(size: int) -> Callable[..., Any]:
    """The program divides by a number that is no count of what it sums, whatever the batch: with some it would be."""

    def forward(x: tf.Tensor) -> tf.Tensor:
        mean = tf.reduce_mean(x, (0, 1, 2), keepdims=True)
        variance = tf.reduce_sum(tf.math.squared_difference(x, mean), (0, 1, 2), keepdims=True) / float(size * 30)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3)

    return forward


@pytest.mark.parametrize("size", [*itertools.chain.from_iterable(UNKNOWN_SIZES), 3])
def test_a_number_of_the_programs_is_no_count_of_a_batch_that_is_not_known(size: int) -> None:
    spec = tf.TensorSpec([None, 6, 5, 4])
    assert not FusedFunction(with_gradients(counted_by_a_number(size), []), spec, spec).found
    known = tf.TensorSpec([size, 6, 5, 4])
    assert FusedFunction(with_gradients(counted_by_a_number(size), []), known, known).found


def other_axes(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, (1, 2), keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)


def scale_made_of_the_data(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, (0, 1, 2), keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, None, tf.sin(mean), 1e-3)


LOOK_ALIKES = (sample_variance, epsilon_outside, not_centred, statistics_of_something_else, other_axes, scale_made_of_the_data)


@pytest.mark.parametrize("forward", LOOK_ALIKES, ids=lambda function: function.__name__)
def test_what_looks_alike_is_left_alone(forward: Callable[..., Any]) -> None:
    spec = tf.TensorSpec([3, 6, 5, 4])
    assert not FusedFunction(with_gradients(forward, []), spec, spec).found


def test_short_rows_are_left_alone() -> None:
    forward, variables = by_nn((-1,), 8)
    spec = tf.TensorSpec([3, 5, 8])
    assert not FusedFunction(with_gradients(forward, variables), spec, spec).found


def test_a_gradient_of_the_users_own_stays() -> None:
    @tf.custom_gradient
    def normalised(x: tf.Tensor) -> Any:
        mean, variance = tf.nn.moments(x, (0, 1, 2), keepdims=True)
        root = tf.math.rsqrt(variance + 1e-3)
        return (x - mean) * root, lambda dy: (dy * root + 0.5 * (x - mean),)

    spec = tf.TensorSpec([3, 6, 5, 4])
    function = FusedFunction(with_gradients(normalised, []), spec, spec)
    assert function.live_ops[FORWARD] == 1 and not function.live_ops[BACKWARD]
    arguments = random(3, 6, 5, 4), random(3, 6, 5, 4, seed=5)
    agree(function(*arguments), function.before(*arguments))


def test_a_scale_that_waits_for_the_statistics() -> None:
    """The kernel would need the scale before it makes the statistics that the scale waits for."""
    scale, moving = tf.Variable(random(4, seed=1)), tf.Variable(tf.zeros([1, 1, 1, 4]))

    @tf.function(autograph=False)
    def forward(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, (0, 1, 2), keepdims=True)
        with tf.control_dependencies([moving.assign(mean)]):
            return tf.nn.batch_normalization(x, mean, variance, None, scale.read_value(), 1e-3)

    assert not FusedFunction(forward, tf.TensorSpec([3, 6, 5, 4])).found


@pytest.mark.parametrize("last", ["root", "offset"])
def test_a_last_op_that_waits_for_the_statistics(last: str) -> None:
    """It cannot be what makes the statistics that it waits for; another normalisation in the same function is found all the same."""
    scale, offset = parameters(4)
    moving = tf.Variable(tf.zeros([4]))

    @tf.function(autograph=False)
    def forward(x: tf.Tensor) -> Any:
        given = tf.identity(offset)
        mean, variance = tf.nn.moments(x, (0, 1, 2))
        centred, root = x - mean, tf.math.rsqrt(variance + 1e-3)
        first, second = (centred, root) if last == "root" else (centred * root * scale, given)
        with tf.control_dependencies([moving.assign(mean)]):
            y = first * second if last == "root" else first + second
        z = tf.sin(y)
        return tf.nn.batch_normalization(z, *tf.nn.moments(z, (0, 1, 2)), None, None, 1e-3)

    function = FusedFunction(forward, tf.TensorSpec([3, 6, 5, 4]))
    assert function.found and function.live_ops[FORWARD] == 1
    x = random(3, 6, 5, 4)
    agree(function(x), function.before(x))
    np.testing.assert_allclose(moving.numpy(), x.mean((0, 1, 2)), rtol=1e-5, atol=1e-6)


def test_a_gradient_that_waits_for_the_gradient_of_the_scale() -> None:
    scale, seen = tf.Variable(random(4, seed=1)), tf.Variable(tf.zeros([4]))

    @tf.function(autograph=False)
    def step(x: tf.Tensor, dy: tf.Tensor) -> Any:
        given = tf.identity(scale)
        mean = tf.reduce_mean(x, (0, 1, 2), keepdims=True)
        centred = x - mean
        root = tf.math.rsqrt(tf.reduce_mean(centred * centred, (0, 1, 2), keepdims=True) + 1e-3)
        ours, back = tf.reduce_sum(centred * root * dy, (0, 1, 2)), dy * given
        slope = tf.reduce_mean(back * centred, (0, 1, 2), keepdims=True) * root * root
        before = back - tf.reduce_mean(back, (0, 1, 2), keepdims=True) - centred * slope
        with tf.control_dependencies([seen.assign(ours)]):
            gradient = before * root
        return centred * root * given, ours, gradient

    spec = tf.TensorSpec([3, 6, 5, 4])
    function = FusedFunction(step, spec, spec)
    assert (function.live_ops[FORWARD], function.live_ops[BACKWARD]) == (1, 0)  # what the gradient of the scale is made of is normalised alone
    arguments = random(3, 6, 5, 4), random(3, 6, 5, 4, seed=5)
    agree(function(*arguments), function.before(*arguments))
    np.testing.assert_allclose(seen, function.before(*arguments)[1])


@pytest.mark.parametrize("shape", [(None, 0, 16), (None, 3, 0, 16), (0, 5, 16)])
def test_data_known_to_be_empty_stay_as_they_are(shape: tuple[int | None, ...]) -> None:
    forward, variables = by_nn((-1,), 16)
    function = FusedFunction(with_gradients(forward, variables), tf.TensorSpec(shape), tf.TensorSpec(shape))
    assert not function.found


def test_what_is_kept_stays() -> None:
    function = traced("Keras", 3)
    node = function.body.names.index(next(name for name in function.body.names if name.endswith("/Rsqrt")))
    assert function.found and not traced("Keras", 3, kept=[node]).found


def test_deterministic_ops_do_without_what_gpus_refuse_then() -> None:
    assert not traced("Keras rows", 3, frozen_gradients=False).found
    assert traced("Keras rows, neither", 3, frozen_gradients=False).found
    assert traced("Keras", 3, frozen_gradients=False).found


def converted_step(**settings: Any) -> Any:
    """The conversion of a training step of a convolution with a Keras batch normalisation."""
    layers = [keras.layers.Conv2D(8, 3), keras.layers.BatchNormalization(name="normal"), keras.layers.ReLU(), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((8, 8, 4)), *layers])

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.square(model(x, training=True)))
        return tape.gradient(total, [weight.value for weight in model.trainable_weights])

    return tfmp.convert_function(step.get_concrete_function(tf.TensorSpec([None, 8, 8, 4])), **settings)


def test_the_kernels_data_is_16_bit_and_what_it_replaces_says_so() -> None:
    conversion = converted_step()
    decisions = {(decision.op, decision.attribute): decision for decision in conversion.decisions() if decision.op in (FORWARD, BACKWARD)}
    assert decisions[FORWARD, "T"].converted and decisions[BACKWARD, "T"].converted
    assert not decisions[FORWARD, "U"].converted and not decisions[BACKWARD, "U"].converted
    means = [decision for decision in conversion.decisions() if decision.op == "Mean"]
    assert {decision.rule for decision in means} == {"replaced by a kernel"}
    assert (conversion.kernels, conversion.replaced > 25) == (1, True)
    assert f"fused kernels in 1 place, for {conversion.replaced} nodes" in str(tfmp.report_on(conversion))


OFF: tuple[dict[str, Any], ...] = (
    {"fuse": False},
    {"level": "tensorflow"},
    {"level": "O2"},
    {"level": "O3"},
    {"emulate": True},
    {"keep_float32": "name:*/normal_*"},
    {"keep_float32": "op:Mean, op:Mul"},
)


@pytest.mark.parametrize("settings", OFF, ids=str)
def test_what_switches_kernels_off(settings: dict[str, Any]) -> None:
    conversion = converted_step(**settings)
    assert conversion.kernels == 0
    assert not any(op in (FORWARD, BACKWARD) for body in conversion.bodies.values() for op in body.plan.body.ops)


def test_a_region_that_stays_float32_stays_what_it_is() -> None:
    forward, _ = by_nn((0, 1, 2), 4)

    def kept(x: tf.Tensor) -> tf.Tensor:
        with tfmp.float32():
            return forward(x)

    assert not FusedFunction(kept, tf.TensorSpec([3, 6, 5, 4])).found


def test_a_main_graph_stays_what_it_is() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [3, 6, 5, 4], name="x")
        filters = tf.constant(random(1, 1, 4, 4))
        tf.identity(by_nn_constants(tf.nn.conv2d(x, filters, 1, "SAME")), name="out")
    conversion = tfmp.convert_graph_def(graph.as_graph_def(), fetches=["out"], device="CPU")
    assert conversion.kernels == 0 and FORWARD not in {node.op for node in conversion.graph_def.node}


def by_nn_constants(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, (0, 1, 2), keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, tf.constant(random(4)), tf.constant(random(4, seed=1)), 1e-3)
