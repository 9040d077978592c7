"""What takes a process of its own: switching on before TensorFlow has looked at its devices, and leaving without having converted anything."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

SCRIPT = """
import tfmp
tfmp.enable(dtype="float16", ignore_performance=True)
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
print("devices:", len(tf.config.list_logical_devices("CPU")))
print("product:", float(tf.matmul([[2.0]], [[3.0]])[0, 0]))
"""


@pytest.mark.slow
def test_switching_on_does_not_initialise_devices_and_an_eager_process_is_told(tmp_path: pathlib.Path) -> None:  # R137, R142
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environ = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["devices: 2", "product: 6.0"]
    assert "Eager code, and models compiled with run_eagerly=True, are not rewritten." in result.stderr
