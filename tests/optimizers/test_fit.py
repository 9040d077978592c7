"""`compile` and `fit` with wrapped optimizers, in Keras 3 and tf_keras, interpreted and compiled."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.families import KERAS3, KERASES, LEGACY, MONITORS, TF_KERAS, Family
from tfmp.optimizers.policies import DynamicLossScale
from tfmp.optimizers.wrap import is_wrapped, wrap

families = pytest.mark.parametrize("family", KERASES, ids=lambda family: family.name)
jits = pytest.mark.parametrize("jit", [False, True], ids=["interpreted", "compiled"])

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(32, 3)).astype("float32")
Y = RANDOM.normal(size=(32, 2)).astype("float32")


def make_model(family: Family, optimizer: Any, **compile_arguments: Any) -> Any:
    """A small network, the same weights every time."""
    family.keras.utils.set_random_seed(1)
    layers = family.keras.layers
    model = family.keras.Sequential([layers.Input((3,)), layers.Dense(4, activation="relu"), layers.Dense(2)])
    model.compile(optimizer, "mse", **compile_arguments)
    return model


def spoilt(batch: int, batch_size: int = 4, value: float = np.inf) -> np.ndarray:
    """The inputs, with one bad number in the given batch."""
    bad = X.copy()
    bad[batch * batch_size, 0] = value
    return bad


@families
def test_fit_gives_the_weights_of_the_unwrapped_optimizer(family: Family) -> None:
    weights = []
    for wrapping in (lambda optimizer: optimizer, wrap):
        model = make_model(family, wrapping(family.adam(0.01)))
        history = model.fit(X, Y, batch_size=4, epochs=3, verbose=0, shuffle=False)
        weights.append(np.concatenate([weight.ravel() for weight in model.get_weights()]))
    np.testing.assert_array_equal(weights[0], weights[1])
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert int(model.optimizer.iterations) == 24
    assert model.optimizer.loss_scale_state().skipped_steps == 0


@families
@jits
def test_fit_skips_a_bad_batch_and_goes_on(family: Family, jit: bool) -> None:
    optimizer = wrap(family.adam(0.01))
    model = make_model(family, optimizer, jit_compile=jit)
    assert model.optimizer is optimizer
    model.fit(spoilt(2), Y, batch_size=4, epochs=1, verbose=0, shuffle=False)
    good = [row for row in range(32) if not 8 <= row < 12]
    reference = make_model(family, family.adam(0.01), jit_compile=jit)
    reference.fit(X[good], Y[good], batch_size=4, epochs=1, verbose=0, shuffle=False)
    np.testing.assert_equal(model.get_weights(), reference.get_weights())
    state = optimizer.loss_scale_state()
    assert (state.scale, state.good_steps, state.skipped_steps, state.last_skip_step, state.steps) == (2.0**14, 5, 1, 3, 8)
    assert int(optimizer.iterations) == 7
    assert "kernel" in optimizer.last_bad_variable


ENTRIES = {
    "dataset": lambda model: model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(4), verbose=0, shuffle=False),
    "generator": lambda model: model.fit(((X[i : i + 4], Y[i : i + 4]) for i in range(0, 32, 4)), verbose=0, shuffle=False),
    "train_on_batch": lambda model: [model.train_on_batch(X[i : i + 4], Y[i : i + 4]) for i in range(0, 32, 4)],
}


@families
@pytest.mark.parametrize(
    ("entry", "arguments"),
    [
        ("dataset", {}),
        ("dataset", {"steps_per_execution": 4}),
        ("dataset", {"run_eagerly": True}),
        ("generator", {}),
        ("train_on_batch", {}),
        ("train_on_batch", {"run_eagerly": True}),
    ],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")  # Keras 3, of every generator
def test_every_entry_to_training_is_guarded(family: Family, entry: str, arguments: dict[str, Any]) -> None:
    weights = []
    for wrapping in (lambda optimizer: optimizer, wrap):
        model = make_model(family, wrapping(family.sgd(0.01)), **arguments)
        ENTRIES[entry](model)
        weights.append(np.concatenate([weight.ravel() for weight in model.get_weights()]))
    np.testing.assert_array_equal(weights[0], weights[1])
    assert model.optimizer.loss_scale_state().steps == 8


@families
def test_frozen_layers_and_unused_branches_do_not_disturb(family: Family) -> None:  # R70
    layers = family.keras.layers
    inputs = layers.Input((3,))
    frozen, used, unused = layers.Dense(3), layers.Dense(2, name="used"), layers.Dense(2, name="unused")
    hidden = frozen(inputs)
    model = family.keras.Model(inputs, [used(hidden), unused(hidden)])
    frozen.trainable = False
    model.compile(wrap(family.adam(0.1)), ["mse", None])
    before = [weight.copy() for weight in model.get_weights()]
    targets = [Y, Y] if family is KERAS3 else Y
    model.fit(X, targets, batch_size=8, verbose=0)
    changed = [not np.array_equal(now, then) for now, then in zip(model.get_weights(), before, strict=True)]
    assert changed == [False, False, True, True, False, False]
    assert model.optimizer.loss_scale_state().good_steps == 4


@families
@jits
def test_the_mixed_float16_policy_does_not_wrap_again(family: Family, jit: bool) -> None:
    policy = family.keras.mixed_precision.set_global_policy if family is not KERAS3 else keras.config.set_dtype_policy
    optimizer = wrap(family.adam(0.01), DynamicLossScale(initial=2.0**20))
    policy("mixed_float16")
    try:
        model = make_model(family, optimizer, jit_compile=jit)
        model.fit(X, Y, batch_size=4, epochs=4, verbose=0)
    finally:
        policy("float32")
    assert model.optimizer is optimizer
    state = optimizer.loss_scale_state()
    assert 0 < state.skipped_steps < 10  # 2^20 is too much for float16, so some of the first steps overflow, and only of the first
    assert state.last_skip_step < 12
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


@families
def test_learning_rate_callbacks_reach_the_inner_optimizer(family: Family) -> None:  # R92
    callbacks = family.keras.callbacks
    optimizer = wrap(family.sgd(0.5))
    model = make_model(family, optimizer)
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)])
    assert float(optimizer.inner_optimizer.learning_rate) == float(optimizer.learning_rate) == 0.125
    plateau = callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=1e9)
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[plateau])
    assert float(optimizer.inner_optimizer.learning_rate) == 0.03125

    class Doubling(callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 2

    model.fit(X, Y, epochs=1, verbose=0, callbacks=[Doubling()])
    assert float(optimizer.inner_optimizer.learning_rate) == 0.0625
    if family is not KERAS3:
        optimizer.lr = 0.75
        assert float(optimizer.inner_optimizer.lr) == float(optimizer.lr) == 0.75


@families
def test_a_schedule_counts_taken_steps_only(family: Family) -> None:
    schedule = family.keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.01, 0.0])
    optimizer = wrap(family.sgd(schedule))
    model = make_model(family, optimizer)
    model.fit(spoilt(1), Y, batch_size=4, epochs=1, verbose=0, shuffle=False)
    good = [row for row in range(32) if not 4 <= row < 8]
    reference = make_model(family, family.sgd(schedule))
    reference.fit(X[good], Y[good], batch_size=4, epochs=1, verbose=0, shuffle=False)
    np.testing.assert_equal(model.get_weights(), reference.get_weights())


@pytest.mark.parametrize("family", [KERAS3, TF_KERAS], ids=lambda family: family.name)
def test_moving_averages_and_weight_decay_rest_on_a_skipped_step(family: Family) -> None:  # R91, R97
    arguments = {"use_ema": True, "ema_momentum": 0.5, "weight_decay": 0.1}
    models = []
    good = [row for row in range(32) if not 8 <= row < 12]
    for wrapping, x, y in ((wrap, spoilt(2, value=np.nan), Y), (lambda optimizer: optimizer, X[good], Y[good])):
        model = make_model(family, wrapping(family.adam(0.01, **arguments)))
        model.fit(x, y, batch_size=4, epochs=1, verbose=0, shuffle=False)
        models.append(model)
    np.testing.assert_equal(models[0].get_weights(), models[1].get_weights())  # fit ends by copying the averages
    inner = models[0].optimizer.inner_optimizer
    ours = [np.array(variable) for variable in inner.variables]
    np.testing.assert_equal(ours, [np.array(variable) for variable in models[1].optimizer.variables])
    assert models[0].optimizer.use_ema
    models[0].optimizer.finalize_variable_values(models[0].trainable_variables)


@families
@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="Keras's TensorBoard callback needs the tensorboard package")
def test_tensorboard_sees_rising_steps(family: Family, tmp_path: pathlib.Path) -> None:  # R77
    optimizer = wrap(family.adam(0.01))
    model = make_model(family, optimizer)
    seen = []
    watch = family.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(int(model.optimizer.iterations)))
    board = family.keras.callbacks.TensorBoard(str(tmp_path), update_freq=1)
    model.fit(spoilt(0), Y, batch_size=4, epochs=2, verbose=0, shuffle=False, callbacks=[board, watch])
    assert seen == [7, 14]
    assert list(tmp_path.rglob("events.out*"))


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "Training is stuck" in record.getMessage()]


@families
def test_one_warning_at_the_floor_says_what_to_do(family: Family, caplog: pytest.LogCaptureFixture) -> None:  # R64, R67
    optimizer = wrap(family.adam(0.01), DynamicLossScale(initial=4))
    model = make_model(family, optimizer)
    with caplog.at_level("WARNING", logger="absl"):
        history = model.fit(X * np.nan, Y, batch_size=4, epochs=5, verbose=0, callbacks=[MONITORS[family.keras](patience=5)])
    (message,) = logged(caplog)
    assert "the last 8 steps were skipped because of infinite or NaN gradients, and the loss scale is at its minimum, 1." in message
    assert "First bad gradient: " in message
    assert "kernel" in message
    assert f"Last loss: {history.history['loss'][0]:g}. 8 of 8 steps were skipped so far." in message
    assert "train in bfloat16" in message


@families
def test_being_stuck_can_be_an_error_or_nothing(family: Family, caplog: pytest.LogCaptureFixture) -> None:  # R67
    for at_floor in ("raise", "ignore"):
        model = make_model(family, wrap(family.adam(0.01), DynamicLossScale(initial=1)))
        monitor = MONITORS[family.keras](at_floor=at_floor, patience=3, every=1)
        arguments = {"batch_size": 4, "epochs": 1, "verbose": 0, "callbacks": [monitor]}
        if at_floor == "raise":
            with pytest.raises(RuntimeError, match="Training is stuck: the last 3 steps were skipped"):
                model.fit(X * np.nan, Y, **arguments)
        else:
            model.fit(X * np.nan, Y, **arguments)
        assert logged(caplog) == []


@families
def test_skips_while_the_scale_settles_are_quiet(family: Family, caplog: pytest.LogCaptureFixture) -> None:  # R64
    model = make_model(family, wrap(family.adam(0.01)))
    bad = X.copy()
    bad[: 4 * 6] = np.inf  # six skips in a row, with the scale far from its floor
    with caplog.at_level("INFO", logger="absl"):
        model.fit(bad, Y, batch_size=4, epochs=1, verbose=0, shuffle=False, callbacks=[MONITORS[family.keras](patience=1, every=1)])
    assert model.optimizer.loss_scale_state().skipped_steps == 6
    assert logged(caplog) == []


@families
def test_the_scale_is_shown_on_request(family: Family, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    model = make_model(family, wrap(family.adam(0.01)))
    monitor = MONITORS[family.keras](progress_bar=True, log_dir=str(tmp_path))
    history = model.fit(spoilt(1), Y, batch_size=4, epochs=2, verbose=2, shuffle=False, callbacks=[monitor])
    assert history.history["loss_scale"] == [2.0**14, 2.0**13]
    assert history.history["skipped_steps"] == [1.0, 2.0]
    assert "loss_scale: 16384" in capsys.readouterr().out
    scalars = read_scalars(tmp_path)
    assert scalars["loss_scale/scale"] == {step: 2.0**15 if step < 2 else 2.0**14 if step < 10 else 2.0**13 for step in range(1, 17)}
    assert scalars["loss_scale/skipped_steps"][16] == 2
    assert [step for step, skips in scalars["loss_scale/consecutive_skips"].items() if skips] == [2, 10]


def read_scalars(folder: pathlib.Path) -> dict[str, dict[int, float]]:
    """Tag to step to value, from TensorBoard's event files."""
    scalars: dict[str, dict[int, float]] = {}
    for path in folder.rglob("events.out*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                scalars.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    return scalars


@families
def test_a_monitor_without_loss_scaling_does_nothing(family: Family) -> None:
    for optimizer in (family.adam(0.01), wrap(family.adam(0.01), None)):
        history = make_model(family, optimizer).fit(X, Y, verbose=0, callbacks=[MONITORS[family.keras](progress_bar=True)])
        assert set(history.history) == {"loss"}


@pytest.mark.parametrize("family", [TF_KERAS, LEGACY, KERAS3], ids=lambda family: family.name)
def test_compiling_again_with_the_same_inner_optimizer_works(family: Family) -> None:
    inner = family.adam(0.01)
    model = make_model(family, wrap(inner))
    for _ in range(2):
        model.compile(wrap(inner), "mse")
        model.fit(X, Y, batch_size=4, verbose=0)
    assert int(inner.iterations) == 16
    assert is_wrapped(model.optimizer)
    assert not is_wrapped(inner)


@families
def test_a_clone_compiled_from_the_configuration_has_an_equal_wrapper_of_its_own(family: Family) -> None:
    policy = DynamicLossScale(initial=64, hysteresis=2)
    model = make_model(family, wrap(family.adam(family.keras.optimizers.schedules.CosineDecay(0.1, 100)), policy))
    clone = family.keras.models.clone_model(model)
    clone.compile_from_config(model.get_compile_config())
    model.fit(spoilt(1), Y, batch_size=4, verbose=0, shuffle=False)
    clone.fit(X, Y, batch_size=4, verbose=0)
    assert type(clone.optimizer) is type(model.optimizer)
    assert clone.optimizer.loss_scale_policy == policy
    assert [int(one.optimizer.loss_scale_state().skipped_steps) for one in (model, clone)] == [1, 0]


@families
def test_a_layer_frozen_between_two_fits_leaves_the_scale_and_the_names_right(family: Family) -> None:
    """Compiled again with the same wrapper, whose optimizer now gets fewer gradients, and then all of them again."""
    optimizer = wrap(family.adam(0.01))
    model, seen = make_model(family, optimizer), []
    for trainable in (True, False, True):
        model.layers[0].trainable = trainable
        model.compile(optimizer, "mse")
        model.fit(spoilt(0), Y, batch_size=4, verbose=0, shuffle=False)
        names = [getattr(weight, "path", weight.name) for layer in model.layers for weight in layer.weights]
        seen.append(names.index(optimizer.last_bad_variable))
    assert seen == [0, 2, 0]  # the kernel of the first layer, then of the second
    state = optimizer.loss_scale_state()
    assert (state.scale, state.skipped_steps, state.steps, int(optimizer.iterations)) == (2.0**12, 3, 24, 21)
