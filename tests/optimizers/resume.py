"""Trains models with wrapped optimizers and saves them in every way, or loads them in a new process and trains on.

`python resume.py save FOLDER` takes 12 steps, some of them skipped, saves, takes 8 more and prints the digests of what it ended with, uninterrupted.
`python resume.py load FOLDER` loads what was saved after 12 steps, takes the last 8 and prints the same digests, which must be equal.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.optimizers.families import FAMILIES, KERAS3, LEGACY, TF_KERAS, Family, train_step
from tfmp.optimizers.policies import DynamicLossScale
from tfmp.optimizers.scaler import LossScaler
from tfmp.optimizers.wrap import wrap

FIRST, LAST, BATCH = 12, 8, 4
POLICY = DynamicLossScale(initial=2.0**12, growth_interval=5, hysteresis=2)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=((FIRST + LAST) * BATCH, 3)).astype("float32")
Y = RANDOM.normal(size=((FIRST + LAST) * BATCH, 2)).astype("float32")
X[[1 * BATCH, 2 * BATCH, 11 * BATCH, 15 * BATCH], 0] = np.inf  # steps 2, 3, 12 and 16 are skipped

BEFORE, AFTER = slice(0, FIRST * BATCH), slice(FIRST * BATCH, None)


def make_model(family: Family) -> Any:
    layers = family.keras.layers
    family.keras.utils.set_random_seed(3)
    model = family.keras.Sequential([layers.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(2)])
    model.compile(wrap(family.adam(0.01), POLICY), "mse")
    return model


def fit(model: Any, part: slice) -> Any:
    return model.fit(X[part], Y[part], batch_size=BATCH, epochs=1, verbose=0, shuffle=False)


def digest(weights: list[Any], optimizer: Any) -> str:
    """All bits of the weights and of the state of the scale, and, of a wrapper, those of the inner optimizer."""
    parts = [np.array(weight).tobytes() for weight in weights]
    if not isinstance(optimizer, tf.Module):
        variables = optimizer.variables
        # Legacy optimizers order their slots as they were made, which restoring changes: the bytes are sorted.
        parts += sorted(np.array(one).tobytes() for one in (variables() if callable(variables) else variables))
    state = json.dumps(vars(optimizer.loss_scale_state()))
    return hashlib.sha256(b"".join(parts) + state.encode()).hexdigest()[:16]


def build(model: Any) -> None:
    """Creates the optimizer's variables, which weights-only files need to be there."""
    if not isinstance(model.optimizer, tf.Module) and hasattr(model.optimizer, "build"):
        model.optimizer.build(model.trainable_variables)


class KerasCase:
    """One Keras family, saved in one way."""

    def __init__(self, family: Family, way: str, folder: pathlib.Path) -> None:
        self.family, self.way = family, way
        self.path = folder / f"{family.name}-{way}"

    def file(self) -> str:
        return str(self.path) + {"keras": ".keras", "h5": ".h5", "weights": ".weights.h5"}.get(self.way, "")

    def save(self, model: Any) -> None:
        if self.way in ("keras", "h5"):
            model.save(self.file())
        elif self.way == "weights":
            model.save_weights(self.file())
        else:
            tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(self.file())

    def load(self) -> Any:
        if self.way in ("keras", "h5"):
            return self.family.keras.models.load_model(self.file())
        model = make_model(self.family)
        if self.way == "weights":
            build(model)
            model.load_weights(self.file())
        elif self.way == "deferred":  # restored before the optimizer has made its variables
            tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(self.file())
        else:
            build(model)
            tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(self.file()).expect_partial()
        return model


def keras_cases(folder: pathlib.Path) -> list[KerasCase]:
    """The ways to save that a family has; tf_keras itself puts no legacy optimizer into `.keras` and weights files."""
    ways = {KERAS3: ["keras", "weights", "checkpoint", "deferred"], TF_KERAS: ["keras", "h5", "weights", "checkpoint", "deferred"]}
    ways[LEGACY] = ["h5", "checkpoint", "deferred"]
    return [KerasCase(family, way, folder) for family, own in ways.items() for way in own]


def backup(family: Family, folder: pathlib.Path, crash: bool) -> str:
    """`fit` over two epochs with BackupAndRestore; crashes at the start of the second epoch, or ends and returns the digest."""
    callbacks = family.keras.callbacks
    model = make_model(family)
    saved = callbacks.BackupAndRestore(str(folder / f"{family.name}-backup"), delete_checkpoint=False)

    class Crash(callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if crash and epoch == 1:
                raise KeyboardInterrupt

    try:
        model.fit(X[BEFORE], Y[BEFORE], batch_size=BATCH, epochs=2, verbose=0, shuffle=False, callbacks=[saved, Crash()])
    except KeyboardInterrupt:
        return ""
    return digest(model.get_weights(), model.optimizer)


def loop(make: Callable[[], tuple[Any, Callable[[], None], list[tf.Variable], tf.Variable]], path: str, load: bool) -> str:
    """A custom loop, saved with `tf.train.Checkpoint`; returns the digest after all steps."""
    optimizer, step, variables, spoil = make()
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, variables=variables)
    if load:
        checkpoint.read(path)
    for index in range(FIRST if load else 0, FIRST + LAST):
        spoil.assign(np.inf if index in (1, 2, 11, 15) else 0.0)
        step()
        if index == FIRST - 1 and not load:
            checkpoint.write(path)
    return digest(variables, optimizer)


def make_loop(family: Family | None) -> tuple[Any, Callable[[], None], list[tf.Variable], tf.Variable]:
    """An optimizer of the family, or a scaler with a plain optimizer, and a function that takes one step."""
    variables, spoil = [tf.Variable([1.0, 2.0]), tf.Variable([[3.0]])], tf.Variable(0.0)

    def loss() -> tf.Tensor:
        return tf.reduce_sum(variables[0] ** 2) + tf.reduce_sum(variables[1] * variables[0]) + spoil * variables[0][0]

    if family is not None:
        optimizer = wrap(family.adam(0.1), POLICY)
        return optimizer, tf.function(lambda: train_step(family, optimizer, loss, variables)), variables, spoil
    scaler, plain = LossScaler(POLICY), FAMILIES[0].sgd(0.1)
    plain.build(variables)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            scaled = scaler.scale_loss(loss())
        scaler.apply(plain, tape.gradient(scaled, variables), variables)

    return scaler, step, variables, spoil


def main(action: str, folder: pathlib.Path) -> None:
    """Prints the digests by case, as JSON."""
    digests = {}
    for case in keras_cases(folder):
        if action == "save":
            model = make_model(case.family)
            fit(model, BEFORE)
            case.save(model)
        else:
            model = case.load()
        fit(model, AFTER)
        digests[case.path.name] = digest(model.get_weights(), model.optimizer)
    for family in (KERAS3, TF_KERAS, LEGACY):
        if action == "save":
            digests[f"{family.name}-backup"] = backup(family, folder / "uninterrupted", crash=False)
            backup(family, folder, crash=True)
        else:
            digests[f"{family.name}-backup"] = backup(family, folder, crash=False)
    for family in (*FAMILIES, None):
        name = f"{family.name if family else 'scaler'}-loop"
        digests[name] = loop(lambda family=family: make_loop(family), str(folder / name), load=action == "load")
    print(json.dumps(digests))


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
