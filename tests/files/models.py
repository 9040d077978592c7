"""Small SavedModels and frozen graphs of three generations, each written by TensorFlow itself."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2

WORDS = ("tensor", "graph", "half", "float32")


def normal(*shape: int, seed: int = 0, scale: float = 0.2) -> np.ndarray:
    """Returns the same normal numbers for the same arguments."""
    return (np.random.default_rng((seed, *shape)).normal(size=shape) * scale).astype(np.float32)


def vocabulary(folder: pathlib.Path) -> str:
    """Writes a file of words, and returns its path."""
    path = folder.with_name(f"{folder.name}_words.txt")
    path.write_text("\n".join(WORDS), encoding="utf-8")
    return str(path)


def word_table(path: Any) -> Any:
    """Returns a table from the words of a file to their numbers."""
    index = tf.lookup.TextFileIndex
    return tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(path, tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER), -1)


class Module(tf.Module):
    """What a SavedModel of TensorFlow 2 can have: tables, assets, loops, branches, nested and compiled functions, captured constants, lists of variables."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.weight, self.bias = tf.Variable(normal(16, 32), name="weight"), tf.Variable(normal(32), name="bias")
        self.rows, self.square = tf.Variable(normal(50, 32), name="rows"), tf.Variable(normal(32, 32), name="square")
        self.layers = [{"kernel": tf.Variable(normal(32, 32, seed=seed), name="kernel")} for seed in (1, 2)]
        self.offset = tf.Variable(normal(32, seed=3), name="offset")
        self.count = tf.Variable(0.0, name="count")
        self.table = word_table(words)
        self.constant = tf.constant(normal(32, 300))

    @tf.function
    def inner(self, h: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(h @ kernel)

    @tf.function(input_signature=[tf.TensorSpec([None, 16], tf.float32, name="x"), tf.TensorSpec([None], tf.string, name="words")])
    def serve(self, x: tf.Tensor, words: tf.Tensor) -> dict[str, tf.Tensor]:
        ids = tf.maximum(self.table.lookup(words), 0)
        h = tf.nn.swish(x @ self.weight + self.bias) + tf.reduce_mean(tf.gather(self.rows, ids), 0)
        for layer in self.layers:
            h = self.inner(h, layer["kernel"])
        for _ in tf.range(4):
            h = tf.tanh(h @ self.square)
        h = h @ self.square if tf.reduce_sum(h) > 0 else h * 2.0
        return {"y": tf.exp(h) + self.offset, "z": h @ self.constant, "n": tf.reduce_sum(ids)}

    @tf.function(input_signature=[tf.TensorSpec([None, 32], tf.float32, name="x")], jit_compile=True)
    def compiled(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(x @ self.square)


class Training(Module):
    """The same with a function that trains one weight."""

    @tf.function(input_signature=[tf.TensorSpec([None, 16], tf.float32)])
    def train(self, x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ self.weight) ** 2)
        self.weight.assign_sub(0.1 * tape.gradient(loss, self.weight))
        self.count.assign_add(1.0)
        return loss


def module(folder: pathlib.Path, kind: type[Module] = Module) -> None:
    """Writes a module with two signatures."""
    made = kind(vocabulary(folder))
    tf.saved_model.save(made, str(folder), signatures={"serving_default": made.serve, "compiled": made.compiled})


def training(folder: pathlib.Path) -> None:
    """Writes a module with a function that trains."""
    module(folder, Training)


def keras3(folder: pathlib.Path) -> None:
    """Writes a convolutional network of Keras 3."""
    import keras

    keras.utils.set_random_seed(3)
    x = inputs = keras.Input((16, 16, 3), name="image")
    for filters in (16, 32):
        x = keras.layers.Conv2D(filters, 3, activation="swish")(x)
        x = keras.layers.BatchNormalization()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    keras.Model(inputs, keras.layers.Dense(10)(x)).export(str(folder), verbose=False)


def with_optimizer(folder: pathlib.Path) -> None:
    """Writes a trained model of tf_keras with the slots of an optimizer of before 2.11."""
    import tf_keras

    tf_keras.utils.set_random_seed(3)
    layers = [tf_keras.layers.Input((16,), name="x"), tf_keras.layers.Dense(64, "relu"), tf_keras.layers.BatchNormalization(), tf_keras.layers.Dense(4)]
    made = tf_keras.Sequential(layers)
    made.compile(tf_keras.optimizers.legacy.Adam(), "mse")
    made.fit(normal(8, 16), normal(8, 4), verbose=0)
    made.save(str(folder))


def old(folder: pathlib.Path, resource: bool) -> None:
    """Writes a graph of TensorFlow 1, with a table, an asset and loops, beside what trains a part of it."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x, words = v1.placeholder(tf.float32, [None, 16], name="x"), v1.placeholder(tf.string, [None], name="words")
        with v1.variable_scope("net", use_resource=resource):
            weight, rows, bias = (v1.get_variable(name, initializer=value) for name, value in OLD_WEIGHTS.items())
            head = v1.get_variable("head", initializer=normal(32, 8, seed=6))
            mean = v1.get_variable("mean", initializer=np.zeros(32, np.float32), trainable=False)
        asset = tf.constant(vocabulary(folder), name="asset")
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, asset)
        ids = tf.maximum(word_table(asset).lookup(words), 0)
        h = tf.nn.relu(x @ weight + bias) + tf.reduce_mean(tf.nn.embedding_lookup(rows, ids), 0)
        _, h = tf.while_loop(lambda step, _: step < 3, lambda step, h: (step + 1, tf.tanh(h @ rows[:32])), [tf.constant(0), h])
        y = tf.identity(h @ head, name="y")
        v1.add_to_collection("train_op", v1.train.AdamOptimizer().minimize(tf.reduce_mean(y**2), var_list=[head]))
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign(mean, mean * 0.9 + 0.1 * tf.reduce_mean(h, 0)))
        v1.summary.histogram("weights", weight)
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        builder = v1.saved_model.builder.SavedModelBuilder(str(folder))
        signature = v1.saved_model.signature_def_utils.predict_signature_def({"x": x, "words": words}, {"y": y})
        assets = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS)
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature}, assets_collection=assets, main_op=v1.tables_initializer()
        )
        builder.add_meta_graph(["serve", "other"], {"other": signature}, assets_collection=assets)
        builder.save()
    if not resource:
        _as_text(folder / "saved_model.pb")


def _as_text(file: pathlib.Path) -> None:
    """Writes a SavedModel's proto as text. (What `save(as_text=True)` writes with protobuf 5.29, TensorFlow cannot read.)"""
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    file.with_suffix(".pbtxt").write_text(text_format.MessageToString(model))
    file.unlink()


OLD_WEIGHTS = {"weight": normal(16, 32), "rows": normal(50, 32), "bias": normal(32)}


def frozen_graph() -> tf.compat.v1.GraphDef:
    """Returns a frozen graph: convolution, loop, branch and table of rows, all weights constants, outputs "y" and "rows_out"."""
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, [None, 8, 8, 3], name="image")
        ids = tf.compat.v1.placeholder(tf.int32, [None], name="ids")
        h = tf.nn.relu(tf.nn.conv2d(image, tf.constant(normal(3, 3, 3, 32), name="filter"), 1, "SAME"))
        h = tf.reshape(h, [-1, 32])
        square = tf.constant(normal(32, 32), name="square")
        _, h = tf.while_loop(lambda step, _: step < 3, lambda step, h: (step + 1, tf.tanh(h @ square)), [tf.constant(0), h])
        tf.identity(h @ square, name="y")
        tf.exp(tf.gather(tf.constant(normal(60, 16), name="rows"), ids), name="rows_out")
    return graph.as_graph_def()


def frozen(path: pathlib.Path) -> None:
    """Writes the frozen graph, as text if the name ends so."""
    graph = frozen_graph()
    tf.io.write_graph(graph, str(path.parent), path.name, as_text=path.suffix == ".pbtxt")


WRITERS: dict[str, Callable[[pathlib.Path], None]] = {
    "module": module,
    "training": training,
    "keras3": keras3,
    "with_optimizer": with_optimizer,
    "old_references": lambda folder: old(folder, resource=False),
    "old_resources": lambda folder: old(folder, resource=True),
    "frozen.pb": frozen,
    "frozen.pbtxt": frozen,
}
