"""`tfmp.pth`, the line that Python carries out at every start: its cost, what it loads, and that it never gets in the way."""

from __future__ import annotations

import shutil

import pytest

from tests.startup.environments import START_UP_FILE, Environment

LIMIT = 1e-3  # seconds: what every Python process of the environment may pay
RUNS = 15  # the best of so many is the line's own cost; the rest is the machine's

TIMED = """
import sys, time
line = open(sys.argv[1]).read()
start = time.perf_counter()
exec(line)
print(time.perf_counter() - start)
"""

LOADED = "import sys; print(*sorted(sys.modules))"


def test_it_is_one_import_line() -> None:
    (line,) = START_UP_FILE.read_text(encoding="utf-8").splitlines()
    assert line.startswith("import ")


def test_it_costs_less_than_a_millisecond(own_environment: Environment) -> None:
    own_environment.run("-c", "import tfmp.startup", environ={"PYTHONDONTWRITEBYTECODE": ""})  # pip compiles at installation
    line = (own_environment.site_packages / "tfmp.pth").rename(own_environment.site_packages / "moved.txt")  # carried out by TIMED alone
    times = [float(own_environment.run("-c", TIMED, line).stdout) for _ in range(RUNS)]
    print(f"the start-up file takes {min(times) * 1e6:.0f} microseconds (best of {RUNS})")
    assert 0 < min(times) < LIMIT


def test_it_loads_nothing_but_tfmp(own_environment: Environment) -> None:
    with_it = own_environment.run("-c", LOADED).stdout.split()
    (own_environment.site_packages / "tfmp.pth").write_text("# another start-up file: reading one loads a codec\n", encoding="utf-8")
    assert sorted(set(with_it) - set(own_environment.run("-c", LOADED).stdout.split())) == ["tfmp", "tfmp.startup"]


@pytest.mark.parametrize("options", [["-I"], ["-E"], ["-O"], ["-B", "-s"], ["-W", "error"], ["-X", "dev"]])
def test_it_is_silent_under_every_option(stand_in_environment: Environment, options: list[str]) -> None:
    result = stand_in_environment.run(*options, "-c", "import sys; print('tfmp.startup' in sys.modules)")
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "tfmp/__init__.py"])
def test_it_is_silent_when_the_package_has_been_removed(own_environment: Environment, left: str) -> None:
    package = own_environment.site_packages / "tfmp"
    shutil.rmtree(package)
    if left != "nothing":
        package.mkdir()
    if left == "tfmp/__init__.py":
        (package / "__init__.py").touch()
    result = own_environment.run("-c", "print('works')")
    assert (result.returncode, result.stdout, result.stderr) == (0, "works\n", "")


def test_a_broken_package_is_told_of_and_is_no_error(own_environment: Environment) -> None:
    (own_environment.site_packages / "tfmp" / "__init__.py").write_text("raise ValueError('torn file')\n", encoding="utf-8")
    result = own_environment.run("-c", "print('works')")
    assert (result.returncode, result.stdout) == (0, "works\n")
    # Python carries out the start-up files of a virtual environment twice, hence the set.
    assert set(result.stderr.splitlines()) == {"tfmp is off in this process: ValueError('torn file')"}
