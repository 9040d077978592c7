"""What users are told, once: nothing converted, traced too early, unknown overrides; and the log line of each conversion."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tensorflow as tf
from absl import logging

import tfmp
from tfmp.errors import MixedPrecisionWarning
from tfmp.hooks import notices
from tfmp.reports.ledger import Ledger

ON = {"dtype": "float16", "ignore_performance": True}
X = tf.ones([4, 4])


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_state", notices._State())
    fresh = Ledger()
    for module in ("reports.account", "hooks.conversion", "hooks.notices"):
        monkeypatch.setattr(f"tfmp.{module}.LEDGER", fresh)


def product() -> tf.types.experimental.PolymorphicFunction:
    return tf.function(lambda x: tf.nn.relu(x @ x))


def test_conversion_logs_one_line_and_leaves_a_record(caplog: pytest.LogCaptureFixture) -> None:
    logging.set_verbosity(logging.INFO)
    function = product()
    with caplog.at_level("INFO", logger="absl"), tfmp.mixed_precision(**ON):
        function(X)
        function(X)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("tfmp: ")]
    (record,) = tfmp.report()
    assert lines == [f"tfmp: {record}"]
    assert (record.converted, record.total, record.casts, record.flop_share, record.dtype, record.device) == (2, 3, 2, 1.0, "float16", "CPU")
    assert "converted 2 of 3 nodes to float16, 100.0% of matmul FLOPs, 2 casts" in repr(tfmp.report())


def test_helper_functions_leave_neither_line_nor_record(caplog: pytest.LogCaptureFixture) -> None:
    logging.set_verbosity(logging.INFO)
    with caplog.at_level("INFO", logger="absl"), tfmp.mixed_precision(**ON):
        tf.function(lambda x: x + 1)(X)
    assert [record for record in caplog.records if "tfmp" in record.getMessage()] == []
    assert len(tfmp.report()) == 0 and repr(tfmp.report()) == "tfmp: nothing has been converted in this process."


def test_nothing_converted_is_said_once_with_the_reason() -> None:
    step = tf.function(lambda x: tf.raw_ops.GRUBlockCell(x=x, h_prev=x, w_ru=tf.ones([8, 8]), w_c=tf.ones([8, 4]), b_ru=tf.ones([8]), b_c=tf.ones([4])).h)
    said = r"nothing was converted in '__inference.*GRUBlockCell: .* \(node 'GRUBlockCell'\)"
    with tfmp.mixed_precision(**ON), pytest.warns(MixedPrecisionWarning, match=said) as caught:
        step(X)
        step(tf.ones([2, 4]))
    assert len(caught) == 1
    assert "kept in float32: 1 x GRUBlockCell: the op does not allow this type to be 16 bit" in repr(tfmp.report())


def test_functions_traced_too_early_are_named() -> None:
    early, harmless = product(), tf.function(lambda x: x + 1)
    with tfmp.mixed_precision(enabled=False):
        early(X)
        harmless(X)
    with tfmp.mixed_precision(**ON), pytest.warns(MixedPrecisionWarning, match=r"1 function\(s\) with matrix multiplications .* stay in float32: '__inference"):
        product()(X)
    assert early(X) is not None


def test_override_of_an_op_that_does_not_exist_is_reported() -> None:
    with tfmp.mixed_precision(**ON, denylist_add="Sofmax"), pytest.warns(MixedPrecisionWarning, match="op 'Sofmax' was moved .* no op of that name"):
        product()(X)


def test_override_without_effect_is_in_the_report() -> None:
    with tfmp.mixed_precision(**ON, denylist_add="Softmax,Relu"):
        product()(X)
    assert "overrides that met no op here: Softmax" in repr(tfmp.report())


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import tensorflow as tf; tf.ones([2, 2]) @ tf.ones([2, 2]); tf.function(lambda x: x + 1)(1.0)", True),
        ("import tensorflow as tf; tf.function(lambda x: x @ x)(tf.ones([2, 2]))", False),
        ("import tensorflow as tf", False),
    ],
    ids=["nothing to convert", "converted", "nothing traced"],
)
def test_at_exit_silence_is_broken_if_nothing_was_converted(script: str, said: bool) -> None:
    code = f"import tfmp; tfmp.enable(dtype='float16', ignore_performance=True); {script}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ("mixed precision was on, but nothing was converted" in done.stderr) == said, done.stderr
