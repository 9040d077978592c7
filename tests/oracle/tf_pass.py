"""TensorFlow's own C++ mixed precision pass as an oracle, on a machine without a GPU.

This runs the pass and reads the colours off its result, so nothing here repeats a rule of the pass. For float16 it needs the
CUDA build of TensorFlow (the `tensorflow` wheel), since the pass asks the kernel registry for half kernels on the GPU; for
bfloat16, a CPU with native bfloat16.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from tests.oracle import client, orders
from tests.oracle.client import OracleError
from tests.oracle.comparison import Colours, added_nodes, type_colours

__all__ = [
    "OracleError",
    "TensorFlowResult",
    "cuda_build_available",
    "infers_after_allow",
    "orders_seen_by_pass",
    "run_tensorflow_pass",
    "unavailable_reason",
]

# 16-bit type -> grappler's name of the pass (meta_optimizer.cc).
PASSES = {"float16": "auto_mixed_precision", "bfloat16": "auto_mixed_precision_onednn_bfloat16"}

# How grappler calls the main graph when it comes from `OptimizeGraph` (tf_optimizer.py).
_MAIN_GRAPH = "graph_to_optimize"


@dataclasses.dataclass(frozen=True)
class TensorFlowResult:
    """What the C++ pass did to one graph.

    Attributes:
        graph_def: the rewritten GraphDef (node order is grappler's, not the input's).
        colours: for every type attribute that was float32 in the input, whether the pass turned it to the 16-bit type; keyed (node,
            attribute), in a library function (function, node, attribute), the attribute reading "T", or "T[3]" in a list of types.
        casts: names of the nodes that the pass added, in the main graph and in library functions.
    """

    graph_def: Any
    colours: Colours
    casts: frozenset[str]


def run_tensorflow_pass(
    graph_def: Any,
    fetches: Sequence[str],
    dtype: str = "float16",
    node_order_is_kept: bool = True,
    environment: Mapping[str, str] | None = None,
) -> TensorFlowResult:
    """Returns what TensorFlow's C++ pass, alone and run once, makes of `graph_def`, library functions included.

    Args:
        graph_def: the GraphDef, unchanged. Nodes without a device count as on the GPU (float16) or the CPU (bfloat16).
        fetches: names of nodes (no output index) that the pass must preserve. Placeholders are preserved, too.
        dtype: "float16" (the pass for CUDA, on a simulated GPU) or "bfloat16" (the pass for CPUs, through oneDNN).
        node_order_is_kept: True gives the pass the nodes in the order of `graph_def.node`, on which its result depends; False sorts
            the main graph topologically first. In functions the pass always sees `orders.function_order`.
        environment: variables of the pass that hold for this run, such as `..._LEVEL`.

    Raises:
        OracleError: TensorFlow refused the graph.
        ComparisonError: the result lacks something of the input.
        ValueError: unknown `dtype`.
    """
    given = graph_def if node_order_is_kept else orders.topological(graph_def)
    answer = client.optimize(given.SerializeToString(), fetches, [_pass_for(dtype)], dtype=dtype, environment=environment)
    result = type(graph_def).FromString(answer.graph)
    return TensorFlowResult(result, type_colours(graph_def, result, dtype), added_nodes(graph_def, result))


def _pass_for(dtype: str) -> str:
    if dtype not in PASSES:
        raise ValueError(f"dtype is {dtype!r}; the oracle has {', '.join(map(repr, PASSES))}")
    return PASSES[dtype]


def orders_seen_by_pass(graph_def: Any, fetches: Sequence[str], dtype: str = "float16") -> dict[str, tuple[str, ...]]:
    """Returns graph name -> node names in the order in which the C++ pass saw them, from the pass's own dumps.

    The main graph's name is "" here; a library function has its own name. In functions, arguments come first, as _Arg nodes, and
    results last, as _Retval nodes. Functions that nothing calls are not seen.
    """
    answer = client.optimize(graph_def.SerializeToString(), fetches, [_pass_for(dtype)], dtype=dtype, wants_order=True)
    return {"" if name == _MAIN_GRAPH else name: order for name, order in answer.orders.items()}


def cuda_build_available() -> bool:
    """Returns whether this TensorFlow registers float16 GPU kernels for all the ops that the worker probes: Relu, MatMul, Mul, MaxPool."""
    return len(client.half_gpu_kernels()) == 4


@functools.cache
def _probe(dtype: str) -> Colours:
    """Returns the colours of a MatMul and of a Sqrt, an infer op, that reads it."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        product = tf.matmul(tf.fill([2, 2], 1.0), tf.fill([2, 2], 1.0), name="product")
        tf.identity(tf.sqrt(product, name="root"), name="fetch")
    return run_tensorflow_pass(graph.as_graph_def(), ["fetch"], dtype).colours


def unavailable_reason(dtype: str = "float16") -> str:
    """Returns why the oracle cannot be used for `dtype` on this machine, or "" if it can: tried, by converting a MatMul."""
    if dtype == "float16" and not cuda_build_available():
        return "this TensorFlow has no float16 GPU kernels, which the C++ pass asks for: install `tensorflow`, not `tensorflow-cpu`"
    if _probe(dtype)[("product", "T")]:
        return ""
    return f"the C++ pass converts nothing to {dtype} on this machine (bfloat16 needs a CPU with native support)"


def infers_after_allow(dtype: str) -> bool:
    """Returns whether this TensorFlow's pass turns an infer op that directly follows an allow op, although no allow op comes after it.

    Measured: for bfloat16, always; for float16, in 2.20 and 2.21, not in 2.18 and 2.19. With this rule, colours depend on node order.
    """
    return _probe(dtype)[("root", "T")]
