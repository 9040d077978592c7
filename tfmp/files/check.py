"""The comparison of a converted file with the original, on data (`--check`)."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tfmp.errors import CheckError

RANDOM = "random"
"""Stands for data shaped by the signatures."""

SCRIPT = pathlib.Path(__file__).with_name("compared.py")


@dataclasses.dataclass(frozen=True)
class Difference:
    """One output of both files.

    Attributes:
      signature: key of the signature.
      output: name of the output.
      dtype: its type, and the new one if that is another.
      worst: largest difference of a finite number, for floats.
      scale: largest magnitude of the original's numbers, for floats.
      equal: share (0 to 1) of the values that are the same.
      problem: what speaks against the converted file, or "".
    """

    signature: str
    output: str
    dtype: str
    worst: float | None
    scale: float | None
    equal: float
    problem: str


@dataclasses.dataclass(frozen=True)
class Request:
    """What is compared: two files, the tags of a SavedModel, the inputs and outputs of a frozen graph, modules that
    register ops, and a file of data or `RANDOM`.
    """

    original: str
    converted: str
    data: str
    tags: Sequence[str] = ()
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    modules: Sequence[str] = ()


def check_data(data: str) -> str:
    """Returns `data`, the path of an .npz file or `RANDOM`; raises `CheckError` if no such file is there."""
    if data != RANDOM and not pathlib.Path(data).is_file():
        raise CheckError(f"data for the comparison are {data!r}, which is no file; give an .npz file with an array for each input, or {RANDOM!r}.")
    return data


def compare(request: Request) -> tuple[Difference, ...]:
    """Runs both files, in a process of its own that does not load tfmp, and returns how every output differs.

    Raises:
      CheckError: one of them does not run, or the data are of no use.
    """
    content = dataclasses.asdict(request) | {"data": "" if request.data == RANDOM else request.data}
    with tempfile.TemporaryDirectory(prefix="tfmp-check-") as folder:
        path = pathlib.Path(folder) / "request.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        done = subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            last = next(iter(reversed(done.stderr.strip().splitlines())), f"exit code {done.returncode}")
            raise CheckError(f"the comparison broke off: {last}")
        answer = json.loads(path.read_text(encoding="utf-8"))
    if "error" in answer:
        raise CheckError(f"{answer['error']}.")
    return tuple(Difference(**row) for row in answer["differences"])
