"""Runs GraphDefs on the CPU exactly as they are: no optimizer of TensorFlow touches them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfmp import tf_api


def run(graph_def: tf_api.GraphDef, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors `names` ("node" or "node:1") of `graph_def`, which is not changed; raises `tf.errors.OpError` or `ValueError` if it does not run."""
    copy = tf_api.GraphDef()
    copy.CopyFrom(graph_def)  # importing fills in defaults
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(copy, name="")
    with tf.compat.v1.Session(graph=graph, config=_config()) as session:
        found = session.run([_tensor(name) for name in names], {_tensor(name): value for name, value in feeds.items()})
    return dict(zip(names, found, strict=True))


def tensor_names(graph_def: tf_api.GraphDef) -> list[str]:
    """Returns the name of every tensor of the main graph that can be fetched: all but handles and what they stand for."""
    graph = tf.Graph()
    copy = tf_api.GraphDef()
    copy.CopyFrom(graph_def)
    with graph.as_default():
        tf.graph_util.import_graph_def(copy, name="")
    tensors = (tensor for operation in graph.get_operations() for tensor in operation.outputs)
    return [tensor.name.removesuffix(":0") for tensor in tensors if tensor.dtype not in (tf.variant, tf.resource)]


def _tensor(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _config() -> tf.compat.v1.ConfigProto:
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, device_count={"GPU": 0})
    config.graph_options.optimizer_options.opt_level = -1
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config
