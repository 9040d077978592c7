"""Ranges in files: JSON with a version, written all at once."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
from typing import Any

from tfmp.errors import SettingsError
from tfmp.measured.record import OpRange, Ranges

FORMAT, VERSION = "tfmp ranges", 1


def save(ranges: Ranges, path: str | os.PathLike[str]) -> None:
    """Writes `ranges` to the file at `path`, which is the old one or the new one at any moment.

    The file is JSON: an object with `format` ("tfmp ranges"), `version` (1), `batches`, `loss_scale`, `training_scale`, and `ops`, a list of objects with
    the attributes of `OpRange`, whose `outputs` have those of `Counts`.
    """
    content = {
        "format": FORMAT,
        "version": VERSION,
        "batches": ranges.batches,
        "loss_scale": ranges.loss_scale,
        "training_scale": ranges.training_scale,
        "ops": [one.to_json() for one in ranges.ops],
    }
    write_all(path, json.dumps(content))


def write_all(path: str | os.PathLike[str], text: str) -> None:
    """Writes `text` to the file at `path` through a new file beside it, so that nobody ever sees half of it."""
    target = pathlib.Path(path)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        pathlib.Path(name).chmod(0o644)
        pathlib.Path(name).replace(target)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str]) -> Ranges:
    """Returns the ranges in the file at `path`.

    Raises:
      SettingsError: the file cannot be read, is no ranges file, or is of a later version; the message names the file.
    """
    data = _read(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise SettingsError(f"{os.fspath(path)!r} is not a ranges file; tfmp.numerics.calibrate makes one.")
    if data.get("version") != VERSION:
        raise SettingsError(f"ranges file {os.fspath(path)!r} has version {data.get('version')!r}; this tfmp reads version {VERSION}.")
    try:
        scale = data["training_scale"]
        return Ranges(tuple(map(OpRange.from_json, data["ops"])), int(data["batches"]), float(data["loss_scale"]), None if scale is None else float(scale))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise SettingsError(f"ranges file {os.fspath(path)!r} is damaged ({cause}); make it anew with tfmp.numerics.calibrate.") from error


def _read(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"ranges file {os.fspath(path)!r} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # not UTF-8, or not JSON
        raise SettingsError(f"{os.fspath(path)!r} is not a ranges file: {error}; tfmp.numerics.calibrate makes one.") from error
