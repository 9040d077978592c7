"""What is to be converted, read."""

from __future__ import annotations

import dataclasses
import pathlib

from tfmp import tf_api
from tfmp import tf_saved_model as tfs
from tfmp.errors import FileError
from tfmp.files.places import SAVED_MODEL, SAVED_MODEL_FILES, Found

VARIABLES = "variables/variables"
"""Path of the checkpoint in a SavedModel, without its endings."""


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
        return str(prefix) if prefix.with_name(f"{prefix.name}.index").exists() or list(prefix.parent.glob(f"{prefix.name}.data*")) else ""


@dataclasses.dataclass(frozen=True)
class GraphSource:
    """A frozen graph that was read; the attributes are those of `SavedModelSource`, for a file."""

    path: pathlib.Path
    file: str
    proto: tf_api.GraphDef


Source = SavedModelSource | GraphSource


def read_source(found: Found) -> Source:
    """Returns the content of what was found: a SavedModel, or a GraphDef in binary or (.pbtxt) text form.

    Raises:
      FileError: it cannot be read, or it is damaged.
    """
    if found.kind == SAVED_MODEL:
        model = tfs.SavedModel()
        _parse(found.file, model)
        if not model.meta_graphs:
            raise FileError(f"{found.file} holds no graph; it is damaged, or not a SavedModel.")
        return SavedModelSource(found.path, found.file.name, model)
    graph = tf_api.GraphDef()
    _parse(found.file, graph)
    if not graph.node:
        raise FileError(f"{found.file} holds no node; it is damaged, or not a frozen graph (a GraphDef).")
    if not all(node.op and node.name for node in graph.node):
        raise FileError(f"{found.file} has nodes without a name or an op; it is damaged, or not a frozen graph (a GraphDef).")
    return GraphSource(found.path, found.file.name, graph)


def _parse(file: pathlib.Path, proto: tf_api.Message) -> None:
    try:
        content = file.read_bytes()
        if file.suffix == ".pbtxt":
            tfs.from_text(content.decode(), proto)
        else:
            proto.ParseFromString(content)
    except OSError as error:
        raise FileError(f"{file} cannot be read: {error.strerror or error}.") from None
    except (tfs.DecodeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise FileError(f"{file} is not a {type(proto).__name__}, or damaged ({len(content):,} bytes): {reason.rstrip('.')}.") from None


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Bytes of a file: its graphs, its checkpoint, and what else there is."""

    graphs: int
    weights: int
    other: int

    @property
    def total(self) -> int:
        """All bytes."""
        return self.graphs + self.weights + self.other


def sizes_of(path: pathlib.Path) -> Sizes:
    """Returns the sizes of a SavedModel or frozen graph."""
    if path.is_file():
        return Sizes(path.stat().st_size, 0, 0)
    sizes = {file.relative_to(path): file.stat().st_size for file in path.rglob("*") if file.is_file()}
    graphs = sum(size for file, size in sizes.items() if str(file) in SAVED_MODEL_FILES)
    weights = sum(size for file, size in sizes.items() if file.parts[0] == VARIABLES.partition("/")[0])
    return Sizes(graphs, weights, sum(sizes.values()) - graphs - weights)
