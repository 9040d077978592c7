"""Runs a file and its converted twin on the same data, in a process that has TensorFlow and no tfmp. `check` starts it as a script.

It reads a request (`check.Request` in JSON) from the file that is its argument, and writes the answer (JSON) over it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

for _switch in ("", "_GRAPH_REWRITE", "_LOSS_SCALING"):  # whatever the user's environment says: both files run as they are
    os.environ[f"TF_ENABLE_AUTO_MIXED_PRECISION{_switch}"] = "0"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402  # after the switch
import tensorflow as tf  # noqa: E402

BATCH, UNKNOWN, SEED = 2, 16, 0
"""Sizes of random data where the signature leaves them open: of the first dimension, and of others."""

RUN_ERRORS = (tf.errors.OpError, ValueError, TypeError)
"""What a model raises that does not run."""

WHERE = ("Graph execution error", "Detected at node", "File ", "Node:", "Original stack trace", "[[", "<frozen ")
"""How the lines of TensorFlow's messages begin that say where something went wrong."""

WORDS = ("tensor", "graph", "mixed precision", "half", "float32", "")

Inputs: TypeAlias = "dict[str, tuple[tf.DType, list[int | None] | None]]"
"""Input name to type and shape."""

Data: TypeAlias = Mapping[str, Any]
"""Input name to array."""

Values: TypeAlias = "dict[str, tuple[tf.DType, np.ndarray]]"
"""Output name to type and value."""


class UnusableError(Exception):
    """The comparison cannot be made; the message says why."""


def main(path: str) -> None:
    """Answers the request in the file `path`."""
    file = pathlib.Path(path)
    request = json.loads(file.read_text(encoding="utf-8"))
    answer: dict[str, Any]
    try:
        answer = {"differences": compare(request)}
    except UnusableError as error:
        answer = {"error": str(error)}
    file.write_text(json.dumps(answer), encoding="utf-8")


def compare(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the differences of every output of every signature, as the fields of `check.Difference`."""
    for module in request["modules"]:
        importlib.import_module(module)
    original, converted = (open_file(request[name], request) for name in ("original", "converted"))
    given = read_data(request["data"]) if request["data"] else None
    found: list[dict[str, Any]] = []
    for name in sorted(original.names):
        data = choose(name, original.inputs(name), given)
        if data is not None:
            expected = attempt(original, name, data, "the original")
            found += differences(name, expected, attempt(converted, name, data, "the converted file"))
    if not found:
        needed = "; ".join(f"{name} takes {', '.join(original.inputs(name)) or 'nothing'}" for name in sorted(original.names))
        raise UnusableError(f"the data have {', '.join(sorted(given or {})) or 'no arrays'}, which no signature takes: {needed}")
    return found


def read_data(path: str) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, AttributeError, EOFError) as error:
        raise UnusableError(f"the data in {path} cannot be read: {next(iter(str(error).splitlines()), type(error).__name__)}") from None


def attempt(model: SavedModel | FrozenGraph, name: str, data: Data, what: str) -> Values:
    """Returns the outputs of a signature."""
    try:
        return model.run(name, data)
    except RUN_ERRORS as error:
        raise UnusableError(f"{what} does not run here on these data ({name}): {reason(error)}") from None


def reason(error: Exception) -> str:
    """Returns the line of TensorFlow's message that says what went wrong, rather than where."""
    lines = [line.strip() for line in (getattr(error, "message", None) or str(error)).splitlines()]
    return next((line for line in lines if line and not line.startswith(WHERE)), type(error).__name__)


def choose(name: str, inputs: Inputs, given: Data | None) -> Data | None:
    """Returns the data for the inputs of one signature: random ones, or those of the user's file; None if that has not all of them."""
    if given is None:
        rng = np.random.default_rng(SEED)
        return {key: random_data(rng, dtype, shape) for key, (dtype, shape) in inputs.items()}
    found = {key: given.get(f"{name}/{key}", given.get(key)) for key in inputs}
    return None if any(value is None for value in found.values()) else found


def random_data(rng: np.random.Generator, dtype: tf.DType, shape: list[int | None] | None) -> np.ndarray:
    """Returns random data of a type and shape: normal numbers, small whole numbers, words."""
    sizes = [size if size is not None else UNKNOWN if axis else BATCH for axis, size in enumerate([None] if shape is None else shape)]
    if dtype == tf.string:
        return np.array([WORDS[number] for number in rng.integers(0, len(WORDS), int(np.prod(sizes)))], object).reshape(sizes)
    if dtype == tf.bool:
        return np.asarray(rng.random(sizes) < 0.5)
    return np.asarray(rng.standard_normal(sizes) if dtype.is_floating else rng.integers(0, 8, sizes))


def differences(signature: str, expected: Values, actual: Values) -> Iterator[dict[str, Any]]:
    """Yields the difference of every output."""
    for output, (dtype, one) in sorted(expected.items()):
        row: dict[str, Any] = {"signature": signature, "output": output, "worst": None, "scale": None, "equal": 0.0, "dtype": dtype.name, "problem": ""}
        if output not in actual:
            row["problem"] = "it is missing"
        else:
            new_dtype, other = actual[output]
            row["dtype"] += "" if new_dtype == dtype else f" -> {new_dtype.name}"
            if one.shape != other.shape:
                row["problem"] = f"its shape is {other.shape} instead of {one.shape}"
            else:
                row["equal"] = float(np.mean(one == other)) if one.size else 1.0
                row.update(float_difference(one, other) if dtype.is_floating else {})
        yield row


def float_difference(one: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    """Returns the worst difference of two arrays of floats, the largest original value, and what speaks against the second."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(one)
    both = finite & np.isfinite(other)
    lost = int(np.sum(finite & ~both))
    worst = float(np.max(np.abs(one[both] - other[both]), initial=0.0))
    return {"worst": worst, "scale": float(np.max(np.abs(one[finite]), initial=0.0)), "problem": f"{lost:,} values are not finite any more" if lost else ""}


class SavedModel:
    """A loaded SavedModel; `names` are the keys of its signatures."""

    def __init__(self, path: str, request: Mapping[str, Any]) -> None:
        """Loads it as any program would."""
        self._model = tf.saved_model.load(path, tags=request["tags"])
        self.names = list(self._model.signatures)

    def inputs(self, name: str) -> Inputs:
        """Returns the inputs of a signature."""
        specs = self._model.signatures[name].structured_input_signature[1]
        return {key: (spec.dtype, spec.shape.as_list() if spec.shape.rank is not None else None) for key, spec in specs.items()}

    def run(self, name: str, data: Data) -> Values:
        """Returns the outputs of a signature; floats are cast to the type that it takes."""
        tensors = {key: as_tensor(data[key], dtype) for key, (dtype, _) in self.inputs(name).items()}
        return {key: (tensor.dtype, np.asarray(tensor.numpy())) for key, tensor in self._model.signatures[name](**tensors).items()}


def as_tensor(value: np.ndarray, dtype: tf.DType) -> tf.Tensor:
    """Returns `value` as a tensor of type `dtype`."""
    return tf.constant(value, dtype) if dtype == tf.string else tf.cast(value, dtype)


class FrozenGraph:
    """An imported frozen graph, whose one signature is called "graph"."""

    names = ("graph",)

    def __init__(self, path: str, request: Mapping[str, Any]) -> None:
        """Imports it as any program would."""
        definition, content = tf.compat.v1.GraphDef(), pathlib.Path(path).read_bytes()
        if path.endswith(".pbtxt"):
            importlib.import_module("google.protobuf.text_format").Parse(content.decode(), definition)
        else:
            definition.ParseFromString(content)
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.graph_util.import_graph_def(definition, name="")
        self._inputs, self._outputs = (
            {name: self._graph.get_tensor_by_name(name if ":" in name else f"{name}:0") for name in request[side]} for side in ("inputs", "outputs")
        )

    def inputs(self, name: str) -> Inputs:
        """Returns the inputs."""
        del name
        return {key: (tensor.dtype, tensor.shape.as_list() if tensor.shape.rank is not None else None) for key, tensor in self._inputs.items()}

    def run(self, name: str, data: Data) -> Values:
        """Returns the outputs."""
        del name
        feeds = {tensor: np.asarray(data[key]).astype(tensor.dtype.as_numpy_dtype) for key, tensor in self._inputs.items()}
        with tf.compat.v1.Session(graph=self._graph) as session:
            try:
                arrays = session.run(self._outputs, feeds)
            except RUN_ERRORS as error:  # what nothing reads may lie inside a loop or branch, where it cannot be fetched
                arrays = dict(_fetchable(session, self._outputs, feeds))
                if not arrays:
                    raise error from None
        return {key: (self._outputs[key].dtype, np.asarray(array)) for key, array in arrays.items()}


def _fetchable(session: Any, outputs: Mapping[str, Any], feeds: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the values of those outputs that can be fetched."""
    for key, tensor in outputs.items():
        with contextlib.suppress(*RUN_ERRORS):
            yield key, session.run(tensor, feeds)


def open_file(path: str, request: Mapping[str, Any]) -> SavedModel | FrozenGraph:
    """Opens a SavedModel or a frozen graph."""
    try:
        return SavedModel(path, request) if os.path.isdir(path) else FrozenGraph(path, request)
    except (tf.errors.OpError, ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError) as error:
        raise UnusableError(f"TensorFlow cannot load {path}: {reason(error)}") from None


if __name__ == "__main__":
    main(sys.argv[1])
