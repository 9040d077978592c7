"""Golden texts: what each colouring pass paints on a small graph, and what whole rewrites make of one.

A file tests/golden/<pass>/<case>.txt has a comment that says what the case shows, a graph (tests/graph_text.py), and for each set of settings what that
pass paints, and why. In tests/golden/rewrites the texts are the rewritten graph and the counts. `TFMP_REGENERATE_GOLDEN=1` writes what is found into the
files: read every change before you accept it.
"""

from __future__ import annotations

import bisect
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.graph_text import parse, render
from tfmp import engine, tf_api
from tfmp.colouring import passes
from tfmp.colouring.canvas import Canvas
from tfmp.colouring.passes import Pass

HERE = pathlib.Path(__file__).parent
REGENERATE = os.environ.get("TFMP_REGENERATE_GOLDEN") == "1"
REWRITES = "rewrites"
CASES = sorted(HERE.glob("*/*.txt"))


@dataclasses.dataclass(frozen=True)
class Golden:
    """One file: the comment and the graph, and for each line of settings the text that is expected under it."""

    comment: str
    graph: str
    expected: dict[str, str]


def read(path: pathlib.Path) -> Golden:
    """Returns what the file at `path` says."""
    head, *sections = path.read_text(encoding="utf-8").split("\n== ")
    parts = dict(section.partition("\n")[::2] for section in sections)
    return Golden(head, parts.pop("graph"), parts)


def write(path: pathlib.Path, golden: Golden) -> None:
    """Makes the file at `path` say `golden`."""
    sections = {"graph": golden.graph, **golden.expected}
    path.write_text("\n== ".join([golden.comment, *(f"{title}\n{text}" for title, text in sections.items())]), encoding="utf-8")


def settings_of(title: str) -> dict[str, Any]:
    """Returns the keywords of `convert_graph_def` that a section's title such as "level=tensorflow fetches=a,b" stands for."""
    words = {"device": "CPU", **dict(word.split("=") for word in title.split())}
    return {name: value.split(",") if name == "fetches" else value == "true" if value in ("true", "false") else value for name, value in words.items()}


def painted(name: str, graph: tf_api.GraphDef, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns what every run of the pass called `name` painted: a line for each type attribute, "nothing" for none, runs apart by a line "--"."""
    runs: list[list[str]] = []
    colour = passes.colour

    def observing(step: Pass) -> Callable[..., None]:
        def run(canvas: Canvas, lists: Any) -> None:
            before = _snapshot(canvas)
            step.run(canvas, lists)
            if step.name == name:
                runs.append(list(_differences(canvas, before)))

        return run

    def observed(union: Any, rules: Any, devices: Any, table: tuple[Pass, ...], *more: Any) -> Any:
        return colour(union, rules, devices, tuple(Pass(step.name, observing(step)) for step in table), *more)

    monkeypatch.setattr(passes, "colour", observed)
    engine.convert_graph_def(graph, **settings)
    return "--\n".join("".join(f"{line}\n" for line in lines) or "nothing\n" for lines in runs)


def _snapshot(canvas: Canvas) -> tuple[bytes, bytes, bytes]:
    return bytes(canvas.allow), bytes(canvas.deny), bytes(canvas.processable)


def _differences(canvas: Canvas, before: tuple[bytes, bytes, bytes]) -> Iterator[str]:
    allowed, denied, processable = before
    graph = canvas.graph
    for vertex in range(len(graph)):
        node = graph.node_of[vertex]
        changes = [
            *(["16 bit" if canvas.allow[vertex] else "no longer 16 bit"] if canvas.allow[vertex] != allowed[vertex] else []),
            *(["denied" if canvas.deny[vertex] else "no longer denied"] if canvas.deny[vertex] != denied[vertex] else []),
            *(["left alone" if processable[node] else "taken up"] if canvas.processable[node] != processable[node] and canvas.is_float32(vertex) else []),
        ]
        if changes:
            reason = canvas.reasons.get(graph.stands_for[vertex])
            cause = f" <- {_name(canvas, reason.cause)}" if reason and reason.cause >= 0 else ""
            yield f"{_name(canvas, vertex)}: {', '.join(changes)}; {reason.rule if reason else 'no reason'}{cause}"


def _name(canvas: Canvas, vertex: int) -> str:
    node = canvas.graph.node_of[vertex]
    names = [instance.function for instance in canvas.union.instances]
    number = bisect.bisect_right(canvas.union.offsets, node) - 1
    copy = names[:number].count(names[number])
    function = f"{names[number]}{f'#{copy + 1}' if copy else ''}/" if names[number] else ""
    return f"{function}{canvas.graph.body.names[node]} {canvas.graph.slot(vertex)}"


def rewritten(graph: tf_api.GraphDef, settings: dict[str, Any]) -> str:
    """Returns the counts of a whole rewrite and the graph after it."""
    conversion = engine.convert_graph_def(graph, **settings)
    plans = [body.plan for body in conversion.bodies.values()]
    counts = {
        "types changed": sum(len(plan.retypes) for plan in plans),
        "casts": sum(1 + cast.round_trip for plan in plans for cast in plan.casts if not cast.constant),
        "constants stored": sum(cast.constant for plan in plans for cast in plan.casts),
        "shortcuts": sum(len(plan.shortcuts) for plan in plans),
    }
    head = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{head}\n\n{render(conversion.graph_def)}" if head else "nothing\n"


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_golden_text_is_what_comes_out(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = read(path)
    found = {}
    for title in golden.expected:
        with monkeypatch.context() as patch:
            settings, graph = settings_of(title), parse(golden.graph)
            found[title] = rewritten(graph, settings) if path.parent.name == REWRITES else painted(path.parent.name.replace("_", " "), graph, settings, patch)
    if REGENERATE:
        write(path, dataclasses.replace(golden, expected=found))
    assert found == read(path).expected


def test_every_file_says_what_it_shows() -> None:
    assert [path.name for path in CASES if not read(path).comment.startswith("# ")] == []


@pytest.mark.parametrize(("table", "level"), [(passes.DEFAULT, "default"), (passes.EXACT, "tensorflow")], ids=["default", "tensorflow"])
def test_every_pass_has_cases_in_which_it_paints_and_in_which_it_does_not(table: tuple[Pass, ...], level: str) -> None:
    for step in table:
        folder = HERE / step.name.replace(" ", "_")
        texts = [text for path in folder.glob("*.txt") for title, text in read(path).expected.items() if settings_of(title).get("level", "default") == level]
        runs = [run for text in texts for run in text.split("--\n")]
        assert any(run != "nothing\n" for run in runs), step.name
        assert "nothing\n" in runs, step.name
        assert len(texts) >= 2, step.name


def test_every_folder_is_a_pass_or_the_rewrites() -> None:
    names = {step.name.replace(" ", "_") for step in (*passes.with_user_rules(passes.DEFAULT), *passes.EXACT)}
    assert {path.parent.name for path in CASES} == {*names, REWRITES}
