"""Training steps as flat graphs, and what each of their nodes reads and writes: shapes without running anything, and by a traced run where there are loops.

Flat: functions inlined, loops and branches lowered (TensorFlow's runtime does that before its mixed precision pass). A graph without loops or branches has
all its shapes by shape inference, since the batch is static; one with them is small here, and one traced run tells shapes and how often each node runs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from benchmarks.executed import FLOATS, NOTHING, SHARED, Edge, Execution, Stage, Tensor, source
from benchmarks.programs import _with_library
from benchmarks.steps import UPDATE
from tests.oracle.lowering import lower
from tfmp import tf_api

_RESERVED = Tensor(tf.float32, (0,))
"""The last output of FusedBatchNormV3: what cuDNN may keep for the gradient, of a size that only cuDNN knows; it keeps nothing without fused activation."""

_FORBID_INLINING = ("_XlaMustCompile", "_noinline")

CONTROL = frozenset({"Enter", "Switch", "RefSwitch", "RefEnter"})


CALL = "call"

ASSIGNS = frozenset({"AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp"})


Found = TypeVar("Found")


class Flat:
    """A flat graph: `graph` (a GraphDef) and `fetches`, the names of its results and of "effects", which runs its side effects."""

    def __init__(self, graph: Any, fetches: Sequence[str]) -> None:
        """Keeps both."""
        self.graph, self.fetches = graph, tuple(fetches)


def flatten(name: str, captured: Sequence[Any], compiled: bool = False) -> Flat:
    """Returns the function `name`, which the eager context has, as a flat graph.

    Arguments are placeholders "argument_0", ..., captured variables VarHandleOps "variable_<argument>", results identities "result_0", ...

    Args:
      name: of the function.
      captured: what is handed over for the last arguments.
      compiled: whether XLA compiles it: then the graph calls it, and is not flat.
    """
    function = function_def_to_graph(tf_api.function_definition(name))
    plain = len(function.inputs) - len(captured)
    with tf.Graph().as_default() as graph:
        inputs = []
        for index, tensor in enumerate(function.inputs):
            if tensor.dtype == tf.resource:
                held = captured[index - plain]._handle_data.shape_and_type[0]
                dtype, shape = tf.dtypes.as_dtype(held.dtype), tf.TensorShape(held.shape)
                inputs.append(tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=f"variable_{index}", name=f"variable_{index}"))
            else:
                inputs.append(tf.compat.v1.placeholder(tensor.dtype, tensor.shape, name=f"argument_{index}"))
        outputs, effects = (_call if compiled else _spread)(name, function, inputs)
        results = [tf.identity(tensor, name=f"result_{index}") for index, tensor in enumerate(outputs)]
        tf.group(*effects, name="effects")
    flat = Flat(_with_library(graph.as_graph_def()), [*(tensor.op.name for tensor in results), "effects"])
    return flat if compiled else lowered(flat)


def _spread(name: str, function: Any, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    mapped = {tensor.name: value for tensor, value in zip(function.inputs, inputs, strict=True)}
    wanted = [tensor.name for tensor in function.outputs] + [operation.name for operation in function.control_outputs]
    found = tf.import_graph_def(_with_library(function.as_graph_def()), name="", input_map=mapped, return_elements=wanted)
    return found[: len(function.outputs)], found[len(function.outputs) :]


def _call(name: str, function: Any, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The call as an XlaLaunch, which TensorFlow's runtime makes of it before it optimizes graphs (xla_kernel_creator.cc)."""
    del function
    plain = [tensor for tensor in inputs if tensor.dtype != tf.resource]
    signature = tf_api.function_definition(name).signature
    launch = tf.compat.v1.NodeDef(name=CALL, op="XlaLaunch", input=[tensor.name for tensor in [*plain, *inputs[len(plain) :]]])
    launch.attr["Tconstants"].list.SetInParent()
    launch.attr["Targs"].list.type.extend(tensor.dtype.as_datatype_enum for tensor in plain)
    launch.attr["Nresources"].i = len(inputs) - len(plain)
    launch.attr["Tresults"].list.type.extend(argument.type for argument in signature.output_arg)
    launch.attr["function"].func.name = name
    graph = tf.compat.v1.GraphDef()
    graph.node.extend([*tf.compat.v1.get_default_graph().as_graph_def().node, launch])
    mapped = {tensor.name: tensor for tensor in inputs}
    (call,) = tf.import_graph_def(_with_library(graph), name="", input_map=mapped, return_elements=[CALL])
    return list(call.outputs), [call]


def lowered(flat: Flat) -> Flat:
    """Returns `flat` with functions inlined, those for XLA too, and control flow lowered."""
    graph = type(flat.graph).FromString(flat.graph.SerializeToString())
    for owners in (graph.node, graph.library.function, *(function.node_def for function in graph.library.function)):
        for owner in owners:
            for name in _FORBID_INLINING:
                owner.attr.pop(name, None)
    for node in graph.node:
        if node.op == "XlaLaunch":
            _as_plain_call(node)
    return Flat(lower(graph, flat.fetches), flat.fetches)


def _as_plain_call(node: Any) -> None:
    function, results = node.attr["function"].func.name, list(node.attr["Tresults"].list.type)
    given = [*node.attr["Targs"].list.type, *[tf.resource.as_datatype_enum] * node.attr["Nresources"].i]
    node.ClearField("attr")
    node.op = "StatefulPartitionedCall"
    node.attr["Tin"].list.type.extend(given)
    node.attr["Tout"].list.type.extend(results)
    node.attr["f"].func.name = function


def joined(parts: Sequence[Flat], links: Sequence[tuple[int, int]]) -> Flat:
    """Returns a forward and a backward graph as one: each (result of the first, argument of the second) is linked and no longer fetched; one graph as it is."""
    if len(parts) == 1:
        return parts[0]
    handed = {f"argument_{argument}": f"result_{result}" for result, argument in links}
    graph = type(parts[0].graph)()
    for prefix, part in zip(("forward/", "backward/"), parts, strict=True):
        for node in part.graph.node:
            copy = graph.node.add()
            copy.CopyFrom(node)
            copy.name = prefix + node.name
            copy.input[:] = [f"^{prefix}{text[1:]}" if text.startswith("^") else prefix + text for text in node.input]
            if prefix == "backward/" and node.name in handed and node.op == "Placeholder":
                copy.op, copy.input[:] = "Identity", ["forward/" + handed[node.name]]
                copy.attr["T"].type = node.attr["dtype"].type
                for name in ("dtype", "shape"):
                    copy.attr.pop(name, None)
    linked = set(handed.values())
    kept = [f"forward/{name}" for name in parts[0].fetches if name not in linked] + [f"backward/{name}" for name in parts[1].fetches]
    return Flat(graph, kept)


class Program(Stage):
    """A flat graph with all that it executes: by shape inference, each node once, or, if it has loops or branches, by a traced run with zeros.

    Attributes:
      graph: what of the flat graph `fetches` need.
      nodes: name to node, only what `fetches` need.
      fetches: names of results and effects.
      executions: every run of every node; casts of constants are left out, since TensorFlow folds those before it runs.
      types: name to the types and static shapes of a node's outputs.
    """

    def __init__(self, flat: Flat) -> None:
        """Reads shapes off `flat`."""
        self.fetches = flat.fetches
        self.graph = graph = _needed(flat)
        with tf.Graph().as_default() as imported:
            tf.import_graph_def(graph, name="")
        self.types = {one.name: tuple(_static(tensor) for tensor in one.outputs) for one in imported.get_operations()}
        for node in graph.node:
            if node.op == "FusedBatchNormV3":
                self.types[node.name] = (*self.types[node.name][:5], _RESERVED)
        if any(node.op in CONTROL for node in graph.node):
            arguments = {node.name: node for node in graph.node if node.op == "Placeholder"}
            feeds = {name: np.zeros(self.types[name][0].shape, self.types[name][0].dtype.as_numpy_dtype) for name in arguments}
            results = [name for name in self.fetches if not name.endswith("effects")]
            super().__init__(_with_values(graph), results, [name for name in self.fetches if name.endswith("effects")], feeds, ["initialise"])
            self.nodes = {node.name: node for node in graph.node}
            arrived = [Execution(node, (), self.types[name]) for name, node in arguments.items()]  # a traced run does not tell of what is fed
            self.executions = [*arrived, *(one for one in self.executions if one.node.name in self.nodes and one.node.name not in arguments)]
        else:
            self.nodes, self.fed, self.results = {node.name: node for node in graph.node}, {}, []
            self.executions = list(self._once())

    def _once(self) -> Iterator[Execution]:
        for node in self.nodes.values():
            edges = [source(text) for text in node.input if not text.startswith("^")]
            one = Execution(node, tuple(self.types[name][port] for name, port in edges), self.types[node.name])
            for tensor in one.outputs:
                if None in tensor.shape and tensor.dtype in FLOATS:
                    raise ValueError(f"output of {node.op} {node.name!r} has no static shape: {tensor.shape}")
            if not (one.is_cast and self.origin(edges[0])[2] == "Const"):
                yield one

    @functools.cached_property
    def backward(self) -> frozenset[str]:
        """As `Stage.backward`; a cast belongs to where its input comes from, whatever its name, since it can run as soon as that has."""
        found = set(super().backward)
        for one in self.executions:
            if one.is_cast and self.origin(source(one.node.input[0]))[0] not in found:
                found.discard(one.node.name)
        return frozenset(found)

    @functools.cached_property
    def update(self) -> frozenset[str]:
        """The nodes of the weight update: those in the name scope `UPDATE`, and casts of what those make; a cast that hands a gradient over is none of them."""
        found = {name for name in self.nodes if UPDATE in name.split("/")}
        casts = {one.node.name: self._past_casts(source(one.node.input[0])[0]) for one in self.executions if one.is_cast}
        return frozenset({name for name in found if name not in casts} | {name for name, maker in casts.items() if maker in found})

    @functools.cached_property
    def _written_before(self) -> frozenset[Edge]:
        """(handle, node) for every node that comes after a write to the variable."""
        readers: dict[str, list[str]] = {}
        for node in self.nodes.values():
            for text in node.input:
                readers.setdefault(source(text)[0], []).append(node.name)
        writes = [(self.origin(self.edges(node)[0])[0], node.name) for node in self.nodes.values() if node.op in ASSIGNS]
        return frozenset((handle, name) for handle, write in writes for name in reach([write], readers))

    def variable(self, name: str) -> str:
        """Returns the variable that node `name` reads, or the name itself if it reads none."""
        return self.origin(self.edges(self.nodes[name])[0])[0] if name in self.nodes and self.nodes[name].op == "ReadVariableOp" else name

    def value(self, edge: Edge) -> Edge:
        """Returns one name for all reads of a variable that no write comes before: its first one's; any other tensor's own."""
        name, port = edge
        return self._first_reads.get(name, name), port

    @functools.cached_property
    def _first_reads(self) -> dict[str, str]:
        first: dict[str, str] = {}
        found = {}
        for node in self.nodes.values():
            if node.op == "ReadVariableOp":
                handle = self.variable(node.name)
                if (handle, node.name) not in self._written_before:
                    found[node.name] = first.setdefault(handle, node.name)
        return found

    @functools.cached_property
    def loop_sums(self) -> frozenset[str]:
        """The nodes that add to a value which comes round a loop as itself plus something."""
        found = set()
        for merge in (node for node in self.nodes.values() if node.op == "Merge" and "NextIteration" in {self.nodes[name].op for name, _ in self.edges(node)}):
            (back,) = (name for name, _ in self.edges(merge) if self.nodes[name].op == "NextIteration")
            name = self._past_casts(back)
            if (
                self.nodes[name].op in ("Add", "AddN", "AddV2")
                and self.types[name][0].dtype in FLOATS
                and any(self._past_casts(read) == merge.name for read, _ in self.edges(self.nodes[name]))
            ):
                found.add(name)
        return frozenset(found)

    def _past_casts(self, name: str) -> str:
        """Returns the node that made what `name` casts or hands on."""
        while self.nodes[name].op == "Cast" or self.nodes[name].op in SHARED - {"Merge"}:
            name = self.edges(self.nodes[name])[0][0]
        return name

    def edges(self, node: Any) -> list[Edge]:
        """Returns the tensors that `node` reads."""
        return [source(text) for text in node.input if not text.startswith("^")]


def reach(start: Iterable[Found], following: Mapping[Found, Sequence[Found]]) -> set[Found]:
    """Returns `start` and all that can be reached from it."""
    found = set(start)
    todo = list(found)
    while todo:
        new = set(following.get(todo.pop(), ())) - found
        found |= new
        todo += new
    return found


def _needed(flat: Flat) -> Any:
    nodes: Mapping[str, Any] = {node.name: node for node in flat.graph.node}
    found, todo = set(flat.fetches), list(flat.fetches)
    while todo:
        new = {source(text)[0] for text in nodes[todo.pop()].input} - found
        found |= new
        todo += new
    graph = type(flat.graph)(library=flat.graph.library, versions=flat.graph.versions)
    graph.node.extend(node for node in flat.graph.node if node.name in found)
    return graph


def _static(tensor: Any) -> Tensor:
    shape = tensor.shape
    return Tensor(tensor.dtype.base_dtype, tuple(shape.as_list()) if shape.rank is not None else (None,)) if tensor.dtype != tf.variant else NOTHING


def _with_values(graph: Any) -> Any:
    """Returns `graph` with a node "initialise" that fills its variables with zeros."""
    copy = type(graph).FromString(graph.SerializeToString())
    with tf.Graph().as_default() as fillers:
        handles = [node for node in graph.node if node.op == "VarHandleOp"]
        assigned = []
        for number, node in enumerate(handles):
            dtype, shape = tf.dtypes.as_dtype(node.attr["dtype"].type), tf.TensorShape(node.attr["shape"].shape)
            handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=node.attr["shared_name"].s.decode(), name=f"initialise/{number}/handle")
            assigned.append(
                tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros(shape, dtype, name=f"initialise/{number}/zeros"), name=f"initialise/{number}")
            )
        tf.group(*assigned, name="initialise")
    copy.node.extend(fillers.as_graph_def().node)
    return copy
