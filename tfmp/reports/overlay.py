"""Colours for Google's Model Explorer: which nodes are in 16 bit, as a "node data" file to load beside the graph.

Model Explorer reads GraphDefs (such as the `graphdef_preop` dumps of TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH) and SavedModels itself. Its direct
readers call the main graph "main" and a function by its name, and number nodes in their order, those of a function from 1 on, since 0 are its arguments (seen
with ai-edge-model-explorer-adapter 0.2.1). The file's form is that of `ModelNodeData` in its `node_data_builder.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tfmp.conversion import Conversion
from tfmp.graph.body import ARG, RETVAL
from tfmp.reports.parts import colour_of
from tfmp.reports.records import CONVERTED, KEPT, Details

STYLES = {CONVERTED: "#3474e6", KEPT: "#db7a1a"}
"""Colour of a node to its background; other nodes keep theirs."""

FLOAT32 = "float32"

Colours = tuple[str, Sequence[str]]
"""Name of a function ("" for a main graph), and the colour of each of its nodes in order, arguments and results left out."""


def of_details(details: Details) -> Iterator[Colours]:
    """Yields the colours of every function of a program; of several copies of one, the first."""
    nodes: dict[int, list[str]] = {}
    for node in details.nodes:
        if node.op not in (ARG, RETVAL) or not details.functions[node.function].name:
            nodes.setdefault(node.function, []).append(node.colour)
    for number, function in enumerate(details.functions):
        if "#" not in function.name:
            yield function.name, nodes.get(number, [])


def of_conversion(conversion: Conversion) -> Iterator[Colours]:
    """The same from a conversion, without anything being worked out."""
    for label, body in conversion.bodies.items():
        if label == body.function:
            yield label, [colour_of(body, node) for node in body.plan.body.proto_nodes]


def overlay(functions: Iterable[Colours], dtype: str) -> str:
    """Returns the text of a node data file.

    Args:
      functions: the functions of one or more programs; of functions with one name, the first.
      dtype: the 16-bit type.
    """
    graphs: dict[str, Any] = {}
    for name, colours in functions:
        graphs.setdefault(name or "main", _graph(colours, first=1 if name else 0, words={CONVERTED: dtype, KEPT: FLOAT32}))
    return json.dumps(graphs, indent=1)


def _graph(colours: Sequence[str], first: int, words: dict[str, str]) -> dict[str, Any]:
    results = {
        str(number): {"value": words[colour], "bgColor": STYLES[colour], "textColor": "#ffffff"}
        for number, colour in enumerate(colours, first)
        if colour in STYLES
    }
    return {"name": "tfmp: precision", "results": results, "showExpandedSummaryOnGroupNode": True, "showLabelCountColumnsInChildrenStatsTable": True}
