"""`fit` of tf_keras models on two workers, one with a bad row: prints, for each worker, what it ended with, as JSON lines.

Keras 3 is not here: its `fit` does not get through its own data handling under MultiWorkerMirroredStrategy, with any optimizer. Its custom loops do; see
examples/multi_worker.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

from tests.optimizers.cluster import run_workers


def worker() -> None:
    """Trains as one of the workers, with a new and a legacy optimizer."""
    import numpy as np
    import tensorflow as tf

    from tests.optimizers.families import LEGACY, TF_KERAS
    from tfmp.optimizers.wrap import wrap

    task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    x = np.random.default_rng(task).normal(size=(24, 3)).astype("float32")
    if task == 1:
        x[9] = np.inf
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :2])).batch(8).with_options(options)  # a global batch: four rows for each worker
    for family in (TF_KERAS, LEGACY):
        with strategy.scope():
            family.keras.utils.set_random_seed(0)
            model = family.keras.Sequential([family.keras.layers.Input((3,)), family.keras.layers.Dense(2)])
            optimizer = wrap(family.adam(0.1))
            model.compile(optimizer, "mse")
        model.fit(data, epochs=2, verbose=0)
        print(json.dumps(report(family.name, model, optimizer)), flush=True)


def report(name: str, model: Any, optimizer: Any) -> dict[str, Any]:
    """What must be equal on all workers, and what it must be."""
    weights = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()
    return {"name": name, "weights": weights, "state": list(vars(optimizer.loss_scale_state()).values()), "iterations": int(optimizer.iterations.numpy())}


if __name__ == "__main__":
    if "TF_CONFIG" in os.environ:
        worker()
    else:
        for output in run_workers(__file__):
            print(json.dumps([json.loads(line) for line in output.splitlines() if line.startswith("{")]))
        sys.exit(0)
