"""What the tests of this folder share."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.warnings_of_others import let_pass

ROOT = pathlib.Path(__file__).resolve().parents[2]

OWN_WARNINGS = (
    "ignore:Gradients do not exist for variables:UserWarning",  # Keras 3, about the gradients that tests leave out on purpose
    "ignore:You are saving your model as an HDF5 file:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets pass what TensorFlow and Keras warn of about themselves."""
    let_pass(items, __file__, *OWN_WARNINGS)


class Scripts:
    """Runs scripts of this folder in processes of their own: for devices, graph modes and restarts that one process cannot have twice."""

    def __call__(self, name: str, *arguments: str, timeout: float = 900) -> str:
        """The standard output of a script, which must end well; the limit is for a script that hangs on a busy machine."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "TFMP_"))}
        environment.update(PYTHONPATH=str(ROOT), CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")
        command = [sys.executable, str(ROOT / name), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, f"{name} {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr[-6000:]}"
        return done.stdout


@pytest.fixture(scope="session")
def run_script() -> Scripts:
    """Runs a script, given its path from the project's root, with arguments; returns what it prints."""
    return Scripts()
