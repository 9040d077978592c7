"""Runs the test suite in a virtual environment of its own, made and filled here: `python tests/run.py [options] [pytest arguments]`.

Needs Python 3.10 to 3.13 with pip, a network that reaches a package index, and some 3 GB of disk (TensorFlow's CUDA build; no GPU).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEPT_FOLDER = ROOT / ".venv-test"
OLDEST, NEWEST = (3, 10), (3, 13)

# Two processes at most: each holds a TensorFlow, and many tests start further ones. A file's tests stay together, since they share what they build.
PARALLEL = ["-n", str(min(2, os.cpu_count() or 1)), "--dist", "loadfile"]

# TensorFlow's own messages would drown the tests'.
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}


def main(argv: Sequence[str] | None = None) -> int:
    """Makes the environment, runs pytest in it and returns pytest's exit code."""
    options, pytest_arguments = parse(argv)
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        sys.exit(f"tests/run.py: this is Python {sys.version.split()[0]}; tfmp needs 3.10 to 3.13.")
    if not options.fresh:
        return run_in(KEPT_FOLDER, options.tensorflow, pytest_arguments)
    with tempfile.TemporaryDirectory(prefix="tfmp-tests-") as folder:
        return run_in(pathlib.Path(folder), options.tensorflow, pytest_arguments)


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Returns the options of this script, and what is left for pytest."""
    parser = argparse.ArgumentParser(description="Runs tfmp's tests in their own virtual environment. Other arguments go to pytest.", allow_abbrev=False)
    parser.add_argument("--fresh", action="store_true", help=f"make a new environment and delete it afterwards, in place of {KEPT_FOLDER.name}")
    parser.add_argument("--tensorflow", metavar="VERSION", help="for example 2.18: the TensorFlow to test on (default: the newest supported)")
    return parser.parse_known_args(argv)


def run_in(folder: pathlib.Path, tensorflow: str | None, pytest_arguments: Sequence[str]) -> int:
    """Installs tfmp and what its tests need in the environment in `folder`, made if it is not there, and runs pytest."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.EnvBuilder(with_pip=True).create(folder)
    pins = [f"tensorflow=={tensorflow}.*", f"tf_keras=={tensorflow}.*"] if tensorflow else []
    show_and_run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--editable", f"{ROOT}[test]", *pins], check=True)
    return show_and_run([python, "-m", "pytest", *PARALLEL, *pytest_arguments], check=False)


def show_and_run(command: Sequence[str | pathlib.Path], check: bool) -> int:
    """Prints `command`, runs it in the project's root and returns its exit code; ends this process with that code if `check` and not 0."""
    print("$", shlex.join(map(str, command)), flush=True)
    code = subprocess.run(command, cwd=ROOT, env=QUIET | os.environ, check=False).returncode
    if check and code:
        sys.exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
