"""A process that runs TensorFlow's graph optimizers on request. Started by `client.py`.

It is a process of its own because TensorFlow reads `SIMULATE_GPU` and `IGNORE_PERFORMANCE` once, and because a failed
check inside the C++ pass ends the process it happens in: the test session must outlive that.

Requests and answers are frames on standard input and output: two unsigned 64-bit little-endian lengths, a JSON header and
a serialised GraphDef. Standard output belongs to the frames alone; whatever else prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

LENGTHS = struct.Struct("<QQ")
LOG_PATH = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH"
PROBED_KERNELS = ("Relu", "MatMul", "Mul", "MaxPool")


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Returns the next (header, graph bytes) of `stream`, or None at its end."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    header_length, graph_length = LENGTHS.unpack(lengths)
    return json.loads(stream.read(header_length)), stream.read(graph_length)


def write_frame(stream: BinaryIO, header: Mapping[str, Any], graph: bytes = b"") -> None:
    """Writes one frame to `stream` and flushes it."""
    text = json.dumps(header).encode()
    stream.write(LENGTHS.pack(len(text), len(graph)))
    stream.write(text)
    stream.write(graph)
    stream.flush()


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets `variables` in the process environment (the C++ side reads it, too) and restores it afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def half_gpu_kernels() -> list[str]:
    """Returns those of PROBED_KERNELS that have a float16 GPU kernel in this TensorFlow: all of them in a CUDA build."""
    from tensorflow.core.framework import types_pb2
    from tensorflow.python.framework import kernels

    def takes_half(kernel: Any) -> bool:
        allowed = [list(c.allowed_values.list.type) for c in kernel.constraint if c.name == "T"]
        return kernel.device_type == "GPU" and any(types_pb2.DT_HALF in types for types in allowed)

    return [op for op in PROBED_KERNELS if any(map(takes_half, kernels.get_registered_kernels_for_op(op).kernel))]


def optimize(graph: bytes, fetches: list[str], optimizers: list[str]) -> bytes:
    """Returns the serialised GraphDef after grappler ran `optimizers`, and nothing else, in one iteration."""
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
    from tensorflow.python.grappler import tf_optimizer

    meta_graph = meta_graph_pb2.MetaGraphDef()
    meta_graph.graph_def.ParseFromString(graph)
    meta_graph.collection_def["train_op"].node_list.value.extend(fetches)
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    options.fail_on_optimizer_errors = True
    options.disable_tfg_optimizer = True
    options.optimizers.extend(optimizers)
    return tf_optimizer.OptimizeGraph(config, meta_graph, verbose=False).SerializeToString()


def orders_in_dumps(folder: str) -> dict[str, list[str]]:
    """Returns graph name -> node names in the order the pass saw them, from the graphs that the pass dumped."""
    from tensorflow.core.framework import graph_pb2

    orders = {}
    for path in sorted(pathlib.Path(folder).glob("graphdef_preop_*.pb")):
        graph = graph_pb2.GraphDef.FromString(path.read_bytes())
        name = path.stem.removeprefix("graphdef_preop_").rpartition("_")[0]
        orders[name] = [node.name for node in graph.node]
    return orders


def answer(header: Mapping[str, Any], graph: bytes) -> tuple[dict[str, Any], bytes]:
    """Does what `header` asks for; returns the header and graph of the answer."""
    if header["action"] == "hello":
        return {"half_gpu_kernels": half_gpu_kernels()}, b""
    with contextlib.ExitStack() as stack:
        stack.enter_context(environment(header["environment"]))
        folder = None
        if header["wants_order"]:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            stack.enter_context(environment({LOG_PATH: folder}))
        result = optimize(graph, header["fetches"], header["optimizers"])
        return {"orders": orders_in_dumps(folder) if folder else {}}, result


def main() -> None:
    """Serves requests until standard input closes; an error of TensorFlow becomes the answer's `error` text."""
    frames = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    import tensorflow as tf  # only now, so that nothing it prints can end up between the frames

    while (request := read_frame(sys.stdin.buffer)) is not None:
        try:
            header, graph = answer(*request)
        except (tf.errors.OpError, RuntimeError, ValueError, TypeError) as error:
            header, graph = {"error": f"{type(error).__name__}: {error}"}, b""
        write_frame(frames, header, graph)


if __name__ == "__main__":
    main()
