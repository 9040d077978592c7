"""What a graph of the zoo is, and how graphs are taken out of TensorFlow as GraphDefs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Built = tuple[Any, tuple[str, ...]]  # a GraphDef and the names of its fetches

LEVEL = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL"


@dataclasses.dataclass(frozen=True)
class GraphCase:
    """One graph of the zoo.

    Attributes:
        name: unique, a readable path such as "chain/simple".
        builder: returns a new GraphDef and its fetches; takes nothing, reads no file, the same graph each time.
        tags: words to select by: "hand", "python", "keras", "training", "inference", "loop", "function",
            "variables" (has variables, which someone must create and initialise before it runs), ...
        lower: whether functions shall be inlined and control flow lowered before the graph is used.
        environment: variables of the C++ pass under which the case is meant, such as its LEVEL.
        dtype: the 16-bit type for which `half` and `casts` are stated.
        half: names of all nodes of the main graph with an attribute in 16 bit after the C++ pass; None: not stated.
        following: those of `half` that turn only because of the rule that an infer op directly after an allow op turns: a rule that the
            C++ pass for float16 has since TensorFlow 2.20.
        casts: number of nodes the C++ pass adds; None: not stated. Stated for a pass with that rule.
        covers: names of the tests in TensorFlow's auto_mixed_precision_test.cc and .py that the case stands for; suites other than the
            main one are named in front, as in "Mkl.Simple".
        note: what a reader should know.
    """

    name: str
    builder: Callable[[], Built]
    tags: frozenset[str]
    lower: bool = False
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dtype: str = "float16"
    half: frozenset[str] | None = None
    following: frozenset[str] = frozenset()
    casts: int | None = None
    covers: frozenset[str] = frozenset()
    note: str = ""

    def build(self) -> Built:
        """Returns a fresh GraphDef and its fetches; the builder itself runs once per process.

        Nothing is lowered here, whatever `lower` says.
        """
        from tensorflow.core.framework import graph_pb2

        serialized, fetches = _built(self.builder)
        return graph_pb2.GraphDef.FromString(serialized), fetches


@functools.cache
def _built(builder: Callable[[], Built]) -> tuple[bytes, tuple[str, ...]]:
    graph_def, fetches = builder()
    return graph_def.SerializeToString(), fetches


def in_graph(build: Callable[[], Sequence[Any]]) -> Built:
    """Returns the GraphDef that `build` makes in a new tf.Graph, with an Identity behind each tensor it returns.

    The Identities, "fetch_0" and so on, are the fetches: the pass must not touch a fetched node, and so may touch all of
    the nodes that `build` made.
    """
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        outputs = build()
        fetches = tuple(tf.identity(tensor, name=f"fetch_{index}").op.name for index, tensor in enumerate(outputs))
    return graph.as_graph_def(), fetches


def from_function(function: Any, *signature: Any) -> Built:
    """Returns the graph of a tf.function traced for `signature`, captured tensors and variables being Placeholders.

    Fetches are an Identity behind each output and, when the function has side effects, the NoOp "side_effects", which
    depends on all of them. No node has a device.
    """
    import tensorflow as tf

    graph = function.get_concrete_function(*signature).graph
    with graph.as_default():
        outputs = [tensor for tensor in graph.outputs if tensor.dtype != tf.resource]
        fetches = [tf.identity(tensor, name=f"fetch_{index}").op.name for index, tensor in enumerate(outputs)]
    graph_def = graph.as_graph_def()
    if graph.control_outputs:
        effects = graph_def.node.add(name="side_effects", op="NoOp")
        effects.input.extend(f"^{operation.name}" for operation in graph.control_outputs)
        fetches.append(effects.name)
    strip_devices(graph_def)
    return graph_def, tuple(fetches)


def strip_devices(graph_def: Any) -> None:
    """Clears the device of every node of `graph_def`, in place, library functions included."""
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for node in nodes:
            node.device = ""


def unary(op_type: str, tensor: Any, name: str) -> Any:
    """Returns the output of a raw op with one input, such as Relu, given by its type name."""
    import tensorflow as tf

    op = getattr(tf.raw_ops, op_type)
    argument = next(iter(inspect.signature(op).parameters))
    return op(**{argument: tensor}, name=name)


def constant(name: str, *shape: int, value: float = 1 / 32) -> Any:
    """Returns a float32 Const of `shape` filled with `value`: an input that the pass itself never converts."""
    import tensorflow as tf

    return tf.constant(value, tf.float32, shape or (4, 4), name=name)


def square(tensor: Any, name: str) -> Any:
    """Returns the MatMul of a square matrix with itself: the allowlist op with one source."""
    import tensorflow as tf

    return tf.raw_ops.MatMul(a=tensor, b=tensor, name=name)


def close_loop(graph_def: Any, merge: str, next_iteration: str) -> None:
    """Makes `next_iteration` the second input of node `merge`, in place: the back edge that Python ops cannot draw."""
    node = next(node for node in graph_def.node if node.name == merge)
    node.input[1] = next_iteration


def case(
    name: str,
    builder: Callable[[], Built],
    tags: str,
    *,
    half: str | None = None,
    following: str = "",
    covers: str = "",
    **rest: Any,
) -> GraphCase:
    """Returns a GraphCase from `tags`, `half`, `following` and `covers` written as words separated by blanks."""
    stated = None if half is None else frozenset(half.split())
    words = {"tags": tags, "following": following, "covers": covers}
    return GraphCase(name, builder, half=stated, **{field: frozenset(text.split()) for field, text in words.items()}, **rest)


def functional(name: str, builder: Callable[[], Built], tags: str, **rest: Any) -> tuple[GraphCase, GraphCase]:
    """Returns two cases of one graph with functions: as it is, and "<name>/lowered", for which nothing is stated."""
    lowered = case(f"{name}/lowered", builder, tags, lower=True, covers=rest.get("covers", ""), note=rest.get("note", ""))
    return case(name, builder, tags, **rest), lowered
