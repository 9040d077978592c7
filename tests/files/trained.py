"""Runs trained models and their converted twins in plain TensorFlow; started as a script, in a process that cannot import tfmp.

It reads a request (JSON) from its argument: `paths` to import from, and for each model the folders to run and an .npz file of data; results go to .npz files.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from typing import Any

REQUEST = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
sys.path[:0] = REQUEST["paths"]
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np  # noqa: E402  # found through the paths
import tensorflow as tf  # noqa: E402


def pitches(path: str, audio: np.ndarray) -> dict[str, np.ndarray]:
    """Returns basic-pitch's posteriors for windows of audio, as its own `inference.py` calls the model."""
    model = tf.saved_model.load(path)
    return {key: value.numpy() for key, value in model(audio).items()}


def languages(path: str, texts: np.ndarray) -> dict[str, np.ndarray]:
    """Returns guesslang's scores for texts, one by one, as its own `model.py` calls the model."""
    signature = tf.saved_model.load(path).signatures["serving_default"]
    results = [signature(tf.constant([text])) for text in texts.tolist()]
    return {"classes": np.stack([one["classes"][0].numpy() for one in results]).astype(str), "scores": np.stack([one["scores"][0].numpy() for one in results])}


def boxes(path: str, images: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the faces that mtcnn finds in images, with its networks (path "") or with those of the SavedModels in a folder."""
    import mtcnn

    detector = mtcnn.MTCNN()
    for stage in detector.stages if path else ():
        stage._model = network(str(pathlib.Path(path) / type(stage).__name__))
    found = [detector.detect_faces(image) for image in images]
    rows = [[number, *face["box"], *sum(map(list, face["keypoints"].values()), []), face["confidence"]] for number, faces in enumerate(found) for face in faces]
    return {"boxes": np.asarray(rows, np.float64)}


def network(path: str) -> Any:
    """Returns a function from images to the list of a network's outputs."""
    loaded = tf.saved_model.load(path)
    signature = loaded.signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]

    def call(images: Any) -> list[Any]:
        outputs = signature(**{name: tf.cast(images, tf.float32)})
        return [outputs[key] for key in sorted(outputs)]

    call.loaded = loaded
    return call


def export_networks(path: str, images: np.ndarray) -> dict[str, np.ndarray]:
    """Writes mtcnn's three trained networks as SavedModels into a folder."""
    import mtcnn

    del images
    for stage in mtcnn.MTCNN().stages:
        size = {"StagePNet": None, "StageRNet": 24, "StageONet": 48}[type(stage).__name__]
        module = tf.Module()
        module.weights = [variable.value for variable in stage.model.variables]
        module.serve = serving(stage.model).get_concrete_function(tf.TensorSpec([None, size, size, 3]))
        tf.saved_model.save(module, str(pathlib.Path(path) / type(stage).__name__), signatures=module.serve)
    return {}


def serving(model: Any) -> Any:
    """Returns a function that calls `model` and gives its outputs names that keep their order."""
    return tf.function(lambda images: {f"output_{number}": output for number, output in enumerate(model(images))})


TASKS = {"pitches": pitches, "languages": languages, "boxes": boxes, "export": export_networks}

if __name__ == "__main__":
    for task in REQUEST["tasks"]:
        with np.load(task["data"], allow_pickle=False) as data:
            result = TASKS[task["name"]](task["path"], data["data"])
        np.savez(task["result"], **result)
    loaded = {name.partition(".")[0] for name in sys.modules}
    if "tfmp" in loaded:
        sys.exit("tfmp is here")
