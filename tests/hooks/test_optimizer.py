"""The one line of `tf.compat.v1.mixed_precision`, for every family of optimizers."""

from __future__ import annotations

import keras
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
    assert activation.current().graph_rewrite and not activation.current().loss_scaling
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


def test_rewrite_without_an_optimizer() -> None:
    assert tfmp.enable_mixed_precision_graph_rewrite() is None
    assert activation.current().graph_rewrite


@pytest.mark.parametrize(("loss_scale", "expected"), [("dynamic", 2.0**15), (128, 128.0)])
def test_loss_scale_is_the_one_asked_for(loss_scale: object, expected: float) -> None:
    wrapped = tfmp.enable_mixed_precision_graph_rewrite(keras.optimizers.SGD(), loss_scale)
    wrapped.build([keras.Variable([1.0])])
    assert float(wrapped.scale) == expected


def test_bfloat16_does_not_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFMP_DTYPE", "bfloat16")
    wrapped = tfmp.enable_mixed_precision_graph_rewrite(keras.optimizers.SGD())
    wrapped.build([keras.Variable([1.0])])
    assert float(wrapped.scale) == 1.0
