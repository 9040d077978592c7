"""Trains on two replicas with the TensorBoard callback and prints, as JSON, what was counted: `python board_on_replicas.py FOLDER`.

A process of its own, since logical devices cannot be changed once TensorFlow runs. The judging is in test_board.py.
"""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np
import tensorflow as tf

from tests.hooks.test_board import BOARDS, written
from tests.optimizers.families import KERAS3, TF_KERAS
from tfmp.optimizers.wrap import wrap


def main() -> None:
    """Prints tag to step to value, for each family."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = {}
    for family in (KERAS3, TF_KERAS):
        with strategy.scope():
            model = family.keras.Sequential([family.keras.Input((4,)), family.keras.layers.Dense(3, name="only", use_bias=False)], name="net")
            model.compile(wrap(family.sgd(0.0)), "mse", jit_compile=False)
        x = np.ones((8, 4), np.float32)
        x[:4, 0] = 0.0  # on one of the replicas, a quarter of the gradient is zero
        folder = pathlib.Path(sys.argv[1]) / family.name
        board = BOARDS[family.keras.__name__](str(folder), every=1, rewrite=False)
        model.fit(x, np.ones((8, 3), np.float32), batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[board])
        found[family.name] = {tag: steps for tag, steps in written(folder).items() if tag.startswith("gradients/")}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
