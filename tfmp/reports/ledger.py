"""Where the account of a process is kept. Light: it is there in processes that convert nothing, too."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfmp.reports.account import Record


class Ledger:
    """Collects records of conversions, and what the user was warned of, from any thread."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = threading.Lock()
        self._records: list[Record] = []
        self._warnings: list[str] = []

    def add(self, record: Record) -> None:
        """Adds one record."""
        with self._lock:
            self._records.append(record)

    def warned(self, message: str) -> None:
        """Adds one warning."""
        with self._lock:
            self._warnings.append(message)

    @property
    def records(self) -> tuple[Record, ...]:
        """What has been added so far, oldest first."""
        with self._lock:
            return tuple(self._records)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings so far, oldest first."""
        with self._lock:
            return tuple(self._warnings)


LEDGER = Ledger()
