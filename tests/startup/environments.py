"""Small Python environments for the start-up tests: made in a moment, with stand-ins for TensorFlow where the real one is not the point."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import venv
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "tfmp"
START_UP_FILE = ROOT / "tfmp.pth"

SOURCES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md", "tfmp.pth", "tfmp", "examples", "tests")

# What the session that runs the tests may have set, and what would decide the tests' outcome.
_CLEARED_PREFIXES = ("TF_AUTO_MIXED_PRECISION_", "TF_ENABLE_AUTO_MIXED_PRECISION", "TFMP_", "PYTHON", "COVERAGE", "VIRTUAL_ENV")

ARRIVAL = '''
import sys

def arrived(name, module):
    print("arrived:", name, "ran to its end:", getattr(module, "END", False), "is the module:", sys.modules[name] is module, flush=True)
'''

STAND_IN = '''
"""Stands for {name}."""
from {name} import part
END = True
'''


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment: its interpreter and its site-packages folder."""

    python: pathlib.Path
    site_packages: pathlib.Path

    def run(
        self, *arguments: str | pathlib.Path, environ: Mapping[str, str] | None = None, cwd: pathlib.Path | None = None, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Runs the interpreter on `arguments` with `environ` added to a cleared environment; `text` is its standard input."""
        return self.run_program([self.python, *arguments], environ, cwd, text)

    def run_program(
        self, command: Sequence[str | pathlib.Path], environ: Mapping[str, str] | None = None, cwd: pathlib.Path | None = None, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Runs any `command` as `run` runs the interpreter; by default in a folder that holds no packages."""
        cleared = {name: value for name, value in os.environ.items() if not name.startswith(_CLEARED_PREFIXES)}
        full = cleared | {"PYTHONDONTWRITEBYTECODE": "1"} | dict(environ or {})
        folder = cwd or self.site_packages.parent
        return subprocess.run(command, env=full, cwd=folder, input=text, capture_output=True, text=True, timeout=300, check=False)


def make_environment(folder: pathlib.Path) -> Environment:
    """Returns a new, bare virtual environment in `folder`, of the running Python, without pip."""
    venv.EnvBuilder(symlinks=os.name != "nt").create(folder)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    (site_packages,) = folder.glob("[Ll]ib/**/site-packages")
    return Environment(scripts / pathlib.Path(sys.executable).with_stem("python").name, site_packages)


def add_running_packages(environment: Environment) -> None:
    """Lets `environment` import what the running interpreter can import from its site-packages folders (TensorFlow, setuptools)."""
    folders = [path for path in sys.path if pathlib.Path(path).name in ("site-packages", "dist-packages")]
    (environment.site_packages / "running_packages.pth").write_text("\n".join(folders) + "\n", encoding="utf-8")


def copy_source(folder: pathlib.Path) -> pathlib.Path:
    """Copies what a distribution is built from into `folder` and returns it, so that building leaves nothing behind in the project."""
    folder.mkdir(parents=True)
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder


def pip(environment: Environment, *arguments: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Runs the running interpreter's pip for `environment`, without a package index, and asserts that it went well."""
    command = [sys.executable, "-m", "pip", "--python", environment.python, "--disable-pip-version-check", *arguments]
    result = environment.run_program(command, {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"})
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def copy_package(site_packages: pathlib.Path, arrival: str = ARRIVAL) -> None:
    """Puts the package and its start-up file into `site_packages`, with `arrival` in the place of `tfmp/hooks/arrival.py`."""
    shutil.copytree(PACKAGE, site_packages / "tfmp", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(START_UP_FILE, site_packages)
    write_arrival(site_packages, arrival)


def write_arrival(site_packages: pathlib.Path, arrival: str) -> None:
    """Puts the source text `arrival` in the place of `tfmp/hooks/arrival.py` of the copy in `site_packages`."""
    hooks = site_packages / "tfmp" / "hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "__init__.py").write_text("", encoding="utf-8")
    (hooks / "arrival.py").write_text(arrival, encoding="utf-8")


def write_stand_ins(folder: pathlib.Path) -> None:
    """Writes packages named tensorflow, keras and tf_keras that know when they have run to their end, each with a module and a data file."""
    for name in ("tensorflow", "keras", "tf_keras"):
        package = folder / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(STAND_IN.format(name=name), encoding="utf-8")
        (package / "__main__.py").write_text(f"print('this is {name}')\n", encoding="utf-8")
        (package / "part.py").write_text("PART = True\n", encoding="utf-8")
        (package / "data.txt").write_text(f"data of {name}", encoding="utf-8")


def write_script(path: pathlib.Path, source: str) -> pathlib.Path:
    """Writes the dedented `source` to `path` and returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source).lstrip("\n"), encoding="utf-8")
    return path
