"""A plan says in frozen edits, and in lines to read, what has to change."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest

from tests.graph_text import parse
from tfmp import engine
from tfmp.dtypes import FLOAT16, FLOAT32
from tfmp.rewriting.plan import InsertCast, Plan, Retype, Shortcut

TEXT = """
x = Placeholder() shape=[4, 4]
h = Placeholder() dtype=half shape=[4, 4]
w = Const() value=0.1 shape=[4, 4]
m = MatMul(x, w)
u = Cast(h) SrcT=half
n = MatMul(u, m)
e = Exp(u)
l = IdentityN(n, e)
k = MatMul(l, l)
f = Identity(k)
g = Identity(l:1)
"""


def plan_of(text: str, **changes: Any) -> Plan:
    """Returns the plan for the main graph of a text on the CPU."""
    return engine.convert_graph_def(parse(text), device="CPU", **changes).bodies[""].plan


def test_a_plan_can_be_read() -> None:
    assert str(plan_of(TEXT)).splitlines() == [
        "retype m T -> 19",
        "retype n T -> 19",
        "retype l T[0] -> 19",
        "retype k T -> 19",
        "cast x:0 float32 -> float16 for m[0]",
        "store w:0 float32 -> float16 for m[1]",
        "cast k:0 float16 -> float32 for f[0]",
        "read h:0 in n[0]",
    ]


def test_the_exact_plan_casts_what_tensorflow_casts() -> None:
    lines = str(plan_of(TEXT, level="tensorflow")).splitlines()
    assert "cast w:0 float32 -> float16 for m[1]" in lines
    assert "cast u:0 float32 -> float16 for n[0]" in lines


def test_emulation_rounds_and_changes_no_type() -> None:
    assert str(plan_of(TEXT, emulate=True)).splitlines() == [
        "round x:0 float32 -> float16 for m[0]",
        "round w:0 float32 -> float16 for m[1]",
        "round m:0 float32 -> float16 for n[1]",
        "round n:0 float32 -> float16 for l[0]",
        "round l:0 float32 -> float16 for k[0], k[1]",
        "round k:0 float32 -> float16 for f[0]",
    ]


def test_nothing_to_do_is_an_empty_plan() -> None:
    plan = plan_of("x = Placeholder()\nf = Identity(x)\n")
    assert (plan.empty, str(plan), plan.run_time_casts, plan.edits) == (True, "", 0, ((), (), (), (), (), ()))


@pytest.mark.parametrize(
    "edits",
    [
        {"retypes": (Retype(0, None, 19),)},  # type: ignore[arg-type]
        {"casts": (InsertCast("c", (0, 0), FLOAT32, FLOAT16, ()),)},
        {"shortcuts": (Shortcut((0, 0), ()),)},
    ],
    ids=lambda edits: next(iter(edits)),
)
def test_one_edit_makes_a_plan_not_empty(edits: dict[str, Any]) -> None:
    assert not dataclasses.replace(plan_of("x = Placeholder()\n"), **edits).empty


def test_only_casts_that_run_are_counted() -> None:
    assert plan_of(TEXT).run_time_casts == 2
    assert plan_of(TEXT, emulate=True).run_time_casts == 12
    assert plan_of(TEXT, level="tensorflow").run_time_casts == 4


def test_names_are_tensorflows_and_free() -> None:
    text = "x = Placeholder()\nx-0-CastToFp16-0-AutoMixedPrecision = Relu(x)\nm = MatMul(x, x-0-CastToFp16-0-AutoMixedPrecision)\nf = Identity(m)\n"
    assert [cast.name for cast in plan_of(text).casts] == ["x-0-CastToFp16-1-AutoMixedPrecision", "m-0-CastToFp32-0-AutoMixedPrecision"]


def test_equal_graphs_have_equal_edits() -> None:
    build = functools.partial(plan_of, TEXT)
    assert build().edits == build().edits
    assert build().edits != build(denylist_add="MatMul").edits
