"""Where files come from and go to: what kind of file is there, and whether something may be written. Nothing here imports TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import secrets
import shutil
from collections.abc import Iterator
from typing import TypeAlias

from tfmp.errors import FileError, TargetError

Path: TypeAlias = "str | os.PathLike[str]"

SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
CHUNKED_FILE = "saved_model.cpb"
SAVED_MODEL, FROZEN_GRAPH = "SavedModel", "frozen graph"

EXPORT = "; load it and write a SavedModel with model.export(...)"
OTHER_KINDS = {
    ".keras": f"a Keras 3 model{EXPORT}",
    ".h5": f"a Keras HDF5 model{EXPORT}",
    ".hdf5": f"a Keras HDF5 model{EXPORT}",
    ".tflite": "a TensorFlow Lite model, which has its own converter; give the SavedModel it was made from",
    ".onnx": "an ONNX model; give the SavedModel or frozen graph it was made from",
    ".index": "a checkpoint, which holds weights without a graph; give the SavedModel it belongs to",
    ".meta": "a MetaGraphDef beside a checkpoint; export a SavedModel from the two",
}
"""Name endings of files that people have in mind, to what they are and what to do."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A file that was found: its path, `SAVED_MODEL` or `FROZEN_GRAPH`, and the file that the proto is in."""

    path: pathlib.Path
    kind: str
    file: pathlib.Path


def find(path: Path) -> Found:
    """Returns what is at `path`: a folder with a SavedModel, or a file that may be a frozen graph.

    Raises:
      FileError: nothing is there, it is empty, cannot be read, or is something else; the message says which, and what to do.
    """
    where = pathlib.Path(path)
    try:
        found = _find(where)
        if not found.file.stat().st_size:
            raise FileError(f"{found.file} is empty.")
        with found.file.open("rb"):
            return found
    except OSError as error:
        raise FileError(f"{where} cannot be read: {error.strerror or error}.") from None


def _find(where: pathlib.Path) -> Found:
    if where.is_dir():
        names = [name for name in SAVED_MODEL_FILES if (where / name).exists()]
        if names:
            return Found(where, SAVED_MODEL, where / names[0])
        chunked = " Its proto is split into pieces (saved_model.cpb); save it again with less than 2 GB." if (where / CHUNKED_FILE).exists() else ""
        raise FileError(f"{where} is not a SavedModel: it holds no {' or '.join(SAVED_MODEL_FILES)}.{chunked}")
    if where.exists():
        if where.suffix.lower() in OTHER_KINDS:
            raise FileError(f"{where} is {OTHER_KINDS[where.suffix.lower()]}.")
        if where.name in (*SAVED_MODEL_FILES, CHUNKED_FILE):
            raise FileError(f"{where} is a part of a SavedModel; give its folder, {where.parent}.")
    return Found(where, FROZEN_GRAPH, where)


def check_target(source: Found, target: Path, force: bool) -> pathlib.Path:
    """Returns the path to write to.

    Raises:
      TargetError: something is there and `force` is off; or it is the source, lies in it or has it inside; or it is there and no such thing as will be
        written; or its folder is not there.
    """
    where = pathlib.Path(target)
    real, original = where.resolve(), source.path.resolve()
    if real == original or original in real.parents or real in original.parents:
        raise TargetError(f"{where} is the original, lies in it or has it inside; choose another place.")
    if not real.parent.is_dir():
        raise TargetError(f"{where} cannot be written: there is no folder {where.parent}.")
    if not os.path.lexists(where):
        return where
    if not force:
        raise TargetError(f"{where} is there already; --force (force=True) replaces it.")
    if source.kind == FROZEN_GRAPH and not where.is_file():
        raise TargetError(f"{where} is not a file, and is not replaced by one; remove it, or choose another place.")
    if source.kind == SAVED_MODEL and not _may_be_replaced(where):
        raise TargetError(f"{where} is not a SavedModel, and is not replaced by one; remove it, or choose another place.")
    return where


def _may_be_replaced(folder: pathlib.Path) -> bool:
    return folder.is_dir() and (not any(folder.iterdir()) or any((folder / name).exists() for name in SAVED_MODEL_FILES))


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
