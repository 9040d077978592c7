"""Run without tfmp: loads what was saved under tfmp, compares its weights byte by byte, and saves what it has trained a step further.

Arguments: the folder with the files of `test_round_trips.py`.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

FOLDER = pathlib.Path(sys.argv[-1])
WITHOUT_OPTIMIZER = ("three.h5", "two_saved")
"""Keras 3 and tf_keras do not read the state of an optimizer from such files, tfmp or not."""


def model(kind: Any) -> Any:
    """Returns the model of the test, not trained; `kind` is keras or tf_keras."""
    kind.utils.set_random_seed(7)
    layers = kind.layers
    made = kind.Sequential([layers.InputLayer((8,)), layers.Dense(16, activation="relu"), layers.BatchNormalization(), layers.Dense(2)])
    made.compile("adam", kind.losses.MeanSquaredError(), **({"jit_compile": False} if kind is keras else {}))
    return made


def weights(made: Any, name: str) -> list[np.ndarray]:
    """Returns the weights and the variables of the optimizer without its loss scale; the weights alone for formats that do not keep those."""
    optimizer = getattr(made.optimizer, "inner_optimizer", made.optimizer)
    return [np.array(weight) for weight in (*made.weights, *(() if name.endswith(WITHOUT_OPTIMIZER) else optimizer.variables))]


def same(made: Any, name: str) -> bool:
    """Returns whether the weights of `made` are those that were saved, byte by byte."""
    saved = np.load(FOLDER / f"{name}.npz")
    return [weight.tobytes() for weight in weights(made, name)] == [saved[f"arr_{number}"].tobytes() for number in range(len(saved.files))]


def main() -> None:
    """Prints, for each file, whether its weights are the same; leaves behind files whose names begin with "back"."""
    found: dict[str, bool] = {}
    data = np.load(FOLDER / "data.npz")
    for name, kind in (("three.keras", keras), ("three.h5", keras), ("two.keras", tf_keras), ("two.h5", tf_keras), ("two_saved", tf_keras)):
        made = kind.models.load_model(str(FOLDER / name))
        found[name] = same(made, name)
        if not name.endswith("three.h5"):  # Keras 3 cannot fit what it has loaded from such a file
            made.fit(data["x"], data["y"], verbose=0)
        made.save(str(FOLDER / f"back_{name}"))
        np.savez(FOLDER / f"back_{name}.npz", *weights(made, name))
    for name, kind in (("three_checkpoint", keras), ("two_checkpoint", tf_keras)):
        made = model(kind)
        made.fit(data["x"], data["y"], verbose=0)
        tf.train.Checkpoint(model=made, optimizer=made.optimizer).read(str(FOLDER / name)).expect_partial().assert_existing_objects_matched()
        found[name] = same(made, name)
        made.fit(data["x"], data["y"], verbose=0)
        tf.train.Checkpoint(model=made, optimizer=made.optimizer).write(str(FOLDER / f"back_{name}"))
        np.savez(FOLDER / f"back_{name}.npz", *weights(made, name))
    loaded = tf.saved_model.load(str(FOLDER / "two_saved"))
    found["two_saved as a SavedModel"] = np.isfinite(loaded.signatures["serving_default"](tf.constant(data["x"])).popitem()[1]).all().item()
    print(json.dumps({"tfmp": "tfmp" in sys.modules, **found}))


if __name__ == "__main__":
    main()
