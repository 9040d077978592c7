"""The checkpoint inside a SavedModel (`variables/variables.*`): read tensor by tensor, and written anew with some tensors in another type."""

from __future__ import annotations

import contextlib
import functools
import glob
import pathlib
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfmp import tf_api
from tfmp import tf_saved_model as tfs
from tfmp.errors import FileError, TargetError

SHARD_BYTES = 1 << 30
"""Largest sum of tensor sizes that is in memory at once while a checkpoint is written. Our own choice."""


class Bundle:
    """A checkpoint, for reading.

    Attributes:
      prefix: the path without ".index" and ".data-...".
      dtypes: key to type number.
      shapes: key to shape.
    """

    def __init__(self, prefix: str) -> None:
        """Reads the index; raises `FileError` if it is damaged or missing."""
        self.prefix = prefix
        with _reading(prefix):
            self._reader = tf.train.load_checkpoint(prefix)
            self.dtypes = {key: dtype.as_datatype_enum for key, dtype in self._reader.get_variable_to_dtype_map().items()}
            self.shapes: dict[str, tuple[int, ...]] = {key: tuple(shape) for key, shape in self._reader.get_variable_to_shape_map().items()}
        there, needed = (sum(file.stat().st_size for file in _data_files(prefix)), sum(map(self.size, self.dtypes)))
        if there < needed:
            raise FileError(f"the variables of the SavedModel ({prefix}.*) are cut off: {there:,} bytes of at least {needed:,} are there.")

    def value(self, key: str) -> np.ndarray:
        """Returns one tensor; raises `FileError` if its data are damaged or missing."""
        with _reading(self.prefix):
            return np.asarray(self._reader.get_tensor(key))

    @functools.cached_property
    def objects(self) -> bytes:
        """The serialised object graph, b"" for a checkpoint without one (TensorFlow 1)."""
        if tfs.OBJECT_GRAPH_KEY not in self.dtypes:
            return b""
        with _reading(self.prefix):
            return bytes(self._reader.get_tensor(tfs.OBJECT_GRAPH_KEY))  # an array of bytes would lose zeros at the end

    def size(self, key: str) -> int:
        """Returns how many bytes the tensor takes; of strings, how many there are."""
        return int(np.prod(self.shapes[key], dtype=np.int64)) * max(tf.dtypes.as_dtype(self.dtypes[key]).size or 1, 1)


def write(bundle: Bundle, prefix: str, changed: Collection[str], dtype: int, objects: bytes, done: Callable[[int, int], None]) -> None:
    """Writes a checkpoint with the tensors of `bundle`, those under the keys `changed` cast to `dtype`.

    Args:
      bundle: where the tensors are read from.
      prefix: the path to write to, without ".index"; its folder exists.
      changed: keys of float32 tensors.
      dtype: number of the type that they get.
      objects: the serialised object graph, if the checkpoint has one.
      done: told how many bytes of how many have been written.

    Raises:
      FileError: the tensors of `bundle` cannot be read.
      TargetError: the checkpoint cannot be written.
    """
    shards = list(_shards(bundle))
    total = sum(map(bundle.size, bundle.dtypes)) or 1
    names = [prefix] if len(shards) == 1 else [f"{prefix}-part-{number:05}-of-{len(shards):05}" for number in range(len(shards))]
    written = 0
    for name, keys in zip(names, shards, strict=True):
        _write_shard(bundle, name, keys, changed, dtype, objects)
        written += sum(map(bundle.size, keys))
        done(written, total)
    if len(shards) > 1:
        _run(lambda: tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=names, destination_prefix=prefix, delete_old_dirs=False))
    for name in names if len(shards) > 1 else ():
        for leftover in pathlib.Path(name).parent.glob(f"{pathlib.Path(name).name}*"):
            leftover.unlink()


def _data_files(prefix: str) -> list[pathlib.Path]:
    path = pathlib.Path(prefix)
    return list(path.parent.glob(f"{glob.escape(path.name)}.data-*"))


def _shards(bundle: Bundle) -> Iterator[list[str]]:
    """Yields the keys in order, in groups that fit into memory."""
    keys: list[str] = []
    size = 0
    for key in sorted(bundle.dtypes):
        if keys and size + bundle.size(key) > SHARD_BYTES:
            yield keys
            keys, size = [], 0
        keys.append(key)
        size += bundle.size(key)
    yield keys


def _write_shard(bundle: Bundle, prefix: str, keys: Sequence[str], changed: Collection[str], dtype: int, objects: bytes) -> None:
    def build() -> tf.Operation:
        types = [tf.dtypes.as_dtype(bundle.dtypes[key]) for key in keys]
        whole = [""] * len(keys)
        tensors = tf.raw_ops.RestoreV2(prefix=bundle.prefix, tensor_names=list(keys), shape_and_slices=whole, dtypes=types)
        new = [tf.cast(tensor, tf.dtypes.as_dtype(dtype)) if key in changed else tensor for key, tensor in zip(keys, tensors, strict=True)]
        new = [tf.constant(objects) if key == tfs.OBJECT_GRAPH_KEY else tensor for key, tensor in zip(keys, new, strict=True)]
        return tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(keys), shape_and_slices=whole, tensors=new)

    _run(build)


def _run(build: Callable[[], tf.Operation]) -> None:
    """Runs one op in a session of its own on the CPU: an eager op would take hold of the GPUs."""
    with tf.Graph().as_default() as graph:
        operation = build()
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            try:
                session.run(operation)
            except tf_api.OpError as error:
                reason = next(iter(str(error.message).splitlines()), type(error).__name__)
                if error.op is not None and error.op.type == "RestoreV2":
                    raise FileError(f"the variables of the SavedModel cannot be read: {reason}") from None
                raise TargetError(f"the variables cannot be written: {reason}") from None


@contextlib.contextmanager
def _reading(prefix: str) -> Iterator[None]:
    try:
        yield
    except (tf_api.OpError, ValueError, TypeError, IndexError, RuntimeError, MemoryError) as error:  # what the reader makes of damaged data
        message = getattr(error, "message", None) or str(error)
        raise FileError(f"the variables of the SavedModel ({prefix}.*) cannot be read: {next(iter(str(message).splitlines()), type(error).__name__)}") from None
