"""Writing a converted file."""

from __future__ import annotations

import pathlib
import shutil

from tfmp import tf_api
from tfmp import tf_saved_model as tfs
from tfmp.errors import TargetError
from tfmp.files import bundle as bundles
from tfmp.files.plan import Plan
from tfmp.files.programs import Progress
from tfmp.files.source import VARIABLES, GraphSource
from tfmp.graph.objects import without_slots

FINGERPRINT = "fingerprint.pb"

LARGEST_PROTO = 2**31 - 1
"""Bytes (the limit of protobuf's encoding)."""


def write(plan: Plan, new: pathlib.Path, name: str, tell: Progress) -> None:
    """Writes the converted file, which will be called `name`, to `new`."""
    if isinstance(plan.source, GraphSource):
        new.write_bytes(_encoded(plan.proto, name))
        return
    new.mkdir()
    for file in sorted(plan.source.path.rglob("*")):
        relative = file.relative_to(plan.source.path)
        if relative.parts[0] not in (plan.source.file, FINGERPRINT) and (relative.parts[0] != VARIABLES.partition("/")[0] or plan.bundle is None):
            _copy(file, new / relative)
    if plan.bundle is not None:
        prefix = new / VARIABLES
        prefix.parent.mkdir()
        objects = without_slots(plan.bundle.objects, plan.storage.keys) if plan.bundle.objects else b""
        dtype = plan.options.format.number
        bundles.write(plan.bundle, str(prefix), plan.storage.keys, dtype, objects, lambda done, total: tell("writing weights", done, total))
    (new / plan.source.file).write_bytes(_encoded(plan.proto, plan.source.file))
    if (plan.source.path / FINGERPRINT).exists():
        tfs.write_fingerprint(str(new))


def _copy(file: pathlib.Path, new: pathlib.Path) -> None:
    """Copies content only: the permissions of a read-only original would keep the copy from being finished."""
    if file.is_dir():
        new.mkdir()
    else:
        shutil.copyfile(file, new)


def _encoded(proto: tf_api.Message, file: str) -> bytes:
    if proto.ByteSize() > LARGEST_PROTO:
        raise TargetError(f"the converted graph has {proto.ByteSize():,} bytes; protobuf, and TensorFlow with it, reads at most {LARGEST_PROTO:,}.")
    return tfs.as_text(proto).encode() if file.endswith(".pbtxt") else proto.SerializeToString(deterministic=True)
