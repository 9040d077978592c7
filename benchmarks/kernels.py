"""How long 16-bit kernels take against float32 ones on this CPU, for the ops that mixed precision is about.

    python benchmarks/kernels.py [--repeats 7]

Prints, for each op, the CPU time in float32 and the ratios of float16 and bfloat16 to it, the smallest of several runs each. "kept" marks what
`tfmp.slow_kernels` keeps in float32 on this machine, "slow" what takes more than three times as long and is not in that table. `TF_ENABLE_ONEDNN_OPTS=0` shows
what a CPU gets that oneDNN does not support.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

from tfmp.dtypes import SIXTEEN_BIT
from tfmp.hooks.hardware import detect
from tfmp.slow_kernels import slow_ops

SLOW = 3.0
raw, normal = tf.raw_ops, tf.random.normal

Case = tuple[Callable[..., object], tuple[tf.Tensor, ...]]


def cases() -> dict[str, Case]:
    """Returns op type to a call of it and its float arguments."""
    image, filters, depthwise = normal((8, 32, 32, 32)), normal((3, 3, 32, 32)), normal((3, 3, 32, 1))
    volume, filters_3d = normal((2, 8, 16, 16, 16)), normal((3, 3, 3, 16, 16))
    matrix, batch = normal((512, 512)), normal((64, 64, 64))
    two, three = {"strides": [1] * 4, "padding": "SAME"}, {"strides": [1] * 5, "padding": "SAME"}
    return {
        "MatMul": (lambda a, b: raw.MatMul(a=a, b=b), (matrix, matrix)),
        "BatchMatMulV2": (lambda a, b: raw.BatchMatMulV2(x=a, y=b), (batch, batch)),
        "Einsum": (lambda a, b: raw.Einsum(inputs=[a, b], equation="bij,bjk->bik"), (batch, batch)),
        "Conv2D": (lambda x, w: raw.Conv2D(input=x, filter=w, **two), (image, filters)),
        "Conv2DBackpropInput": (lambda y, w: raw.Conv2DBackpropInput(input_sizes=y.shape, filter=w, out_backprop=y, **two), (image, filters)),
        "Conv2DBackpropFilter": (lambda x, w: raw.Conv2DBackpropFilter(input=x, filter_sizes=w.shape, out_backprop=x, **two), (image, filters)),
        "Conv3D": (lambda x, w: raw.Conv3D(input=x, filter=w, **three), (volume, filters_3d)),
        "Conv3DBackpropInputV2": (lambda y, w: raw.Conv3DBackpropInputV2(input_sizes=y.shape, filter=w, out_backprop=y, **three), (volume, filters_3d)),
        "Conv3DBackpropFilterV2": (lambda x, w: raw.Conv3DBackpropFilterV2(input=x, filter_sizes=w.shape, out_backprop=x, **three), (volume, filters_3d)),
        "DepthwiseConv2dNative": (lambda x, w: raw.DepthwiseConv2dNative(input=x, filter=w, **two), (image, depthwise)),
        "DepthwiseConv2dNativeBackpropInput": (
            lambda y, w: raw.DepthwiseConv2dNativeBackpropInput(input_sizes=y.shape, filter=w, out_backprop=y, **two),
            (image, depthwise),
        ),
        "DepthwiseConv2dNativeBackpropFilter": (
            lambda x, w: raw.DepthwiseConv2dNativeBackpropFilter(input=x, filter_sizes=w.shape, out_backprop=x, **two),
            (image, depthwise),
        ),
    }


def seconds(action: Callable[..., object], arguments: list[tf.Tensor], repeats: int) -> float:
    """Returns the smallest CPU time of `action`, its first run left out."""
    action(*arguments)
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action(*arguments)
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Prints one row an op."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    weaknesses = detect().weaknesses
    kept = {dtype: slow_ops(dtype, "CPU", weaknesses) for dtype in SIXTEEN_BIT}
    print(f"this machine lacks: {', '.join(weaknesses) or 'nothing that the table knows'}")
    print(f"{'op':36}{'float32':>10}" + "".join(f"{dtype:>18}" for dtype in SIXTEEN_BIT))
    for op, (action, arguments) in cases().items():
        base = seconds(action, list(arguments), repeats)
        ratios = {dtype: seconds(action, [tf.cast(value, dtype) for value in arguments], repeats) / base for dtype in SIXTEEN_BIT}
        notes = {dtype: "kept" if op in kept[dtype] else "slow" if ratio > SLOW else "" for dtype, ratio in ratios.items()}
        print(f"{op:36}{base * 1e3:8.2f}ms" + "".join(f"{ratio:12.1f}x {notes[dtype]:4}" for dtype, ratio in ratios.items()), flush=True)


if __name__ == "__main__":
    main()
