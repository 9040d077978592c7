"""The scale is remembered: resuming in a new process changes no bit, and checkpoints fit unwrapped optimizers both ways."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.optimizers.conftest import Scripts
from tests.optimizers.families import FAMILIES, KERAS3, KERASES, LEGACY, TF_KERAS, V1, Family, train_step
from tfmp.optimizers.policies import DynamicLossScale
from tfmp.optimizers.wrap import wrap

families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@pytest.mark.slow
def test_resuming_in_a_new_process_changes_no_bit(tmp_path: pathlib.Path, run_script: Scripts) -> None:  # R82
    """Scale, counts, hysteresis, iterations, slots and weights: see resume.py for the ways of saving."""
    saved, loaded = (json.loads(run_script("tests/optimizers/resume.py", action, str(tmp_path)).splitlines()[-1]) for action in ("save", "load"))
    assert saved == loaded
    assert len(saved) == 20
    assert saved["keras3-keras"] != saved["tf_keras-keras"] != saved["keras3-loop"]


class Trained:
    """A variable and an optimizer that have taken three good steps, the second of four having been skipped."""

    def __init__(self, family: Family, wrapped: bool, steps: int = 4) -> None:
        self.family = family
        self.variable, self.spoil = tf.Variable([1.0, -2.0], name="weight"), tf.Variable(0.0)
        self.inner = family.adam(0.1)
        self.optimizer = wrap(self.inner, DynamicLossScale(growth_interval=3)) if wrapped else self.inner
        if family is KERAS3:
            self.optimizer.build([self.variable])
        for index in range(steps):
            self.spoil.assign(np.inf if index == 1 and wrapped else 0.0)
            self.step()

    def step(self) -> None:
        def loss() -> tf.Tensor:
            return tf.reduce_sum(self.variable**2) + self.spoil * self.variable[0]

        train_step(self.family, self.optimizer, loss, [self.variable])

    def checkpoint(self) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(optimizer=self.optimizer, variable=self.variable)

    def inner_values(self) -> dict[str, Any]:
        variables = self.inner.variables
        return {one.name: np.array(one).tolist() for one in (variables() if callable(variables) else variables)}


def match(one: Trained, other: Trained) -> bool:
    """Whether weights and inner optimizers agree, whatever order or names the slots have."""
    ours, theirs = one.inner_values(), other.inner_values()
    same_weights = one.variable.numpy().tolist() == other.variable.numpy().tolist()
    return same_weights and sorted(map(str, ours.values())) == sorted(map(str, theirs.values()))


@families
@pytest.mark.parametrize("steps_before", [0, 1], ids=["before the slots are made", "after"])
def test_a_checkpoint_of_the_wrapper_fits_the_unwrapped_optimizer(family: Family, steps_before: int, tmp_path: pathlib.Path) -> None:  # R83
    source, target = Trained(family, wrapped=True), Trained(family, wrapped=False, steps=steps_before)
    path = source.checkpoint().write(str(tmp_path / "checkpoint"))
    target.checkpoint().read(path).expect_partial()
    for trained in (source, target):
        trained.spoil.assign(0.0)
        trained.step()
    assert match(source, target)


@families
@pytest.mark.parametrize("steps_before", [0, 1], ids=["before the slots are made", "after"])
def test_a_checkpoint_of_the_unwrapped_optimizer_fits_the_wrapper(family: Family, steps_before: int, tmp_path: pathlib.Path) -> None:  # R83
    source, target = Trained(family, wrapped=False), Trained(family, wrapped=True, steps=steps_before)
    path = source.checkpoint().write(str(tmp_path / "checkpoint"))
    before = target.optimizer.loss_scale_state()
    target.checkpoint().read(path).expect_partial()
    assert target.optimizer.loss_scale_state() == before
    for trained in (source, target):
        trained.step()
    assert match(source, target)


@families
def test_all_objects_of_a_wrapper_match_its_own_checkpoint(family: Family, tmp_path: pathlib.Path) -> None:  # R83
    source, target = Trained(family, wrapped=True), Trained(family, wrapped=True, steps=1)
    path = source.checkpoint().write(str(tmp_path / "checkpoint"))
    names = [name for name, _ in tf.train.list_variables(path)]
    assert len(names) == len(set(names))
    assert "optimizer/loss_scale/current_loss_scale/.ATTRIBUTES/VARIABLE_VALUE" in names
    target.checkpoint().read(path).assert_existing_objects_matched()
    assert target.optimizer.loss_scale_state() == source.optimizer.loss_scale_state()
    assert match(source, target)


def test_a_wrapped_average_of_weights_has_checkpoint_names_of_its_own(tmp_path: pathlib.Path) -> None:  # R97
    for family in (KERAS3, TF_KERAS):
        variable = tf.Variable([1.0, 2.0])
        optimizer = wrap(family.adam(0.1, use_ema=True))
        optimizer.build([variable])
        names = [name for name, _ in tf.train.list_variables(tf.train.Checkpoint(o=optimizer).write(str(tmp_path / family.name)))]
        assert len(names) == len(set(names))
        assert sum("loss_scale" in name for name in names) == 3


def test_tf_kerass_own_wrapper_reads_and_writes_the_same_scale(tmp_path: pathlib.Path) -> None:
    theirs = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.Adam(0.1), initial_scale=64)
    ours = wrap(tf_keras.optimizers.Adam(0.1))
    path = tf.train.Checkpoint(optimizer=theirs).write(str(tmp_path / "theirs"))
    tf.train.Checkpoint(optimizer=ours).read(path).expect_partial()
    assert float(ours.scale) == 64
    ours._guard.variables.current_loss_scale.assign(128.0)
    path = tf.train.Checkpoint(optimizer=ours).write(str(tmp_path / "ours"))
    tf.train.Checkpoint(optimizer=theirs).read(path).expect_partial()
    assert float(theirs.loss_scale) == 128


X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X[:, :2]


def make_model(family: Family, optimizer: Any) -> Any:
    family.keras.utils.set_random_seed(1)
    model = family.keras.Sequential([family.keras.layers.Input((3,)), family.keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    return model


def slots(model: Any) -> list[Any]:
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return [np.array(variable) for variable in optimizer.variables]


@pytest.mark.parametrize("family", [KERAS3, TF_KERAS], ids=lambda family: family.name)
@pytest.mark.parametrize("direction", ["wrapped to plain", "plain to wrapped"])
def test_a_weights_file_fits_both_optimizers(family: Family, direction: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    wrappings = [wrap, lambda optimizer: optimizer]
    if direction == "plain to wrapped":
        wrappings.reverse()
    source, target = (make_model(family, wrapping(family.adam(0.1))) for wrapping in wrappings)
    source.fit(X, Y, batch_size=4, verbose=0)
    path = str(tmp_path / "model.weights.h5")
    source.save_weights(path)
    target.optimizer.build(target.trainable_variables)
    with caplog.at_level("INFO", logger="absl"):
        target.load_weights(path)
    np.testing.assert_equal(target.get_weights(), source.get_weights())
    np.testing.assert_equal(slots(target), slots(source))
    assert any("No loss scale in the file" in record.getMessage() for record in caplog.records) == (direction == "plain to wrapped")


FORMS = ("model.keras", "model.h5", "model.weights.h5", "model", "weights")  # the last two are TensorFlow's own formats, which only tf_keras writes
#: Files in which Keras itself keeps the state of no optimizer of this kind, wrapped or not: it starts anew.
WITHOUT_OPTIMIZER = {LEGACY: ("model.keras", "model.weights.h5", "model"), TF_KERAS: ("model",)}


@pytest.mark.parametrize(
    ("family", "form"),
    [pytest.param(family, form, id=f"{family.name}-{form}") for family in KERASES for form in FORMS if family is not KERAS3 or form in FORMS[0:3:2]],
)
def test_model_checkpoints_at_each_epoch_can_be_loaded_and_trained_on(family: Family, form: str, tmp_path: pathlib.Path) -> None:  # R94
    """Keras 3 has no optimizer state of this kind in its `.h5` files, and warns."""
    optimizer = wrap(family.adam(0.1), DynamicLossScale(growth_interval=3))
    model, path = make_model(family, optimizer), str(tmp_path / form)
    weights_only = "weights" in form
    callback = family.keras.callbacks.ModelCheckpoint(path, save_weights_only=weights_only)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[callback])
    if weights_only:
        loaded = make_model(family, wrap(family.adam(0.1), DynamicLossScale(growth_interval=3)))
        if family in (KERAS3, TF_KERAS):
            loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(path)
    else:
        loaded = family.keras.models.load_model(path)
        assert type(loaded.optimizer) is type(optimizer)
        assert loaded.optimizer.loss_scale_policy == optimizer.loss_scale_policy
    np.testing.assert_equal(loaded.get_weights(), model.get_weights())
    keeps_optimizer = form not in WITHOUT_OPTIMIZER.get(family, ())
    assert (loaded.optimizer.loss_scale_state() == optimizer.loss_scale_state()) == keeps_optimizer
    loaded.fit(X, Y, batch_size=4, verbose=0)
    assert loaded.optimizer.loss_scale_state().steps == (12 if keeps_optimizer else 4)


@pytest.mark.parametrize("imports", ["import tfmp, keras, tf_keras", "import keras, tf_keras, tfmp"])
def test_models_are_loaded_where_only_tfmp_is_imported(imports: str, tmp_path: pathlib.Path, run_script: Scripts) -> None:
    lines = [imports]
    for family in (KERAS3, TF_KERAS):
        model = make_model(family, wrap(family.adam(0.1), DynamicLossScale(initial=64)))
        model.fit(X, Y, batch_size=4, verbose=0)
        path = str(tmp_path / f"{family.name}.keras")
        model.save(path)
        lines += [f"optimizer = {family.keras.__name__}.models.load_model({path!r}).optimizer"]
        lines += ["print(type(optimizer).__module__, float(optimizer.scale), int(optimizer.iterations))"]
    script = tmp_path / "load.py"
    script.write_text("\n".join(lines))
    assert run_script(str(script)).splitlines()[-2:] == ["tfmp.optimizers.keras3 64.0 4", "tfmp.optimizers.tf_keras 64.0 4"]


def test_a_v1_saver_keeps_the_scale_and_the_names_of_the_slots(tmp_path: pathlib.Path) -> None:  # R82, R95
    v1 = tf.compat.v1

    def build(wrapped: bool) -> tuple[Any, Any, Any]:
        spoil = v1.placeholder_with_default(0.0, [])
        weight = v1.get_variable("weight", [2], initializer=v1.ones_initializer())
        optimizer = V1.adam(0.1)
        optimizer = wrap(optimizer, DynamicLossScale(growth_interval=3)) if wrapped else optimizer
        return spoil, optimizer, optimizer.minimize(tf.reduce_sum(weight**2) + spoil * weight[0])

    with tf.Graph().as_default(), v1.Session() as session:
        spoil, optimizer, train = build(wrapped=True)
        session.run(v1.global_variables_initializer())
        for value in (0.0, np.inf, 0.0):
            session.run(train, {spoil: value})
        wrapped_names = {variable.name for variable in v1.global_variables()}
        path = v1.train.Saver().save(session, str(tmp_path / "model"))
        expected = session.run([optimizer.scale, optimizer.skipped_steps, optimizer.last_skip_step])
    with tf.Graph().as_default(), v1.Session() as session:
        _, optimizer, _ = build(wrapped=True)
        v1.train.Saver().restore(session, path)
        assert session.run([optimizer.scale, optimizer.skipped_steps, optimizer.last_skip_step]) == expected == [2.0**14, 1, 2]
    with tf.Graph().as_default(), v1.Session() as session:
        build(wrapped=False)
        v1.train.Saver().restore(session, path)
        plain_names = {variable.name for variable in v1.global_variables()}
    assert {name for name in wrapped_names if not name.startswith("loss_scale/")} == plain_names


@pytest.mark.parametrize("family", KERASES, ids=lambda family: family.name)
def test_a_training_step_in_a_saved_model_goes_on_as_the_original(family: Family, tmp_path: pathlib.Path) -> None:
    """For devices that load a SavedModel and train it further. TensorFlow cannot load one with an optimizer of `tf.compat.v1.train`, wrapped or not."""
    trained = Trained(family, wrapped=True, steps=0)
    module = tf.Module()
    module.parts = [trained.variable, trained.spoil, trained.optimizer]

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def step(spoil: tf.Tensor) -> tf.Tensor:
        trained.spoil.assign(spoil)
        trained.step()
        return tf.concat([trained.variable, [trained.optimizer.scale, tf.cast(trained.optimizer.skipped_steps, tf.float32)]], 0)

    module.step = step
    steps = [0.0, np.inf, 0.0, 0.0, np.nan, 0.0]
    for spoil in steps[:2]:
        step(tf.constant(spoil))
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    went, came = ([one.step(tf.constant(spoil)).numpy().tolist() for spoil in steps[2:]] for one in (loaded, module))
    assert went == came
    assert [scale for *_, scale, _ in went] == [2.0**14, 2.0**14, 2.0**13, 2.0**13]
    assert went[-1][-1] == 2.0
