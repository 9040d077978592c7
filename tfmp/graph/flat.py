"""One body as a plain graph that TensorFlow can import: to learn shapes, not to run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tfmp import tf_api
from tfmp.graph.body import Body

Shape = Sequence[int | None] | None
"""Sizes, None for an unknown one; None for an unknown rank."""


def as_graph(body: Body, arguments: Sequence[Shape], results: Mapping[int, Sequence[Shape]], functions: Iterable[tf_api.FunctionDef]) -> tf_api.GraphDef:
    """Returns a GraphDef with a Placeholder for every argument of `body` and a copy of each of its nodes, under the same names.

    Args:
      body: what is copied; its results have no node of their own.
      arguments: shape of each argument.
      results: node number to the shapes of its outputs, for calls whose results are known: an IdentityN of placeholders stands for them.
      functions: the library.
    """
    graph = tf_api.GraphDef()
    graph.library.function.extend(functions)
    for node in range(body.arguments):
        _placeholder(graph, body.names[node], body.types[node][0], arguments[node])
    for node in body.proto_nodes:
        types = [body.types[node][slot] for slot in body.layouts[node].outputs]
        if node in results and types:
            stand_in = graph.node.add(name=body.names[node], op="IdentityN")
            stand_in.attr["T"].list.type.extend(types)
            for port, (dtype, shape) in enumerate(zip(types, results[node], strict=True)):
                stand_in.input.append(_placeholder(graph, f"{body.names[node]}/tfmp_result_{port}", dtype, shape))
        else:
            _copy(graph, body, node)
    return graph


def _copy(graph: tf_api.GraphDef, body: Body, node: int) -> None:
    proto = body.protos[node]
    copied = graph.node.add()
    copied.CopyFrom(proto)
    del copied.input[:]
    copied.input.extend(f"{body.names[source]}:{port}" for source, port in body.inputs[node])
    copied.device = ""
    for attr in ("_class", "_output_shapes"):
        copied.attr.pop(attr, None)


def _placeholder(graph: tf_api.GraphDef, name: str, dtype: int, shape: Shape) -> str:
    node = graph.node.add(name=name, op="Placeholder")
    node.attr["dtype"].type = dtype
    node.attr["shape"].shape.unknown_rank = shape is None
    for size in shape or ():
        node.attr["shape"].shape.dim.add(size=-1 if size is None else size)
    return name


def declared_shapes(attrs: Mapping[str, tf_api.AttrValue]) -> list[Shape] | None:
    """Returns the shapes that the attributes of a node or of an argument carry in `_output_shapes`, as those of saved functions do, or None."""
    value = attrs.get("_output_shapes")
    if value is None:
        return None
    return [None if shape.unknown_rank else [None if dim.size < 0 else dim.size for dim in shape.dim] for shape in value.list.shape or [value.shape]]


def declared_arguments(function: tf_api.FunctionDef) -> list[Shape]:
    """Returns the shapes that a definition gives its arguments; None where it gives none."""
    declared = (declared_shapes(function.arg_attr[index].attr) if index in function.arg_attr else None for index in range(len(function.signature.input_arg)))
    return [shapes[0] if shapes else None for shapes in declared]
