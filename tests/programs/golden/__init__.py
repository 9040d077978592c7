"""Texts of converted programs, as they were reviewed. `UPDATE_GOLDEN=1 pytest tests/programs` writes them anew; the difference is then to be read."""

from __future__ import annotations

import os
import pathlib

FOLDER = pathlib.Path(__file__).parent


def check(name: str, text: str) -> None:
    """Asserts that `text` is what `<name>.txt` holds, or writes it there if `UPDATE_GOLDEN` is set."""
    file = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert file.exists(), f"there is no {file.name}: set UPDATE_GOLDEN=1 and review what is written"
    assert text == file.read_text(), f"{name} is converted otherwise than {file.name} says; if that is right, set UPDATE_GOLDEN=1 and review the difference"
