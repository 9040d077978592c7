"""The guides in docs/: every Python block is run, in order, page by page, and prints what the page says; names, variables, commands and links exist.

All pages run in this one process, each with names and a folder of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

import tfmp
from tfmp.cli import COMMANDS
from tfmp.settings import PREFIX, VARIABLES

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
ENVIRONMENT = {"TFMP_DTYPE": "float16", f"{PREFIX}IGNORE_PERFORMANCE": "1"}
"""What docs/README.md says that the tests set."""

pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text and the number of its first line; `output` is what the page says that it prints, if it says so."""

    language: str
    text: str
    line: int
    output: str | None = None


def blocks(page: pathlib.Path) -> list[Block]:
    """Returns the blocks of a page; a `text` block is the output of the Python block before it."""
    found: list[Block] = []
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        block = Block(match[1], match[2], text.count("\n", 0, match.start()) + 2)
        if block.language == "text":
            found[-1] = dataclasses.replace(found[-1], output=block.text)
        else:
            found.append(block)
    return found


@pytest.fixture
def _as_a_program(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own, and nothing left switched on."""
    from tfmp.hooks import activation

    monkeypatch.chdir(tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    yield
    tfmp.disable()
    activation._process.asked = None


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")  # TensorFlow's tensors under NumPy 2
@pytest.mark.usefixtures("_as_a_program")
@pages
def test_the_code_of_a_page_runs_and_prints_what_it_says(page: pathlib.Path) -> None:
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page):
        if block.language == "python":
            run(page, block, names)


def run(page: pathlib.Path, block: Block, names: dict[str, Any]) -> None:
    """Runs one block; its lines are numbered as on the page, in a file where AutoGraph finds the source."""
    source = "\n" * (block.line - 1) + block.text
    path = pathlib.Path.cwd() / f"{page.stem}_{block.line}.py"
    path.write_text(source, encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, str(path), "exec"), names)
    if block.output is not None:
        assert matches(block.output, printed.getvalue()), f"{page.name}, line {block.line}, printed:\n{printed.getvalue()}\nbut the page says:\n{block.output}"


def matches(expected: str, printed: str) -> bool:
    """Returns whether what was printed is what is expected; "..." stands for anything."""
    pattern = ".*?".join(map(re.escape, expected.strip().split("...")))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


@pytest.mark.parametrize(("expected", "printed", "match"), [("a ... c", "a b c", True), ("a ... c", "a b", False), ("1.0", "1x0", False), ("a", "a\n", True)])
def test_outputs_are_compared(expected: str, printed: str, match: bool) -> None:
    assert matches(expected, printed) is match


def test_there_is_a_page_for_every_question_and_each_has_code() -> None:
    questions = {"is-it-on", "nan", "not-faster", "custom-training-loops", "distributed", "saving-and-serving", "coming-from"}
    assert {page.stem for page in PAGES} == questions | {"README"}
    assert all(any(block.language == "python" for block in blocks(page)) for page in PAGES if page.stem != "README")
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert all(f"({question}.md)" in index for question in questions)


@pages
def test_names_variables_commands_and_files_exist(page: pathlib.Path) -> None:
    text = page.read_text(encoding="utf-8")
    for dotted in set(re.findall(r"\btfmp((?:\.[A-Za-z_]\w*)+)", text)):
        value: Any = tfmp
        for name in dotted.strip(".").split("."):
            value = getattr(value, name)
    assert set(re.findall(r"\b((?:TFMP|TF_ENABLE_AUTO|TF_AUTO_MIXED)_\w*[A-Z0-9])\b", text)) <= {row.name for row in VARIABLES}
    commands = {command for block in blocks(page) if block.language == "bash" for command in re.findall(r"^tfmp (\w+)", block.text, re.MULTILINE)}
    assert commands <= {command.name for command in COMMANDS}
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link
    for path in re.findall(r"`((?:examples|tfmp|docs|tests)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), path


def test_the_index_says_what_is_set_here() -> None:
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert f"export {' '.join(f'{name}={value}' for name, value in ENVIRONMENT.items())}" in text
