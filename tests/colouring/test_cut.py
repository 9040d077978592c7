"""The cut is the cheapest choice: checked against every other choice on random graphs, by a cost that is written down a second time here."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.graph_text import parse
from tfmp import engine
from tfmp.colouring.network import PER_CAST
from tfmp.dtypes import DT_FLOAT

UNARY = ("Relu", "Tanh", "Exp", "Neg", "Sigmoid")
ELEMENTS = {"Const": 1, "Max": 8, "MatMul": 64, "Placeholder": 64}
CHOSEN = {"cheapest in 16 bit", "cheapest in float32"}


def random_graph(seed: int) -> str:
    """Returns the text of a graph of products, elementwise ops, casts of shapes and maxima, on tensors of 64 and of 8 elements."""
    pick = random.Random(seed)
    lines = ["x = Placeholder() shape=[8, 8]", "axis = Const() dtype=int32 value=[1]", "a = MatMul(x, x)"]
    wide, thin = ["x", "a"], []
    for number in range(pick.randint(3, 7)):
        name, kind = f"n{number}", pick.random()
        if kind < 0.2:
            lines.append(f"{name} = MatMul({pick.choice(wide)}, {pick.choice(wide)})")
            wide.append(name)
        elif kind < 0.35:
            lines.append(f"{name} = Max({pick.choice(wide)}, axis)")
            thin.append(name)
        elif kind < 0.6:
            lines.append(f"{name} = AddV2({pick.choice(wide)}, {pick.choice(wide + thin)})")
            wide.append(name)
        else:
            source = pick.choice(wide + thin)
            lines.append(f"{name} = {pick.choice(UNARY)}({source})")
            (wide if source in wide else thin).append(name)
    read = " ".join(line.partition("(")[2] for line in lines)
    unread = [name for name in wide + thin if name not in read.replace(",", " ").replace(")", " ").split()]
    return "\n".join(lines + [f"f{number} = Identity({name})" for number, name in enumerate(unread)]) + "\n"


def cost(conversion: engine.Conversion, sixteen: dict[int, bool], elements: dict[int, int]) -> int:
    """Returns the bytes of all float ops and casts if the nodes have the widths in `sixteen`."""
    body = conversion.bodies[""].plan.body
    total = 0
    readers: dict[int, list[int]] = {}
    for node, edges in enumerate(body.inputs):
        for source, _ in edges:
            readers.setdefault(source, []).append(node)
    for node, op in enumerate(body.ops):
        floats = [source for source, _ in body.inputs[node] if body.types[source][0] == DT_FLOAT]
        if op not in ("Identity", "Const", "Placeholder"):
            total += (2 if sixteen[node] else 4) * (sum(elements[source] for source in floats) + elements[node])
        if op != "Const":
            total += any(sixteen[reader] != sixteen[node] for reader in readers.get(node, ())) * (6 * elements[node] + PER_CAST)
    return total


@pytest.mark.parametrize("seed", range(60))
def test_no_other_choice_is_cheaper(seed: int) -> None:
    text = random_graph(seed)
    conversion = engine.convert_graph_def(parse(text), device="CPU")
    (colouring,) = conversion.colourings
    body, graph = colouring.graph.body, colouring.graph
    elements = {node: _elements(body, node) for node in range(len(body))}
    chosen = {node: bool(colouring.sixteen[graph.first[node]]) for node in range(len(body))}
    free = [node for node in chosen if (reason := colouring.reasons.get(graph.first[node])) is not None and reason.rule in CHOSEN]
    found = cost(conversion, chosen, elements)
    choices = itertools.product((False, True), repeat=len(free))
    others = (cost(conversion, {**chosen, **dict(zip(free, choice, strict=True))}, elements) for choice in choices)
    assert found == min(others), text


def _elements(body: engine.Body, node: int) -> int:
    if body.ops[node] in ELEMENTS:
        return ELEMENTS[body.ops[node]]
    return max(_elements(body, source) for source, _ in body.inputs[node])


def test_random_graphs_have_something_to_choose() -> None:
    """A test of the test: among its graphs there are choices of both kinds."""
    rules: set[str] = set()
    for seed in range(20):
        colouring = engine.convert_graph_def(parse(random_graph(seed)), device="CPU").colourings[0]
        rules |= {reason.rule for reason in colouring.reasons.values()}
    assert rules >= CHOSEN
