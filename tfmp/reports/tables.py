"""A report as paragraphs and tables of text, which `text` prints plainly and rich draws in a terminal."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tfmp.reports.records import Details, Layer
from tfmp.reports.words import in_units, short

if TYPE_CHECKING:
    from tfmp.reports.account import Record, Report

NO_LAYER = "(no layer)"
"""What stands for the layer of nodes that belong to none."""

NOTHING = "tfmp: nothing has been converted in this process."


@dataclasses.dataclass(frozen=True)
class Heading:
    """The first line of a program."""

    text: str


@dataclasses.dataclass(frozen=True)
class Line:
    """One paragraph below a heading; `mark` stands before it ("advice", "warning", "")."""

    text: str
    mark: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """Column titles and rows; the columns in `numbers` are aligned to the right, those in `wide` are for wide terminals only."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int]
    wide: frozenset[int] = frozenset()


Block = Heading | Line | Table


def blocks(report: Report, layers: int) -> Iterator[Block]:
    """Yields what a report says, program by program; with at most `layers` layers of each, and as many pieces of advice."""
    if not len(report):
        yield Heading(NOTHING)
    for record, details in zip(report, report.details, strict=True):
        yield Heading(str(record))
        if record.kernels:
            yield Line(in_kernels(record))
        yield from _kept(record) if details is None else _program(details, layers)
    for warning in report.warnings:
        yield Line(warning, "warning")


def in_kernels(record: Record) -> str:
    """Returns where fused kernels were put in, in words."""
    return f"fused kernels in {record.kernels} {'place' if record.kernels == 1 else 'places'}, for {record.replaced} nodes"


def _kept(record: Record) -> Iterator[Block]:
    """What the record alone says."""
    kept = collections.Counter(decision.reason for decision in record.kept)
    for reason, count in kept.most_common():
        yield Line(f"kept in float32: {count} x {reason}")
    for what, names in (("overrides that met no op here", record.unused_overrides), ("rules that cover nothing here", record.unused_rules)):
        if names:
            yield Line(f"{what}: {', '.join(names)}")
    if record.source is not None:
        yield Line("its function does not exist any more: no layers")


def _program(details: Details, layers: int) -> Iterator[Block]:
    yield Line(summary(details))
    shown = details.layers[:layers]
    yield _layers(shown)
    if len(shown) < len(details.layers):
        yield Line(f"and {len(details.layers) - len(shown)} more layers")
    for advice in details.advice[:layers]:
        where = f"{advice.layer or advice.node}: " if advice.layer or advice.node else ""
        yield Line(f"{where}{advice.text}", "advice")
    if layers < len(details.advice):
        yield Line(f"and {len(details.advice) - layers} more pieces of advice")


def summary(details: Details) -> str:
    """Returns the figures of a program in one sentence."""
    memory = details.memory
    about = "about " if details.estimated else ""
    text = (
        f"one run: {about}{in_units(details.flops, 'FLOP')} in products, {about}{in_units(details.cast_bytes, 'B')} written by casts, "
        f"{about}{in_units(memory.written_before, 'B')} written in all before and {in_units(memory.written_after, 'B')} after"
    )
    if memory.saved_before:
        text += f", {about}{in_units(memory.saved_before, 'B')} kept for the backward pass before and {in_units(memory.saved_after, 'B')} after"
    return text + (" (some dimensions are not known before it runs and are taken to be 32)" if details.estimated else "")


def _layers(layers: Sequence[Layer]) -> Table:
    total = sum(layer.flops for layer in layers)
    return Table(
        ("layer", "16 bit", "float32", "FLOPs", "in 16 bit", "casts", "written", "after", "why in float32"),
        tuple(
            (
                layer.layer or NO_LAYER,
                str(layer.converted),
                str(layer.kept),
                f"{layer.flops / total:.1%}" if layer.flops else "",
                f"{layer.flops_converted / layer.flops:.0%}" if layer.flops else "",
                f"{layer.casts} ({in_units(layer.cast_bytes, 'B')})" if layer.casts else "",
                in_units(layer.bytes_before, "B"),
                in_units(layer.bytes_after, "B"),
                short(layer.why[0].reason) if layer.why else "",
            )
            for layer in layers
        ),
        frozenset(range(1, 8)),
        frozenset({2, 6, 7}),
    )
