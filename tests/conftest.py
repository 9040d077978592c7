"""What all tests share."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _notices_start_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tfmp says once a process must not hang on which tests ran before: each test starts as if mixed precision had been on from the beginning."""
    notices = sys.modules.get("tfmp.hooks.notices")
    if notices is not None:
        monkeypatch.setattr(notices, "_state", notices._State(on=True))
