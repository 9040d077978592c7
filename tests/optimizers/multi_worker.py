"""Trains on two workers, one with bad data, as written and in float16: prints, for each worker, what it ended with, as JSON lines.

Custom loops of every family, and `fit`. Keras 3's `fit` does not get through its own data handling under MultiWorkerMirroredStrategy, with any optimizer
(`fit_fails`), so its models train with the step that `fit` would take.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from typing import Any

from tests.optimizers.cluster import run_workers

PERIODS, OVERFLOWS = 1_000, 300
CLIPNORM = 2.0**-9


def worker() -> None:
    """Trains as one of the workers."""
    import tensorflow as tf

    import tfmp
    from tests.optimizers.families import FAMILIES, KERAS3, KERASES

    task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tell("fit fails", plain=fit_fails(strategy, wrapped=False), wrapped=fit_fails(strategy, wrapped=True))
    float16 = tfmp.mixed_precision(dtype="float16", ignore_performance=True, loss_scaling=False)
    for mode, scope in (("float32", contextlib.nullcontext()), ("float16", float16)):
        with scope:
            for family in KERASES:
                train = fit_step_by_step if family is KERAS3 else fit
                tell(f"fit {family.name} {mode}", **train(strategy, family, mode, bad=task == 1))
            for family in FAMILIES:
                tell(f"clipped {family.name} {mode}", weights=clipped(strategy, family, task))
                tell(f"many {family.name} {mode}", **many(strategy, family, mode, bad=task == 1))
    tell("converted", count=sum(record.converted for record in tfmp.report()))


def tell(name: str, **record: Any) -> None:
    print(json.dumps({"name": name, **record}), flush=True)


def policy(mode: str, **arguments: Any) -> Any:
    """A scale that starts, and ends, where gradients of the scaled loss allow it in the mode."""
    from tfmp.optimizers.policies import DynamicLossScale

    initial, maximum = {"float32": (2.0**15, 2.0**24), "float16": (2.0**10, 2.0**13)}[mode]
    return DynamicLossScale(initial=initial, maximum=maximum, **arguments)


def compiled_model(strategy: Any, family: Any, optimizer: Any) -> Any:
    with strategy.scope():
        family.keras.utils.set_random_seed(0)
        model = family.keras.Sequential([family.keras.layers.Input((3,)), family.keras.layers.Dense(2)])
        model.compile(optimizer(), "mse")
    return model


def batches(bad: bool) -> Any:
    """Three batches, of which each worker gets four rows."""
    import numpy as np
    import tensorflow as tf

    x = np.random.default_rng(int(bad)).normal(size=(24, 3)).astype("float32")
    if bad:
        x[9] = np.inf
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_tensor_slices((x, x[:, :2])).batch(8).with_options(options)


def fit(strategy: Any, family: Any, mode: str, bad: bool) -> dict[str, Any]:
    """`fit` over three batches, twice."""
    from tfmp.optimizers.wrap import wrap

    model = compiled_model(strategy, family, lambda: wrap(family.adam(0.1), policy(mode)))
    model.fit(batches(bad), epochs=2, verbose=0)
    return ended(model)


def fit_step_by_step(strategy: Any, family: Any, mode: str, bad: bool) -> dict[str, Any]:
    """The same with a loop around the model's `train_step`."""
    import tensorflow as tf

    from tfmp.optimizers.wrap import wrap

    model = compiled_model(strategy, family, lambda: wrap(family.adam(0.1), policy(mode)))
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda batch: strategy.run(model.train_step, args=(batch,)))
    for _ in range(2):
        for batch in strategy.experimental_distribute_dataset(batches(bad)):
            step(batch)
    return ended(model)


def ended(model: Any) -> dict[str, Any]:
    return {"weights": digest(model.get_weights()), "state": state(model.optimizer), "iterations": int(model.optimizer.iterations.numpy())}


def fit_fails(strategy: Any, wrapped: bool) -> str:
    """What becomes of Keras 3's `fit`: the kind of its error, if any."""
    from tests.optimizers.families import KERAS3
    from tfmp.optimizers.wrap import wrap

    model = compiled_model(strategy, KERAS3, lambda: wrap(KERAS3.sgd(0.1)) if wrapped else KERAS3.sgd(0.1))
    try:
        model.fit(batches(False), verbose=0)
    except ValueError as error:
        return str(error)[:60]
    return ""


def clipped(strategy: Any, family: Any, task: int) -> list[Any]:
    """Weights after two steps with clipping, in the optimizer or, for v1, by hand: unwrapped, and at three scales."""
    import tensorflow as tf

    from tests.optimizers.families import KERAS3, V1, gradients_for, set_scale
    from tfmp.optimizers.wrap import wrap

    arguments, results = {} if family is V1 else {"clipnorm": CLIPNORM}, []
    inputs = tf.constant([[1.0, 2.0 + task]])
    for wrapped in (False, True):
        with strategy.scope():
            weight, optimizer = tf.Variable([[1.0], [1.0]]), family.sgd(1.0, **arguments)
            if family is KERAS3:  # unwrapped, it cannot make its variables inside a function under a strategy
                optimizer.build([weight])
            optimizer = wrap(optimizer) if wrapped else optimizer

        def replica_step(weight: Any = weight, optimizer: Any = optimizer) -> None:
            (gradient,) = gradients_for(family, optimizer, lambda: tf.reduce_mean((inputs @ weight) ** 2) / 256.0, [weight])
            optimizer.apply_gradients([(tf.clip_by_norm(gradient, CLIPNORM) if family is V1 else gradient, weight)])

        step = tf.function(lambda replica_step=replica_step: strategy.run(replica_step))
        for scale in (1, 2**10, 2**15) if wrapped else (1,):
            if wrapped:
                set_scale(optimizer, scale)
            weight.assign([[1.0], [1.0]])
            step()
            step()
            results.append(weight.numpy().tolist())
    return results


def many(strategy: Any, family: Any, mode: str, bad: bool) -> dict[str, Any]:
    """Growth periods of one step, then overflows on one worker, then a good step, in loops inside of functions."""
    import tensorflow as tf

    from tests.optimizers.families import train_step
    from tfmp.optimizers.wrap import wrap

    with strategy.scope():
        weight, optimizer = tf.Variable([[0.5]]), wrap(family.sgd(1e-3), policy(mode, growth_interval=1))

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
