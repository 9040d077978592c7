"""What `tfmp explain` tells before anything is written: layers with their work, casts and bytes, as tables, and saved in every form of a report."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jsonschema
import pytest

import tfmp
from tests.files.conftest import Original
from tfmp import cli
from tfmp.files import command
from tfmp.files.report import FileReport
from tfmp.reports import as_json
from tfmp.reports.account import FORMS
from tfmp.reports.records import Details

BATCH = 32
"""What stands for a batch of unknown size (`reports.flops.UNKNOWN`)."""


@pytest.fixture(scope="module")
def explained(original: Original) -> FileReport:
    """What is told of a convolutional network of Keras 3 with a batch of any size."""
    return tfmp.explain(original("keras3"))


def largest(report: FileReport) -> Details:
    """Returns what is known of the program that computes most."""
    return max((details for details in report.account.details if details is not None), key=lambda details: details.flops)


def test_layers_have_their_flops_and_what_they_write(explained: FileReport) -> None:
    found = largest(explained)
    flops = [2 * BATCH * 14 * 14 * 16 * 27, 2 * BATCH * 12 * 12 * 32 * 9 * 16, 2 * BATCH * 32 * 10]
    assert sorted(layer.flops for layer in found.layers if layer.flops) == sorted(flops)
    assert found.flop_share == 1.0 and found.estimated
    names = {layer.layer.rpartition("/")[2].rstrip("_0123456789") for layer in found.layers}
    assert {"conv2d", "batch_normalization", "global_average_pooling2d", "dense"} <= names
    assert found.advice


def test_casts_are_placed_by_the_shapes_in_the_file(explained: FileReport) -> None:
    """Without shapes, what a convolution computes would be cast back at once, and all that follows it would move twice the bytes."""
    found = largest(explained)
    converted = {node.op for node in found.nodes if node.colour == "converted"}
    assert {"Conv2D", "BiasAdd", "FusedBatchNormV3"} <= converted
    assert found.memory.written_after < 0.75 * found.memory.written_before
    image = BATCH * 16 * 16 * 3 * 2
    assert found.cast_bytes < image + 0.1 * found.memory.written_before  # the image, weights, and small tensors at the end


def test_it_prints_the_layers_and_why_they_stay(explained: FileReport) -> None:
    text = str(explained)
    assert "layer" in text and "batch_normalization" in text and "advice: " in text and "sums must stay in float32" in text
    assert "the op is on no list" not in text


def test_what_was_converted_prints_them_on_request(original: Original, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for name, arguments in {"plain": [], "details": ["--details"]}.items():
        assert cli.main(["convert", str(original("keras3")), str(tmp_path / name), *arguments]) == 0
        shown.append("advice: " in capsys.readouterr().out)
    assert shown == [False, True]


@pytest.mark.parametrize("name", ["keras3", "frozen.pb"])
def test_the_report_can_be_saved(original: Original, tmp_path: pathlib.Path, name: str) -> None:
    for end in FORMS:
        assert cli.main(["explain", str(original(name)), "--report", str(tmp_path / f"report{end}")]) == 0
    values: Any = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(values, as_json.schema(), jsonschema.Draft202012Validator)
    assert any(program["details"]["layers"] for program in values["programs"])
    assert {program["function"] for program in values["programs"]} >= ({"serve", "signatures.serving_default"} if name == "keras3" else {"graph"})
    assert "<html" in (tmp_path / "report.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"report{end}" for end in FORMS)


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("report.xls", command.WRONG_INPUT, "its name must end with one of .html, .overlay.json, .json, .md, .txt."),
        ("nowhere/report.html", command.NOT_WRITTEN, "there is no folder"),
    ],
)
def test_a_report_that_cannot_be_saved_is_refused_before_any_work(
    original: Original, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], path: str, code: int, message: str
) -> None:
    assert cli.main(["convert", str(original("keras3")), str(tmp_path / "out"), "--report", str(tmp_path / path)]) == code
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_forms_are_those_of_reports() -> None:
    assert tuple(FORMS) == command.REPORT_FORMS
