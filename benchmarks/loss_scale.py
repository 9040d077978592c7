"""What loss scaling costs: the time of a training step with tfmp's wrapper, with Keras's own, and without.

    python benchmarks/loss_scale.py

The three steps are timed in turn, in one process, over and over, so that whatever else the machine does hits all three alike. The verdict is the median
of the ratios of neighbouring measurements, with a confidence interval that assumes nothing about how times are distributed (the binomial interval of
the median). Exits with 1 if a wrapper of tfmp is slower than its family's own: if the whole interval lies above 1.

The step takes gradients of a loss that is next to free to compute, so that nearly all of it is the optimizer: in real training the shares are smaller.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

import tensorflow as tf  # noqa: E402

#: Shapes of the trainable variables.
SIZES = {"small": [(16, 16), (16,)] * 10, "large": [(1024, 1024), (1024,)] * 12}
KINDS = ("none", "own", "tfmp")
FAMILIES = ("keras", "tf_keras")


@dataclass(frozen=True)
class Result:
    """One comparison; times in microseconds a step, ratios with their 95 % confidence interval."""

    family: str
    size: str
    jit: bool
    none: float
    own: float
    tfmp: float
    tfmp_over_own: tuple[float, float, float]
    tfmp_over_none: tuple[float, float, float]

    @property
    def slower(self) -> bool:
        """Whether tfmp is slower than the family's own wrapper beyond the noise."""
        return self.tfmp_over_own[1] > 1


def make_step(family: str, kind: str, size: str, jit: bool) -> Callable[[], None]:
    """Returns a function that takes one training step, traced and warmed up."""
    if family == "keras":
        import keras as package

        from tfmp.optimizers.keras3 import LossScaleOptimizer

        own = package.optimizers.LossScaleOptimizer
    else:
        import tf_keras as package

        from tfmp.optimizers.tf_keras import TfKerasLossScaleOptimizer as LossScaleOptimizer

        own = package.mixed_precision.LossScaleOptimizer
    adam = package.optimizers.Adam(1e-3)
    optimizer = {"none": lambda inner: inner, "own": own, "tfmp": LossScaleOptimizer}[kind](adam)
    variables = [tf.Variable(tf.random.stateless_normal(shape, seed=[1, index])) for index, shape in enumerate(SIZES[size])]
    optimizer.build(variables)

    @tf.function(jit_compile=jit)
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(variable) for variable in variables])
            scaled = loss if kind == "none" else optimizer.scale_loss(loss) if family == "keras" else optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled, variables)
        if family != "keras" and kind != "none":
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    for _ in range(5):
        step()
    return step


def compare(family: str, size: str, jit: bool, seconds: float) -> Result:
    """Returns the times of the three kinds of step, measured in turn for about so many seconds."""
    steps = {kind: make_step(family, kind, size, jit) for kind in KINDS}
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    repeats = max(1, round(0.01 / timed(steps["none"], 3)))
    end = time.perf_counter() + seconds
    rounds = 0
    while time.perf_counter() < end or rounds < 20:
        for kind in KINDS if rounds % 2 else KINDS[::-1]:
            times[kind].append(timed(steps[kind], repeats))
        rounds += 1
    medians = {kind: statistics.median(times[kind]) * 1e6 for kind in KINDS}
    return Result(family, size, jit, **medians, tfmp_over_own=ratio(times["tfmp"], times["own"]), tfmp_over_none=ratio(times["tfmp"], times["none"]))


def timed(step: Callable[[], None], repeats: int) -> float:
    """Returns the seconds of one step, over so many in a row."""
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def ratio(times: list[float], others: list[float]) -> tuple[float, float, float]:
    """Returns the median of the ratios of two series measured in pairs, and the ends of its 95 % confidence interval."""
    ratios = sorted(one / other for one, other in zip(times, others, strict=True))
    # The number of values below the true median is binomial with p = 1/2; 1.96 standard deviations around the middle hold 95 %.
    reach = 1.96 * math.sqrt(len(ratios)) / 2
    low = max(0, math.floor(len(ratios) / 2 - reach))
    high = min(len(ratios) - 1, math.ceil(len(ratios) / 2 + reach))
    return statistics.median(ratios), ratios[low], ratios[high]


def show(result: Result) -> str:
    """Returns one line of the table."""
    name = f"{result.family:8} {result.size:5} {'compiled' if result.jit else 'graph':8}"
    own, none = (f"{middle:5.3f} ({low:5.3f} to {high:5.3f})" for middle, low, high in (result.tfmp_over_own, result.tfmp_over_none))
    return f"{name} {result.none:9.0f} {result.own:9.0f} {result.tfmp:9.0f}   {own}   {none}{'   SLOWER' if result.slower else ''}"


def main() -> int:
    """Measures, prints a table or JSON, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15, help="time for each comparison (default: 15)")
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="families to compare in (default: both)")
    parser.add_argument("--size", nargs="+", choices=list(SIZES), default=list(SIZES), help="sets of parameters (default: both)")
    parser.add_argument("--jit", choices=["off", "on", "both"], default="both", help="whether XLA compiles the step (default: both)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    jits = {"off": [False], "on": [True], "both": [False, True]}[arguments.jit]
    if not arguments.json:
        print(f"Python {platform.python_version()}, TensorFlow {tf.__version__}, {os.cpu_count()} CPUs, {len(tf.config.list_physical_devices('GPU'))} GPUs")
        print(f"{'microseconds a step':24}{'none':>8} {'own':>9} {'tfmp':>9}   {'tfmp/own (95 %)':24} tfmp/none (95 %)")
    results = []
    for family, size, jit in ((family, size, jit) for family in arguments.family for size in arguments.size for jit in jits):
        results.append(compare(family, size, jit, arguments.seconds))
        if not arguments.json:
            print(show(results[-1]), flush=True)
    if arguments.json:
        print(json.dumps([asdict(result) | {"slower": result.slower} for result in results]))
    return int(any(result.slower for result in results))


if __name__ == "__main__":
    sys.exit(main())
