"""The records of what runs in a block, whatever ran before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import tfmp
from tfmp.reports.account import Report


@contextlib.contextmanager
def records_of() -> Iterator[Callable[[], Report]]:
    """Yields a function that returns the report of what was converted since."""
    before = len(tfmp.report())
    yield lambda: tfmp.report()[before:]
