"""How long a training step takes on this machine: float32, Keras's policy, and tfmp with and without its fused kernels.

    python benchmarks/step_time.py [--dtype bfloat16] [--steps 20] [--models conv,transformer] [--jit]

Two small networks of Keras 3, one with batch and one with layer normalisation, trained by `train_on_batch` on random numbers; the times are wall-clock, the
variants take turns, and what is printed is the median. On a CPU it is bfloat16 that can be fast, if it has instructions for that (`avx512_bf16`, `amx_bf16`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

import keras
import numpy as np

import tfmp

WARM_UP = 3


def conv() -> tuple[Any, np.ndarray]:
    """Returns a network of four convolutions with batch normalisation, and a batch of images."""
    layers = keras.layers
    entry = x = keras.Input((32, 32, 3))
    for width in (32, 64, 64, 128):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same", use_bias=False)(x)))
    return keras.Model(entry, layers.Dense(10)(layers.GlobalAveragePooling2D()(x))), np.random.normal(size=(32, 32, 32, 3)).astype(np.float32)


def transformer() -> tuple[Any, np.ndarray]:
    """Returns two encoder blocks, and a batch of sequences."""
    layers = keras.layers
    entry = x = keras.Input((64, 128))
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 32)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(128)(layers.Dense(512, "gelu")(x)))
    return keras.Model(entry, layers.Dense(10)(layers.GlobalAveragePooling1D()(x))), np.random.normal(size=(16, 64, 128)).astype(np.float32)


MODELS = {"conv": conv, "transformer": transformer}


def step(make: Callable[[], tuple[Any, np.ndarray]], policy: str, scope: Any, jit: bool) -> Callable[[], object]:
    """Returns one training step of a new model that was traced, and warmed up, in `scope` under a Keras policy."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    try:
        with scope:
            model, x = make()
            model.compile(keras.optimizers.SGD(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit)
            y = np.arange(len(x)) % 10
            for _ in range(WARM_UP):
                model.train_on_batch(x, y)
    finally:
        keras.config.set_dtype_policy("float32")
    return lambda: model.train_on_batch(x, y)


def milliseconds(steps: dict[str, Callable[[], object]], count: int) -> dict[str, float]:
    """Returns variant to the median time of a step; the variants take turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(count):
        for name, run in steps.items():
            start = time.perf_counter()
            run()
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16", choices=["float16", "bfloat16"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--models", type=lambda words: words.split(","), default=list(MODELS), help=f"separated by commas, of {', '.join(MODELS)}")
    parser.add_argument("--jit", action="store_true", help="compiled by XLA")
    options = parser.parse_args()
    off = contextlib.nullcontext
    on = lambda **settings: tfmp.mixed_precision(dtype=options.dtype, ignore_performance=True, **settings)  # noqa: E731
    for name in options.models:
        variants = {
            "float32": step(MODELS[name], "float32", off(), options.jit),
            "policy": step(MODELS[name], f"mixed_{options.dtype}", off(), options.jit),
            "tfmp, no fused kernels": step(MODELS[name], "float32", on(fuse=False), options.jit),
            "tfmp": step(MODELS[name], "float32", on(), options.jit),
        }
        found = milliseconds(variants, options.steps)
        print(f"{name}, {options.dtype}")
        for variant, time_of in found.items():
            print(f"  {variant:<24}{time_of:8.1f} ms{time_of / found['float32']:8.2f}", flush=True)


if __name__ == "__main__":
    main()
