"""Comparing a SavedModel with itself in mixed precision, on data from a file: the command `tfmp compare`."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfmp.errors import TfmpError
from tfmp.numerics.comparison import Comparison, compare


def compare_saved_model(path: str | os.PathLike[str], data: str | os.PathLike[str], *, signature: str = "serving_default", **options: Any) -> Comparison:
    """Returns `compare` of one signature of a SavedModel.

    Args:
      path: the SavedModel's folder.
      data: one batch: an .npz file with an array for each input, by its name in the signature, or, if there is one input only, an .npy file.
      signature: which signature.
      **options: as for `compare`.

    Raises:
      TfmpError: the model or the data cannot be read, there is no such signature, or the arrays are not those that it takes.
    """
    try:
        model = tf.saved_model.load(os.fspath(path))
    except (OSError, ValueError) as error:
        raise TfmpError(f"{os.fspath(path)!r} is no SavedModel that can be loaded: {error}") from error
    if signature not in model.signatures:
        raise TfmpError(f"{os.fspath(path)!r} has no signature {signature!r}; it has {', '.join(map(repr, model.signatures)) or 'none'}.")
    function = model.signatures[signature]
    inputs = dict(sorted(function.structured_input_signature[1].items()))
    return compare(function, _batch(pathlib.Path(data), inputs), **options)


def _batch(path: pathlib.Path, inputs: Mapping[str, Any]) -> dict[str, Any]:
    arrays = _arrays(path, inputs)
    if arrays.keys() != inputs.keys():
        wanted = ", ".join(f"{name!r} ({spec.dtype.name}, {spec.shape})" for name, spec in inputs.items())
        raise TfmpError(f"{os.fspath(path)!r} holds {', '.join(map(repr, arrays)) or 'nothing'}; the signature takes {wanted}.")
    for name, spec in inputs.items():
        if not spec.shape.is_compatible_with(arrays[name].shape):
            raise TfmpError(f"{name!r} in {os.fspath(path)!r} has the shape {arrays[name].shape}; the signature takes {spec.shape}.")
    return {name: tf.cast(tf.constant(arrays[name]), spec.dtype) for name, spec in inputs.items()}


def _arrays(path: pathlib.Path, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    try:
        loaded = np.load(path)
    except (OSError, ValueError) as error:
        raise TfmpError(f"{os.fspath(path)!r} is no .npz or .npy file that can be read: {error}") from error
    if isinstance(loaded, np.ndarray):
        return {next(iter(inputs), "") if len(inputs) == 1 else "(one array without a name)": loaded}
    with loaded:
        return dict(loaded)
