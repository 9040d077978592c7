"""Colours for Model Explorer: the numbers of nodes are those of the GraphDef, and the file is what its node data files are."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.graph_text import parse
from tests.reports.keras_steps import FAMILIES, details
from tests.reports.test_describe import PRODUCT_AND_SUM
from tfmp import engine
from tfmp.reports.account import report_on
from tfmp.reports.overlay import of_conversion, of_details, overlay

NODE_DATA = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "properties": {
            "results": {
                "type": "object",
                "propertyNames": {"pattern": r"^\d+$"},
                "additionalProperties": {
                    "type": "object",
                    "properties": {"value": {"enum": ["float16", "float32"]}, **{name: {"pattern": "^#[0-9a-f]{6}$"} for name in ("bgColor", "textColor")}},
                    "required": ["value", "bgColor"],
                    "additionalProperties": False,
                },
            },
            "name": {"type": "string"},
            "showExpandedSummaryOnGroupNode": {"type": "boolean"},
            "showLabelCountColumnsInChildrenStatsTable": {"type": "boolean"},
        },
        "required": ["results"],
        "additionalProperties": False,
    },
}
"""`ModelNodeData` of Model Explorer's `node_data_builder.py` (0.1.34), as far as it is used here."""

PROGRAM = """
    x = Placeholder() shape=[8, 8]
    i = Const() value=1 dtype=int32
    y = MatMul(x, x)
    c = PartitionedCall(y) Tin=[float] Tout=[float] f=square
    out = Identity(c)

    function square(a: float) -> (r: float)
      m = MatMul(a, a)
      e = Exp(m:product:0)
      return r = e:y:0
"""


def values(text: str) -> dict[str, dict[str, str]]:
    found: Any = json.loads(text)
    jsonschema.validate(found, NODE_DATA)
    return {graph: {number: node["value"] for number, node in data["results"].items()} for graph, data in found.items()}


def test_nodes_are_numbered_as_in_the_graph() -> None:
    conversion = engine.convert_graph_def(parse(PROGRAM), device="CPU")
    # In the main graph from 0 on; in a function from 1 on. The integer has no colour.
    expected = {"main": {"0": "float32", "2": "float16", "3": "float16", "4": "float32"}, "square": {"1": "float16", "2": "float32"}}
    assert values(report_on(conversion).to_overlay()) == expected
    assert values(overlay(of_conversion(conversion), "float16")) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_colours_of_a_keras_step_are_those_of_its_nodes(family: str) -> None:
    found = details(family)
    graphs = values(overlay(of_details(found), "float16"))
    assert set(graphs) == {function.name.partition("#")[0] for function in found.functions}
    for number, function in enumerate(found.functions):
        nodes = [node for node in found.nodes if node.function == number and not (node.op in ("_Arg", "_Retval") and function.name)]
        expected = {str(index): {"converted": "float16", "kept": "float32"}[node.colour] for index, node in enumerate(nodes, 1) if node.colour != "other"}
        assert graphs[function.name] == expected


def test_an_empty_report_has_an_empty_overlay() -> None:
    assert values(report_on().to_overlay()) == {}


def test_bfloat16_is_called_so() -> None:
    text = report_on(engine.convert_graph_def(parse(PRODUCT_AND_SUM), device="CPU", dtype="bfloat16")).to_overlay()
    assert {node["value"] for node in json.loads(text)["main"]["results"].values()} == {"bfloat16", "float32"}
