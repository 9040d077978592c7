"""The three classic examples of automatic mixed precision, each in a process of its own: they run half ops, and they learn."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tests.startup.environments import PACKAGE, START_UP_FILE, Environment, add_running_packages, make_environment

CLASSIC = pathlib.Path(__file__).parent / "classic"
HALF = {"TFMP_DTYPE": "float16", "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE": "1"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment in which tfmp is installed."""
    made = make_environment(tmp_path_factory.mktemp("classic"))
    add_running_packages(made)
    (made.site_packages / "tfmp").symlink_to(PACKAGE)
    (made.site_packages / "tfmp.pth").symlink_to(START_UP_FILE)
    return made


def facts(environment: Environment, script: str, **variables: str) -> dict[str, Any]:
    """Runs one of the examples and returns what it tells, by example."""
    result = environment.run(CLASSIC / script, environ={**HALF, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", **variables})
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return {line["example"]: line for line in lines} | {"warnings": [line for line in result.stderr.splitlines() if "MixedPrecisionWarning" in line]}


def test_by_variable_alone(environment: Environment) -> None:
    found = facts(environment, "by_variable.py", TF_ENABLE_AUTO_MIXED_PRECISION="1")
    assert found["keras"]["tfmp"] and found["graph"]["tfmp"]
    assert found["keras"]["ran"]["products"] == found["graph"]["ran"]["products"] == ["float16"]
    assert found["graph"]["ran"]["updates"] == ["float32"]
    assert found["keras"]["weights"] == ["float32"]
    assert found["keras"]["accuracy"] > 0.85 and found["graph"]["accuracy"] > 0.85
    (warning,) = found["warnings"]
    assert "is not scaled" in warning


def test_by_graph(environment: Environment) -> None:
    found = facts(environment, "by_graph.py")
    assert found["graph"]["ran"] == {"products": ["float16"], "updates": ["float32"]}
    assert found["graph"]["names"] == ["kernel:0", "weights:0", "biases:0"]
    assert found["graph"]["accuracy"] > 0.85
    assert (found["graph"]["scale"], found["graph"]["skipped"]) == (2.0**15, 0)
    assert found["warnings"] == []


@pytest.mark.parametrize("legacy", ["0", "1"], ids=["Keras 3", "tf_keras"])
def test_by_keras(environment: Environment, legacy: str) -> None:
    found = facts(environment, "by_keras.py", TF_USE_LEGACY_KERAS=legacy)["keras"]
    assert found["keras"] == ("tf_keras" if legacy == "1" else "keras")
    assert found["ran"]["products"] == ["float16"]
    assert found["accuracy"] > 0.85
    assert found["losses"][-1] < found["losses"][0] / 3
    assert (found["scale"], found["skipped"]) == (2.0**15, 0)
