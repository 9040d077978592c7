"""Whatever is spelled like a normalisation, right or nearly so: what kernels compute is what the program computes."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, given, settings

from tests.fusion.running import FusedFunction, agree, with_gradients

AXES = {"channels": ((0, 1, 2), (3, 4, 5, 4)), "rows": ((3,), (3, 2, 2, 16)), "rows of two axes": ((2,), (4, 5, 16))}

MEANS = {
    "mean": lambda x, axes, count: tf.reduce_mean(x, axes, keepdims=True),
    "sum": lambda x, axes, count: tf.reduce_sum(x, axes, keepdims=True) / count,
    "nearly": lambda x, axes, count: tf.reduce_mean(x, axes, keepdims=True) * 1.01,
    "of the square": lambda x, axes, count: tf.reduce_mean(x * x, axes, keepdims=True),
}
VARIANCES = {
    "of differences": lambda x, mean, axes, count: tf.reduce_mean(tf.math.squared_difference(x, mean), axes, keepdims=True),
    "of a product": lambda x, mean, axes, count: tf.reduce_mean((x - mean) * (x - mean), axes, keepdims=True),
    "of the square": lambda x, mean, axes, count: tf.reduce_mean(tf.square(x), axes, keepdims=True) - mean * mean,
    "with the gradient of the mean stopped": lambda x, mean, axes, count: tf.reduce_mean(tf.square(x - tf.stop_gradient(mean)), axes, keepdims=True),
    "of a sample": lambda x, mean, axes, count: tf.reduce_sum(tf.square(x - mean), axes, keepdims=True) / (count - 1.0),
    "deviation": lambda x, mean, axes, count: tf.reduce_mean(tf.abs(x - mean), axes, keepdims=True),
}
ROOTS = {
    "rsqrt": lambda variance: tf.math.rsqrt(variance + 1e-2),
    "a quotient": lambda variance: 1.0 / tf.sqrt(variance + 1e-2),
    "reciprocal": lambda variance: tf.math.reciprocal(tf.sqrt(1e-2 + variance)),
    "outside": lambda variance: 1.0 / (tf.sqrt(tf.abs(variance)) + 1e-2),
    "twice": lambda variance: tf.math.rsqrt(variance + 1e-2 + 1e-2),
    "no root": lambda variance: 1.0 / (variance + 1e-2),
    "stopped": lambda variance: tf.stop_gradient(tf.math.rsqrt(variance + 1e-2)),
}
RESULTS = {
    "centred": lambda x, mean, root, scale, offset: (x - mean) * root * scale + offset,
    "scaled first": lambda x, mean, root, scale, offset: (x - mean) * (root * scale) + offset,
    "one line": lambda x, mean, root, scale, offset: x * (root * scale) + (offset - mean * (root * scale)),
    "no scale": lambda x, mean, root, scale, offset: (x - mean) * root + offset,
    "no offset": lambda x, mean, root, scale, offset: x * root * scale - mean * root * scale,
    "less": lambda x, mean, root, scale, offset: offset - (x - mean) * root * scale,
    "scaled twice": lambda x, mean, root, scale, offset: (x - mean) * root * scale * scale + offset,
    "offset inside": lambda x, mean, root, scale, offset: (x - mean + offset) * root * scale,
    "data beside": lambda x, mean, root, scale, offset: (x - mean) * root * scale + 0.1 * x,
    "statistics beside": lambda x, mean, root, scale, offset: (x - mean) * root * scale + tf.tanh(mean) * root,
}
RIGHT = {"mean", "sum", "of differences", "of a product", "of the square", "rsqrt", "a quotient", "centred", "one line", "no scale", "no offset", "data beside"}


def choices(part: Mapping[str, Any]) -> st.SearchStrategy[str]:
    """Draws what is right four times as often."""
    return st.sampled_from([name for name in part for _ in range(4 if name in RIGHT else 1)])


programs = st.tuples(*map(choices, (AXES, MEANS, VARIANCES, ROOTS, RESULTS)), st.booleans())


def test_kernels_compute_what_the_program_computes() -> None:
    seen = collections.Counter[str]()

    @given(program=programs)
    @settings(max_examples=150, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(program: tuple[str, str, str, str, str, bool]) -> None:
        where, mean_of, variance_of, root_of, result_of, known = program
        axes, shape = AXES[where]
        count = float(np.prod([shape[axis] for axis in axes]))
        random = np.random.default_rng(len("".join(map(str, program))))
        scale, offset = (tf.Variable(random.uniform(0.5, 1.5, shape[-1:]).astype(np.float32)) for _ in range(2))

        def forward(x: tf.Tensor) -> Any:
            mean = MEANS[mean_of](x, axes, count)
            root = ROOTS[root_of](VARIANCES[variance_of](x, mean, axes, count))
            return RESULTS[result_of](x, mean, root, scale, offset)

        spec = tf.TensorSpec(shape if known or where == "channels" else [None, *shape[1:]])
        function = FusedFunction(with_gradients(forward, [scale, offset]), spec, spec)
        seen["found" if function.found else "not found"] += 1
        if function.found:
            seen["both ways"] += function.live_ops["FusedBatchNormGradV3"] > 0
            arguments = random.normal(0.5, 1.0, shape).astype(np.float32), random.normal(size=shape).astype(np.float32)
            agree(function(*arguments), function.before(*arguments), 2e-4)

    check()
    assert min(seen["found"], seen["not found"], seen["both ways"]) > 10, seen
