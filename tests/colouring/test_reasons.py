"""Every decision has a reason in words."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator

from hypothesis import HealthCheck, given, settings

from tests.contracts.graphs import RandomGraph, random_graphs
from tests.graph_text import parse
from tfmp import colouring, engine
from tfmp.colouring.reasons import WORDS, Decision

PAINTERS = {"keep", "keep_all", "leave", "leave_all", "paint_all", "paint_allow", "unpaint_allow", "paint_deny", "set_all_first", "_keep_readers"}
WITHOUT_A_PASS = {"fixed type", "fetched", "unlisted", "nothing asked"}

convert = functools.partial(engine.convert_graph_def, device="CPU")


def rules_in_sources() -> set[str]:
    """Returns every rule that a pass names when it paints or keeps something."""
    found = set()
    for path in pathlib.Path(colouring.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            if name in PAINTERS:
                found |= {text for argument in node.args for text in _texts(argument)}
    return found


def _texts(node: ast.AST) -> Iterator[str]:
    """Yields the texts in an expression, those handed to another call left out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if not isinstance(node, ast.Call):
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def test_every_rule_has_words_and_every_word_a_rule() -> None:
    assert rules_in_sources() == set(WORDS) - WITHOUT_A_PASS


def test_a_reason_names_the_op_and_where_it_came_through() -> None:
    decision = Decision("", "s", "Softmax", "T", False, "downstream of deny", "e")
    assert decision.reason == "Softmax: handles what an op that loses too much in 16 bit has computed (through e)"
    assert Decision("", "s", "Softmax", "T", False, "unlisted", "").reason == "Softmax: the op is on no list"


@given(graph=random_graphs())
@settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_float32_attribute_has_one_decision_with_a_reason(graph: RandomGraph) -> None:
    conversion = convert(parse(graph.text), fetches=graph.fetches)
    decisions = list(conversion.decisions())
    assert list(conversion.decisions(only_float32=True)) == [decision for decision in decisions if not decision.converted]
    assert all(decision.reason for decision in decisions)
    expected = sum(dtype == 1 for body in conversion.bodies.values() for types in body.plan.body.types for dtype in types)
    assert len(decisions) == expected
    assert sum(decision.converted for decision in decisions) == sum(len(body.plan.retypes) for body in conversion.bodies.values())


def test_reasons_tell_what_happened() -> None:
    text = """
x = Placeholder() shape=[4, 4]
big = Const() value=-1e9
m = MatMul(x, x)
r = Relu(m)
a = AddV2(r, big)
s = Softmax(a)
u = Sin(s)
n = MatMul(u, u)
e = Exp(n)
t = Tanh(e)
k = Tanh(x)
f = Identity(t)
g = Identity(k)
"""
    found = {(decision.node, decision.attribute): (decision.converted, decision.rule, decision.cause) for decision in convert(parse(text)).decisions()}
    assert found == {
        ("x", "dtype"): (False, "unlisted", ""),
        ("big", "dtype"): (False, "unlisted", ""),
        ("m", "T"): (True, "allowlist", ""),
        ("r", "T"): (True, "cheapest in 16 bit", ""),
        ("a", "T"): (False, "constant out of range", "big"),
        ("s", "T"): (False, "downstream of deny", "a"),
        ("u", "T"): (False, "unlisted", ""),
        ("n", "T"): (True, "allowlist", ""),
        ("e", "T"): (False, "denylist", ""),
        ("t", "T"): (False, "downstream of deny", "e"),
        ("k", "T"): (False, "nothing asked", ""),
        ("f", "T"): (False, "fetched", ""),
        ("g", "T"): (False, "fetched", ""),
    }
