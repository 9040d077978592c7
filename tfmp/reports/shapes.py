"""Shapes of the tensors of a program, from wherever they are cheapest to have; looked up only when a report is asked for.

For each function, in this order: the Python graph that it was traced into, the `_output_shapes` that saved functions carry, TensorFlow's own shape
inference over an imported copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfmp import tf_api
from tfmp.conversion import Conversion
from tfmp.graph.body import Body
from tfmp.graph.flat import Shape, as_graph, declared_arguments, declared_shapes
from tfmp.graph.kinds import NEWER
from tfmp.program.calls import CALLING_OPS
from tfmp.program.unfold import Instance

Graphs = Mapping[str, Any]
"""Function name to the Python graph (`tf.Graph`) that it was traced into."""

ROUNDS = 3
"""How often a body is imported at most: once more after what its calls return has become known. Our own choice."""

Shapes = list[list[Shape]]
"""Node to the shapes of its outputs."""


def graphs_of(functions: Sequence[tf_api.AtomicFunction]) -> dict[str, Any]:
    """Returns the Python graph of each of `functions` and of everything they keep alive, as far as they still have them, by name."""
    found: dict[str, Any] = {}
    seen, todo = set[str](), list(functions)
    while todo:
        atomic = todo.pop()
        name = atomic.name.decode() if isinstance(atomic.name, bytes) else atomic.name
        if name not in seen:
            seen.add(name)
            todo += getattr(atomic, "children", ())
            graph = getattr(atomic, "_cached_graph", None)
            if graph is not None:
                found[name] = graph
    return found


def output_shapes(conversion: Conversion, graphs: Graphs | None = None) -> list[Shapes]:
    """Returns, for each instance of `conversion`, the shapes of the outputs of each of its nodes; the results of a function have none.

    Args:
      conversion: what was converted; shapes are those of the program before.
      graphs: Python graphs, by function name; for a function that is not there, shapes are worked out.
    """
    return _Inference(conversion, graphs or {}).all()


class _Inference:
    """The shapes of one program's instances, callers before what they call."""

    def __init__(self, conversion: Conversion, graphs: Graphs) -> None:
        self._instances, self._graphs = conversion.instances, graphs
        self._bodies = [body.plan.body for body in conversion.bodies.values()]
        originals = self._originals = conversion.originals
        library = originals[""].library.function if "" in originals else [proto for name, proto in originals.items() if name]
        self._library = {function.signature.name: function for function in library}
        self._known: dict[int, Shapes] = {}
        self._busy: set[int] = set()

    def all(self) -> list[Shapes]:
        for number in range(len(self._instances)):
            if number not in self._known:
                self._infer(number, [None] * self._bodies[number].arguments)
        return [self._known[number] for number in range(len(self._instances))]

    def _infer(self, number: int, arguments: Sequence[Shape]) -> list[Shape]:
        """Works out instance `number` and what it calls; returns the shapes of its results."""
        body, instance = self._bodies[number], self._instances[number]
        if number in self._busy:  # recursion
            return [None] * body.results
        self._busy.add(number)
        if body.arguments:
            declared = declared_arguments(self._originals[instance.function])
            arguments = [given if given is not None else own for given, own in zip(arguments, declared, strict=True)]
        calls: dict[int, Sequence[Shape]] = {}
        for _ in range(ROUNDS):
            shapes, final = self._body(body, instance, arguments, calls)
            before, calls = calls, {node: self._call(body, instance, node, shapes) for node in instance.calls}
            if final or calls == before or not any(map(_says_something, calls.values())):
                break
        self._known[number] = shapes
        self._busy.discard(number)
        return [shapes[source][port] for node in range(len(body) - body.results, len(body)) for source, port in body.inputs[node][:1]]

    def _call(self, body: Body, instance: Instance, node: int, shapes: Shapes) -> Sequence[Shape]:
        """Works out what `node` calls and returns the shapes of what it gives: those on which all branches agree."""
        given = [shapes[source][port] for source, port in body.inputs[node]]
        row, answers = CALLING_OPS[body.ops[node]], []
        for callee in instance.calls[node]:
            results = self._infer(callee.instance, given[len(given) - self._bodies[callee.instance].arguments :])
            if callee.attr not in row.predicates:
                answers.append(results)
        if row.predicates:
            answers.append(given)
        return [_agreed(shapes) for shapes in zip(*answers, strict=True)]

    def _body(self, body: Body, instance: Instance, arguments: Sequence[Shape], calls: Mapping[int, Sequence[Shape]]) -> tuple[Shapes, bool]:
        """Returns the shapes of one body, and whether they would stay the same if more were known of its calls."""
        traced = self._graphs.get(instance.function)
        if traced is not None:
            return list(_from_graph(body, traced)), True
        declared = [declared_shapes(proto.attr) for proto in body.protos if proto is not None]
        if all(len(one or ()) == len(body.layouts[node].outputs) for node, one in zip(body.proto_nodes, declared, strict=True)):
            return [*([shape] for shape in arguments), *(one or [] for one in declared), *([] for _ in range(body.results))], True
        try:
            imported = tf_api.imported(as_graph(body, arguments, calls, self._library.values()))
        except ValueError:  # a graph that can be rewritten but not imported, for a name that TensorFlow would not give: no shapes, and the report says so
            return [[None] * len(layout.outputs) for layout in body.layouts], True
        return list(_from_graph(body, imported)), False


def _says_something(shapes: Sequence[Shape]) -> bool:
    return any(shape is not None for shape in shapes)


def _agreed(shapes: Sequence[Shape]) -> Shape:
    first, *others = shapes
    if first is None or any(shape is None or len(shape) != len(first) for shape in others):
        return None
    return [size if all(shape is not None and shape[axis] == size for shape in others) else None for axis, size in enumerate(first)]


def _from_graph(body: Body, graph: Any) -> Iterator[list[Shape]]:
    """Yields the shapes of each node's outputs, from a graph that has the nodes of `body` under their names."""
    traced_inputs = getattr(graph, "inputs", None)
    for node, name in enumerate(body.names):
        outputs = len(body.layouts[node].outputs)
        if node in body.made:
            yield [None if shape is None else list(shape) for shape in body.made[node]]
        elif node < body.arguments and traced_inputs is not None and len(traced_inputs) >= body.arguments:
            yield [_shape(traced_inputs[node])]
        else:
            operation = _operation(graph, name, body.ops[node], outputs) if outputs else None
            yield [None] * outputs if operation is None else [_shape(tensor) for tensor in operation.outputs]


def _operation(graph: Any, name: str, op: str, outputs: int) -> Any:
    """Returns the operation that became the node `name`, or None.

    A node that has the name of an argument gets a number in the FunctionDef (`NodeNameMapping` in TensorFlow's `graph_to_functiondef.cc`).
    """
    for candidate in (name, name.rpartition("_")[0]):
        try:
            operation = graph.get_operation_by_name(candidate)
        except (KeyError, ValueError):
            continue
        if len(operation.outputs) == outputs and NEWER.get(operation.type, operation.type) in (op, "Placeholder", "IdentityN"):
            return operation
    return None


def _shape(tensor: Any) -> Shape:
    shape = tensor.shape
    return None if shape.rank is None else shape.as_list()
