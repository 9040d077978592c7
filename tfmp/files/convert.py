"""`tfmp.convert` and `tfmp.explain`: a file in, its 16-bit twin and a report out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

from tfmp.files.check import check_data, compare
from tfmp.files.options import AUTO, make_options
from tfmp.files.places import Path, check_target, find, replacing
from tfmp.files.plan import plan_file
from tfmp.files.programs import Progress
from tfmp.files.report import FileReport
from tfmp.files.source import read_source, sizes_of
from tfmp.files.write import write


def explain(source: Path, *, progress: Progress | None = None, **options: Any) -> FileReport:
    """Returns what `convert` would make of a SavedModel or frozen graph, and why, without writing anything.

    Arguments and errors are those of `convert`, without those about the target.
    """
    chosen = make_options(**options)
    return plan_file(read_source(find(source)), chosen, progress or _ignore).report


def convert(
    source: Path,
    target: Path,
    *,
    device: str = "gpu",
    dtype: str = AUTO,
    level: str = "default",
    io_dtype: str | None = None,
    keep_weights: bool = False,
    keep_float32: str | Iterable[str] | None = (),
    outputs: Iterable[str] | None = (),
    modules: Iterable[str] | None = (),
    check: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> FileReport:
    """Writes a 16-bit inference twin of a SavedModel or frozen graph, which plain TensorFlow loads, and returns what was done.

    Args:
      source: a folder with a SavedModel of TensorFlow 1 or 2, or a file with a GraphDef (.pb, or .pbtxt in text form).
      target: where to write; what is written appears there complete, or not at all.
      device: "gpu", "cpu", "xla_gpu" or "xla_cpu" (compiled by XLA): where it will run, and whose kernels must exist.
      dtype: "float16", "bfloat16", or "auto": float16 for GPUs, bfloat16 for CPUs.
      level: a key of `tfmp.LEVELS`.
      io_dtype: type of the inputs and outputs of signatures that were float32; None keeps them.
      keep_weights: keep weights stored in float32, for further training.
      keep_float32: rules for what stays in float32, weights included ("op:Softmax", "name:head/*", "variable:embedding").
      outputs: outputs of a frozen graph (names of nodes or tensors); without any, the nodes that nothing reads.
      modules: names of Python modules that are imported first, for the ops that they register ("tensorflow_text").
      check: an .npz file with an array for each input ("input" or "signature/input"), or "random": run both files on it and report the differences.
      force: replace what is at `target`, if that is of the same kind.
      progress: called with what is going on, how many steps of it are done, and of how many.
      **settings: any other setting of `tfmp.Settings`, such as `denylist_add="Softmax"`.

    Raises:
      FileError: `source` is missing, damaged, or nothing that can be converted.
      TargetError: `target` cannot be written, or something is there. Nothing is lost.
      CheckError: the files cannot be compared. `target` is written all the same, unless the data are missing.
      SettingsError: an option has a value that it cannot have.
    """
    tell = progress or _ignore
    settings |= {"device": device, "dtype": dtype, "level": level, "io_dtype": io_dtype, "keep_weights": keep_weights, "keep_float32": keep_float32}
    chosen = make_options(outputs=outputs, modules=modules, **settings)
    data = check_data(os.fspath(check)) if check is not None else ""
    found = find(source)
    where = check_target(found, target, force)
    plan = plan_file(read_source(found), chosen, tell)
    if not plan.report.converted:
        return plan.report
    with replacing(where) as new:
        write(plan, new, where.name, tell)
        after = sizes_of(new)
    report = dataclasses.replace(plan.report, target=str(target), after=after)
    if data:
        tell("comparing", 0, 1)
        report = dataclasses.replace(report, differences=compare(plan.request(str(where), data)))
        tell("comparing", 1, 1)
    return report


def _ignore(what: str, done: int, total: int) -> None:
    """Tells nobody."""
