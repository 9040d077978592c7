"""What only Keras 3 has: its own wrapper's place, accumulation, its optimizers' attributes and configurations."""

from __future__ import annotations

import copy
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.families import MODES, make_function
from tfmp.optimizers.keras3 import LossScaleOptimizer
from tfmp.optimizers.policies import DynamicLossScale, FixedLossScale, NoLossScale
from tfmp.optimizers.wrap import wrap


def variable(value: Any = (1.0, 2.0), **arguments: Any) -> keras.Variable:
    return keras.Variable(np.array(value, "float32"), **arguments)


def scaled(optimizer: Any, gradient: Any) -> tf.Tensor:
    """The gradient as the tape of a scaled loss would give it."""
    return optimizer.scale_loss(tf.constant(gradient, tf.float32))


def test_it_is_recognised_wherever_keras_looks_for_its_own() -> None:
    optimizer = LossScaleOptimizer(keras.optimizers.Adam())
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    assert isinstance(optimizer, keras.optimizers.Optimizer)
    assert keras.optimizers.get(optimizer) is optimizer
    if hasattr(keras.optimizers, "MultiOptimizer"):
        multi = keras.optimizers.MultiOptimizer(lambda _: optimizer)
        with pytest.raises(ValueError, match="LossScaleOptimizer cannot be used inside"):
            multi.build([variable()])


def test_wrapping_twice_is_refused() -> None:  # R80
    ours = LossScaleOptimizer(keras.optimizers.Adam(), name="mine")
    with pytest.raises(ValueError, match="tfmp.optimizers.keras3.LossScaleOptimizer 'mine' already scales the loss; a second loss scale would divide"):
        LossScaleOptimizer(ours)
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), name="theirs")
    with pytest.raises(ValueError, match="LossScaleOptimizer 'theirs' already scales the loss; .* wrap its inner optimizer instead."):
        LossScaleOptimizer(theirs)


def test_other_things_cannot_be_wrapped() -> None:
    with pytest.raises(TypeError, match="inner_optimizer=.adam. is a str, not a Keras 3 optimizer; tfmp.enable_mixed_precision_graph_rewrite wraps"):
        LossScaleOptimizer("adam")  # type: ignore[arg-type]


def test_attributes_of_the_inner_optimizer_are_read_and_set_through_the_wrapper() -> None:
    inner = keras.optimizers.Adam(0.5, beta_1=0.8, clipnorm=3.0, weight_decay=0.25, use_ema=True, ema_momentum=0.75)
    optimizer = LossScaleOptimizer(inner)
    read = (optimizer.beta_1, optimizer.clipnorm, optimizer.weight_decay, optimizer.use_ema, optimizer.ema_momentum)
    assert read == (0.8, 3.0, 0.25, True, 0.75)
    optimizer.clipnorm, optimizer.beta_1, optimizer.learning_rate = 5.0, 0.7, 0.125
    assert (inner.clipnorm, inner.beta_1, float(inner.learning_rate)) == (5.0, 0.7, 0.125)
    assert "clipnorm" not in vars(optimizer)
    optimizer.something_new = 1
    assert not hasattr(inner, "something_new")
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_this_name'"):
        _ = optimizer.nothing_of_this_name


def test_an_own_loss_scale_of_the_inner_optimizer_is_switched_off() -> None:  # R80
    results = []
    for inner in (keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.5, loss_scale_factor=128.0)):
        weight, optimizer = variable(), LossScaleOptimizer(inner)
        optimizer.apply([scaled(optimizer, [1.0, -1.0])], [weight])
        results.append(weight.numpy().tolist())
    assert results == [[0.5, 2.5]] * 2
    with pytest.raises(ValueError, match="loss_scale_factor=64 would scale the gradients a second time. Wrap the optimizer with loss_scale=64 instead."):
        optimizer.loss_scale_factor = 64
    assert optimizer.loss_scale_factor is None


@pytest.mark.parametrize("mode", MODES)
def test_four_micro_batches_are_one_batch(mode: str) -> None:  # R75, R76
    """Micro-batch 2 overflows: it is left out, nothing is poisoned, the scale halves once, and the next one takes its place."""
    gradients = np.random.default_rng(0).integers(-8, 8, size=(5, 2)).astype("float32")
    optimizer = LossScaleOptimizer(keras.optimizers.Adam(0.1, gradient_accumulation_steps=4, clipnorm=2.0))
    weight, sent = variable(), tf.Variable(gradients[0])
    optimizer.build([weight])
    step = make_function(lambda: optimizer.apply([optimizer.scale_loss(sent)]), mode)
    for index in range(5):
        sent.assign(np.full(2, np.inf) if index == 1 else gradients[index])
        step()
    whole, reference = variable(), keras.optimizers.Adam(0.1, clipnorm=2.0)
    reference.apply([tf.constant(gradients[[0, 2, 3, 4]].mean(axis=0))], [whole])
    np.testing.assert_array_equal(weight.numpy(), whole.numpy())
    assert (float(optimizer.scale), int(optimizer.skipped_steps), int(optimizer.iterations)) == (2.0**14, 1, 1)


def test_the_scale_may_change_between_micro_batches() -> None:
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2), DynamicLossScale(growth_interval=1))
    weight = variable()
    for gradient in ([2.0, 0.0], [0.0, 4.0]):
        optimizer.apply([scaled(optimizer, gradient)], [weight])
    assert weight.numpy().tolist() == [0.0, 0.0]
    assert float(optimizer.scale) == 2.0**17


def test_a_hand_written_accumulator_sees_unscaled_gradients() -> None:  # R76
    optimizer, weight = LossScaleOptimizer(keras.optimizers.SGD(1.0)), variable()
    total = tf.zeros([2])
    for gradient in ([2.0, 0.0], [0.0, 4.0]):
        total += optimizer.get_unscaled_gradients([scaled(optimizer, gradient)])[0]
    optimizer.apply([total / 2], [weight])
    assert weight.numpy().tolist() == [0.0, 0.0]


def test_excluding_from_weight_decay_reaches_the_inner_optimizer() -> None:
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(1.0, weight_decay=0.5))
    decayed, kept = variable(name="decayed"), variable(name="kept")
    optimizer.exclude_from_weight_decay(var_names=["kept"])
    optimizer.apply([scaled(optimizer, [0.0, 0.0])] * 2, [decayed, kept])
    assert decayed.numpy().tolist() == [0.5, 1.0]
    assert kept.numpy().tolist() == [1.0, 2.0]


def test_variables_that_are_overwritten_with_their_gradient_get_it_unchanged() -> None:
    """Keras's float8 layers hand their new scales over as gradients."""
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(1.0))
    weight, amax = variable(), variable()
    amax.overwrite_with_gradient = True
    optimizer.apply([scaled(optimizer, [1.0, 1.0]), tf.constant([5.0, 7.0])], [weight, amax])
    assert weight.numpy().tolist() == [0.0, 1.0]
    assert amax.numpy().tolist() == [5.0, 7.0]


def test_apply_without_variables_needs_a_built_optimizer_and_returns_steps() -> None:
    optimizer, weight = LossScaleOptimizer(keras.optimizers.SGD(1.0)), variable()
    optimizer.build([weight])
    optimizer.apply([scaled(optimizer, [1.0, 1.0])])
    assert weight.numpy().tolist() == [0.0, 1.0]
    assert int(optimizer.apply_gradients([(scaled(optimizer, [1.0, 1.0]), weight)])) == 2
    with pytest.raises(ValueError, match="stateless_apply does not exist with the TensorFlow backend"):
        optimizer.stateless_apply([], [], [])


@pytest.mark.parametrize(
    "loss_scale", ["dynamic", 128, None, DynamicLossScale(initial=8, growth_interval=3, minimum=0.5, hysteresis=2), FixedLossScale(2, False)]
)
def test_the_configuration_makes_an_equal_wrapper(loss_scale: Any) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(schedule, momentum=0.5, clipvalue=2.0), loss_scale, name="outer")
    copied = LossScaleOptimizer.from_config(copy.deepcopy(optimizer.get_config()))
    for twin in (copied, keras.optimizers.get(keras.optimizers.serialize(optimizer))):
        assert type(twin) is LossScaleOptimizer
        assert twin.loss_scale_policy == optimizer.loss_scale_policy
        assert (twin.name, twin.momentum, twin.clipvalue) == ("outer", 0.5, 2.0)
        assert twin.inner_optimizer.get_config() == optimizer.inner_optimizer.get_config()


def test_weights_can_be_set_with_and_without_the_scale() -> None:
    optimizer, weight = LossScaleOptimizer(keras.optimizers.Adam(0.1)), variable()
    optimizer.apply([scaled(optimizer, [np.inf, 1.0])], [weight])
    optimizer.apply([scaled(optimizer, [1.0, 1.0])], [weight])
    weights = [np.array(one) for one in optimizer.variables]
    assert len(weights) == len(optimizer.inner_optimizer.variables) + 3
    twin = LossScaleOptimizer(keras.optimizers.Adam(0.1))
    twin.build([variable()])
    twin.set_weights(weights[:-3])
    assert (int(twin.iterations), float(twin.scale)) == (1, 2.0**15)
    twin.set_weights(weights)
    assert twin.loss_scale_state() == optimizer.loss_scale_state()


def test_the_state_of_a_model_can_be_taken_as_a_tree_and_put_back() -> None:
    """Keras asks every variable of an optimizer for its `path` and its `value`."""
    models, x = [], np.array([[1.0, 1.0], [np.inf, 1.0], [2.0, 3.0]], "float32")
    for _ in range(2):
        models.append(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        models[-1].compile(wrap(keras.optimizers.Adam(0.1)), "mse")
        models[-1].optimizer.build(models[-1].trainable_variables)
    first, second = models
    first.fit(x, np.zeros((3, 1)), batch_size=1, shuffle=False, verbose=0)
    tree = first.get_state_tree("numpy_array")
    assert {name: number.tolist() for name, number in tree["optimizer_variables"]["loss_scale"].items()} == {
        "current_loss_scale": 2.0**14, "good_steps": 1, "history": [0, 1, 1, 2, 0]
    }  # fmt: skip
    second.set_state_tree({"optimizer_variables": {"loss_scale": tree["optimizer_variables"]["loss_scale"]}})
    assert second.optimizer.loss_scale_state() == first.optimizer.loss_scale_state()


def test_the_swap_callback_for_averages_finds_the_inner_optimizer() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(wrap(keras.optimizers.SGD(0.1, use_ema=True)), "mse")
    x = np.ones((8, 2), "float32")
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    model.fit(x, np.zeros((8, 1)), epochs=2, verbose=0, validation_data=(x, np.zeros((8, 1))), callbacks=[swap])
    assert int(model.optimizer.iterations) == 2


def test_without_scaling_there_is_no_state() -> None:
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(1.0), NoLossScale())
    weight = variable()
    optimizer.apply([tf.constant([1.0, 1.0])], [weight])
    assert weight.numpy().tolist() == [0.0, 1.0]
    assert len(optimizer.variables) == len(optimizer.inner_optimizer.variables)
    assert float(optimizer.scale) == 1.0
    assert optimizer.loss_scale_state().steps == 0


class Lookahead(keras.optimizers.Optimizer):
    """A user's optimizer around an optimizer: every second step goes half of the way (Zhang et al., arXiv 1907.08610)."""

    def __init__(self, inner: Any, **arguments: Any) -> None:
        super().__init__(learning_rate=0.0, **arguments)
        self.inner = inner

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.inner.build(variables)
        self.slow = [tf.Variable(one.value) for one in variables]

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        self.inner.apply(grads, trainable_variables)
        self.iterations.assign_add(1)
        for slow, fast in zip(self.slow, self._trainable_variables, strict=True):
            due = self.iterations % 2 == 0
            slow.assign(tf.where(due, (slow + fast.value) / 2, slow))
            fast.assign(tf.where(due, slow, fast.value))


def scaled_step(optimizer: Any, weight: keras.Variable, factor: tf.Variable) -> Any:
    """A function that takes a step on the sum of squares times a factor."""

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight.value**2) * factor)
        optimizer.apply(tape.gradient(loss, [weight.value]), [weight])

    return step


@pytest.mark.parametrize("nesting", ["scale around lookahead", "lookahead around scale"])
def test_a_users_optimizer_around_an_optimizer(nesting: str, caplog: pytest.LogCaptureFixture) -> None:  # R97
    """Outside, the scale guards all of it. Inside, the user's optimizer scales no loss: it is warned about, and trains all the same."""
    results = []
    for wrapped in (False, True):
        weight, spoil = variable(), tf.Variable(1.0)
        inner = keras.optimizers.SGD(0.25, momentum=0.5)
        optimizer: Any = Lookahead(wrap(inner) if wrapped and nesting.startswith("lookahead") else inner)
        optimizer = wrap(optimizer) if wrapped and nesting.startswith("scale") else optimizer
        optimizer.build([weight])

        step = scaled_step(optimizer, weight, spoil)
        for index in range(5):
            spoil.assign(np.inf if wrapped and index == 2 and nesting.startswith("scale") else 1.0)
            if wrapped or index != 2 or nesting.startswith("lookahead"):
                step()
        results.append([weight.numpy().tolist(), int(optimizer.iterations)])
    assert results[0] == results[1]
    assert any("not scaled" in record.getMessage() for record in caplog.records) == nesting.startswith("lookahead")
