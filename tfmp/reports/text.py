"""Reports as text: plain for logs, with rich's tables for terminals."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from tfmp.reports.tables import Block, Heading, Line, Table, blocks

if TYPE_CHECKING:
    from tfmp.reports.account import Report

LAYERS = 20
"""How many layers of a program are printed unless more are asked for."""

ROOM = 120
"""From how many columns on a terminal has room for all columns of a table."""

INDENT, GAP = "  ", "  "
STYLES = {"advice": "bold cyan", "warning": "bold yellow"}
"""Mark of a line to its style in a terminal."""


def plain(report: Report, layers: int = LAYERS) -> str:
    """Returns a report as plain lines, without colours and without breaking any; with at most `layers` layers of each program."""
    return "\n".join(line for block in blocks(report, layers) for line in _lines(block))


def _lines(block: Block) -> Iterator[str]:
    if isinstance(block, Heading):
        yield block.text
    elif isinstance(block, Line):
        yield f"{INDENT}{f'{block.mark}: ' if block.mark else ''}{block.text}"
    else:
        rows = [block.columns, *block.rows]
        widths = [max(len(row[column]) for row in rows) for column in range(len(block.columns))]
        for row in rows:
            cells = (cell.rjust(width) if column in block.numbers else cell.ljust(width) for column, (cell, width) in enumerate(zip(row, widths, strict=True)))
            yield (INDENT + GAP.join(cells)).rstrip()


def show(report: Report, file: IO[str] | None = None, layers: int = LAYERS) -> None:
    """Writes a report to `file` (default: standard output): tables and colours if that is a terminal and rich is installed, else plain lines."""
    stream = file or sys.stdout
    if stream.isatty() and importlib.util.find_spec("rich") is not None:
        from rich.console import Console

        console = Console(file=stream)
        for part in drawn(report, console.width, layers):
            console.print(part)
    else:
        stream.write(plain(report, layers) + "\n")


def drawn(report: Report, width: int, layers: int = LAYERS) -> Iterator[Any]:
    """Yields what rich draws of a report on a terminal of `width` columns; needs rich."""
    from rich.padding import Padding
    from rich.text import Text

    for block in blocks(report, layers):
        if isinstance(block, Heading):
            yield Text(block.text, style="bold")
        elif isinstance(block, Line):
            yield Padding(Text.assemble((f"{block.mark}: " if block.mark else "", STYLES.get(block.mark, "")), block.text), (0, 0, 0, len(INDENT)))
        else:
            yield _drawn_table(block, width)


def _drawn_table(block: Table, width: int) -> Any:
    from rich import box
    from rich.table import Table as Drawn
    from rich.text import Text

    shown = [column for column in range(len(block.columns)) if width >= ROOM or column not in block.wide]
    table = Drawn(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    for column in shown:
        number = column in block.numbers
        table.add_column(block.columns[column], justify="right" if number else "left", no_wrap=number, overflow="fold", min_width=0 if number else 16)
    for row in block.rows:
        table.add_row(*(Text(row[column]) for column in shown))
    return table
