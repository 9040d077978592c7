"""What pip builds and installs: the start-up file's place in wheels, source archives and editable installs, and the metadata."""

from __future__ import annotations

import base64
import csv
import email
import hashlib
import io
import pathlib
import tarfile
import zipfile
from email.message import Message

import pytest

from tests.startup.environments import PACKAGE, ROOT, START_UP_FILE, Environment, add_running_packages, copy_source, make_environment, pip

BUILD = "import setuptools.build_meta, sys; getattr(setuptools.build_meta, sys.argv[1])(sys.argv[2])"
HOOKS = ("build_wheel", "build_editable")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment without tfmp that can import setuptools."""
    environment = make_environment(tmp_path_factory.mktemp("packaging") / "venv")
    add_running_packages(environment)
    return environment


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of the project."""
    return copy_source(tmp_path_factory.mktemp("source") / "tfmp")


def build(environment: Environment, source: pathlib.Path, hook: str, folder: pathlib.Path) -> pathlib.Path:
    """Calls a hook of the build back end, as pip does (PEP 517, PEP 660), and returns the archive that it made in `folder`."""
    result = environment.run("-c", BUILD, hook, folder, cwd=source)
    assert result.returncode == 0, result.stderr
    (archive,) = folder.iterdir()
    return archive


def names(wheel: pathlib.Path) -> set[str]:
    """The files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize("hook", HOOKS)
def test_the_start_up_file_is_at_the_root_of_a_wheel(environment: Environment, source: pathlib.Path, tmp_path: pathlib.Path, hook: str) -> None:
    with zipfile.ZipFile(build(environment, source, hook, tmp_path)) as wheel:
        assert wheel.read("tfmp.pth") == START_UP_FILE.read_bytes()


@pytest.mark.parametrize("hook", HOOKS)
def test_record_lists_every_file_of_a_wheel_once(environment: Environment, source: pathlib.Path, tmp_path: pathlib.Path, hook: str) -> None:
    with zipfile.ZipFile(build(environment, source, hook, tmp_path)) as wheel:
        contents = {name: wheel.read(name) for name in wheel.namelist()}
        assert len(contents) == len(wheel.namelist())
    (record,) = (name for name in contents if name.endswith(".dist-info/RECORD"))
    rows = list(csv.reader(io.StringIO(contents.pop(record).decode())))
    expected = [[name, "sha256=" + digest(content), str(len(content))] for name, content in contents.items()]
    assert sorted(rows) == sorted([*expected, [record, "", ""]])


def digest(content: bytes) -> str:
    """The hash of a file as RECORD spells it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def test_a_wheel_holds_every_module_and_its_data_and_nothing_else(environment: Environment, source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    wanted = (path for path in PACKAGE.rglob("*.*") if path.suffix in (".py", ".json", ".html", ".css", ".js"))
    modules = {path.relative_to(ROOT).as_posix() for path in wanted}
    files = {name for name in names(build(environment, source, "build_wheel", tmp_path)) if ".dist-info/" not in name}
    assert files == modules | {"tfmp.pth"}


def test_an_editable_wheel_is_two_start_up_files_without_an_import_hook(
    environment: Environment, source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with zipfile.ZipFile(build(environment, source, "build_editable", tmp_path)) as wheel:
        files = sorted(name for name in wheel.namelist() if ".dist-info/" not in name)
        assert files == ["__editable__.tfmp-0.1.0.pth", "tfmp.pth"]  # in the order in which Python processes them
        assert wheel.read(files[0]).decode().strip() == str(source)


def test_a_wheel_built_from_the_source_archive_is_the_same(environment: Environment, source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for folder in ("archive", "wheel", "again", "unpacked"):
        (tmp_path / folder).mkdir()
    archive = build(environment, source, "build_sdist", tmp_path / "archive")
    with tarfile.open(archive) as unpacked:
        unpacked.extractall(tmp_path / "unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (again,) = (tmp_path / "unpacked").iterdir()
    from_archive = build(environment, again, "build_wheel", tmp_path / "again")
    assert names(from_archive) == names(build(environment, source, "build_wheel", tmp_path / "wheel"))


@pytest.mark.parametrize("options", [[], ["--editable"]], ids=["wheel", "editable"])
def test_pip_installs_the_start_up_file_and_takes_it_away_again(
    environment: Environment, source: pathlib.Path, options: list[str]
) -> None:
    before = sorted(environment.site_packages.iterdir())
    pip(environment, "install", *options, source)
    loaded = environment.run("-c", "import sys; print('tfmp.startup' in sys.modules, 'tensorflow' in sys.modules)")
    version = environment.run_program([environment.python.with_name("tfmp"), "--version"])
    pip(environment, "uninstall", "--yes", "tfmp")
    assert (loaded.stdout, loaded.stderr) == ("True False\n", "")
    assert (version.stdout, version.stderr) == ("tfmp 0.1.0\n", "")
    assert sorted(environment.site_packages.iterdir()) == before


def test_the_metadata_says_what_is_needed(environment: Environment, source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    metadata = read_metadata(build(environment, source, "build_wheel", tmp_path))
    assert metadata["Name"] == "tfmp"
    assert set(metadata["Requires-Python"].split(",")) == {">=3.10", "<3.14"}
    assert set(metadata.get_all("Provides-Extra", [])) == {"cpu", "plot", "tensorflow", "test"}
    always = {row for row in metadata.get_all("Requires-Dist", []) if "extra ==" not in row}
    assert always == {"absl-py", "numpy", "rich", "scipy", "wrapt"}  # and not TensorFlow: people keep the build they have
    assert "Apache-2.0" in (metadata["License-Expression"] or metadata["License"])
    assert metadata.get_payload() != ""


def read_metadata(wheel: pathlib.Path) -> Message:
    """The core metadata of a wheel."""
    (name,) = (name for name in names(wheel) if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(name))
