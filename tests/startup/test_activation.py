"""From the environment variable to the step that TensorFlow runs: the real TensorFlow, in environments with tfmp installed by pip.

What ran is read from TensorFlow's own record of the graphs that its executor ran (`RunMetadata`), not from tfmp.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

from tests.startup.environments import Environment, add_running_packages, copy_source, make_environment, pip, write_script

pytestmark = pytest.mark.slow  # each test starts TensorFlow, some four seconds

SWITCH = "TF_ENABLE_AUTO_MIXED_PRECISION"
REWRITE_SWITCH, SCALING_SWITCH = f"{SWITCH}_GRAPH_REWRITE", f"{SWITCH}_LOSS_SCALING"

# Everything but the switch: the tests run on machines where float16 has to be asked for.
SETTINGS = {"TFMP_DTYPE": "float16", "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE": "1", "TFMP_STRICT": "1"}
SETTINGS |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}

HALF, FLOAT = "MatMul types: DT_HALF", "MatMul types: DT_FLOAT"
SCALED, UNSCALED = "loss scaled: True", "loss scaled: False"

# No indented blocks, so that it can also be typed at a prompt.
TRAIN = """
import os
{early}
import tensorflow as tf
{late}
import keras, numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.python.eager import context
context.enable_run_metadata()
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
history = model.fit(np.ones((8, 8), "float32"), np.ones((8, 1), "float32"), verbose=0)
graphs = context.export_run_metadata().partition_graphs
types = set(types_pb2.DataType.Name(node.attr["T"].type) for graph in graphs for node in graph.node if "MatMul" in node.op)
print("MatMul types:", *sorted(types))
print("loss scaled:", "LossScale" in type(model.optimizer).__name__)
import tfmp
print("converted:", any(record.converted > 0 for record in tfmp.report()))
"""

SET = f"os.environ[{SWITCH!r}] = '1'"


def install(folder: pathlib.Path, *options: str) -> Environment:
    """Returns an environment in which pip has installed a copy of tfmp, and which sees the running interpreter's TensorFlow."""
    environment = make_environment(folder / "venv")
    add_running_packages(environment)
    pip(environment, "install", *options, copy_source(folder / "source"))
    return environment


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with tfmp from a wheel."""
    return install(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed_editable(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with tfmp in an editable install."""
    return install(tmp_path_factory.mktemp("editable"), "--editable")


def script(folder: pathlib.Path, early: str = "", late: str = "") -> pathlib.Path:
    """The training script, with a statement before and after `import tensorflow`."""
    return write_script(folder / "train.py", TRAIN.format(early=early, late=late))


def check(result: subprocess.CompletedProcess[str], matmuls: str = HALF, scaled: str = SCALED) -> None:
    """Asserts that training went well, in these types, with or without a loss scale, and that tfmp's account agrees."""
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [matmuls, scaled, f"converted: {matmuls == HALF}"]
    assert "Warning" not in result.stderr


@pytest.mark.parametrize("kind", ["installed", "installed_editable"])
def test_the_variable_set_before_python_starts(request: pytest.FixtureRequest, tmp_path: pathlib.Path, kind: str) -> None:
    environment: Environment = request.getfixturevalue(kind)
    check(environment.run(script(tmp_path), environ=SETTINGS | {SWITCH: "1"}))


def test_the_variable_set_in_the_script_before_tensorflow(installed: Environment, tmp_path: pathlib.Path) -> None:
    check(installed.run(script(tmp_path, early=SET), environ=SETTINGS))


def test_the_variable_set_in_the_script_after_tensorflow(installed: Environment, tmp_path: pathlib.Path) -> None:
    check(installed.run(script(tmp_path, late=SET), environ=SETTINGS))


def test_the_variable_set_in_a_cell_after_tensorflow(installed: Environment, tmp_path: pathlib.Path) -> None:
    cells = script(tmp_path, late=SET).read_text(encoding="utf-8")
    result = installed.run("-q", "-i", environ=SETTINGS, text=cells)
    assert result.stdout.splitlines() == [HALF, SCALED, "converted: True"]


def test_a_module_run_with_m(installed: Environment, tmp_path: pathlib.Path) -> None:
    check(installed.run("-m", script(tmp_path).stem, environ=SETTINGS | {SWITCH: "1"}, cwd=tmp_path))


def test_a_child_of_a_process_that_sets_the_variable(installed: Environment, tmp_path: pathlib.Path) -> None:
    code = f"import os, subprocess, sys; {SET}; sys.exit(subprocess.run([sys.executable, sys.argv[1]]).returncode)"
    check(installed.run("-c", code, script(tmp_path), environ=SETTINGS))


def test_tfmp_run_needs_neither_the_variable_nor_start_up_files(installed: Environment, tmp_path: pathlib.Path) -> None:
    running = (installed.site_packages / "running_packages.pth").read_text(encoding="utf-8").split()
    path = {"PYTHONPATH": os.pathsep.join([str(installed.site_packages), *running])}
    check(installed.run("-S", "-m", "tfmp", "run", script(tmp_path), environ=SETTINGS | path))


@pytest.mark.parametrize("environ", [{}, {SWITCH: "OFF"}], ids=str)
def test_nothing_happens_without_the_variable(installed: Environment, tmp_path: pathlib.Path, environ: dict[str, str]) -> None:
    check(installed.run(script(tmp_path), environ=SETTINGS | environ), FLOAT, UNSCALED)


def test_the_rewrite_alone(installed: Environment, tmp_path: pathlib.Path) -> None:
    check(installed.run(script(tmp_path), environ=SETTINGS | {REWRITE_SWITCH: "yes"}), HALF, UNSCALED)


def test_loss_scaling_alone(installed: Environment, tmp_path: pathlib.Path) -> None:
    check(installed.run(script(tmp_path), environ=SETTINGS | {SCALING_SWITCH: "True"}), FLOAT, SCALED)


def test_one_half_switched_off(installed: Environment, tmp_path: pathlib.Path) -> None:
    check(installed.run(script(tmp_path), environ=SETTINGS | {SWITCH: "1", SCALING_SWITCH: "no"}), HALF, UNSCALED)


def test_an_invalid_value_is_an_error_that_lists_the_valid_ones(installed: Environment, tmp_path: pathlib.Path) -> None:
    result = installed.run(script(tmp_path), environ=SETTINGS | {SWITCH: "perhaps", "TFMP_STRICT": ""})
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        f"tfmp.errors.SettingsError: environment variable {SWITCH} is 'perhaps'; valid values are 1, true, yes, on (on) and 0, false, no, off (off)."
    )
