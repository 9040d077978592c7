"""Recurrent layers of Keras 3 and tf_keras: trained, masked, bidirectional, stateful (R4, R35)."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run

LAYERS = ("LSTM", "GRU", "SimpleRNN", "Bidirectional")
SEQUENCES, TARGETS = normal(8, 5, 4).numpy(), normal(8, 5, 2, seed=12).numpy()


TRAINED = [
    *((dtype, "keras", layer) for dtype in on_off.DTYPES for layer in LAYERS[:3]),
    ("float16", "keras", "Bidirectional"),
    ("float16", "tf_keras", "LSTM"),
    ("bfloat16", "tf_keras", "GRU"),
]
"""Type, package and layer: not all of them, since recurrent layers are slow to trace."""


def family(name: str) -> Any:
    """Returns the package of one Keras."""
    return importlib.import_module(name)


@pytest.mark.parametrize(("dtype", "package", "layer"), TRAINED)
def test_training_follows_float32(dtype: str, package: str, layer: str) -> None:
    def program() -> Any:
        keras = family(package)
        cell = keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True)) if layer == "Bidirectional" else None
        recurrent = cell or getattr(keras.layers, layer)(6, return_sequences=True)
        model = keras.Sequential([keras.Input((5, 4)), keras.layers.Masking(0.0), recurrent, keras.layers.Dense(2)])
        model.compile("sgd", "mse", jit_compile=False)
        masked = np.where(np.arange(5)[None, :, None] < np.arange(8)[:, None, None] % 4 + 2, SEQUENCES, 0.0)
        return [float(model.train_on_batch(masked, TARGETS)) for _ in range(5)]

    run(program, dtype).check()


@pytest.mark.parametrize("dtype", ["float16"])
def test_training_compiled(dtype: str) -> None:
    def program() -> Any:
        import keras

        model = keras.Sequential([keras.Input((5, 4)), keras.layers.GRU(6, return_sequences=True), keras.layers.Dense(2)])
        model.compile("sgd", "mse", jit_compile=True)
        return [float(model.train_on_batch(SEQUENCES, TARGETS)) for _ in range(3)]

    run(program, dtype).check()


@pytest.mark.parametrize(("dtype", "package", "layer"), [("float16", "keras", "LSTM"), ("bfloat16", "keras", "GRU"), ("float16", "tf_keras", "LSTM")])
def test_state_is_float32_and_carried_between_batches(dtype: str, package: str, layer: str) -> None:  # R35
    def program() -> Any:
        keras = family(package)
        recurrent = getattr(keras.layers, layer)(3, stateful=True)
        model = keras.Sequential([keras.Input(batch_shape=(8, 5, 4)), recurrent, keras.layers.Dense(2)])
        model.compile("sgd", "mse", jit_compile=False)
        results = [model.predict(SEQUENCES, batch_size=8, verbose=0) for _ in range(2)]
        states = [np.asarray(state) for state in recurrent.states]
        recurrent.reset_states() if package == "tf_keras" else recurrent.reset_state()
        return results, states, model.predict(SEQUENCES, batch_size=8, verbose=0)

    runs = run(program, dtype).check()
    assert {state.dtype for state in runs.on[1]} == {np.dtype(np.float32)}
    assert np.abs(runs.on[0][0] - runs.on[0][1]).max() > 1e-3


def test_convolutional_and_custom_cells(dtype: str) -> None:
    def program() -> Any:
        import keras

        class Cell(keras.layers.Layer):
            state_size = 4

            def build(self, shape: Any) -> None:
                self.kernel = self.add_weight((4, 4))

            def call(self, inputs: Any, states: Any) -> Any:
                state = keras.ops.tanh(inputs @ self.kernel + 0.5 * states[0])
                return state, [state]

        custom = keras.Sequential([keras.Input((5, 4)), keras.layers.RNN(Cell()), keras.layers.Dense(2)])
        frames = keras.Sequential([keras.Input((3, 6, 6, 2)), keras.layers.ConvLSTM2D(3, 3), keras.layers.Flatten(), keras.layers.Dense(1)])
        return custom.predict(SEQUENCES, verbose=0), frames.predict(normal(2, 3, 6, 6, 2).numpy(), verbose=0)

    run(program, dtype).check()


def test_what_each_record_says_is_converted(dtype: str) -> None:
    def program() -> Any:
        import keras

        model = keras.Sequential([keras.Input((5, 4)), keras.layers.LSTM(6), keras.layers.Dense(2)])
        return model.predict(SEQUENCES, verbose=0)

    runs = run(program, dtype).check()
    assert [record.flop_share for record in runs.records] == [1.0]
    assert on_off.DTYPES.index(runs.records[0].dtype) == on_off.DTYPES.index(dtype)
