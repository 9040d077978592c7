"""The printed forms of a report: plain text word for word on a small program, tables in a terminal, JSON against its schema."""

from __future__ import annotations

import dataclasses
import io
import json
import pathlib
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from tests.graph_text import parse
from tests.reports.keras_steps import FAMILIES, trained
from tests.reports.test_describe import PRODUCT_AND_SUM
from tfmp import engine
from tfmp.reports import as_json
from tfmp.reports.account import FORMS, Report, report_on
from tfmp.reports.text import plain


def small(**settings: Any) -> Report:
    return report_on(engine.convert_graph_def(parse(PRODUCT_AND_SUM), device="CPU", **settings))


PLAIN = """\
main graph: converted 2 of 9 nodes to float16, 100.0% of matmul FLOPs, 2 casts, in 0 ms
  one run: 6.14 kFLOP in products, 1.28 kB written by casts, 1.22 kB written in all before and 1.98 kB after
  layer       16 bit  float32   FLOPs  in 16 bit      casts  written    after  why in float32
  model/a          2        1  100.0%       100%  1 (512 B)  1.02 kB  1.02 kB  Const: a constant stays as it is; what reads it in 16 bit
  model/b          0        3                                  192 B    192 B  Mean: sums must stay in float32; pulled 2 neighbours with it
  (no layer)       0        2                     1 (768 B)      0 B    768 B  Identity: is an argument, a result or fetched, whose type must stay, or runs on
  advice: too small to gain: in 16 bit its 6.14 kFLOP are done about 0.00 microseconds sooner on an NVIDIA V100, and its 2 casts take at least
  warning: look out
"""


def test_plain_text() -> None:
    (record,) = small()
    lines = str(Report([dataclasses.replace(record, seconds=0.0)], ["look out"])).splitlines()
    expected = PLAIN.splitlines()
    assert len(lines) == len(expected)
    for line, beginning in zip(lines, expected, strict=True):
        assert line.startswith(beginning)


def test_repr_needs_no_details() -> None:
    (record,) = small()

    def never() -> None:
        raise AssertionError("details were worked out")

    assert repr(Report([dataclasses.replace(record, source=never)])) == str(record)


def test_layers_and_advice_that_are_too_many_are_counted() -> None:
    text = plain(trained("keras")[1], layers=2)
    layers, advice = (len(getattr(trained("keras")[1].details[0], name)) for name in ("layers", "advice"))
    assert f"  and {layers - 2} more layers" in text.splitlines()
    assert f"  and {advice - 2} more pieces of advice" in text.splitlines()


def test_a_program_whose_function_is_gone_has_its_line_only() -> None:
    (record,) = small()
    gone = str(Report([dataclasses.replace(record, source=lambda: None)]))
    assert gone.splitlines() == [str(record), "  its function does not exist any more: no layers"]


def test_nothing_converted() -> None:
    assert repr(Report([])) == str(Report([])) == "tfmp: nothing has been converted in this process."
    assert str(Report([], ["eager code stays in float32."])).splitlines()[1:] == ["  warning: eager code stays in float32."]


def test_tables_in_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, log = Terminal(), io.StringIO()
    small().show(terminal)
    small().show(log)
    assert "\x1b[1m" in terminal.getvalue() and "─" in terminal.getvalue() and "model/b" in terminal.getvalue()
    assert "\x1b" not in log.getvalue() and log.getvalue().splitlines()[2:] == str(small()).splitlines()[2:]


@pytest.mark.parametrize("width", [80, 160])
def test_tables_in_narrow_and_in_wide_terminals(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    console.print(small())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    (titles,) = [line for line in text.splitlines() if line.startswith(" layer")]
    assert ("written" in titles) == (width > 120)
    assert "model/b" in text and "Mean: sums" in text and max(map(len, text.splitlines())) <= width


def test_markup_in_names_is_not_interpreted() -> None:
    text = PRODUCT_AND_SUM.replace("model/a/product", "model/[red]/product")
    terminal = Console(file=io.StringIO(), width=200)
    terminal.print(report_on(engine.convert_graph_def(parse(text), device="CPU")))
    assert "model/[red]" in terminal.file.getvalue()  # type: ignore[attr-defined]


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(as_json.schema())
    assert as_json.schema()["properties"]["version"]["const"] == as_json.VERSION


def valid(report: Report) -> Any:
    values = json.loads(report.to_json())
    jsonschema.validate(values, as_json.schema(), jsonschema.Draft202012Validator)
    return values


def test_json_is_what_the_schema_says() -> None:
    (record,) = small()
    values = valid(Report([record, dataclasses.replace(record, source=None)], ["look out"]))
    assert (values["format"], values["version"], values["warnings"]) == ("tfmp.report", 1, ["look out"])
    program, without = values["programs"]
    assert (program["converted"], program["total"], program["casts"], program["flop_share"]) == (2, 9, 2, 1.0)
    assert without["details"] is None
    details = program["details"]
    (down, stored, up) = details["casts"]
    assert (down["kind"], stored["kind"], up["kind"], up["bytes"]) == ("cast", "constant", "cast", 512)
    names = [node["name"] for node in details["nodes"]]
    product = details["nodes"][names.index("model/a/product")]
    assert [names[source] for source, _ in product["inputs"]] == ["x", "model/a/w"]
    assert (product["shape"], product["flops"], product["colour"]) == ([16, 8], 6144, "converted")


@pytest.mark.parametrize("family", FAMILIES)
def test_json_of_a_keras_step(family: str) -> None:
    report = trained(family)[1]
    (program,) = valid(report)["programs"]
    assert len(program["details"]["nodes"]) > report[0].total
    assert sum(function["nodes"] for function in program["details"]["functions"]) == report[0].total


def test_json_of_unknown_dimensions_and_kept_ops() -> None:
    text = "x = Placeholder() shape=?\ny = MatMul(x, x)\nout = Identity(y)"
    (program,) = valid(report_on(engine.convert_graph_def(parse(text), device="CPU", keep_float32="op:MatMul")))["programs"]
    assert program["details"]["estimated"] is True
    assert [decision["reason"] for decision in program["kept"]] == ["MatMul: a rule keeps it in float32: op:MatMul"]


def test_the_schema_refuses_what_it_does_not_know() -> None:
    values = json.loads(small().to_json())
    values["programs"][0]["details"]["layers"][0]["colour"] = "red"
    with pytest.raises(jsonschema.ValidationError, match="'colour' was unexpected"):
        jsonschema.validate(values, as_json.schema())


@pytest.mark.parametrize("end", FORMS)
def test_saved_forms(end: str, tmp_path: pathlib.Path) -> None:
    path = small().save(tmp_path / f"report{end}")
    assert path == tmp_path / f"report{end}"
    assert ('"results"' if path.name.endswith(".overlay.json") else "model/b") in path.read_text(encoding="utf-8")


def test_an_unknown_form_is_answered_with_the_known_ones(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be saved as '.*report\.xls'; the name must end with one of \.html, \.overlay\.json, \.json, "):
        small().save(tmp_path / "report.xls")


def test_markdown() -> None:
    (record,) = small()
    lines = Report([record], ["a_b <c>"]).to_markdown().splitlines()
    assert lines[0].startswith("### main graph: converted 2 of 9 nodes to float16")
    assert "| layer | 16 bit | float32 | FLOPs | in 16 bit | casts | written | after | why in float32 |" in lines
    assert "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |" in lines
    assert "| model/b | 0 | 3 |  |  |  | 192 B | 192 B | Mean: sums must stay in float32; pulled 2 neighbours with it |" in lines
    assert lines[-1] == "- **warning**: a\\_b \\<c\\>"
