"""The one line of `tf.compat.v1.mixed_precision`, for every family of optimizers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfmp
from tfmp.hooks import activation
from tfmp.hooks.tf_function import is_attached
from tfmp.optimizers.wrap import is_wrapped


@pytest.fixture(autouse=True)
def _float16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFMP_DTYPE", "float16")
    monkeypatch.setenv("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE", "1")
    monkeypatch.setattr(activation, "_process", activation._Process())


@pytest.mark.parametrize(
    "make",
    [keras.optimizers.Adam, tf_keras.optimizers.Adam, tf_keras.optimizers.legacy.Adam, tf.compat.v1.train.AdamOptimizer],
    ids=["keras", "tf_keras", "tf_keras legacy", "v1"],
)
def test_wraps_and_switches_the_rewrite_on(make: object) -> None:
    optimizer = make()  # type: ignore[operator]
    wrapped = tfmp.enable_mixed_precision_graph_rewrite(optimizer)
    assert is_wrapped(wrapped)
    assert activation.current().graph_rewrite and activation.current().loss_scaling
    assert activation.current().settings.dtype == "float16"
    assert is_attached(tf.function(lambda x: x @ x).get_concrete_function(tf.ones([2, 2])))
    tfmp.disable_mixed_precision_graph_rewrite()
    assert not activation.current().graph_rewrite
    with pytest.raises(ValueError, match="already"):
        tfmp.enable_mixed_precision_graph_rewrite(wrapped)


def test_nothing_is_switched_on_for_what_is_no_optimizer() -> None:
    with pytest.raises(TypeError, match=r"keras|Keras"):
        tfmp.enable_mixed_precision_graph_rewrite(object())
    assert not activation.current().graph_rewrite


def test_rewrite_without_an_optimizer() -> None:  # R103
    assert tfmp.enable_mixed_precision_graph_rewrite() is None
    assert activation.current().graph_rewrite


@pytest.mark.parametrize("family", [keras, tf_keras], ids=lambda family: family.__name__)
@pytest.mark.parametrize("before", [None, True, False], ids=["", "after enable", "after enable(loss_scaling=False)"])
def test_a_second_model_is_not_left_without_a_scale(family: Any, before: bool | None) -> None:
    """Its steps are rewritten to float16 as well, although only the optimizer of the first was wrapped by hand."""
    if before is not None:
        tfmp.enable(loss_scaling=before)
    first, second = (family.Sequential([family.layers.Input((4,)), family.layers.Dense(2)]) for _ in range(2))
    first.compile(tfmp.enable_mixed_precision_graph_rewrite(family.optimizers.SGD(), 128), "mse")
    second.compile("sgd", "mse")
    assert float(first.optimizer.scale) == 128
    assert is_wrapped(second.optimizer) == (before is not False)


def test_without_a_scale_others_are_left_without_one_too() -> None:
    tfmp.enable_mixed_precision_graph_rewrite(keras.optimizers.SGD(), None)
    assert activation.current().graph_rewrite and not activation.current().loss_scaling


@pytest.mark.parametrize(("loss_scale", "expected"), [("dynamic", 2.0**15), (128, 128.0)])
def test_loss_scale_is_the_one_asked_for(loss_scale: object, expected: float) -> None:
    wrapped = tfmp.enable_mixed_precision_graph_rewrite(keras.optimizers.SGD(), loss_scale)
    wrapped.build([keras.Variable([1.0])])
    assert float(wrapped.scale) == expected


def test_bfloat16_does_not_scale(monkeypatch: pytest.MonkeyPatch) -> None:  # R85
    monkeypatch.setenv("TFMP_DTYPE", "bfloat16")
    wrapped = tfmp.enable_mixed_precision_graph_rewrite(keras.optimizers.SGD())
    wrapped.build([keras.Variable([1.0])])
    assert float(wrapped.scale) == 1.0


# The examples of TensorFlow's documentation, of `tf.compat.v1.mixed_precision` and of `tf.train.experimental`, word for word but for the modules.
MINIMIZE = """
opt = tf.compat.v1.train.AdamOptimizer(0.001)
opt = tfmp.enable_mixed_precision_graph_rewrite(opt)
train_op = opt.minimize(loss)
"""
COMPILE_AND_FIT = """
model = keras.models.Sequential([
    keras.layers.Dense(64, activation='relu'),
    keras.layers.Dense(64, activation='softmax'),
])
opt = keras.optimizers.Adam()
opt = tfmp.enable_mixed_precision_graph_rewrite(opt)
model.compile(loss="mse", optimizer=opt)
x_train = np.random.random((1024, 64))
y_train = np.random.random((1024, 64))
model.fit(x_train, y_train)
"""


def test_the_classic_example_of_minimize() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", [4, 4])
        names = {"tf": tf, "tfmp": tfmp, "loss": tf.reduce_mean((tf.ones([2, 4]) @ weight) ** 2)}
        exec(MINIMIZE, names)
        session.run(v1.global_variables_initializer())
        before = session.run(names["loss"])
        for _ in range(20):
            session.run(names["train_op"])
        assert session.run(names["loss"]) < before
        assert session.run([names["opt"].scale, names["opt"].skipped_steps]) == [2.0**15, 0]


@pytest.mark.parametrize("family", [keras, tf_keras], ids=lambda family: family.__name__)
def test_the_classic_example_of_compile_and_fit(family: Any, capsys: pytest.CaptureFixture[str]) -> None:
    already = len(tfmp.report())
    names = {"keras": family, "tfmp": tfmp, "np": np}
    exec(COMPILE_AND_FIT, names)
    assert names["model"].optimizer is names["opt"]
    assert names["opt"].loss_scale_state().steps == 32
    assert sum(record.converted for record in tfmp.report()[already:]) > 0
    assert "loss:" in capsys.readouterr().out
