"""What was found as tables of text."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from tfmp.measured.record import HANDS_ON
from tfmp.program.calls import CALLING_OPS

if TYPE_CHECKING:
    from tfmp.numerics.comparison import Comparison, TensorComparison

WIDTH = 160
"""Columns of a table that does not know where it will be read."""

SHOWN = 20
"""Rows of a comparison that are shown even if nothing is wrong with them."""


def as_text(table: Table) -> str:
    """Returns a table as plain text."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, legacy_windows=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip("\n").splitlines())  # type: ignore[attr-defined]


def make_table(title: str, columns: Iterable[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> Table:
    """Returns a table; `columns` are pairs of heading and whether the column holds numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, is_number in columns:
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    for row in rows:
        table.add_row(*row)
    return table


def number(value: float) -> str:
    """Returns a magnitude in three digits."""
    return "inf" if math.isinf(value) else f"{value:.3g}"


COMPARISON_COLUMNS = (
    ("what", False), ("node", False), ("op", False), ("layer", False), ("type", False), ("error", True), ("worst", True), ("run", True), ("zeros", True),
    ("inf", True), ("nan", True),
)  # fmt: skip


def comparison_table(comparison: Comparison, rows: int | None) -> str:
    """Returns the first `rows` of `comparison` as text; for None what broke or diverged, and at least `SHOWN`. Rows that only hand values on are left out."""
    bad = len(comparison.diverged)
    computed = [row for row in comparison if row.op not in HANDS_ON and row.op not in CALLING_OPS]
    shown = computed[: max(sum(bool(row.broken or row.diverged) for row in computed), SHOWN) if rows is None else rows]
    title = (
        f"{len(comparison)} tensors in float32 and mixed with {comparison.dtype}: {len(comparison.broken)} broke, {bad - len(comparison.broken)} diverged; "
        f"errors in units of roundoff ({comparison.unit:.3g}), counts as float32 > mixed"
    )
    table = make_table(title, COMPARISON_COLUMNS, (_comparison_row(row) for row in shown))
    rest = len(comparison) - len(shown)
    notes = [f"and {rest} more, some of which only hand values on"] if rest else []
    notes += [f"the mixed program stopped on an error, and nothing after it was compared: {comparison.stopped}"] if comparison.stopped else []
    return "\n".join([as_text(table), *notes])


def _comparison_row(row: TensorComparison) -> Sequence[str]:
    run = row.broken or row.diverged
    name = row.node if row.port == 0 else f"{row.node}:{row.port}"
    return (
        "BROKE" if row.broken else "diverged" if row.diverged else "",
        f"{name} in {' > '.join(row.place)}" if row.place else name,
        row.op,
        row.layer,
        row.dtype,
        number(row.error),
        number(row.worst),
        f"{run} of {row.runs}" if run and row.runs > 1 else "",
        *("" if pair == (0, 0) else str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} > {pair[1]}" for pair in (row.zeros, row.infs, row.nans)),
    )
