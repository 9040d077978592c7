"""Reports as JSON, for programs: `report.schema.json` beside this file says what is in it.

`VERSION` grows when something is renamed, removed or changes its meaning; what is added does not change it.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
from typing import TYPE_CHECKING, Any

import tfmp
from tfmp.reports.records import Details

if TYPE_CHECKING:
    from tfmp.reports.account import Record, Report

FORMAT, VERSION = "tfmp.report", 1
SCHEMA = "report.schema.json"


def schema() -> Any:
    """Returns the JSON schema (draft 2020-12) of what `to_json` writes."""
    return json.loads(importlib.resources.files("tfmp.reports").joinpath(SCHEMA).read_text(encoding="utf-8"))


def to_json(report: Report, indent: int | None = None) -> str:
    """Returns a report as a JSON text; `indent` as for `json.dumps`."""
    return json.dumps(as_values(report), indent=indent, allow_nan=False)


def as_values(report: Report) -> dict[str, Any]:
    """Returns a report as dictionaries, lists, strings and numbers."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "tfmp": tfmp.__version__,
        "warnings": list(report.warnings),
        "programs": [_program(record, details) for record, details in zip(report, report.details, strict=True)],
    }


def _program(record: Record, details: Details | None) -> dict[str, Any]:
    return {
        "function": record.function,
        "dtype": record.dtype,
        "device": record.device,
        "converted": record.converted,
        "total": record.total,
        "flop_share": record.flop_share,
        "casts": record.casts,
        "kernels": record.kernels,
        "replaced": record.replaced,
        "seconds": record.seconds,
        "unused_overrides": list(record.unused_overrides),
        "unused_rules": list(record.unused_rules),
        "kept": [{name: getattr(decision, name) for name in _OF_A_DECISION} for decision in record.kept],
        "details": None if details is None else {key: value for key, value in _values(details).items() if key not in _SAID_BY_THE_RECORD},
    }


_OF_A_DECISION = ("function", "node", "op", "attribute", "rule", "cause", "reason")
_SAID_BY_THE_RECORD = frozenset({"function", "dtype", "device", "seconds", "unused_overrides", "unused_rules"})


def _values(record: Any) -> dict[str, Any]:
    return {field.name: _value(getattr(record, field.name)) for field in dataclasses.fields(record)}


def _value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_value(item) for item in value]
    return _values(value) if dataclasses.is_dataclass(value) else value
