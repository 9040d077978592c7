"""`Model.compile` under loss scaling: who wraps what, when, and how it is undone."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tf_keras

import tfmp
from tfmp.errors import MixedPrecisionWarning
from tfmp.hooks import keras_compile, notices
from tfmp.optimizers.wrap import is_wrapped

FAMILIES = {"keras": keras, "tf_keras": tf_keras}
ON = {"dtype": "float16", "ignore_performance": True}


@pytest.fixture(autouse=True)
def _fresh_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_state", notices._State(on=True))


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> object:
    return FAMILIES[request.param]


def model_of(family: object) -> object:
    return family.Sequential([family.layers.Input((4,)), family.layers.Dense(2)])  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", ["object", "string", "dict", "keyword", "default"])
def test_compile_wraps_once_whatever_the_form(family: object, form: str) -> None:
    sgd = family.optimizers.SGD(0.5)  # type: ignore[attr-defined]
    dictionary = family.optimizers.serialize(sgd)  # type: ignore[attr-defined]
    arguments = {"object": (sgd,), "string": ("sgd",), "dict": (dictionary,), "keyword": (), "default": ()}[form]
    keywords = {"optimizer": sgd} if form == "keyword" else {}
    model = model_of(family)
    with tfmp.mixed_precision(**ON):
        model.compile(*arguments, loss="mse", **keywords)
        assert is_wrapped(model.optimizer)
        inner = model.optimizer.inner_optimizer
        assert type(inner).__name__ == ("RMSprop" if form == "default" else "SGD") and not is_wrapped(inner)
        model.compile(model.optimizer, loss="mse")
    assert model.optimizer.inner_optimizer is inner


def test_bfloat16_and_off_do_not_wrap(family: object) -> None:
    for scope in (
        tfmp.mixed_precision(dtype="bfloat16", ignore_performance=True),
        tfmp.mixed_precision(**ON, loss_scaling=False),
        tfmp.mixed_precision(enabled=False),
    ):
        model = model_of(family)
        sgd = family.optimizers.SGD()  # type: ignore[attr-defined]
        with scope:
            model.compile(sgd, loss="mse")
        assert model.optimizer is sgd


def test_wrapped_model_trains(family: object) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = x @ rng.normal(size=(4, 2)).astype("float32")
    model = model_of(family)
    with tfmp.mixed_precision(**ON):
        model.compile("sgd", loss="mse")
        history = model.fit(x, y, epochs=30, verbose=0).history["loss"]
    assert history[-1] < history[0] / 2 and np.isfinite(history).all()


@pytest.mark.parametrize("base", [tf_keras.optimizers.SGD, tf_keras.optimizers.legacy.SGD], ids=["new", "legacy"])
def test_an_optimizer_with_a_minimize_of_its_own_stays_as_it_is_and_that_is_said(base: type) -> None:
    class First(base):  # type: ignore[misc, valid-type]
        def minimize(self, loss: object, var_list: list, tape: object = None) -> object:
            return super().minimize(loss, var_list[:1], tape=tape)

    model, x = model_of(tf_keras), np.ones((8, 4), "float32")
    bias = model.get_weights()[1]
    with tfmp.mixed_precision(**ON):
        with pytest.warns(MixedPrecisionWarning, match="trains without a loss scale. ValueError: .*First has a `minimize` of its own"):
            model.compile(First(0.1), loss="mse")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MixedPrecisionWarning)  # that its gradients are not scaled
            model.fit(x, x[:, :2], verbose=0)
    assert type(model.optimizer) is First
    np.testing.assert_array_equal(model.get_weights()[1], bias)
    assert int(model.optimizer.iterations) == 1


def test_keras_own_wrapper_is_left_alone() -> None:
    own = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    model = model_of(keras)
    with tfmp.mixed_precision(**ON):
        model.compile(own, loss="mse")
    assert model.optimizer is own


def test_bad_optimizer_gets_keras_own_error() -> None:
    with tfmp.mixed_precision(**ON), pytest.raises(ValueError, match="no_such_optimizer"):
        model_of(keras).compile("no_such_optimizer", loss="mse")


def test_mixed_policy_and_tfmp_give_one_warning(family: object) -> None:
    prefix = family.mixed_precision  # type: ignore[attr-defined]
    set_policy = getattr(prefix, "set_dtype_policy", None) or prefix.set_global_policy
    set_policy("mixed_float16")
    try:
        model = model_of(family)
        with tfmp.mixed_precision(**ON), pytest.warns(MixedPrecisionWarning, match="already has the dtype policy 'mixed_float16'") as caught:
            model.compile("sgd", loss="mse")
            model.compile("sgd", loss="mse")
            model.fit(np.zeros((4, 4), "float32"), np.zeros((4, 2), "float32"), verbose=0)
        assert len(caught) == 1
    finally:
        set_policy("float32")


def test_run_eagerly_is_announced() -> None:
    model = model_of(keras)
    with tfmp.mixed_precision(**ON), pytest.warns(MixedPrecisionWarning, match="run_eagerly=True: eager code is not rewritten"):
        model.compile("sgd", loss="mse", run_eagerly=True)


def test_uninstall_restores_compile_exactly() -> None:
    from keras.src.trainers.trainer import Trainer

    hooked = Trainer.__dict__["compile"]
    keras_compile.uninstall()
    try:
        original = Trainer.__dict__["compile"]
        assert original is not hooked and not hasattr(original, "__wrapped__") or original.__module__ == Trainer.__module__
    finally:
        keras_compile.install_keras()
        keras_compile.install_tf_keras()
    assert Trainer.__dict__["compile"].__wrapped__ is original
    keras_compile.install_keras()
    assert Trainer.__dict__["compile"].__wrapped__ is original
