"""`tfmp run` beside the interpreter itself: the same program gives the same output, errors and exit code."""

from __future__ import annotations

import os
import pathlib
import subprocess
import zipapp

import pytest

from tests.startup.environments import Environment, write_script

SURROUNDINGS = """
import __main__, os, sys
print(__name__, __file__, sys.argv, sys.path[0])
print(__spec__ and (__spec__.name, __spec__.origin), type(__loader__).__name__, __package__, __doc__, __cached__)
print(sorted(name for name in vars(__main__)), __main__ is sys.modules["__main__"], __builtins__.__name__)
"""

ENDINGS = {
    "well": "print('done')",
    "with_a_code": "import sys; print('stops'); sys.exit(7)",
    "with_a_message": "raise SystemExit('no data')",
    "with_an_error": "def train():\n    return 1 / 0\n\ntrain()",
    "with_a_chain": "try:\n    {}['loss']\nexcept KeyError as error:\n    raise RuntimeError('no loss') from error",
    "with_a_syntax_error": "x = 1 +\n",
    "with_a_missing_import": "import a_module_that_is_not_there",
    "interrupted": "raise KeyboardInterrupt",
    "in_its_own_excepthook": "import sys\nsys.excepthook = lambda kind, error, trace: print(kind, error, trace.tb_lineno)\nraise ValueError('odd')",
    "at_exit": "import atexit, pickle\nclass Thing: pass\natexit.register(lambda: print(type(pickle.loads(pickle.dumps(Thing())))))",
    "in_a_thread": "import threading\nclass Thing: pass\nthreading.Timer(0.2, lambda: print(__import__('__main__').Thing)).start()",
    "after_reading_input": "print(input())",
    "with_another_encoding": "# -*- coding: latin-1 -*-\nprint('caf\\u00e9')",
}


def compare(environment: Environment, arguments: list[str], folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Runs `arguments` under the interpreter and under `tfmp run`, asserts that they do the same, and returns what the latter did."""
    ours = environment.run("-m", "tfmp", "run", *arguments, cwd=folder, text="typed\n")
    python = environment.run(*arguments, cwd=folder, text="typed\n")
    assert (ours.returncode, ours.stdout, ours.stderr) == (python.returncode, python.stdout, python.stderr)
    return ours


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_as_under_python(stand_in_environment: Environment, tmp_path: pathlib.Path, ending: str) -> None:
    encoding = "latin-1" if ending == "with_another_encoding" else "utf-8"
    (tmp_path / "train.py").write_text(ENDINGS[ending], encoding=encoding)
    result = compare(stand_in_environment, ["train.py"], tmp_path)
    assert result.stdout + result.stderr != ""


@pytest.mark.parametrize(("ending", "code"), [("well", 0), ("with_a_code", 7), ("with_an_error", 1), ("with_a_syntax_error", 1)])
def test_a_module_ends_as_under_python(stand_in_environment: Environment, tmp_path: pathlib.Path, ending: str, code: int) -> None:
    write_script(tmp_path / "train.py", ENDINGS[ending])
    assert compare(stand_in_environment, ["-m", "train"], tmp_path).returncode == code


@pytest.mark.parametrize("path", ["train.py", "./sub/../train.py", "sub/link.py"])
def test_a_script_finds_the_surroundings_that_python_gives(stand_in_environment: Environment, tmp_path: pathlib.Path, path: str) -> None:
    script = write_script(tmp_path / "train.py", SURROUNDINGS)
    (tmp_path / "sub").mkdir()
    os.symlink(script, tmp_path / "sub" / "link.py")
    result = compare(stand_in_environment, [path, "--epochs", "3", "-h", "--", "-m", "--version"], tmp_path)
    assert "'--epochs', '3', '-h', '--', '-m', '--version'" in result.stdout


@pytest.mark.parametrize("name", ["train", "package", "package.train"])
def test_a_module_finds_the_surroundings_that_python_gives(stand_in_environment: Environment, tmp_path: pathlib.Path, name: str) -> None:
    for path in ("train.py", "package/__init__.py", "package/__main__.py", "package/train.py"):
        write_script(tmp_path / path, SURROUNDINGS)
    result = compare(stand_in_environment, ["-m", name, "--epochs", "3", "-h", "--"], tmp_path)
    assert "'--epochs', '3', '-h', '--'" in result.stdout


@pytest.mark.parametrize("form", ["folder", "archive.pyz"])
def test_folders_and_archives_run_as_under_python(stand_in_environment: Environment, tmp_path: pathlib.Path, form: str) -> None:
    write_script(tmp_path / "folder" / "__main__.py", SURROUNDINGS + "import beside\n")
    write_script(tmp_path / "folder" / "beside.py", "print(__file__)\n")
    zipapp.create_archive(tmp_path / "folder", tmp_path / "archive.pyz")
    assert "beside.py" in compare(stand_in_environment, [form, "-x"], tmp_path).stdout


@pytest.mark.parametrize("name", ["no_such_module", "package", "tensorflow.no_such_part"])
def test_a_module_that_cannot_run_is_pythons_own_error(stand_in_environment: Environment, tmp_path: pathlib.Path, name: str) -> None:
    write_script(tmp_path / "package" / "__init__.py", "")
    assert compare(stand_in_environment, ["-m", name], tmp_path).returncode == 1


@pytest.mark.parametrize("options", [["-I"], ["-E", "-s"]])
def test_the_first_path_follows_pythons_safe_mode(stand_in_environment: Environment, tmp_path: pathlib.Path, options: list[str]) -> None:
    script = write_script(tmp_path / "train.py", "import sys; print(sys.path)")
    ours = stand_in_environment.run(*options, "-m", "tfmp", "run", script, cwd=tmp_path)
    python = stand_in_environment.run(*options, script, cwd=tmp_path)
    assert (ours.stdout, ours.stderr) == (python.stdout, python.stderr)


def test_spawned_workers_find_the_program(stand_in_environment: Environment, tmp_path: pathlib.Path) -> None:
    write_script(
        tmp_path / "train.py",
        """
        import multiprocessing

        def square(x):
            return x * x

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(square, [1, 2, 3]))
        """,
    )
    assert compare(stand_in_environment, ["train.py"], tmp_path).stdout == "[1, 4, 9]\n"
