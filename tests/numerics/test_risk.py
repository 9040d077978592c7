"""From ranges to decisions, on records written by hand; files of ranges; and the setting that reads them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import tfmp
from tests.graph_text import parse
from tfmp import engine, numerics
from tfmp.dtypes import BFLOAT16
from tfmp.measured import record
from tfmp.measured.naming import aliases
from tfmp.measured.record import OpRange, Ranges
from tfmp.measured.rules import range_rules
from tfmp.numerics.calibration import count
from tfmp.settings import from_environment, make_settings


def op(node: str, kind: str, values: Any, *inputs: str, op: str = "Mul", place: tuple[str, ...] = (), is_call: bool = False) -> OpRange:
    """Returns a record of an op with one output."""
    outputs = {0: count(np.array(values, np.float32))}
    return OpRange(place, node, op, "f", "", kind, tuple(f"{name}:0" for name in inputs), outputs, is_call, aliases([node])[0])


def ranges(*ops: OpRange, **fields: Any) -> Ranges:
    return Ranges(ops, 1, **fields)


@pytest.mark.parametrize(
    ("largest", "scale"),
    [(1.0, 2.0**13), (65504 / 4, 1.0), (2.0**-10, 2.0**23), (1e-30, 2.0**24), (0.36, 2.0**15), (1e6, 1.0)],
)
def test_the_proposed_scale_leaves_room_for_four_times_the_largest_gradient(largest: float, scale: float) -> None:
    proposed = numerics.proposed_loss_scale(ranges(op("g", record.WEIGHT_GRADIENT, [largest, largest / 10]), op("a", record.ACTIVATION, [1e4])))
    assert proposed == scale
    assert proposed in (1.0, 2.0**24) or 65504 / 8 < 4 * largest * proposed / 1 <= 65504


def test_without_gradients_the_proposed_scale_is_one() -> None:
    assert numerics.proposed_loss_scale(ranges(op("a", record.ACTIVATION, [1e-6]))) == 1


def test_a_gradient_that_no_scale_helps_does_not_count() -> None:
    assert numerics.proposed_loss_scale(ranges(op("g", record.WEIGHT_GRADIENT, [1.0]), op("h", record.ACTIVATION_GRADIENT, [1e7]))) == 2.0**13


A, G = record.ACTIVATION, record.ACTIVATION_GRADIENT

CASES: dict[str, tuple[list[OpRange], set[str]]] = {
    "fits": ([op("x", A, [1.0]), op("y", A, [100.0], "x")], set()),
    "too large, and what reads it": ([op("x", A, [1.0]), op("y", A, [2e4], "x"), op("z", A, [1.0], "y"), op("w", A, [1.0], "z")], {"y", "z"}),
    "vanishes, and what reads it": ([op("x", A, [1e-6]), op("y", A, [1.0], "x")], {"x", "y"}),
    "vanishes beside something larger": ([op("b", A, [1e-6], op="Const"), op("y", A, [1.0], "b", op="AddV2")], set()),
    "single small values do not matter": ([op("x", A, [1e-6, 1.0]), op("y", A, [1.0], "x")], set()),
    "but they do where one divides by them": ([op("n", A, [1.0]), op("x", A, [1e-6, 1.0]), op("y", A, [1.0], "n", "x", op="RealDiv")], {"y"}),
    "not where they are divided": ([op("n", A, [1e-6, 1.0]), op("x", A, [1.0]), op("y", A, [1.0], "n", "x", op="RealDiv")], set()),
    "zeros say nothing": ([op("x", A, [0.0, 0.0]), op("y", A, [0.0], "x")], set()),
    "infinite in float32 too": ([op("x", A, [np.inf, 1.0]), op("y", A, [np.nan, 1.0], "x")], set()),
    "the sum inside a mean": ([op("x", A, [60.0] * 2000), op("y", A, [60.0], "x", op="Mean")], {"y"}),
    "the sum of squares inside a norm": ([op("x", A, [60.0] * 200), op("y", A, [848.0], "x", op="EuclideanNorm")], {"y"}),
    "sources are not kept, their readers are": ([op("c", A, [1e9], op="Const"), op("y", A, [1.0], "c")], {"y"}),
    "updates are left out": ([op("u", record.UPDATE, [1e-9])], set()),
    "a loop's value, and its argument inside": (
        [op("loop", A, [1e6], op="While", is_call=True), op("carried", A, [1e6], op="_Arg", place=("loop:body",)), op("x", A, [1e6], op="_Arg")],
        {"loop:0", "carried"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ops_at_risk(name: str) -> None:
    ops, expected = CASES[name]
    assert {one.name for one in numerics.at_risk(ranges(*ops, training_scale=1.0))} == expected
    assert {rule.removeprefix("name:") for rule in numerics.keep_float32(ranges(*ops, training_scale=1.0))} == expected - {"loop:0", "carried"}


def test_gradients_count_times_the_loss_scale() -> None:
    ops = [op("seed", A, [1.0], op="Const"), op("g", G, [1e-6], "seed"), op("h", G, [2.0], "g", op="AddV2")]
    at = {scale: {one.op.node for one in numerics.at_risk(ranges(*ops), loss_scale=scale)} for scale in (1.0, 256.0, 2.0**14)}
    assert at == {1.0: {"g"}, 256.0: set(), 2.0**14: {"h"}}
    assert {one.op.node for one in numerics.at_risk(ranges(*ops))} == set()  # at the proposed scale
    recorded = ranges(*ops, loss_scale=256.0)
    assert {one.op.node for one in numerics.at_risk(recorded, loss_scale=1.0)} == {"g"}


def test_bfloat16_has_the_range_of_float32() -> None:
    ops = [op("x", A, [1e30]), op("y", A, [1e-30], "x")]
    assert numerics.at_risk(ranges(*ops), BFLOAT16) == []


def test_reasons_are_sentences() -> None:
    (found,) = numerics.at_risk(ranges(op("y", A, [1e6])))
    assert found.why == "output 0 reaches 1e+06, and float16 ends at 65504"


@pytest.mark.parametrize(("values", "safe"), [([0.01, 100.0], True), ([0.01, 5000.0], False), ([1e-5, 1.0], False), ([np.inf], False), ([0.0, 1.0], True)])
def test_only_ops_that_are_denied_for_their_range_are_proved_safe(values: list[float], safe: bool) -> None:
    record = ranges(op("x", A, [1.0]), op("e", A, values, "x", op="Exp"), op("s", A, [1.0], "x", op="Sum"))
    assert [one.node for one in numerics.proved_safe(record)] == (["e"] if safe else [])
    assert range_rules(record).of("float16").names.free == ({"e"} if safe else set())


SAMPLE = ranges(op("x", A, [1.0, 0.0, -3e5]), op("loop", G, [1e-3], "x", op="While", place=("a:f", "b:body"), is_call=True), loss_scale=8.0, training_scale=2.0)


def test_files_hold_everything(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ranges.json"
    numerics.save(SAMPLE, path)
    assert numerics.load(path) == SAMPLE
    data = json.loads(path.read_text())
    assert (data["format"], data["version"]) == ("tfmp ranges", 1)
    assert [file.name for file in tmp_path.iterdir()] == ["ranges.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "ranges file '{path}' cannot be read: No such file or directory."),
        ("{", "'{path}' is not a ranges file: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); tfmp.numerics.calibrate makes one."),
        ('{"format": "other"}', "'{path}' is not a ranges file; tfmp.numerics.calibrate makes one."),
        ('{"format": "tfmp ranges", "version": 2}', "ranges file '{path}' has version 2; this tfmp reads version 1."),
        (
            '{"format": "tfmp ranges", "version": 1}',
            "ranges file '{path}' is damaged (KeyError: 'training_scale'); make it anew with tfmp.numerics.calibrate.",
        ),
    ],
)
def test_files_that_are_none_are_named(tmp_path: pathlib.Path, content: str | None, message: str) -> None:
    path = tmp_path / "ranges.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(tfmp.SettingsError) as error:
        make_settings(ranges=path)
    assert str(error.value) == message.format(path=path)


def test_the_setting_takes_a_file_or_ranges(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ranges.json"
    numerics.save(SAMPLE, path)
    settings = make_settings(ranges=path)
    assert settings == from_environment({"TFMP_RANGES": str(path)}).settings
    assert settings.ranges.of("float16").names.keep == {"x"} and not settings.ranges.of("bfloat16")
    assert make_settings(ranges=SAMPLE).ranges.of("float16") == settings.ranges.of("float16")
    assert make_settings(settings, ranges="") == make_settings()
    assert str(settings.ranges) == str(path) and hash(settings)
    assert range_rules(settings.ranges) is settings.ranges


GRAPH = """
a = Placeholder() dtype=float
b = Placeholder() dtype=float
first = MatMul(a, b)
power = Exp(first)
second = MatMul(power, b)
third = MatMul(second, b)
"""


def colours(**settings: Any) -> dict[str, bool]:
    conversion = engine.convert_graph_def(parse(GRAPH), fetches=["third"], device="CPU", **settings)
    return {one.node: one.converted for one in conversion.decisions() if one.attribute == "T"}


def test_the_setting_keeps_what_does_not_fit_and_frees_what_does() -> None:
    fitting = [op(name, A, [1.0], op=kind) for name, kind in (("first", "MatMul"), ("power", "Exp"), ("second", "MatMul"), ("third", "MatMul"))]
    assert colours() == {"first": True, "power": False, "second": True, "third": False}
    assert colours(ranges=ranges(*fitting)) == {"first": True, "power": True, "second": True, "third": False}
    large = [op("second", A, [1e5], "power", op="MatMul"), op("power", A, [1.0], "first", op="Exp")]
    assert colours(ranges=ranges(*large)) == {"first": True, "power": True, "second": False, "third": False}


def test_the_users_own_rules_come_first() -> None:
    large = ranges(op("second", A, [1e5], op="MatMul"))
    assert colours(ranges=large, force_16bit="name:second")["second"]
    free = ranges(op("power", A, [1.0], op="Exp"))
    assert not colours(ranges=free, keep_float32="op:Exp")["power"]


def test_the_reason_is_told_and_ranges_of_another_program_too() -> None:
    graph = parse(GRAPH)
    conversion = engine.convert_graph_def(graph, fetches=["third"], device="CPU", ranges=ranges(op("second", A, [1e5], op="MatMul")))
    reasons = {one.node: one.reason for one in conversion.decisions()}
    assert reasons["second"] == "MatMul: measured values of what it reads or computes do not fit into 16 bit"
    assert conversion.unused_rules == ()
    other = engine.convert_graph_def(graph, fetches=["third"], device="CPU", ranges=ranges(op("elsewhere", A, [1.0])))
    assert other.unused_rules == ("ranges:(ranges in memory)",)


def names_of(model: str, first: str, second: str, add: str, other: str) -> list[str]:
    layers = [f"{model}/{first}/MatMul", f"{model}/{second}/MatMul"]
    return [*layers, *(f"gradient_tape/{layer}/MatMul" for layer in reversed(layers)), f"gradient_tape/{layers[1]}/MatMul_1", add, other]


def test_aliases_do_not_depend_on_numbers() -> None:
    one = aliases(names_of("model_1", "dense_1", "dense_1_2", "Add", "Add_1"))
    assert one == aliases(names_of("model_7_1", "dense_5_1", "dense_6_1", "Add_3", "Add_4"))
    assert one[:2] == ["model#0/dense#0/MatMul#0", "model#0/dense#1/MatMul#0"]
    assert len(set(one)) == len(one)


def test_ranges_hold_where_names_are_numbered_otherwise() -> None:
    large = [op("second", A, [1e5], op="MatMul"), op("first", A, [1.0], op="MatMul"), op("third", A, [1.0], op="MatMul")]
    text = GRAPH
    for name in ("first", "second", "third"):
        text = text.replace(name, f"{name}_4_1")
    conversion = engine.convert_graph_def(parse(text), fetches=["third_4_1"], device="CPU", ranges=ranges(*large))
    colours = {one.node: one.converted for one in conversion.decisions() if one.attribute == "T"}
    assert colours == {"first_4_1": True, "power": False, "second_4_1": False, "third_4_1": False}
    assert conversion.unused_rules == ()
