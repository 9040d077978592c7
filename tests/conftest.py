"""What all tests share."""

from __future__ import annotations

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def artefacts() -> pathlib.Path:
    """The folder in which tests leave what a person should look at; it stays, and git ignores it."""
    folder = ROOT / "build" / "artefacts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def _notices_start_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tfmp says once a process must not hang on which tests ran before: each test starts as if mixed precision had been on from the beginning."""
    notices = sys.modules.get("tfmp.hooks.notices")
    if notices is not None:
        monkeypatch.setattr(notices, "_state", notices._State(on=True))
