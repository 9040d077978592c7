"""Protos to bodies: a function or a main graph is read once, column by column, since there may be very many nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfmp import tf_api
from tfmp.errors import GraphError
from tfmp.graph.body import ARG, ARG_LAYOUT, RETVAL, RETVAL_LAYOUT, Body, Edge
from tfmp.graph.schema import OpSchema
from tfmp.graph.wire import serialise, written


def read_function(function: tf_api.FunctionDef, library: Mapping[str, OpSchema]) -> Body:
    """Returns the view of `function`.

    Args:
      function: a definition as the eager context or a GraphDef's library holds it.
      library: schemas of functions that nodes may name as their op type.

    Raises:
      GraphError: an op is unknown, a node reads something that is not there, or two nodes have one name.
    """
    signature = function.signature
    body = Body(signature.name, attrs=function.attr, arguments=len(signature.input_arg), results=len(signature.output_arg))
    body.control_results = tuple(function.control_ret.values())
    add_pseudo(body, ARG, signature.input_arg)
    body.serialised = serialise(function)
    add_nodes(body, function.node_def, written(function, body.serialised), library)
    body.called_as_ops = frozenset(library)  # which may look functions up as they are asked for
    body.make_readable(range(len(body)))
    add_pseudo(body, RETVAL, signature.output_arg)
    _refuse_twins(body)
    connect(body, range(len(body)), function.ret)
    return body


def read_graph(graph: tf_api.GraphDef, library: Mapping[str, OpSchema]) -> Body:
    """Returns the view of the main graph of `graph`; raises `GraphError` as `read_function` does."""
    body = Body("")
    add_nodes(body, graph.node, written(graph), library)
    body.called_as_ops = frozenset(library)
    body.make_readable(range(len(body)))
    _refuse_twins(body)
    connect(body, range(len(body)), {})
    return body


def library_schemas(functions: Iterable[tf_api.FunctionDef]) -> dict[str, OpSchema]:
    """Returns the signature of each function as the schema of an op with its name (`FunctionLibraryDefinition::LookUpOpDef`)."""
    return {function.signature.name: OpSchema(function.signature) for function in functions}


def add_pseudo(body: Body, op: str, args: Sequence[tf_api.Message]) -> None:
    """Adds arguments or results of a function."""
    layout = ARG_LAYOUT if op == ARG else RETVAL_LAYOUT
    body.add([arg.name for arg in args], body.kinds.pseudo(op, layout, [arg.type for arg in args]), [""] * len(args), [None] * len(args))


def add_nodes(body: Body, nodes: Iterable[tf_api.NodeDef], as_written: Iterable[bytes], library: Mapping[str, OpSchema]) -> None:
    """Adds `nodes`, of which `as_written` has the attributes. Each field is read once, and column by column, since there may be very many."""
    protos = list(nodes)
    body.add([proto.name for proto in protos], body.kinds.read(as_written, protos, library), [proto.device for proto in protos], protos)


def _refuse_twins(body: Body) -> None:
    readable = len(body) - body.results
    if len(body.by_name) < readable:
        twin = next(name for number, name in enumerate(body.names[:readable]) if body.by_name[name] != number)
        raise GraphError(f"two nodes{_where(body)} are called {twin!r}; rename one of them.")


def connect(body: Body, numbers: Sequence[int], results: Mapping[str, str]) -> None:
    """Fills `body.inputs` of the nodes in `numbers`; `results` says what each result of a function reads."""
    find, wanted = body.tensors.get, [len(kind.layout.inputs) for kind in body.kinds.table]
    texts = [proto.input[:] if (proto := body.protos[node]) is not None else _read_by(body, node, results) for node in numbers]
    rows: list[list[Any]] = [list(map(find, row)) for row in texts]
    for place in [place for place, row in enumerate(rows) if None in row]:
        rows[place] = _edges(body, texts[place], rows[place], numbers[place])
    counts = [wanted[body.kind_of[node]] for node in numbers]
    if list(map(len, rows)) != counts:
        node, row, count = next((node, row, count) for node, row, count in zip(numbers, rows, counts, strict=True) if len(row) != count)
        raise GraphError(f"{body.ops[node]} node {body.names[node]!r}{_where(body)} has {len(row)} data inputs; its op takes {count}.")
    if numbers == range(len(body)):
        body.inputs = rows
        return
    for node, row in zip(numbers, rows, strict=True):
        body.inputs[node] = row


def _read_by(body: Body, node: int, results: Mapping[str, str]) -> list[str]:
    """Returns what the argument or result `node` of a function reads."""
    return [results.get(body.names[node], "")] if body.ops[node] == RETVAL else []


def _edges(body: Body, texts: Sequence[str], known: Sequence[Edge | None], reader: int) -> list[Edge]:
    """Returns the data inputs among `texts`; `known` are those that are first outputs in their usual form. Control inputs come last."""
    if any(text[:1] == "^" for text in texts):
        data = list(itertools.takewhile(lambda text: text[:1] != "^", texts))
        names = (text[1:] for text in texts[len(data) :] if text[:1] == "^")
        body.controlled[reader] = [body.by_name[name] for name in names if name in body.by_name]  # a part of a graph may wait for what is not in it
        texts = data
    return [edge or _find(body, text, reader) for edge, text in zip(known, texts)]  # noqa: B905  (the rest of `known` are control inputs)


def _find(body: Body, text: str, reader: int) -> Edge:
    """Returns the edge written `text`, which is not a first output in its usual form."""
    name, _, rest = text.partition(":")
    try:
        source = body.by_name[name]
        layout = body.layouts[source]
        port = layout.port.get(rest)
        if port is None:  # a main graph's number, or a first output in a short form
            port = 0 if not rest else int(rest) if rest.isdecimal() else layout.first_output[rest.partition(":")[0]] + int(rest.partition(":")[2] or 0)
    except (KeyError, ValueError):
        raise GraphError(f"node {body.names[reader]!r}{_where(body)} reads {text!r}, which is not there.") from None
    if port >= len(layout.outputs):
        raise GraphError(f"node {body.names[reader]!r}{_where(body)} reads {text!r}, but {name!r} has {len(layout.outputs)} outputs.")
    return source, port


def _where(body: Body) -> str:
    return f" of function {body.name!r}" if body.name else ""
