"""The README against the code: every variable is in its table with its meaning, every command and name in it exists."""

from __future__ import annotations

import pathlib
import re

import tfmp
from tfmp.settings import LEVELS, PREFIX, VARIABLES

ROOT = pathlib.Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_variable_is_in_the_table_with_its_meaning() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", TEXT, re.MULTILINE))
    lists = {row.name: row.meaning for row in VARIABLES if row.name.endswith(("LIST_ADD", "LIST_REMOVE"))}
    assert rows == {row.name: row.meaning for row in VARIABLES if row.name not in lists}
    stems = {name.removeprefix(PREFIX).rpartition("_")[0] for name in lists}
    assert {stem for stem in stems if stem in TEXT} == stems


def test_commands_name_files_that_exist() -> None:
    commands = re.findall(r"^python (\S+\.py)", TEXT, re.MULTILINE)
    assert commands == ["examples/digits.py", "tests/run.py"]
    assert all((ROOT / path).is_file() for path in commands)


def test_names_and_rooms_exist() -> None:
    names = set(re.findall(r"\btfmp\.(\w+)\(", TEXT))
    assert names and names <= set(tfmp.__all__)
    assert all((ROOT / path).exists() for path in re.findall(r"\b(tfmp/\w+(?:\.py|/))", TEXT))
    assert all(level in TEXT for level in LEVELS)


def test_continuous_integration_runs_the_readmes_test_command() -> None:
    assert "tests/run.py" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
