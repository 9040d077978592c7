"""The bound on the error is a bound, and a tight one: it tells the two 16-bit types and a wrong result from a right one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.contracts import error_bounds, running
from tests.contracts.graphs import ALL, FEEDS, FUNCTIONS, START, Recipe
from tests.graph_text import parse
from tfmp import engine
from tfmp.dtypes import BFLOAT16, FLOAT16, FLOAT32, FloatFormat

DEEP = START + "a = MatMul(x, w)\nb = Tanh(a)\nc = MatMul(b, y)\nd = Softmax(c)\ne = AddV2(d, a)\nf = MatMul(e, w)\nout = Identity(f)\n"


def bound_of(text: str, tensor: str, target: FloatFormat = FLOAT16) -> tuple[np.ndarray, np.ndarray]:
    """Returns value and bound of one tensor."""
    graph = parse(text)
    found = error_bounds.carry(graph, running.run(graph, running.tensor_names(graph), FEEDS), target)[tensor]
    return found.value, found.error


def test_bounds_are_a_few_units_of_roundoff() -> None:
    value, error = bound_of(DEEP, "out")
    assert np.all(error > FLOAT16.unit_roundoff * np.abs(value))
    assert np.all(error < 100 * FLOAT16.unit_roundoff)


def test_bounds_grow_with_the_unit_roundoff() -> None:
    (_, single), (_, half), (_, brain) = (bound_of(DEEP, "out", target) for target in (FLOAT32, FLOAT16, BFLOAT16))
    assert np.all(half / single > 0.5 * FLOAT16.unit_roundoff / FLOAT32.unit_roundoff)
    assert np.all(brain / half > 0.5 * BFLOAT16.unit_roundoff / FLOAT16.unit_roundoff)


@pytest.mark.parametrize("target", [FLOAT16, BFLOAT16], ids=lambda target: target.name)
def test_a_16_bit_run_comes_within_a_factor_of_a_hundred(target: FloatFormat) -> None:
    converted = engine.convert_graph_def(parse(DEEP), fetches=["out"], dtype=target.name, device="CPU").graph_def
    value, error = bound_of(DEEP, "out", target)
    off = np.abs(running.run(converted, ["out"], FEEDS)["out"] - value)
    assert np.all(off <= error)
    assert np.max(off / error) > 0.01


@pytest.mark.parametrize("wrong", [("AddV2(d, a)", "AddV2(d, b)"), ("MatMul(e, w)", "MatMul(w, e)"), ("Tanh", "Relu")])
def test_a_wrong_graph_breaks_the_bound(wrong: tuple[str, str]) -> None:
    value, error = bound_of(DEEP, "out")
    off = np.abs(running.run(parse(DEEP.replace(*wrong)), ["out"], FEEDS)["out"] - value)
    assert np.any(off > error)


def test_what_may_overflow_is_not_bounded() -> None:
    text = START + "big = Const() value=300.0 shape=[4, 4]\nout = MatMul(big, big)\n"
    assert np.all(np.isinf(bound_of(text, "out")[1]))
    assert np.all(np.isfinite(bound_of(text, "out", BFLOAT16)[1]))


def test_a_comparison_that_may_go_either_way_is_not_certain() -> None:
    text = START + "near = AddV2(x, tiny)\nout = Greater(near, x)\nsure = Greater(one, x)\n"
    constants = "tiny = Const() value=1e-5 shape=[4, 4]\none = Const() value=2.0 shape=[4, 4]\n"
    text = text.replace(START, START + constants)
    assert np.all(bound_of(text, "out")[1] == 1)
    assert np.all(bound_of(text, "sure")[1] == 0)


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.lines.partition("\n")[0])
def test_every_recipe_has_rules_and_holds_in_float32(recipe: Recipe) -> None:
    """In float32, the run is the reference, and the bound may not be zero where something was rounded, nor infinite."""
    filled = (recipe.inlined or recipe.lines).replace("@", "n")
    for letter, tensor in (("f", "x"), ("d", "xd"), ("i", "xi"), ("b", "xb"), ("h", "xh")):
        for named in ("", ":a", ":b", ":c"):
            filled = filled.replace(f"{{{letter}{named}}}", tensor)
    text = START + filled + "\n" + FUNCTIONS
    for _, suffix in recipe.outputs:
        value, error = bound_of(text, f"n{suffix}", FLOAT32)
        assert error.shape == value.shape
        assert np.all(np.isfinite(error))
