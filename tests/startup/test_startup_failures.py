"""`tfmp/startup.py` when something goes wrong: in the user's TensorFlow, in the hooks, in the environment."""

from __future__ import annotations

import pathlib

import pytest

from tests.startup.environments import Environment, write_arrival, write_script

FAILING = "def arrived(name, module):\n    raise RuntimeError(f'no grip on {name}')\n"
REFUSING = "from tfmp.errors import SettingsError\n\ndef arrived(name, module):\n    raise SettingsError('valid values are 1 and 0')\n"


@pytest.mark.parametrize(
    "fault",
    ["import a_module_that_is_not_there", "raise ImportError('no libcudart.so')", "raise ValueError('bad build')", "1 +", "raise KeyboardInterrupt"],
)
def test_an_error_of_tensorflow_itself_reads_as_without_tfmp(own_environment: Environment, tmp_path: pathlib.Path, fault: str) -> None:
    (own_environment.site_packages / "tensorflow" / "__init__.py").write_text(f"import sys\n{fault}\n", encoding="utf-8")
    script = write_script(tmp_path / "train.py", "import tensorflow\n")
    with_tfmp = own_environment.run(script)
    (own_environment.site_packages / "tfmp.pth").unlink()
    without = own_environment.run(script)
    assert (with_tfmp.returncode, with_tfmp.stdout, with_tfmp.stderr) == (without.returncode, without.stdout, without.stderr)
    assert with_tfmp.returncode != 0


def test_a_failed_import_may_be_tried_again(own_environment: Environment) -> None:
    init = own_environment.site_packages / "tensorflow" / "__init__.py"
    init.write_text("import sys\nif not hasattr(sys, 'mended'): raise ImportError('first try')\nEND = True\n", encoding="utf-8")
    code = "import sys\ntry:\n import tensorflow\nexcept ImportError as error:\n print(error)\nsys.mended = True\nimport tensorflow"
    result = own_environment.run("-c", code)
    assert result.stdout == "first try\narrived: tensorflow ran to its end: True is the module: True\n"


def test_a_missing_tensorflow_is_pythons_own_error(own_environment: Environment) -> None:
    result = own_environment.run("-I", "-c", "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; import tensorflow")
    assert result.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'tensorflow'"


def test_a_failing_hook_is_one_warning_at_the_users_line(own_environment: Environment, tmp_path: pathlib.Path) -> None:
    write_arrival(own_environment.site_packages, FAILING)
    script = write_script(tmp_path / "train.py", "import sys\nimport tensorflow\nimport keras\nprint('trained', tensorflow.END, keras.END)\n")
    result = own_environment.run(script)
    assert (result.returncode, result.stdout) == (0, "trained True True\n")
    assert result.stderr == (
        f"{script}:2: MixedPrecisionWarning: tfmp could not attach to tensorflow, so this process runs without mixed precision: "
        "RuntimeError: no grip on tensorflow. TFMP_STRICT=1 raises this error instead.\n  import tensorflow\n"
    )


@pytest.mark.parametrize("word", ["1", "true", "YES", " on "])
def test_a_failing_hook_raises_under_tfmp_strict(own_environment: Environment, word: str) -> None:
    write_arrival(own_environment.site_packages, FAILING)
    result = own_environment.run("-c", "import tensorflow", environ={"TFMP_STRICT": word})
    assert (result.returncode, result.stderr.splitlines()[-1]) == (1, "RuntimeError: no grip on tensorflow")


def test_a_variable_that_cannot_be_used_is_an_error(own_environment: Environment) -> None:
    write_arrival(own_environment.site_packages, REFUSING)
    result = own_environment.run("-c", "import tensorflow")
    assert (result.returncode, result.stderr.splitlines()[-1]) == (1, "tfmp.errors.SettingsError: valid values are 1 and 0")


def test_hooks_that_cannot_be_imported_are_one_warning(own_environment: Environment) -> None:
    write_arrival(own_environment.site_packages, "import a_module_that_is_not_there\n")
    result = own_environment.run("-c", "import tensorflow; print('trained')")
    assert (result.returncode, result.stdout) == (0, "trained\n")
    assert "could not attach to tensorflow" in result.stderr
    assert "ModuleNotFoundError: No module named 'a_module_that_is_not_there'" in result.stderr
