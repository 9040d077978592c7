"""Putting a converted file where it is to go: all of it or nothing, and never in place of something else."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import shutil
from collections.abc import Iterator

from tfmp.errors import TargetError
from tfmp.files.source import SAVED_MODEL_FILES, GraphSource, Source


def check_target(source: Source, target: str | os.PathLike[str], force: bool) -> pathlib.Path:
    """Returns the path to write to.

    Raises:
      TargetError: something is there and `force` is off; or it is the source, lies in it or has it inside; or it is there and no such thing as will be
        written; or its folder is not there.
    """
    where = pathlib.Path(target)
    real, original = where.resolve(), source.path.resolve()
    if real == original or original in real.parents or real in original.parents:
        raise TargetError(f"{where} is the original, lies in it or has it inside, and must not; choose another place.")
    if not real.parent.is_dir():
        raise TargetError(f"{where} cannot be written: there is no folder {where.parent}.")
    if not os.path.lexists(where):
        return where
    if not force:
        raise TargetError(f"{where} is there already; --force (force=True) replaces it.")
    if isinstance(source, GraphSource):
        if not where.is_file():
            raise TargetError(f"{where} is not a file, and is not replaced by one; remove it, or choose another place.")
    elif not where.is_dir() or (any(where.iterdir()) and not any((where / name).exists() for name in SAVED_MODEL_FILES)):
        raise TargetError(f"{where} is not a SavedModel, and is not replaced by one; remove it, or choose another place.")
    return where


@contextlib.contextmanager
def replacing(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives a path beside `target` to write a file or folder to, which takes the place of `target` when the block ends.

    If the block raises, what it has written is removed and `target` is as it was. If the process is killed, `target` is as it was, too.

    Raises:
      TargetError: something cannot be written, or put in place.
    """
    token = secrets.token_hex(4)
    new, old = (target.with_name(f".{target.name}.tfmp-{kind}-{token}") for kind in ("new", "old"))
    try:
        yield new
        _flush(new)
        _put_in_place(new, old, target)
    except OSError as error:
        raise TargetError(f"{target} cannot be written: {error.strerror or error}.") from None
    finally:
        _remove(new)


def _put_in_place(new: pathlib.Path, old: pathlib.Path, target: pathlib.Path) -> None:
    if not target.is_dir() or target.is_symlink():
        new.replace(target)
        return
    target.replace(old)  # no system call puts a folder in the place of one that is not empty
    try:
        new.replace(target)
    except BaseException:
        old.replace(target)
        raise
    _remove(old)


def _flush(path: pathlib.Path) -> None:
    """Makes sure that the content is on the disk before anything is renamed."""
    for file in [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
