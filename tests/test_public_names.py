"""What `import tfmp` offers: names that are there and documented, and no heavy import before one is used."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import tfmp

HEAVY = ("tensorflow", "numpy", "scipy", "wrapt", "keras", "absl")


@pytest.mark.parametrize("name", tfmp.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(tfmp, name)
    assert isinstance(value, str | dict) or (inspect.getdoc(value) or "").endswith((".", "`", '"')), name


def test_public_names_are_listed_once_and_by_dir() -> None:
    assert len(tfmp.__all__) == len(set(tfmp.__all__))
    assert dir(tfmp) == sorted(tfmp.__all__)


def test_every_documented_class_and_function_documents_its_public_parts() -> None:
    classes = [value for name in tfmp.__all__ if inspect.isclass(value := getattr(tfmp, name))]
    parts = [(owner, name) for owner in classes for name, value in vars(owner).items() if not name.startswith("_") and _is_code(value)]
    assert [f"{owner.__name__}.{name}" for owner, name in parts if not inspect.getdoc(vars(owner)[name])] == []


def _is_code(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"module 'tfmp' has no attribute 'enabel'; it has CheckError, .*, enable, .*\."):
        tfmp.enabel  # noqa: B018  # the access is what is tested


def test_the_version_is_a_release_number() -> None:
    assert all(part.isdecimal() for part in tfmp.__version__.split("."))


def test_importing_tfmp_imports_nothing_heavy() -> None:
    code = f"import sys, tfmp; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_settings_can_be_made_without_tensorflow() -> None:
    code = "import sys, tfmp; tfmp.Settings(); tfmp.LEVELS; tfmp.TfmpError; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
