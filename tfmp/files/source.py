"""Opening what is to be converted: which kind of file it is, and what is wrong with it if it is none."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterator
from typing import TypeAlias

from tfmp import tf_api
from tfmp import tf_saved_model as tfs
from tfmp.errors import FileError

SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
CHUNKED_FILE = "saved_model.cpb"
VARIABLES = "variables/variables"

OTHER_KINDS = {
    ".keras": "a Keras 3 model; load it and write a SavedModel with model.export(...)",
    ".h5": "a Keras HDF5 model; load it and write a SavedModel with model.export(...)",
    ".hdf5": "a Keras HDF5 model; load it and write a SavedModel with model.export(...)",
    ".tflite": "a TensorFlow Lite model, which has its own converter; give the SavedModel it was made from",
    ".onnx": "an ONNX model; give the SavedModel or frozen graph it was made from",
    ".index": "a checkpoint, which holds weights without a graph; give the SavedModel it belongs to",
    ".meta": "a MetaGraphDef beside a checkpoint; export a SavedModel from the two",
}
"""Name endings of files that people have in mind, to what they are and what to do."""

Path: TypeAlias = "str | os.PathLike[str]"


@dataclasses.dataclass(frozen=True)
class SavedModelSource:
    """A SavedModel that was read.

    Attributes:
      path: its folder.
      file: name of the file that the proto came from.
      proto: the proto; never changed.
    """

    path: pathlib.Path
    file: str
    proto: tfs.SavedModel

    @property
    def variables(self) -> str:
        """The prefix of the checkpoint with its variables, "" if it has none."""
        prefix = self.path / VARIABLES
        return str(prefix) if prefix.with_name(prefix.name + ".index").exists() or list(prefix.parent.glob("variables.data*")) else ""


@dataclasses.dataclass(frozen=True)
class GraphSource:
    """A frozen graph that was read; the attributes are those of `SavedModelSource`, for a file."""

    path: pathlib.Path
    file: str
    proto: tf_api.GraphDef


Source = SavedModelSource | GraphSource


def open_source(path: Path) -> Source:
    """Returns what is at `path`: a folder with a SavedModel, or a file with a GraphDef in binary (.pb) or text form (.pbtxt).

    Raises:
      FileError: nothing is there, it cannot be read, it is damaged, or something else; the message says which, and what to do.
    """
    where = pathlib.Path(path)
    try:
        if where.is_dir():
            return _open_saved_model(where)
        if where.suffix.lower() in OTHER_KINDS and where.exists():
            raise FileError(f"{where} is {OTHER_KINDS[where.suffix.lower()]}.")
        if where.name in (*SAVED_MODEL_FILES, CHUNKED_FILE) and where.exists():
            raise FileError(f"{where} is a part of a SavedModel; give its folder, {where.parent}.")
        return _open_graph(where)
    except OSError as error:
        raise FileError(f"{where} cannot be read: {error.strerror or error}.") from None


def _open_saved_model(folder: pathlib.Path) -> SavedModelSource:
    found = [name for name in SAVED_MODEL_FILES if (folder / name).exists()]
    if not found:
        chunked = " Its proto is split into pieces (saved_model.cpb); save it again below 2 GB." if (folder / CHUNKED_FILE).exists() else ""
        raise FileError(f"{folder} is not a SavedModel: it holds no {' or '.join(SAVED_MODEL_FILES)}.{chunked}")
    file = folder / found[0]
    proto = tfs.SavedModel()
    _parse(file, proto)
    if not proto.meta_graphs:
        raise FileError(f"{file} holds no graph; it is damaged, or not a SavedModel.")
    return SavedModelSource(folder, file.name, proto)


def _open_graph(file: pathlib.Path) -> GraphSource:
    proto = tf_api.GraphDef()
    _parse(file, proto)
    if not proto.node:
        raise FileError(f"{file} holds no node; it is damaged, or not a frozen graph (a GraphDef).")
    if not all(node.op and node.name for node in proto.node):
        raise FileError(f"{file} has nodes without a name or an op; it is damaged, or not a frozen graph (a GraphDef).")
    return GraphSource(file, file.name, proto)


def _parse(file: pathlib.Path, proto: tf_api.Message) -> None:
    content = file.read_bytes()
    what = type(proto).__name__
    if not content:
        raise FileError(f"{file} is empty.")
    try:
        if file.suffix == ".pbtxt":
            tfs.from_text(content.decode(), proto)
        else:
            proto.ParseFromString(content)
    except (tfs.DecodeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise FileError(f"{file} is not a {what}, or damaged ({len(content):,} bytes): {reason.rstrip('.')}.") from None


def graphs(source: Source) -> Iterator[tf_api.GraphDef]:
    """Yields the main graphs of `source`, each with its library."""
    if isinstance(source, GraphSource):
        yield source.proto
    else:
        yield from (meta.graph_def for meta in source.proto.meta_graphs)
