"""Files to convert, each written once."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from tests.files.models import WRITERS

Original = Callable[[str], pathlib.Path]
"""Name of a model to the path of its file."""


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """Returns the path of a file that must not be changed, by the name of its model."""
    folder = tmp_path_factory.mktemp("originals")

    def path(name: str) -> pathlib.Path:
        where = folder / name
        if not where.exists():
            WRITERS[name](where)
        return where

    return path
