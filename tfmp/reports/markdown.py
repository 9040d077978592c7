"""Reports in Markdown: for TensorBoard's text dashboard, issue trackers and notebooks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tfmp.reports.tables import Block, Heading, Line, blocks
from tfmp.reports.text import LAYERS

if TYPE_CHECKING:
    from tfmp.reports.account import Report

_MEANS_SOMETHING = re.compile(r"([\\`*_{}\[\]<>|#])")


def markdown(report: Report, layers: int = LAYERS) -> str:
    """Returns a report in Markdown with tables (as GitHub and TensorBoard read them); with at most `layers` layers of each program."""
    return "\n".join(line for block in blocks(report, layers) for line in _lines(block)).strip() + "\n"


def _lines(block: Block) -> Iterator[str]:
    if isinstance(block, Heading):
        yield from ("", f"### {_plain(block.text)}", "")
    elif isinstance(block, Line):
        yield f"- {f'**{block.mark}**: ' if block.mark else ''}{_plain(block.text)}"
    else:
        yield ""
        yield _row(block.columns)
        yield _row("---:" if column in block.numbers else "---" for column in range(len(block.columns)))
        yield from (_row(map(_plain, row)) for row in block.rows)
        yield ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Returns `text` with a backslash before everything that would be read as markup."""
    return _MEANS_SOMETHING.sub(r"\\\1", text)
