"""The test session's end of the worker process: start it once per environment, ask, get graphs back."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

from tests.oracle.worker import read_frame, write_frame

WORKER = pathlib.Path(__file__).with_name("worker.py")
STDERR_TAIL = 4000  # bytes of the worker's standard error shown when it dies

# What would change the pass behind the test's back if the session's own environment had it.
_CLEARED_PREFIXES = ("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_", "TF_ENABLE_AUTO_MIXED_PRECISION", "TFMP_")

_COMMON_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE": "1",
}

# SIMULATE_GPU makes TensorFlow place every node on a GPU, where the pass for CPUs then finds nothing to do: hence one
# process per 16-bit type.
_ENVIRONMENTS = {
    "float16": {"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_SIMULATE_GPU": "1"},
    "bfloat16": {"TF_ENABLE_ONEDNN_OPTS": "1"},
}


class OracleError(RuntimeError):
    """TensorFlow refused the graph, or its process died; the text says which, and why."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer of the worker: the serialised graph, and graph name -> node order if it was asked for."""

    graph: bytes
    orders: Mapping[str, tuple[str, ...]]


class Worker:
    """One long-lived TensorFlow process; requests are answered one after the other."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Starts the process with the session's environment, cleared of settings for the pass, and `environment`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_CLEARED_PREFIXES)}
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `close`)
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**kept, **_COMMON_ENVIRONMENT, **environment},
        )
        atexit.register(self.close)

    def ask(self, header: Mapping[str, Any], graph: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Returns the header and graph of the answer.

        Raises:
            OracleError: the answer is an error, or the process died (with the end of its standard error).
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            write_frame(self._process.stdin, header, graph)
            answer = read_frame(self._process.stdout)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise OracleError(f"the TensorFlow process died with {self._process.wait()} on {header}: {self._tail()}")
        if "error" in answer[0]:
            raise OracleError(f"TensorFlow failed on {header}: {answer[0]['error']}")
        return answer

    def close(self) -> None:
        """Ends the process, which stops when its standard input closes, and waits for it."""
        with contextlib.suppress(BrokenPipeError), self._process:  # a dead process takes no more bytes, which is no news here
            pass
        self._errors.close()
        atexit.unregister(self.close)

    def _tail(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - STDERR_TAIL))
        return self._errors.read().decode(errors="replace")


@functools.cache
def worker(dtype: str) -> Worker:
    """Returns the session's worker for `dtype` ("float16" or "bfloat16"), started at the first call.

    Raises:
        ValueError: `dtype` is neither.
    """
    if dtype not in _ENVIRONMENTS:
        raise ValueError(f"dtype is {dtype!r}; the oracle has {', '.join(map(repr, _ENVIRONMENTS))}")
    return Worker(_ENVIRONMENTS[dtype])


def optimize(
    graph: bytes,
    fetches: Sequence[str],
    optimizers: Sequence[str],
    *,
    dtype: str = "float16",
    environment: Mapping[str, str] | None = None,
    wants_order: bool = False,
) -> Answer:
    """Returns what grappler makes of a serialised GraphDef.

    Args:
        graph: the serialised GraphDef.
        fetches: names of nodes to keep, without output index.
        optimizers: grappler's names of the optimizers to run once, in order.
        dtype: whose worker is asked.
        environment: variables that hold during this request only. `SIMULATE_GPU` and `IGNORE_PERFORMANCE` cannot be
            among them, since the C++ side reads those once.
        wants_order: whether to return the node orders the mixed precision pass saw, too.

    Raises:
        OracleError: TensorFlow refused, or died.
    """
    header = {
        "action": "optimize",
        "fetches": list(fetches),
        "optimizers": list(optimizers),
        "environment": dict(environment or {}),
        "wants_order": wants_order,
    }
    answer, result = worker(dtype).ask(header, graph)
    return Answer(result, {name: tuple(order) for name, order in answer["orders"].items()})


@functools.cache
def half_gpu_kernels() -> tuple[str, ...]:
    """Returns which of the probed ops (Relu, MatMul, Mul, MaxPool) have a float16 GPU kernel in the worker's TensorFlow."""
    header, _ = worker("float16").ask({"action": "hello"})
    return tuple(header["half_gpu_kernels"])
