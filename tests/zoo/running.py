"""Runs a GraphDef of the zoo on the CPU, so that two forms of one graph can be compared by their numbers."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

# Loops of the zoo run three times; the least that a random integer may be, and one more than the most.
_INTEGERS = (0, 3)


def _feed(node: Any) -> np.ndarray:
    """Returns values for a Placeholder in [0.25, 0.75) or small integers: the same for the same node name."""
    import tensorflow as tf

    shape = tf.TensorShape(node.attr["shape"].shape).as_list()
    dtype = tf.dtypes.as_dtype(node.attr["dtype"].type)
    random = np.random.default_rng(zlib.crc32(node.name.encode()))
    if dtype.is_integer:
        return random.integers(*_INTEGERS, shape).astype(dtype.as_numpy_dtype)
    return (0.25 + 0.5 * random.random(shape)).astype(dtype.as_numpy_dtype)


def evaluate(graph_def: Any, fetches: Sequence[str]) -> list[np.ndarray]:
    """Returns the first output of each node in `fetches`; nodes without output, such as "side_effects", run and are left out.

    Placeholders are fed, each with the same values in every call. Their shapes must be known and none may be a resource: graphs with the tag
    "variables" cannot be run here. Raises tf.errors.OpError if TensorFlow refuses the graph.
    """
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    operations = [graph.get_operation_by_name(name) for name in fetches]
    feeds = {f"{node.name}:0": _feed(node) for node in graph_def.node if node.op == "Placeholder"}
    tensors = [operation.outputs[0] for operation in operations if operation.outputs]
    effects = [operation for operation in operations if not operation.outputs]
    with tf.compat.v1.Session(graph=graph) as session:
        return session.run([tensors, effects], feeds)[0]
