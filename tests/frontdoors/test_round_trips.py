"""Files go from tfmp to a process without it and back, byte by byte: Keras 3, tf_keras, H5, SavedModels and checkpoints (R118, R122)."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfmp
from tests.behaviour.on_off import normal, scope
from tests.frontdoors import without_tfmp

X, Y = normal(16, 8).numpy(), normal(16, 2, seed=12).numpy()
FILES = {"three.keras": keras, "three.h5": keras, "two.keras": tf_keras, "two.h5": tf_keras, "two_saved": tf_keras}
CHECKPOINTS = {"three_checkpoint": keras, "two_checkpoint": tf_keras}

pytestmark = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5", "ignore:.*compiled metrics have yet to be built")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[str, Any]]:
    """A folder with what was trained and saved under tfmp, and what a process without tfmp has made of it; and what that process has found."""
    folder = tmp_path_factory.mktemp("round_trips")
    np.savez(folder / "data.npz", x=X, y=Y)
    with scope("float16", loss_scaling=True):
        models = {kind: without_tfmp.model(kind) for kind in (keras, tf_keras)}
        for made in models.values():
            made.fit(X, Y, verbose=0)
            assert made.optimizer.scale == 2.0**15
        for name, kind in FILES.items():
            models[kind].save(str(folder / name))
            np.savez(folder / f"{name}.npz", *without_tfmp.weights(models[kind], name))
        for name, kind in CHECKPOINTS.items():
            tf.train.Checkpoint(model=models[kind], optimizer=models[kind].optimizer).write(str(folder / name))
            np.savez(folder / f"{name}.npz", *without_tfmp.weights(models[kind], name))
    script = shutil.copy(without_tfmp.__file__, folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "TFMP_", "PYTHON"))}
    # Without `site` nobody reads the start-up file, nor finds an editable install, of an environment that has tfmp.
    environment["PYTHONPATH"] = sysconfig.get_path("purelib")
    done = subprocess.run([sys.executable, "-S", script, str(folder)], env=environment, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_a_process_without_tfmp_finds_the_same_bytes(there: tuple[pathlib.Path, dict[str, Any]]) -> None:
    _, found = there
    assert not found.pop("tfmp")
    assert set(found) >= {*FILES, *CHECKPOINTS}
    assert all(found.values()), found


def test_what_comes_back_has_the_same_bytes_and_trains_on(there: tuple[pathlib.Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = there
    monkeypatch.setattr(without_tfmp, "FOLDER", folder)
    with scope("float16", loss_scaling=True):
        for name, kind in FILES.items():
            made = kind.models.load_model(str(folder / f"back_{name}"))
            assert without_tfmp.same(made, f"back_{name}"), name
            before = len(tfmp.report())
            made.predict(X, verbose=0) if name == "three.h5" else made.fit(X, Y, verbose=0)
            assert any(record.converted for record in tfmp.report()[before:]), name
            assert hasattr(made.optimizer, "scale"), name
        for name, kind in CHECKPOINTS.items():
            made = without_tfmp.model(kind)
            made.fit(X, Y, verbose=0)
            tf.train.Checkpoint(model=made, optimizer=made.optimizer).read(str(folder / f"back_{name}")).expect_partial()
            assert without_tfmp.same(made, f"back_{name}"), name
