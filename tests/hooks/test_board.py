"""What TensorBoard is given: by the callbacks in `fit`, and by the function in a custom loop."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.optimizers.families import KERASES, Family
from tfmp.hooks.board_keras3 import MixedPrecisionBoard
from tfmp.hooks.board_tf_keras import TfKerasMixedPrecisionBoard
from tfmp.optimizers.policies import DynamicLossScale
from tfmp.optimizers.wrap import wrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
BOARDS = {"keras": MixedPrecisionBoard, "tf_keras": TfKerasMixedPrecisionBoard}
families = pytest.mark.parametrize("family", KERASES, ids=lambda family: family.name)
X, Y = np.ones((16, 4), np.float32), np.ones((16, 3), np.float32)


def written(folder: pathlib.Path) -> dict[str, dict[int, Any]]:
    """Tag to step to value, from TensorBoard's event files; scalars are numbers, texts strings."""
    found: dict[str, dict[int, Any]] = {}
    for path in folder.rglob("events.out*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                content = tf.make_ndarray(value.tensor)
                kind = value.metadata.plugin_data.plugin_name
                found.setdefault(value.tag, {})[event.step] = float(content) if kind == "scalars" else content.item().decode()
    return found


def layer(family: Family, name: str) -> str:
    """Returns the path of a layer of `make_model`, as the family writes it into the names of variables."""
    return f"net/{name}" if family.keras is keras else name


def make_model(family: Family, optimizer: Any) -> Any:
    layers = family.keras.layers
    model = family.keras.Sequential([family.keras.Input((4,)), layers.Dense(8, name="first"), layers.Dense(3, name="second")], name="net")
    model.compile(optimizer, "mse", jit_compile=False)
    return model


@families
def test_fit_writes_the_scale_the_gradients_and_the_report(family: Family, tmp_path: pathlib.Path) -> None:
    with tfmp.mixed_precision(dtype="float16", ignore_performance=True, loss_scaling=False):
        model = make_model(family, wrap(family.sgd(1e-3), DynamicLossScale(initial=2.0**10)))
        board = BOARDS[family.keras.__name__](str(tmp_path), every=2)
        model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[board])
    found = written(tmp_path)
    assert set(found["loss_scale/scale"].values()) == {2.0**10}
    assert found["loss_scale/skipped_steps"][8] == 0
    assert {tag for tag in found if tag.startswith("gradients/zeros/")} == {f"gradients/zeros/{layer(family, name)}" for name in ("first", "second")}
    shares = {what: found[f"gradients/{what}/{layer(family, 'first')}"] for what in ("zeros", "underflow", "subnormal", "overflow")}
    assert all(sorted(steps) == [2, 4, 6, 8] for steps in shares.values())
    assert [set(steps.values()) for steps in shares.values()] == [{0.0}] * 4  # scaled, all of them fit into float16
    (text,) = found["tfmp/report"].values()
    assert text.startswith("### ") and "| layer | 16 bit | float32 |" in text and re.search(r"\| net\S*/first\S* \|", text)


@families
def test_gradients_are_counted_as_those_of_the_scaled_loss(family: Family, tmp_path: pathlib.Path) -> None:
    """With a scale of 1, gradients of 1e-6 times a small loss underflow; with 2^15 they do not."""
    shares = {}
    for scale in (1.0, 2.0**15):
        model = make_model(family, wrap(family.sgd(0.0), scale))
        folder = tmp_path / str(scale)
        model.fit(X * 1e-9, Y, batch_size=16, verbose=0, callbacks=[BOARDS[family.keras.__name__](str(folder), every=1)])
        found = written(folder)
        shares[scale] = tuple(found[f"gradients/{what}/{layer(family, 'first')}"][1] for what in ("underflow", "subnormal"))
    assert shares[1.0][0] > 0.5
    assert shares[2.0**15][0] < shares[1.0][0]


@pytest.mark.parametrize("family", KERASES[:2], ids=lambda family: family.name)
def test_the_callback_of_either_keras_serves_models_of_both(family: Family, tmp_path: pathlib.Path) -> None:
    """Also for counting: the optimizers of the two are given scaled and unscaled gradients."""
    other = TfKerasMixedPrecisionBoard if family.keras is keras else MixedPrecisionBoard
    model = make_model(family, wrap(family.sgd(0.0), 2.0**15))
    model.fit(X * 2.0**-30, Y, batch_size=16, verbose=0, validation_data=(X, Y), callbacks=[other(str(tmp_path), every=1)])
    found = written(tmp_path)
    assert found["loss_scale/scale"] == {1: 2.0**15}
    shares = {what: found[f"gradients/{what}/{layer(family, 'first')}"][1] for what in ("underflow", "subnormal")}
    assert shares["underflow"] < 0.5 < shares["subnormal"]  # 2^-30 times 2^15 is 2^-15, between 2^-24 and 2^-14; times 1 or 2^30 it is not


@families
def test_an_optimizer_without_a_loss_scale_is_watched_too(family: Family, tmp_path: pathlib.Path) -> None:
    model = make_model(family, family.sgd(0.1))
    X_bad = X.copy()
    X_bad[0] = np.inf
    model.fit(X_bad, Y, batch_size=16, verbose=0, callbacks=[BOARDS[family.keras.__name__](str(tmp_path), every=1, rewrite=False)])
    found = written(tmp_path)
    assert "loss_scale/scale" not in found and "tfmp/report" not in found
    assert found[f"gradients/overflow/{layer(family, 'first')}"][1] > 0


@families
def test_a_step_that_was_traced_before_is_traced_anew_once(family: Family, tmp_path: pathlib.Path) -> None:
    model = make_model(family, family.sgd(0.1))
    model.fit(X, Y, batch_size=4, verbose=0)
    board = BOARDS[family.keras.__name__](str(tmp_path), every=4, rewrite=False)
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[board])
    function = model.train_function
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[board])
    assert model.train_function is function
    model.fit(X, Y, batch_size=4, verbose=0)  # and runs without it
    assert sorted(written(tmp_path)[f"gradients/zeros/{layer(family, 'second')}"]) == [4]


@families
def test_training_is_the_same_with_and_without_the_callback(family: Family, tmp_path: pathlib.Path) -> None:
    weights = []
    for callbacks in ([], [BOARDS[family.keras.__name__](str(tmp_path), every=1)]):
        family.keras.utils.set_random_seed(1)
        with tfmp.mixed_precision(dtype="float16", ignore_performance=True, loss_scaling=False):
            model = make_model(family, wrap(family.adam(0.1)))
            model.fit(X, Y, batch_size=4, verbose=0, callbacks=callbacks)
        weights.append(model.get_weights())
    for without, within in zip(*weights, strict=True):
        np.testing.assert_array_equal(without, within)


def test_a_custom_loop(tmp_path: pathlib.Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="only")], name="net")
    optimizer = wrap(keras.optimizers.SGD(0.1))
    writer = tf.summary.create_file_writer(str(tmp_path))

    @tf.function
    def step() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean((model(X) - Y) ** 2))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return gradients

    with tfmp.mixed_precision(dtype="float16", ignore_performance=True):
        before = len(tfmp.report())
        gradients = step()
    pairs = list(zip(gradients, model.trainable_variables, strict=True))
    tfmp.write_summaries(7, optimizer=optimizer, gradients=pairs, rewrite=tfmp.report()[before:], writer=writer)
    with writer.as_default(step=99):
        tfmp.write_summaries(8, optimizer=keras.optimizers.SGD(), gradients=[(tf.constant([1e-9, 0.0]), model.trainable_variables[1])], scale=2.0)
        assert tf.summary.experimental.get_step() == 99
    writer.close()
    found = written(tmp_path)
    assert found["loss_scale/scale"] == {7: 2.0**15}
    assert found["gradients/overflow/net/only"] == {7: 0.0, 8: 0.0}
    assert (found["gradients/underflow/net/only"][8], found["gradients/zeros/net/only"][8]) == (0.5, 0.5)
    assert found["tfmp/report"][7].startswith("### ") and found["tfmp/report"][7].count("to float16") == 1


def test_inside_a_function_it_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"write_summaries was called inside a tf\.function; call it between steps"):
        tf.function(lambda: tfmp.write_summaries(1))()


def test_bad_arguments_are_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="every=0 must be at least 1"):
        MixedPrecisionBoard(str(tmp_path), every=0)


def test_counts_of_all_replicas_add_up(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.hooks.board_on_replicas", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})
    found = json.loads(done.stdout.splitlines()[-1])
    for family, name in (("keras3", "net/only"), ("tf_keras", "only")):
        assert found[family][f"gradients/zeros/{name}"] == {"1": 0.125, "2": 0.125}, family
        assert found[family][f"gradients/overflow/{name}"] == {"1": 0.0, "2": 0.0}, family
