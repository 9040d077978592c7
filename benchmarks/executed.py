"""What a graph really does, by TensorFlow's own account: a session traces every kernel that it runs, with the type and shape of what comes out.

Nothing of tfmp is used here, so that every variant of a program is measured by one and the same rule. Graphs come with functions inlined and loops
and branches lowered, as TensorFlow's runtime does before it runs (and before its mixed precision pass); functions that forbid it are still called.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

FLOATS = (tf.float32, tf.float16, tf.bfloat16)

SHARED = frozenset({
    "Enter", "Exit", "ExpandDims", "Identity", "IdentityN", "Merge", "NextIteration", "PreventGradient", "Reshape", "Squeeze", "StopGradient", "Switch",
})  # fmt: skip
"""Ops whose result is their input's buffer: they move no data."""

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})

FREE = SHARED | CALLS | {
    "BroadcastGradientArgs", "Const", "EmptyTensorList", "NoOp", "OptionalFromValue", "OptionalGetValue", "Placeholder", "Rank", "ReadVariableOp", "Shape", "ShapeN", "Size", "TensorListElementShape",
    "TensorListGetItem", "TensorListLength", "TensorListPopBack", "TensorListPushBack", "TensorListReserve", "TensorListSetItem", "VarHandleOp",
    "VariableShape",
}  # fmt: skip
"""Ops that move no floats: they hand on references (list items, variables) or look at shapes only."""

APART = "/-/"
"""Between the name of a function and that of one of its nodes."""

UPDATES = frozenset({"AssignAddVariableOp", "AssignSubVariableOp", "ResourceApplyGradientDescent"})
"""Ops that read and write a variable as large as what they add to it."""

SHAPE_ONLY = frozenset({"BroadcastGradientArgs", "Rank", "Shape", "ShapeN", "Size", "VariableShape"})


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Type and shape of one tensor; `bytes` is 0 for what is no float."""

    dtype: tf.DType
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size in bytes of a float tensor."""
        return self.dtype.size * math.prod(self.shape) if self.dtype in FLOATS else 0

    @property
    def sixteen(self) -> bool:
        """Whether the type is a 16-bit float."""
        return self.dtype in FLOATS and self.dtype.size == 2


Edge = tuple[str, int]
"""Node and number of its output."""

NOTHING = Tensor(tf.variant, ())


@dataclasses.dataclass(frozen=True)
class Execution:
    """One run of one node: what it read and wrote."""

    node: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def is_cast(self) -> bool:
        """Whether it casts between float types."""
        return self.node.op == "Cast" and self.inputs[0].bytes > 0 and self.outputs[0].bytes > 0

    @property
    def traffic(self) -> int:
        """Bytes of floats read and written. A list's items are read by TensorListStack, an update reads and writes its variable."""
        if self.node.op in FREE:
            return 0
        read, written = (sum(tensor.bytes for tensor in side) for side in (self.inputs, self.outputs))
        if self.node.op == "TensorListStack":
            read = written
        if self.node.op == "TensorListFromTensor":
            written = read
        return read + written + (2 * read if self.node.op in UPDATES else 0)

    @property
    def flops(self) -> float:
        """Floating-point operations of a matrix multiplication (two for each multiply-add), else 0."""
        if self.node.op not in ("MatMul", "BatchMatMul", "BatchMatMulV2"):
            return 0.0
        transposed = any(self.node.attr[name].b for name in ("transpose_a", "adj_x"))
        return 2.0 * math.prod(self.outputs[0].shape) * self.inputs[0].shape[-2 if transposed else -1]


class Stage:
    """One graph, and what it executed when it was run once.

    Attributes:
      nodes: node name to node, of the graph and of the functions that it still calls (those are called "Function.<number>/-/<node>"), inputs written `node:output`.
      results: what was fetched.
      fed: what was fed.
      executions: every run of every node, in no particular order; casts of constants are left out, since TensorFlow folds those before it runs.
    """

    def __init__(self, graph: Any, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, np.ndarray], before: Sequence[str] = ()) -> None:
        """Runs `graph`: first the nodes `before` (they initialise variables), then, traced, `fetches` and `targets` with `feeds` (node name to value)."""
        self._graph = _named_apart(graph)
        self.nodes = {node.name: node for node in self._graph.node}
        self._returned: dict[str, list[str]] = {}
        for number, function in enumerate(self._graph.library.function):
            self.nodes.update({node.name: node for node in _flat_nodes(function, number)})
            self._returned[function.signature.name] = _flat_results(function, number)
        self._hand_over_arguments()
        metadata = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
        with tf.Graph().as_default(), tf.compat.v1.Session(config=_as_it_is()) as session:
            tf.import_graph_def(self._graph, name="")
            session.run(list(before))
            wanted = [*(f"{name}:0" for name in fetches), *targets]
            self.results = session.run(wanted, {f"{name}:0": value for name, value in feeds.items()}, options, metadata)[: len(fetches)]
        self.fed = {name: _described(value) for name, value in feeds.items()}
        self.executions = list(self._executions(metadata, {(name, 0): tensor for name, tensor in self.fed.items()}))

    def _hand_over_arguments(self) -> None:
        """Adds each function's arguments as identities of what its first caller hands over."""
        functions = {function.signature.name: (number, function) for number, function in enumerate(self._graph.library.function)}
        for node in list(self.nodes.values()):
            if node.op in CALLS:
                number, function = functions[node.attr["f"].func.name]
                for argument, text in zip(function.signature.input_arg, node.input, strict=False):
                    name = f"{_prefix(number)}argument/{argument.name}"
                    self.nodes.setdefault(name, type(node)(name=name, op="Identity", input=[text]))

    def _executions(self, metadata: Any, written: dict[Edge, Tensor]) -> Iterator[Execution]:
        stats = [(self._name(one.node_name), one) for device in metadata.step_stats.dev_stats for one in device.node_stats]
        for name, one in stats:
            written.update({(name, output.slot): _tensor(output.tensor_description) for output in one.output})
        for name, one in stats:
            if name in self.nodes:
                node = self.nodes[name]
                edges = [source(text) for text in node.input if not text.startswith("^")]
                inputs = tuple(written.get(edge) or written.get(self.origin(edge)[:2], NOTHING) for edge in edges)
                execution = Execution(node, inputs, tuple(_tensor(output.tensor_description) for output in one.output))
                if not (execution.is_cast and self.origin(source(node.input[0]))[2] == "Const"):
                    yield execution

    def _name(self, recorded: str) -> str:
        """Returns the name of a node that the runtime may have prefixed with the names of calls."""
        function, apart, node = recorded.rpartition(APART)
        return f"{_prefix(int(function.rpartition('Function.')[2]))}{node}" if apart else recorded

    @functools.cached_property
    def backward(self) -> frozenset[str]:
        """The nodes that compute gradients: those that a tape or a gradient function has named, and all that read what they make.

        The lists on which a forward loop pushes are made in a tape's name, too, but before it.
        """
        readers: dict[str, list[str]] = {}
        for node in self.nodes.values():
            for name, port in map(source, node.input):
                if port >= 0:
                    readers.setdefault(name, []).append(node.name)
        named = [name for name in self.nodes if "gradient_tape" in name or "gradients/" in name]
        todo = [name for name in named if self.nodes[name].op not in ("Const", "EmptyTensorList") and self.nodes[name].op not in SHARED]
        found = set(todo)
        while todo:
            new = set(readers.get(todo.pop(), ())) - found
            found |= new
            todo += new
        return frozenset(found)

    def origin(self, edge: Edge) -> tuple[str, int, str]:
        """Returns the tensor whose buffer `edge` is, and the op that made it; looks through ops that share their input's buffer, into functions, and through
        a loop that changes nothing, but not through another Merge.
        """
        name, port = self._shared(edge)
        while name in self.nodes and self.nodes[name].op in CALLS:
            name, port = self._shared(source(self._returned[self.nodes[name].attr["f"].func.name][port]))
        return name, port, self.nodes[name].op if name in self.nodes else "Placeholder"

    def _shared(self, edge: Edge) -> Edge:
        """As `origin`, but a call stays a call."""
        name, port = edge
        while name in self.nodes and (name in self._unchanged or self.nodes[name].op in SHARED - {"Merge"}):
            node = self.nodes[name]
            name, port = source(node.input[port if node.op == "IdentityN" else 0])
        return name, port

    def _buffer(self, edge: Edge) -> tuple[Edge, ...]:
        """Returns what tells a tensor from others: where it was made, and in which call if a function made it."""
        name, port = self._shared(edge)
        if name not in self.nodes or self.nodes[name].op not in CALLS:
            return ((name, port),)
        inner = source(self._returned[self.nodes[name].attr["f"].func.name][port])
        while inner[0] in self.nodes and self.nodes[inner[0]].op in SHARED - {"Merge"} and "/argument/" not in inner[0]:
            inner = source(self.nodes[inner[0]].input[inner[1] if self.nodes[inner[0]].op == "IdentityN" else 0])
        if "/argument/" in inner[0]:  # it hands back what it was given
            arguments = [text for text in self.nodes if text.startswith(inner[0].partition("argument/")[0] + "argument/")]
            return self._buffer(source(self.nodes[name].input[arguments.index(inner[0])]))
        return ((name, 0), inner)

    @functools.cached_property
    def _unchanged(self) -> frozenset[str]:
        """The Merges of loop variables that a loop hands on as they are: what comes round is what the Merge gave."""
        found = set()
        for merge in (node.name for node in self.nodes.values() if node.op == "Merge"):
            name = source(self.nodes[merge].input[1])[0]
            while name in self.nodes and self.nodes[name].op in SHARED - {"IdentityN", "Merge"}:
                name = source(self.nodes[name].input[0])[0]
            if name == merge:
                found.add(merge)
        return frozenset(found)

    def is_weight(self, edge: Edge) -> bool:
        """Returns whether `edge` is a variable's value or a constant, or a cast or transposition of one."""
        name, _, op = self.origin(edge)
        while op in ("Cast", "Transpose"):
            name, _, op = self.origin(source(self.nodes[name].input[0]))
        return op in ("ReadVariableOp", "Const")

    def narrow_sums(self) -> int:
        """Returns the bytes of sums in 16 bit that a loop accumulates (a value that comes round as itself plus something), or that a variable is updated by: what
        TensorFlow's pass saves there it loses in accuracy. A sum stops growing once a term is below half a step of it, and the paper keeps the gradients of
        weights in float32 from the product on.
        """
        sums = {name for name in map(self._updates_by, self.nodes.values()) if name in self.nodes and self.nodes[name].op in ("Add", "AddN", "AddV2")}
        for merge in (node for node in self.nodes.values() if node.op == "Merge"):
            name, _, op = self.origin(source(merge.input[1]))
            if op in ("Add", "AddN", "AddV2") and any(self._shared(source(text))[0] == merge.name for text in self.nodes[name].input):
                sums.add(name)
        return sum(one.outputs[0].bytes for one in self.executions if one.node.name in sums and one.outputs[0].sixteen)

    def _updates_by(self, node: Any) -> str:
        """Returns the node whose result an update adds to a variable, before it is cast; "" for what is no update."""
        if node.op not in UPDATES:
            return ""
        name, _, op = self.origin(source(node.input[2 if node.op == "ResourceApplyGradientDescent" else 1]))
        return self._shared(source(self.nodes[name].input[0]))[0] if op == "Cast" else name

    def saved_bytes(self) -> int:
        """Returns the bytes that wait for the backward part: activations that it reads, each once, and what a forward loop pushes on lists."""
        crossing: dict[tuple[Edge, ...], int] = {}
        pushed = 0
        for one in self.executions:
            edges = [source(text) for text in one.node.input if not text.startswith("^")]
            if APART in one.node.name and one.node.name in self.backward:
                continue  # what a backward function reads, its call has read
            if one.node.name in self.backward and one.node.op not in SHAPE_ONLY | SHARED | {"ZerosLike"}:
                for edge, tensor in zip(edges, one.inputs, strict=True):
                    buffer = self._buffer(edge)
                    if buffer[0][0] not in self.backward and not self.is_weight(edge):
                        crossing[buffer] = tensor.bytes
            elif one.node.op == "TensorListPushBack" and not self.is_weight(edges[1]):
                pushed += one.inputs[-1].bytes
        return sum(crossing.values()) + pushed


def source(text: str) -> Edge:
    """Returns node and output number of an input as a NodeDef writes it; -1 for a control input."""
    name, _, port = text.removeprefix("^").partition(":")
    return name, -1 if text.startswith("^") else int(port or 0)


def _prefix(number: int) -> str:
    return f"Function.{number}{APART}"


def _named_apart(graph: Any) -> Any:
    """Returns a copy of `graph` in which the nodes of library functions are called "Function.<number>/-/<node>", so that a trace tells whose they are.

    No graph optimizer will touch those functions when they are called.
    """
    copy = type(graph).FromString(graph.SerializeToString())
    for nodes in (copy.node, *(function.node_def for function in copy.library.function)):
        for node in nodes:
            if node.op in CALLS:
                node.attr["config_proto"].s = _as_it_is().SerializeToString()
    for number, function in enumerate(copy.library.function):
        own = {node.name for node in function.node_def}

        def renamed(text: str, own: set[str] = own, prefix: str = _prefix(number)) -> str:
            mark, name, rest = ("^" if text.startswith("^") else ""), *text.removeprefix("^").partition(":")[::2]
            return f"{mark}{prefix if name in own else ''}{name}{':' + rest if rest else ''}"

        for node in function.node_def:
            node.name = renamed(node.name)
            node.input[:] = [renamed(text) for text in node.input]
        for mapping in (function.ret, function.control_ret):
            for key in list(mapping):
                mapping[key] = renamed(mapping[key])
    return copy


def _flat_nodes(function: Any, number: int) -> Iterator[Any]:
    """Yields copies of the nodes of `function` with inputs written `node:output number`."""
    nodes = {node.name: node for node in function.node_def}
    for node in nodes.values():
        copy = type(node).FromString(node.SerializeToString())
        copy.input[:] = [_flat(text, nodes, number) for text in node.input]
        yield copy


def _flat_results(function: Any, number: int) -> list[str]:
    nodes = {node.name: node for node in function.node_def}
    return [_flat(function.ret[arg.name], nodes, number) for arg in function.signature.output_arg]


def _flat(text: str, nodes: Mapping[str, Any], number: int) -> str:
    """Returns how a GraphDef writes the tensor that a FunctionDef writes `node:output:index`, or the name of an argument."""
    name, *rest = text.split(":")
    if text.startswith("^"):
        return text
    if name not in nodes:
        return f"{_prefix(number)}argument/{name}"
    node, before = nodes[name], 0
    for output in op_def_registry.get(node.op).output_arg:
        if output.name == rest[0]:
            break
        before += node.attr[output.number_attr].i if output.number_attr else len(node.attr[output.type_list_attr].list.type) if output.type_list_attr else 1
    return f"{name}:{before + int(rest[1])}"


def _as_it_is() -> Any:
    """A session that runs the graph as it is given: no graph optimizer touches it."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    return config


def _tensor(description: Any) -> Tensor:
    return Tensor(tf.dtypes.as_dtype(description.dtype), tuple(dim.size for dim in description.shape.dim))


def _described(value: np.ndarray) -> Tensor:
    return Tensor(tf.dtypes.as_dtype(value.dtype), value.shape)


@dataclasses.dataclass(frozen=True)
class Measures:
    """What one step of one variant costs.

    Attributes:
      coverage: share of the FLOPs of matrix multiplications that are done in 16 bit.
      casts: casts between float types that run.
      cast_bytes: bytes that those read and write.
      saved_bytes: bytes of activations that wait for the backward part.
      traffic: bytes of floats that all kernels read and write, casts included.
      narrow_sums: bytes of sums over a loop's steps that are in 16 bit.
    """

    coverage: float
    casts: int
    cast_bytes: int
    saved_bytes: int
    traffic: int
    narrow_sums: int


def measure(stages: Sequence[Stage], saved_bytes: int) -> Measures:
    """Returns the measures of a step that ran `stages`."""
    runs = [one for stage in stages for one in stage.executions]
    flops = {True: 0.0, False: 0.0}
    for one in runs:
        if one.flops:
            flops[one.inputs[0].sixteen] += one.flops
    casts = [one for one in runs if one.is_cast]
    return Measures(
        coverage=flops[True] / sum(flops.values()),
        casts=len(casts),
        cast_bytes=sum(one.traffic for one in casts),
        saved_bytes=saved_bytes,
        traffic=sum(one.traffic for one in runs),
        narrow_sums=sum(stage.narrow_sums() for stage in stages),
    )
