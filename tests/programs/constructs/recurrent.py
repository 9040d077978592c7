"""Recurrent layers of Keras 3 and tf_keras: each a layer over sequences, with the gradients of all its weights."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.behaviour.on_off import normal, set_seeds

BATCH, TIMES, FEATURES, UNITS = 4, 5, 3, 6
SEQUENCES = normal(BATCH, TIMES, FEATURES)
FRAMES = normal(2, 3, 6, 6, 2)
LENGTHS = (5, 3, 1, 4)


@dataclasses.dataclass(frozen=True, eq=False)
class Recurrent:
    """One row: how a layer is made.

    Attributes:
      name: unique.
      casts: number of Cast nodes that conversion adds to the step with its gradients, each function counted once: Keras 3, tf_keras. Keras 3 also traces
        one step of the cell before the loop, only to learn shapes; casts there are counted, but TensorFlow never runs them.
      make: Keras (the package) to the layer.
      masked: whether the ends of the sequences are masked.
      x: the input.
      runs: how many times the step is called; more than once for layers with a state.
    """

    name: str
    casts: tuple[int, int]
    make: Callable[[Any], Any]
    masked: bool = False
    x: Any = SEQUENCES
    runs: int = 1

    def __str__(self) -> str:
        """Returns the name, which pytest shows."""
        return self.name


def keras_package(name: str) -> Any:
    """Returns "keras" (version 3) or "tf_keras"."""
    return importlib.import_module(name)


def step(row: Recurrent, package: str, jit_compile: bool = False) -> Any:
    """Returns a new layer and an untraced function of its input: (result, gradients of the mean of its square for the input and all weights)."""
    keras = keras_package(package)
    keras.backend.clear_session()
    set_seeds()
    layer = row.make(keras)
    mask = tf.sequence_mask(LENGTHS, TIMES) if row.masked else None
    options = {} if mask is None else {"mask": mask}
    layer(row.x, **options)
    if row.runs > 1:
        layer.reset_states() if package == "tf_keras" else layer.reset_state()
    weights = [getattr(weight, "value", weight) if package == "keras" else weight for weight in layer.trainable_weights]

    @tf.function(autograph=False, jit_compile=jit_compile)
    def gradient(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, **options)
            loss = tf.reduce_mean(tf.cast(y, tf.float32) ** 2)
        return y, tape.gradient(loss, [x, *weights])

    return layer, gradient


def run(row: Recurrent, package: str, jit_compile: bool = False) -> Any:
    """Returns what each call of the step gives, and the layer's states afterwards."""
    layer, gradient = step(row, package, jit_compile)
    results = [gradient(row.x) for _ in range(row.runs)]
    return results, [np.asarray(state) for state in (layer.states if row.runs > 1 else ())]


def _custom(keras: Any) -> Any:
    """A cell as users write them: a gate of their own, two states of different sizes."""

    class Cell(keras.layers.Layer):
        state_size = (UNITS, 2)
        output_size = UNITS

        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(FEATURES, UNITS), name="kernel", initializer="glorot_uniform")
            self.recurrent = self.add_weight(shape=(UNITS, UNITS), name="recurrent", initializer="orthogonal")
            self.mix = self.add_weight(shape=(UNITS, 2), name="mix", initializer="glorot_uniform")
            self.built = True

        def call(self, inputs: Any, states: Any) -> Any:
            hidden, memory = states
            gate = tf.sigmoid(memory[:, :1])
            new = gate * tf.tanh(inputs @ self.kernel + hidden @ self.recurrent) + (1.0 - gate) * hidden
            return new, [new, 0.5 * memory + new @ self.mix]

    return keras.layers.RNN(Cell(), return_sequences=True)


ROWS = (
    Recurrent("lstm", (22, 31), lambda keras: keras.layers.LSTM(UNITS)),
    Recurrent("gru", (22, 33), lambda keras: keras.layers.GRU(UNITS)),
    Recurrent("gru_reset_before", (29, 29), lambda keras: keras.layers.GRU(UNITS, reset_after=False)),
    Recurrent("simple_rnn", (17, 17), lambda keras: keras.layers.SimpleRNN(UNITS)),
    Recurrent("lstm_sequences", (22, 31), lambda keras: keras.layers.LSTM(UNITS, return_sequences=True)),
    Recurrent("lstm_masked", (22, 32), lambda keras: keras.layers.LSTM(UNITS, return_sequences=True), masked=True),
    Recurrent("gru_stateful", (24, 33), lambda keras: keras.layers.GRU(UNITS, stateful=True), runs=2),
    Recurrent("lstm_unrolled", (24, 24), lambda keras: keras.layers.LSTM(UNITS, unroll=True)),
    Recurrent("bidirectional", (41, 62), lambda keras: keras.layers.Bidirectional(keras.layers.LSTM(UNITS, return_sequences=True))),
    Recurrent("stacked", (39, 35), lambda keras: keras.layers.RNN([keras.layers.LSTMCell(UNITS), keras.layers.GRUCell(UNITS)])),
    Recurrent("conv_lstm", (39, 44), lambda keras: keras.layers.ConvLSTM2D(3, 3), x=FRAMES),
    Recurrent("custom_cell", (25, 27), _custom),
)
