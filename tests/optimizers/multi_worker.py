"""Trains on two workers, one with bad data, as written and in float16: prints, for each worker, what it ended with, as JSON lines.

Custom loops of every family, and `fit` of tf_keras models. Keras 3's `fit` does not get through its own data handling under MultiWorkerMirroredStrategy,
with any optimizer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from typing import Any

from tests.optimizers.cluster import run_workers

PERIODS, OVERFLOWS = 100, 300


def worker() -> None:
    """Trains as one of the workers."""
    import tensorflow as tf

    import tfmp
    from tests.optimizers.families import FAMILIES, LEGACY, TF_KERAS

    task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    for family in (TF_KERAS, LEGACY):
        print(json.dumps({"name": f"fit {family.name}", **fit(strategy, family, bad=task == 1)}), flush=True)
    float16 = tfmp.mixed_precision(dtype="float16", ignore_performance=True, loss_scaling=False)
    for mode, scope in (("float32", contextlib.nullcontext()), ("float16", float16)):
        with scope:
            for family in FAMILIES:
                print(json.dumps({"name": f"many {family.name} {mode}", **many(strategy, family, bad=task == 1)}), flush=True)
    print(json.dumps({"name": "converted", "count": sum(record.converted for record in tfmp.report())}), flush=True)


def fit(strategy: Any, family: Any, bad: bool) -> dict[str, Any]:
    """`fit` over three batches, twice, of which each worker gets four rows."""
    import numpy as np
    import tensorflow as tf

    from tfmp.optimizers.wrap import wrap

    x = np.random.default_rng(int(bad)).normal(size=(24, 3)).astype("float32")
    if bad:
        x[9] = np.inf
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :2])).batch(8).with_options(options)
    with strategy.scope():
        family.keras.utils.set_random_seed(0)
        model = family.keras.Sequential([family.keras.layers.Input((3,)), family.keras.layers.Dense(2)])
        optimizer = wrap(family.adam(0.1))
        model.compile(optimizer, "mse")
    model.fit(data, epochs=2, verbose=0)
    return {"weights": digest(model.get_weights()), "state": state(optimizer), "iterations": int(optimizer.iterations.numpy())}


def many(strategy: Any, family: Any, bad: bool) -> dict[str, Any]:
    """Growth periods of one step, then overflows on one worker, then a good step, in loops inside of functions."""
    import tensorflow as tf

    from tests.optimizers.families import train_step
    from tfmp.optimizers.policies import DynamicLossScale
    from tfmp.optimizers.wrap import wrap

    with strategy.scope():
        weight, optimizer = tf.Variable([[0.5]]), wrap(family.sgd(1e-3), DynamicLossScale(growth_interval=1))

    @tf.function
    def run(inputs: tf.Tensor, count: tf.Tensor) -> None:
        for _ in tf.range(count):
            strategy.run(lambda inputs: train_step(family, optimizer, lambda: tf.reduce_mean(inputs @ weight), [weight]), args=(inputs,))

    good = tf.constant([[1.0], [1.0 + bad]])
    record = {}
    for name, inputs, count in (("grown", good, PERIODS), ("fallen", good / (0.0 if bad else 1.0), OVERFLOWS), ("recovered", good, 1)):
        run(inputs, tf.constant(count))
        record[name] = {"state": state(optimizer), "weight": float(weight.numpy()[0, 0])}
    return record


def state(optimizer: Any) -> list[Any]:
    return list(vars(optimizer.loss_scale_state()).values())


def digest(weights: list[Any]) -> str:
    return hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()


if __name__ == "__main__":
    if "TF_CONFIG" in os.environ:
        worker()
    else:
        for output in run_workers(__file__):
            print(json.dumps([json.loads(line) for line in output.splitlines() if line.startswith("{")]))
        sys.exit(0)
