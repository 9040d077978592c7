"""The command `tfmp`: what `tfmp run` switches on, and the texts of help and errors."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.startup.environments import Environment, write_script

REPORT = "import os; print(os.environ['TF_ENABLE_AUTO_MIXED_PRECISION']); import tensorflow"
ARRIVED = "arrived: tensorflow ran to its end: True is the module: True\n"
USAGE = "usage: tfmp run [-h] (script | -m module) [argument ...]\n"


@pytest.mark.parametrize(("given", "seen"), [(None, "1"), ("0", "0"), ("true", "true")])
def test_run_sets_the_variable_unless_it_is_set(
    stand_in_environment: Environment, tmp_path: pathlib.Path, given: str | None, seen: str
) -> None:
    script = write_script(tmp_path / "train.py", REPORT)
    environ = {"TF_ENABLE_AUTO_MIXED_PRECISION": given} if given else {}
    result = stand_in_environment.run("-m", "tfmp", "run", script, environ=environ)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{seen}\n{ARRIVED}", "")


def test_run_works_where_start_up_files_are_not_processed(stand_in_environment: Environment, tmp_path: pathlib.Path) -> None:
    write_script(tmp_path / "train.py", REPORT)
    environ = {"PYTHONPATH": str(stand_in_environment.site_packages)}
    plain = stand_in_environment.run("-S", "-c", "import tensorflow", environ=environ)
    assert (plain.returncode, plain.stdout) == (0, "")
    for program in (["train.py"], ["-m", "train"]):
        result = stand_in_environment.run("-S", "-m", "tfmp", "run", *program, environ=environ, cwd=tmp_path)
        assert (result.returncode, result.stdout, result.stderr) == (0, f"1\n{ARRIVED}", "")


def test_a_missing_script_is_one_line_and_exit_code_2(stand_in_environment: Environment, tmp_path: pathlib.Path) -> None:
    result = stand_in_environment.run("-m", "tfmp", "run", "no_such.py", "--epochs", "3", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"tfmp run: can't open file {str(tmp_path.resolve() / 'no_such.py')!r}: No such file or directory\n"


def test_an_error_of_the_programs_own_is_not_taken_for_a_missing_script(stand_in_environment: Environment, tmp_path: pathlib.Path) -> None:
    script = write_script(tmp_path / "train.py", "open('no_such_data.csv')")
    result = stand_in_environment.run("-m", "tfmp", "run", script)
    assert result.returncode == 1
    assert result.stderr.endswith("FileNotFoundError: [Errno 2] No such file or directory: 'no_such_data.csv'\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["run"], USAGE + "tfmp run: error: the following arguments are required: program, argument\n"),
        (["run", "-m"], USAGE + "tfmp run: error: the following arguments are required: program, argument\n"),
        ([], "usage: tfmp [-h] [--version] command ...\ntfmp: error: a command is needed: run, compare, convert, explain\n"),
    ],
)
def test_wrong_usage_is_told_with_exit_code_2(stand_in_environment: Environment, arguments: list[str], error: str) -> None:
    result = stand_in_environment.run("-m", "tfmp", *arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", error)


def test_the_version_is_the_packages(stand_in_environment: Environment) -> None:
    result = stand_in_environment.run("-c", "import tfmp; print('tfmp', tfmp.__version__)")
    assert stand_in_environment.run("-m", "tfmp", "--version").stdout == result.stdout


def test_help_names_every_command(stand_in_environment: Environment) -> None:
    result = stand_in_environment.run("-m", "tfmp", "--help")
    assert result.returncode == 0
    assert re.search(r"^ +run +Run a Python program in mixed precision", result.stdout, re.MULTILINE)
    assert stand_in_environment.run("-m", "tfmp", "run", "--help").stdout.startswith(USAGE)
