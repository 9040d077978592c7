"""Runs a file and its converted twin on the same data, in a process that has TensorFlow and no tfmp. It is started as a script by `check`.

Reads a request (JSON) from the path that is its argument and writes the answer (JSON) over it.
"""

import importlib
import json
import os
import sys

for _switch in ("", "_GRAPH_REWRITE", "_LOSS_SCALING"):  # whatever the user's environment says: both files run as they are
    os.environ[f"TF_ENABLE_AUTO_MIXED_PRECISION{_switch}"] = "0"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402  # after the switch
import tensorflow as tf  # noqa: E402

BATCH, UNKNOWN, SEED = 2, 16, 0
"""Sizes of random data where the signature leaves them open: of the first dimension, and of others."""

WORDS = ("tensor", "graph", "mixed precision", "half", "float32", "")


def main(path):
    """Answers the request at `path`."""
    with open(path, encoding="utf-8") as file:
        request = json.load(file)
    try:
        answer = {"differences": compare(request)}
    except Unusable as error:
        answer = {"error": str(error)}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(answer, file)


class Unusable(Exception):
    """The comparison cannot be made; the message says why."""


def compare(request):
    """Returns the differences of every output of every signature, as the fields of `check.Difference`."""
    for module in request["modules"]:
        importlib.import_module(module)
    original, converted = (open_file(request[name], request) for name in ("original", "converted"))
    given = dict(np.load(request["data"], allow_pickle=False)) if request["data"] else None
    found = []
    for name in sorted(original.names):
        data = choose(name, original.inputs(name), given)
        if data is None:
            continue
        expected = attempt(original, name, data, "the original")
        found += differences(name, expected, attempt(converted, name, data, "the converted file"))
    if not found:
        needed = "; ".join(f"{name} takes {', '.join(original.inputs(name))}" for name in sorted(original.names))
        raise Unusable(f"the data have {', '.join(sorted(given or {})) or 'no arrays'}, which no signature takes: {needed}")
    return found


def attempt(model, name, data, what):
    """Returns the outputs of a signature."""
    try:
        return model.run(name, data)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        message = getattr(error, "message", None) or str(error)
        line = next((line.strip() for line in message.splitlines() if line.strip()), type(error).__name__)
        raise Unusable(f"{what} does not run on these data here ({name}): {line}") from None


def choose(name, inputs, given):
    """Returns the data for the inputs of one signature: random ones, or those of the user's file; None if that has not all of them."""
    if given is None:
        rng = np.random.default_rng(SEED)
        return {key: random(rng, dtype, shape) for key, (dtype, shape) in inputs.items()}
    found = {key: given.get(f"{name}/{key}", given.get(key)) for key in inputs}
    return None if any(value is None for value in found.values()) else found


def random(rng, dtype, shape):
    """Returns random data of a type and shape: normal numbers, small whole numbers, words."""
    sizes = [size if size is not None else BATCH if axis == 0 else UNKNOWN for axis, size in enumerate(shape if shape is not None else [None])]
    if dtype == tf.string:
        return np.array([WORDS[number] for number in rng.integers(0, len(WORDS), int(np.prod(sizes)))], object).reshape(sizes)
    if dtype == tf.bool:
        return rng.random(sizes) < 0.5
    if dtype.is_floating:
        return rng.standard_normal(sizes)
    return rng.integers(0, 8, sizes)


def differences(signature, expected, actual):
    """Yields the difference of every output."""
    for output, one in sorted(expected.items()):
        other = actual.get(output)
        row = {"signature": signature, "output": output, "worst": None, "scale": None, "equal": 0.0, "dtype": one.dtype.name, "problem": ""}
        if other is None or one.shape != other.shape:
            row["problem"] = "missing" if other is None else f"shape {other.shape} instead of {one.shape}"
        else:
            row["dtype"] += "" if other.dtype == one.dtype else f" -> {other.dtype.name}"
            row["equal"] = float(np.mean(np.asarray(one == other))) if one.size else 1.0
            if one.dtype.is_floating:
                row.update(float_difference(one.numpy, other.numpy))
        yield row


def float_difference(one, other):
    """Returns the worst difference of two arrays of floats, the largest original value, and what speaks against the second."""
    one, other = (np.asarray(value, np.float64) for value in (one, other))
    finite = np.isfinite(one)
    lost = int(np.sum(finite & ~np.isfinite(other)))
    both = finite & np.isfinite(other)
    worst = float(np.max(np.abs(one - other)[both], initial=0.0))
    return {"worst": worst, "scale": float(np.max(np.abs(one)[finite], initial=0.0)), "problem": f"{lost} values are not finite any more" if lost else ""}


class Value:
    """A tensor with its TensorFlow type and its value as an array."""

    def __init__(self, dtype, array):
        self.dtype, self.numpy, self.shape, self.size = dtype, np.asarray(array), np.shape(array), np.size(array)

    def __eq__(self, other):
        return np.asarray(self.numpy == other.numpy)

    __hash__ = None


class SavedModel:
    """A loaded SavedModel."""

    def __init__(self, path, request):
        self._model = tf.saved_model.load(path, tags=request["tags"])
        self.names = list(self._model.signatures)

    def inputs(self, name):
        """Returns input name to (type, shape)."""
        specs = self._model.signatures[name].structured_input_signature[1]
        return {key: (spec.dtype, spec.shape.as_list() if spec.shape.rank is not None else None) for key, spec in specs.items()}

    def run(self, name, data):
        """Returns output name to value."""
        function = self._model.signatures[name]
        tensors = {key: tf.cast(tf.constant(value), dtype) if dtype != tf.string else tf.constant(value) for key, (dtype, _) in self.inputs(name).items() for value in [data[key]]}
        return {key: Value(tensor.dtype, tensor.numpy()) for key, tensor in function(**tensors).items()}


class FrozenGraph:
    """An imported frozen graph."""

    def __init__(self, path, request):
        definition = tf.compat.v1.GraphDef()
        with open(path, "rb") as file:
            content = file.read()
        if path.endswith(".pbtxt"):
            from google.protobuf import text_format

            text_format.Parse(content.decode(), definition)
        else:
            definition.ParseFromString(content)
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.graph_util.import_graph_def(definition, name="")
        self._inputs = {name: self._graph.get_tensor_by_name(f"{name}:0") for name in request["inputs"]}
        self._outputs = {name: self._graph.get_tensor_by_name(name if ":" in name else f"{name}:0") for name in request["outputs"]}
        self.names = ["graph"]

    def inputs(self, name):
        """Returns input name to (type, shape)."""
        del name
        return {key: (tensor.dtype, tensor.shape.as_list() if tensor.shape.rank is not None else None) for key, tensor in self._inputs.items()}

    def run(self, name, data):
        """Returns output name to value."""
        del name
        feeds = {tensor: np.asarray(data[key]).astype(tensor.dtype.as_numpy_dtype) for key, tensor in self._inputs.items()}
        with tf.compat.v1.Session(graph=self._graph) as session:
            arrays = session.run(self._outputs, feeds)
        return {key: Value(self._outputs[key].dtype, array) for key, array in arrays.items()}


def open_file(path, request):
    """Opens a SavedModel or a frozen graph."""
    return SavedModel(path, request) if os.path.isdir(path) else FrozenGraph(path, request)


if __name__ == "__main__":
    main(sys.argv[1])
