"""The graph that a `tf.compat.v1.Session` runs instead of the user's: the same nodes under the same names, some of them in 16 bit.

The user's graph stays as it is, so that names, types, MetaGraphs, gradients built later and SavedModels are what they were. A node enters the shadow when a
run first needs it, and then stays as it is, as a node does that a Session has seen: stateful kernels keep variables, queues and random numbers under its name.
Nodes that come later are converted by themselves.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tfmp import tf_api
from tfmp.conversion import Conversion
from tfmp.dtypes import DT_FLOAT, FLOAT32
from tfmp.graph import fragment
from tfmp.graph.fragment import Fragment, Tensor
from tfmp.rewriting.plan import InsertCast, Plan
from tfmp.tf_sessions import NativeGraph, functions_of, library_of

AGAIN, APART = "_tfmp_float32", "_tfmp"
"""What is put behind the names of nodes that have been converted and are there once more in float32, and of nodes whose names are scopes already."""

_numbers = itertools.count()


@dataclasses.dataclass
class Table:
    """Where the shadow differs from the user's graph. Tensors are named as in the user's graph, but for the values of the mappings.

    Attributes:
      sixteen: tensors that are in 16 bit, to their type numbers.
      views: those of them that there is a cast to float32 of, to that cast.
      casts: (float32 tensor, type number) to the tensor that is its cast or, for a constant, its copy in 16 bit.
      constants: float32 tensors whose 16-bit copies are constants, so that feeding the one does not feed the other.
      bypassed: tensors that some readers no longer read; feeding one would not reach those.
      altered: names of the nodes that have other types or inputs than the user's.
      renamed: names of nodes to the names under which they are there.
    """

    sixteen: dict[Tensor, int] = dataclasses.field(default_factory=dict)
    views: dict[Tensor, Tensor] = dataclasses.field(default_factory=dict)
    casts: dict[tuple[Tensor, int], Tensor] = dataclasses.field(default_factory=dict)
    constants: set[Tensor] = dataclasses.field(default_factory=set)
    bypassed: set[Tensor] = dataclasses.field(default_factory=set)
    altered: set[str] = dataclasses.field(default_factory=set)
    renamed: dict[str, str] = dataclasses.field(default_factory=dict)


class Shadow:
    """What is there of a user's graph, and in which types. Not safe to use from several threads.

    Attributes:
      native: the C graph.
      table: where it differs from the user's.
      there: names of the user's operations that are there.
    """

    def __init__(self, graph: Any) -> None:
        """Starts empty; `graph` is the user's `tf.Graph`."""
        self.native, self.table, self.there = NativeGraph(), Table(), set[str]()
        self._graph = graph
        self._library = tf_api.GraphDef().library
        self._functions_read = 0
        self._functions_there: set[str] = set()

    def add(self, operations: Sequence[Any]) -> None:
        """Adds operations of the user's graph as they are; raises `OpError` if TensorFlow refuses one, and then adds none."""
        self._read_library()
        self._import([operation.node_def for operation in operations], {})
        self.there.update(operation.name for operation in operations)

    def fragment(self, operations: Sequence[Any], results: Iterable[Tensor]) -> Fragment:
        """Returns the graph of operations that are not there yet, ready to be converted, as `cut_out` does."""
        self._read_library()
        return cut_out(self._graph, operations, results, self._library.function)

    def add_converted(self, operations: Sequence[Any], cut: Fragment, conversion: Conversion, try_out: Callable[[tf_api.GraphDef], None]) -> None:
        """Adds what `conversion` has made of `cut`, the fragment of `operations`; raises `OpError` if TensorFlow refuses it, and then adds nothing.

        `try_out` may raise, too: it gets the converted fragment as a graph of its own.
        """
        number = next(_numbers)

        def new_name(name: str, version: int) -> str:
            return f"{name}_tfmp_{conversion.format.name}_{number}" + (f"_{version}" if version else "")

        root, *functions = conversion.functions(new_name)
        protos = [function.proto for function in functions]
        try_out(fragment.standing_alone(root.proto, protos))
        plan = conversion.bodies[conversion.root].plan
        known = self._known(plan, cut)
        names = self._names(plan, number, known)
        nodes = fragment.renamed((node for node in cut.own(root.proto.node) if (node.name, 0) not in known), names)
        self._import(nodes, known | {(place, 0): self.view(tensor) for place, tensor in cut.outside.items()}, protos)
        before = {operation.name: operation.node_def for operation in operations}
        self.there.update(before)
        self.table.altered.update(node.name for node in nodes if node != before.get(node.name, node))
        self._note(plan, cut, names, known)

    def view(self, tensor: Tensor) -> Tensor:
        """Returns the tensor of the shadow that is `tensor` with the user's type; adds a cast if there is none yet."""
        table = self.table
        if tensor not in table.sixteen:
            return self.native_name(tensor)
        if tensor not in table.views:
            name, port = tensor
            node = fragment.cast_node(f"{name}-{port}-{FLOAT32.cast_name}-tfmp", tensor, self._node(name).device, table.sixteen[tensor], DT_FLOAT)
            self._import([node], {tensor: self.native_name(tensor)})
            table.views[tensor] = node.name, 0
        return table.views[tensor]

    def native_name(self, tensor: Tensor) -> Tensor:
        """Returns how `tensor`, whatever its type there, is called in the shadow."""
        return self.table.renamed.get(tensor[0], tensor[0]), tensor[1]

    def fall_back(self) -> None:
        """Adds all that hangs on converted nodes once more in float32; from now on that is what `view` returns."""
        todo, again = list(self.table.altered), dict[str, Any]()
        while todo:
            name = todo.pop()
            if name not in again and name in self.there:
                operation = again[name] = self._graph.get_operation_by_name(name)
                readers = (reader for output in operation.outputs for reader in output.consumers())
                todo += [reader.name for reader in (*readers, *operation._control_outputs)]
        self.table = Table(renamed=self.table.renamed | {name: name + AGAIN for name in again})
        self._import(fragment.renamed((operation.node_def for operation in again.values()), self.table.renamed), {})

    def _import(self, nodes: Sequence[tf_api.NodeDef], known: Mapping[Tensor, Tensor], functions: Sequence[tf_api.FunctionDef] = ()) -> None:
        """Adds `nodes`; what they read of others is what `known` says, or else has the user's type."""
        if apart := {node.name: node.name + APART for node in nodes if self.native.is_scope(node.name)}:
            nodes = fragment.renamed(nodes, apart)
        own, inputs, controls = {node.name for node in nodes}, dict[Tensor, Tensor](), dict[str, str]()
        for text in set(fragment.reads(nodes)):
            name, port = fragment.parse(text.removeprefix("^"))
            if name not in own and text.startswith("^"):
                controls[name] = self.table.renamed.get(name, name)
            elif name not in own:
                inputs[name, port] = known.get((name, port)) or self.view((name, port))
        new = [function for function in self._library.function if function.signature.name not in self._functions_there]
        gradients = [gradient for gradient in self._library.gradient if gradient.function_name not in self._functions_there]
        versions = self._graph.graph_def_versions
        self.native.add(fragment.graph_of(nodes, [*new, *functions], gradients, versions), inputs, controls)
        self._functions_there.update(function.signature.name for function in new)
        self.table.renamed.update(apart)

    def _read_library(self) -> None:
        count = len(functions_of(self._graph))
        if count != self._functions_read:
            self._library, self._functions_read = library_of(self._graph), count

    def _node(self, name: str) -> tf_api.NodeDef:
        return self._graph.get_operation_by_name(name).node_def

    def _names(self, plan: Plan, number: int, known: Mapping[Tensor, Tensor]) -> dict[str, str]:
        """Returns new names for casts whose names another fragment has taken."""
        names = [name for cast in plan.casts if (cast.name, 0) not in known for name in (cast.name, f"{cast.name}-Back")]
        return {name: f"{name}-{number}" for name in names if name in self.native}

    def _known(self, plan: Plan, cut: Fragment) -> dict[Tensor, Tensor]:
        """Returns the casts of tensors outside that need not be made, to what is in 16 bit already."""
        known = {}
        for cast in plan.casts:
            outside, target = cut.seen(_source(plan, cast)), cast.target.number
            if outside is not None and not cast.round_trip:
                if self.table.sixteen.get(outside) == target:
                    known[cast.name, 0] = self.native_name(outside)
                elif (outside, target) in self.table.casts:
                    known[cast.name, 0] = self.table.casts[outside, target]
        return known

    def _note(self, plan: Plan, cut: Fragment, names: Mapping[str, str], known: Mapping[Tensor, Tensor]) -> None:
        """Enters into the table what `plan` has changed."""
        body, table = plan.body, self.table
        for retype in plan.retypes:
            layout = body.layouts[retype.node]
            for port, slot in enumerate(layout.outputs):
                if layout.slots[slot] == retype.slot:
                    table.sixteen[body.names[retype.node], port] = retype.dtype
        for cast in plan.casts:
            made, source = (names.get(cast.name, cast.name), 0), _source(plan, cast)
            if cast.target is FLOAT32:
                table.views[source] = made
            elif not cast.round_trip and (cast.name, 0) not in known:
                source = cut.seen(source) or source
                table.casts[source, cast.target.number] = made
                table.constants.update({source} if cast.constant else ())
        for node, port in (*(reader for shortcut in plan.shortcuts for reader in shortcut.readers), *(move.reader for move in plan.moves)):
            proto = body.protos[node]
            if proto is not None:
                passed = fragment.parse(proto.input[port])
                table.bypassed.add(cut.seen(passed) or passed)


def cut_out(graph: Any, operations: Sequence[Any], results: Iterable[Tensor], functions: Iterable[tf_api.FunctionDef] | None = None) -> Fragment:
    """Returns some operations of a `tf.Graph` as a graph of their own, with the graph's `functions`; see `fragment.cut`.

    Of `results`, tensors of `operations`, those that are not float32 do not matter.
    """

    def node(name: str) -> tf_api.NodeDef:
        return graph.get_operation_by_name(name).node_def

    def type_of(tensor: Tensor) -> int:
        return graph.get_operation_by_name(tensor[0]).outputs[tensor[1]].dtype.base_dtype.as_datatype_enum

    nodes = [operation.node_def for operation in operations]
    float32 = [tensor for tensor in results if type_of(tensor) == DT_FLOAT]
    return fragment.cut(nodes, node, type_of, float32, library_of(graph).function if functions is None else functions)


def _source(plan: Plan, cast: InsertCast) -> Tensor:
    node, port = cast.source
    return plan.body.names[node], port
