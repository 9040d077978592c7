"""The border to TensorFlow for files: what `tf_api` is for graphs. Imported only by those who read and write SavedModels and frozen graphs."""

from __future__ import annotations

from typing import Any, TypeAlias

import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2, saved_object_graph_pb2, trackable_object_graph_pb2
from tensorflow.python.framework import function_def_to_graph as _function_def_to_graph
from tensorflow.python.saved_model import fingerprinting_utils as _fingerprinting_utils

from tfmp import tf_api

SavedModel: TypeAlias = saved_model_pb2.SavedModel
MetaGraphDef: TypeAlias = meta_graph_pb2.MetaGraphDef
SavedObjectGraph: TypeAlias = saved_object_graph_pb2.SavedObjectGraph
TrackableObjectGraph: TypeAlias = trackable_object_graph_pb2.TrackableObjectGraph
VariableDef: TypeAlias = variable_pb2.VariableDef

OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Key of a checkpoint under which the objects and the keys of their tensors are (`tensorflow/python/checkpoint/trackable/base.py`)."""

__all__ = [
    "OBJECT_GRAPH_KEY", "DecodeError", "MetaGraphDef", "SavedModel", "SavedObjectGraph", "TrackableObjectGraph", "VariableDef", "as_text", "from_text",
    "import_function", "import_graph", "write_fingerprint",
]  # fmt: skip


def from_text(text: str, message: tf_api.Message) -> None:
    """Fills `message` from its text form; raises `ValueError` with the line that cannot be read."""
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise ValueError(str(error)) from None


def as_text(message: tf_api.Message) -> str:
    """Returns the text form of `message`."""
    return text_format.MessageToString(message)


def import_graph(graph: tf_api.GraphDef) -> Any:
    """Returns the `tf.Graph` that TensorFlow makes of a main graph and its library; raises what TensorFlow raises if it cannot."""
    result = tf.Graph()
    with result.as_default():
        tf.graph_util.import_graph_def(graph, name="")
    return result


def import_function(definition: tf_api.FunctionDef, graph: Any) -> Any:
    """Returns the graph that TensorFlow makes of the body of `definition`, whose calls lead to functions of `graph`; raises what TensorFlow raises."""
    with graph.as_default():
        return _function_def_to_graph.function_def_to_graph(definition)


def write_fingerprint(folder: str) -> None:
    """Writes `fingerprint.pb` for the SavedModel in `folder`."""
    _fingerprinting_utils.write_fingerprint(folder)
