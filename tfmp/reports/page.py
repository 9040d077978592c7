"""A report as one HTML page that needs nothing else: no network, no other file. What it shows is in `page/`: a template, a style sheet and scripts."""

from __future__ import annotations

import dataclasses
import importlib.resources
import itertools
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import tfmp
from tfmp.colouring.reasons import WORDS
from tfmp.reports.boxes import boxes_of
from tfmp.reports.records import CONVERTED, KEPT, OTHER, Details
from tfmp.reports.words import PLAIN

if TYPE_CHECKING:
    from tfmp.reports.account import Record, Report

SCRIPTS = ("numbers.js", "program.js", "layout.js", "summary.js", "layers.js", "panel.js", "picture.js", "main.js")
"""In the order in which they are put together; each uses those before it."""

COLOURS = (CONVERTED, KEPT, OTHER)

TO_SIXTEEN, TO_FLOAT32 = 1, 2
"""What the page is told of a tensor that is cast on its way to a reader."""


def page(report: Report) -> str:
    """Returns the page."""
    parts = {
        "STYLE": _file("page.css"),
        "DATA": json.dumps(data(report), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "SCRIPT": "\n".join(map(_file, SCRIPTS)),
    }
    text = _file("page.html")
    for name, content in parts.items():
        before, after = text.split(f"{{{{{name}}}}}")
        text = before + content + after
    return text


def _file(name: str) -> str:
    return (importlib.resources.files("tfmp.reports") / "page" / name).read_text(encoding="utf-8")


def data(report: Report) -> dict[str, Any]:
    """Returns what the scripts read: per program the figures, layers and advice as objects, nodes column by column; and what plain reasons say."""
    return {
        "tfmp": tfmp.__version__,
        "warnings": list(report.warnings),
        "plain": [WORDS[rule] for rule in PLAIN],
        "programs": [_program(record, details) for record, details in zip(report, report.details, strict=True)],
    }


def _program(record: Record, details: Details | None) -> dict[str, Any]:
    figures = {name: getattr(record, name) for name in ("function", "dtype", "device", "converted", "total", "flop_share", "casts", "seconds")}
    if details is None:
        return {**figures, "details": None}
    return {
        **figures,
        "details": {
            "level": details.level,
            "estimated": details.estimated,
            "flops": details.flops,
            "castBytes": details.cast_bytes,
            "memory": dataclasses.asdict(details.memory),
            "layers": [dataclasses.asdict(layer) for layer in details.layers],
            "functions": [dataclasses.asdict(function) for function in details.functions],
            "advice": [dataclasses.asdict(advice) for advice in details.advice],
            **_nodes(details),
        },
    }


def _nodes(details: Details) -> dict[str, Any]:
    boxes, homes = boxes_of(details)
    strings = _Strings()
    nodes = details.nodes
    flags = {(cast.source, port, reader): flag for cast, port, reader, flag in _cast_edges(details)}
    edges = [(source, port, flags.get((source, port, index), 0)) for index, node in enumerate(nodes) for source, port in node.inputs]
    return {
        "boxes": {
            "name": [strings(box.name) for box in boxes],
            "parent": [box.parent for box in boxes],
            "kind": [strings(box.kind) for box in boxes],
            "node": [box.node for box in boxes],
        },
        "nodes": {
            "name": [node.name for node in nodes],
            "home": homes,
            "op": [strings(node.op) for node in nodes],
            "layer": [strings(node.layer) for node in nodes],
            "function": [node.function for node in nodes],
            "colour": [COLOURS.index(node.colour) for node in nodes],
            "gradient": [int(node.gradient) for node in nodes],
            "reason": [strings(node.reason) for node in nodes],
            "root": [node.root for node in nodes],
            "pulled": [node.pulled for node in nodes],
            "shape": [strings(_written_out(node.shape)) for node in nodes],
            "flops": [node.flops for node in nodes],
            "inputs": [0, *itertools.accumulate(len(node.inputs) for node in nodes)],
        },
        "edges": {"source": [source for source, _, _ in edges], "cast": [flag for _, _, flag in edges]},
        "casts": [
            {
                "kind": cast.kind,
                "source": cast.source,
                "port": cast.port,
                "to": cast.to,
                "shape": _written_out(cast.shape),
                "times": cast.times,
                "bytes": cast.bytes,
            }
            for cast in details.casts
        ],
        "strings": strings.all,
    }


def _cast_edges(details: Details) -> Iterable[tuple[Any, int, int, int]]:
    for cast in details.casts:
        for reader in cast.readers:
            if cast.kind != "constant":
                yield cast, cast.port, reader, TO_FLOAT32 if cast.to == "float32" else TO_SIXTEEN


def _written_out(shape: Any) -> str:
    return "?" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


class _Strings:
    """Gives each string a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def all(self) -> list[str]:
        """The strings by number."""
        return list(self._numbers)
