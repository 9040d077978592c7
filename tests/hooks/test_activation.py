"""Scopes, `enable` and `disable`, and the environment: who wins, and what comes back."""

from __future__ import annotations

import threading

import pytest
import tensorflow as tf

import tfmp
from tfmp.errors import SettingsError
from tfmp.hooks import activation, tracing
from tfmp.hooks.tf_function import is_attached
from tfmp.tf_callbacks import concrete_function_callbacks

X = tf.ones([2, 2])


@pytest.fixture(autouse=True)
def _nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts in a process that has been asked for nothing, and leaves no trace of itself."""
    for name in ("TF_ENABLE_AUTO_MIXED_PRECISION", "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE", "TFMP_DTYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(activation, "_process", activation._Process())


def traced() -> tf.types.experimental.ConcreteFunction:
    return tf.function(lambda x: x @ x).get_concrete_function(X)


def test_nothing_is_on_by_default() -> None:
    assert activation.current() == activation.OFF
    assert not is_attached(traced())


@pytest.mark.parametrize("value", ["1", "true", "YES", "On"])
def test_environment_switches_on_after_import(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION", value)
    assert activation.current().graph_rewrite and activation.current().loss_scaling


def test_environment_can_ask_for_one_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION", "1")
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE", "0")
    assert (activation.current().graph_rewrite, activation.current().loss_scaling) == (False, True)


def test_bad_environment_is_an_error_at_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION", "maybe")
    with pytest.raises(SettingsError, match="TF_ENABLE_AUTO_MIXED_PRECISION is 'maybe'; valid values are 1, true, yes, on"):
        traced()


def test_disable_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION", "1")
    tfmp.disable()
    assert not activation.current().graph_rewrite
    tfmp.enable()
    assert activation.current().graph_rewrite


def test_enable_trace_disable_trace_enable() -> None:
    tfmp.enable(dtype="float16", ignore_performance=True)
    mixed = traced()
    tfmp.disable()
    plain = traced()
    tfmp.enable(dtype="float16", ignore_performance=True)
    assert is_attached(mixed) and not is_attached(plain) and is_attached(traced())


def test_disable_takes_the_callback_out_and_leaves_others() -> None:
    def other(function: object) -> None:
        pass

    callbacks = concrete_function_callbacks()
    callbacks.append(other)
    try:
        tfmp.enable()
        tfmp.enable()
        assert callbacks.count(tracing.on_trace) == 1
        tfmp.disable()
        tfmp.disable()
        assert tracing.on_trace not in callbacks and other in callbacks
    finally:
        callbacks.remove(other)
        tfmp.enable()


def test_enable_checks_what_it_is_given() -> None:
    with pytest.raises(SettingsError, match="dtype is 'float8'; valid values are 'auto', 'float16', 'bfloat16'"):
        tfmp.enable(dtype="float8")
    with pytest.raises(SettingsError, match="unknown setting 'dtyp' = 'float16'; did you mean 'dtype'"):
        tfmp.enable(dtyp="float16")
    with pytest.raises(SettingsError, match="graph_rewrite is 1; it takes True or False"):
        tfmp.enable(graph_rewrite=1)
    assert activation.current() == activation.OFF


def test_scope_nests_and_comes_back_when_an_exception_passes() -> None:
    with tfmp.mixed_precision(dtype="float16"):
        with pytest.raises(RuntimeError, match="through"), tfmp.mixed_precision(enabled=False):
            assert not activation.current().graph_rewrite
            raise RuntimeError("through")
        assert activation.current().settings.dtype == "float16"
    assert activation.current() == activation.OFF


def test_scope_belongs_to_its_thread() -> None:
    seen = []
    with tfmp.mixed_precision():
        thread = threading.Thread(target=lambda: seen.append(activation.current().graph_rewrite))
        thread.start()
        thread.join()
    assert seen == [False]


def test_one_scope_object_serves_several_threads() -> None:
    scope, failures = tfmp.mixed_precision(dtype="float16"), []
    barrier = threading.Barrier(4)

    def enter() -> None:
        try:
            with scope:
                barrier.wait(10)
                assert activation.current().graph_rewrite
                barrier.wait(10)
            assert not activation.current().graph_rewrite
        except BaseException as error:  # noqa: BLE001  (a thread's failure would pass unseen)
            failures.append(error)

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_scope_decorates_a_tf_function() -> None:
    @tfmp.mixed_precision(dtype="float16", ignore_performance=True)
    @tf.function
    def product(x: tf.Tensor) -> tf.Tensor:
        """Multiplies."""
        return x @ x

    assert is_attached(product.get_concrete_function(X))
    assert product(X).dtype == tf.float32
    assert product.__doc__ == "Multiplies."
    assert activation.current() == activation.OFF


def test_scope_decorates_a_python_function_and_a_method() -> None:
    class Model(tf.Module):
        @tfmp.mixed_precision(dtype="float16", ignore_performance=True)
        @tf.function
        def product(self, x: tf.Tensor) -> tf.Tensor:
            return x @ x

    @tfmp.mixed_precision(dtype="bfloat16", ignore_performance=True)
    def trace() -> bool:
        return is_attached(traced())

    model = Model()
    assert is_attached(model.product.get_concrete_function(X))
    tf.debugging.assert_equal(model.product(X), X @ X)
    assert trace()
