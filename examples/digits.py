"""Trains a small convolutional network on scikit-learn's digits, in float32 and, not a line changed, in mixed precision.

    python examples/digits.py

Where TensorFlow, scikit-learn or tfmp is missing, it first makes a virtual environment in `.venv` and installs them there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import venv
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
NEEDED = ("tensorflow", "sklearn", "tfmp")
HAS_ALL = "import importlib.util, sys; sys.exit(None in map(importlib.util.find_spec, sys.argv[1:]))"
SEED = 0

# A CPU gains nothing from float16, so tfmp would leave it alone; this asks for it all the same. With a GPU the first line is enough.
MIXED = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1", "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE": "1"}
RUNS = {
    "float32": {},
    "float16": MIXED | {"TFMP_DTYPE": "float16"},
    "bfloat16": MIXED | {"TFMP_DTYPE": "bfloat16"},
}


def train(epochs: int) -> tuple[Any, float, float]:
    """Returns the trained Keras model, and its loss and accuracy (0 to 1) on 360 images it has not seen. Nothing in here knows of tfmp."""
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    keras.utils.set_random_seed(SEED)
    digits = load_digits()
    images = (digits.images[..., None] / digits.images.max()).astype("float32")
    x_train, x_test, y_train, y_test = train_test_split(images, digits.target, test_size=360, random_state=SEED, stratify=digits.target)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    model.fit(x_train, y_train, batch_size=64, epochs=epochs, verbose=0)
    return model, *model.evaluate(x_test, y_test, verbose=0)


def train_and_account(epochs: int) -> dict[str, Any]:
    """Returns what `train` gave and what tfmp did meanwhile, as plain values."""
    start = time.perf_counter()
    model, loss, accuracy = train(epochs)
    seconds = time.perf_counter() - start

    import tfmp

    return {"loss": loss, "accuracy": accuracy, "seconds": seconds, "loss_scale": loss_scale(model.optimizer), "report": repr(tfmp.report())}


def loss_scale(optimizer: Any) -> float | None:
    """Returns the loss scale in force in `optimizer` (tfmp's wrapper calls it scale, Keras 3's own dynamic_scale), or None if it has none."""
    for name in ("scale", "dynamic_scale"):
        scale = getattr(optimizer, name, None)
        if scale is not None:
            return float(scale)
    return None


def run_in_child(name: str, epochs: int) -> dict[str, Any]:
    """Returns the account of a training in a process of its own, in which the variables of row `name` of `RUNS` are set from the start."""
    print(f"training in {name} ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        account = pathlib.Path(folder, "account.json")
        command = [sys.executable, __file__, "--no-setup", "--epochs", str(epochs), "--account", str(account)]
        subprocess.run(command, env={"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ | RUNS[name], check=True)
        return json.loads(account.read_text(encoding="utf-8"))


def compare(epochs: int) -> None:
    """Trains once per row of `RUNS`; prints losses, accuracies and times side by side, then what was converted and the loss scale of each."""
    accounts = {name: run_in_child(name, epochs) for name in RUNS}
    print(f"\n{'':10}{'test accuracy':>15}{'test loss':>12}{'seconds':>10}")
    for name, account in accounts.items():
        print(f"{name:10}{account['accuracy']:>15.1%}{account['loss']:>12.4f}{account['seconds']:>10.1f}")
    for name, account in accounts.items():
        scale = account["loss_scale"]
        print(f"\n{name}: loss scale {'none' if scale is None else format(scale, 'g')}; what was converted:")
        print("".join(f"  {line}\n" for line in account["report"].splitlines()), end="")


def set_up(arguments: list[str]) -> int:
    """Makes and fills `.venv` in the project's root unless it is there, and returns the exit code of this script run in it, or of pip's failure."""
    folder = ROOT / ".venv"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists() or subprocess.run([python, "-c", HAS_ALL, *NEEDED], check=False).returncode:
        print(f"{', '.join(missing())} not found in {sys.executable}: installing in {folder} (once; --no-setup refuses)", flush=True)
        venv.EnvBuilder(with_pip=True).create(folder)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--editable", f"{ROOT}[cpu]", "scikit-learn"]
        failure = subprocess.run(install, check=False).returncode
        if failure:
            return failure
    return subprocess.run([python, __file__, "--no-setup", *arguments], check=False).returncode


def missing() -> list[str]:
    """Returns the needed modules that this interpreter cannot import."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def main() -> int:
    """Sets up if need be, then trains and compares; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--no-setup", action="store_true", help="fail where something is missing, instead of installing it in .venv")
    parser.add_argument("--account", type=pathlib.Path, help=argparse.SUPPRESS)  # a child's task: train once, write what happened
    options = parser.parse_args()
    if missing() and not options.no_setup:
        return set_up(sys.argv[1:])
    if missing():
        sys.exit(f"digits.py: missing: {', '.join(missing())}. Without --no-setup they are installed in {ROOT / '.venv'}.")
    if options.account:
        options.account.write_text(json.dumps(train_and_account(options.epochs)), encoding="utf-8")
    else:
        compare(options.epochs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
