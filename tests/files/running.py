"""Running what is in files, as any program would."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tests.files.models import WORDS, normal

Arrays = Mapping[str, np.ndarray]

DATA: dict[str, Any] = {
    "x": normal(4, 16, seed=7, scale=1.0),
    "words": np.array([*WORDS[:3], "unknown"], object),
    "image": normal(2, 16, 16, 3, seed=8, scale=1.0),
    "ids": np.arange(5, dtype=np.int32),
}
WIDE = {"x": normal(4, 32, seed=9, scale=1.0)}
"""Data for signatures called "compiled"."""


def run(path: pathlib.Path | str) -> dict[str, Arrays]:
    """Returns the outputs of every signature of a SavedModel."""
    loaded = tf.saved_model.load(str(path), tags=["serve"])
    return {name: {key: value.numpy() for key, value in call(loaded, name).items()} for name in loaded.signatures}


def call(loaded: Any, name: str) -> Mapping[str, tf.Tensor]:
    """Calls one signature of a loaded SavedModel with data of the types that it takes."""
    signature = loaded.signatures[name]
    data = WIDE if name == "compiled" else DATA
    inputs = signature.structured_input_signature[1]
    return signature(**{key: tf.cast(data[key], spec.dtype) if spec.dtype != tf.string else tf.constant(data[key]) for key, spec in inputs.items()})


def run_graph(path: pathlib.Path, outputs: tuple[str, ...] = ("y", "rows_out")) -> Arrays:
    """Returns the outputs of a frozen graph."""
    definition = tf.compat.v1.GraphDef()
    if path.suffix == ".pbtxt":
        from google.protobuf import text_format

        text_format.Parse(path.read_text(), definition)
    else:
        definition.ParseFromString(path.read_bytes())
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        tf.graph_util.import_graph_def(definition, name="")
        image = graph.get_tensor_by_name("image:0")
        feeds = {image: normal(2, 8, 8, 3, seed=8, scale=1.0).astype(image.dtype.as_numpy_dtype), "ids:0": DATA["ids"]}
        return dict(zip(outputs, session.run([f"{name}:0" for name in outputs], feeds), strict=True))


def worst(before: Arrays, after: Arrays) -> float:
    """Returns the largest difference of floats, of values up to 1; others must be equal, and names and shapes too."""
    assert sorted(before) == sorted(after)
    found = 0.0
    for name, one in before.items():
        other = after[name]
        assert one.shape == other.shape
        if one.dtype.kind == "f":
            wide, narrow = one.astype(np.float64), other.astype(np.float64)
            found = max(found, float(np.max(np.abs(wide - narrow)) / max(1.0, np.max(np.abs(wide)))))
        else:
            assert (one == other).all()
    return found


def contents(path: pathlib.Path) -> dict[str, bytes]:
    """Returns every file at or below `path`."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def weights(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a SavedModel's checkpoint, without the object graph."""
    reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    names = set(reader.get_variable_to_dtype_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    return {name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): np.asarray(reader.get_tensor(name)) for name in names}
