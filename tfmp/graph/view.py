"""Protos to bodies: a function or a main graph is read once, column by column, since there may be very many nodes."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfmp import tf_api
from tfmp.errors import GraphError
from tfmp.graph.body import ARG, ARG_LAYOUT, RETVAL, RETVAL_LAYOUT, Body, Edge
from tfmp.graph.schema import OpSchema
from tfmp.graph.wire import END, Columns, Original, as_bytes, columns_of, columns_of_graph, parted


def read_function(function: Original, library: Mapping[str, OpSchema]) -> Body:
    """Returns the view of `function`.

    Args:
      function: a definition as the eager context or a GraphDef's library holds it, or its serialised form, which is read in half the time.
      library: schemas of functions that nodes may name as their op type.

    Raises:
      GraphError: an op is unknown, a node reads or is said to run what is not there, something has no name, or two nodes have one name.
    """
    whole = as_bytes(function)
    nodes, rest = parted(whole)
    head = tf_api.FunctionDef.FromString(rest)
    columns = columns_of(nodes, whole, f" of function {head.signature.name!r}")
    arguments, results = head.signature.input_arg, head.signature.output_arg
    body = Body(head.signature.name, attrs=head.attr, arguments=len(arguments), results=len(results), rest=rest)
    body.control_results = tuple(head.control_ret.values())
    add_pseudo(body, ARG, arguments)
    add_nodes(body, columns, library)
    body.called_as_ops = frozenset(library)  # which may look functions up as they are asked for
    body.make_readable(range(len(body)))
    add_pseudo(body, RETVAL, results)
    _refuse_twins(body)
    _refuse_missing(body)
    connect(body, range(len(body)), [*[END] * body.arguments, *columns.inputs, *read_by_results([result.name for result in results], head.ret, body)])
    return body


def read_graph(graph: tf_api.GraphDef, library: Mapping[str, OpSchema]) -> Body:
    """Returns the view of the main graph of `graph`; raises `GraphError` as `read_function` does."""
    body, columns = Body(""), columns_of_graph(graph)
    add_nodes(body, columns, library)
    body.called_as_ops = frozenset(library)
    body.make_readable(range(len(body)))
    _refuse_twins(body)
    connect(body, range(len(body)), columns.inputs)
    return body


def library_schemas(functions: Iterable[tf_api.FunctionDef]) -> dict[str, OpSchema]:
    """Returns the signature of each function as the schema of an op with its name (`FunctionLibraryDefinition::LookUpOpDef`)."""
    return {function.signature.name: OpSchema(function.signature) for function in functions}


def add_pseudo(body: Body, op: str, args: Sequence[tf_api.Message]) -> None:
    """Adds arguments or results of a function; raises `GraphError` if an argument has no name."""
    if op == ARG and not all(arg.name for arg in args):
        raise GraphError(f"an argument{_where(body)} has no name, so that nothing can read it; give it one.")
    layout = ARG_LAYOUT if op == ARG else RETVAL_LAYOUT
    body.add([arg.name for arg in args], body.kinds.pseudo(op, layout, [arg.type for arg in args]), [""] * len(args), [None] * len(args))


def add_nodes(body: Body, columns: Columns, library: Mapping[str, OpSchema]) -> None:
    """Adds nodes."""
    body.add(columns.names, body.kinds.read(columns.attributes, library), columns.devices, columns.nodes)


def _refuse_twins(body: Body) -> None:
    readable = len(body) - body.results
    if len(body.by_name) < readable:
        twin = next(name for number, name in enumerate(body.names[:readable]) if body.by_name[name] != number)
        raise GraphError(f"two nodes{_where(body)} are called {twin!r}; rename one of them.")


def _refuse_missing(body: Body) -> None:
    for name in body.control_results:
        if name not in body.by_name:
            raise GraphError(f"node {name!r}{_where(body)} is always to run (control_ret), but is not there.")


def read_by_results(names: Iterable[str], ret: Mapping[str, str], body: Body) -> Iterator[str]:
    """Yields how what each of the results `names` reads is written, as `connect` takes it; raises `GraphError` for a result that says nothing of that."""
    for name in names:
        text = ret.get(name)
        if not text:
            raise GraphError(f"node {name!r}{_where(body)} reads '', which is not there.")
        yield text
        yield END


def connect(body: Body, numbers: Sequence[int], texts: Sequence[str]) -> None:
    """Fills `body.inputs` of the nodes in `numbers`; `texts` says how what each of them reads, or waits for, is written (as `Columns.inputs` does)."""
    found: list[Any] = [*map(body.tensors.get, texts)]
    not_found = [place for place, edge in enumerate(found) if edge is None]
    ends = [place for place in not_found if not texts[place]]
    starts = [0, *[end + 1 for end in ends]]
    rows = [found[start:end] for start, end in zip(starts, ends, strict=False)]
    if len(not_found) > len(ends):
        for number in dict.fromkeys(bisect.bisect_left(ends, place) for place in not_found if texts[place]):
            rows[number] = _edges(body, texts[starts[number] : ends[number]], rows[number], numbers[number])
    wanted = [len(kind.layout.inputs) for kind in body.kinds.table]
    counts = [wanted[body.kind_of[node]] for node in numbers]
    if list(map(len, rows)) != counts:
        node, row, count = next((node, row, count) for node, row, count in zip(numbers, rows, counts, strict=True) if len(row) != count)
        raise GraphError(f"{body.ops[node]} node {body.names[node]!r}{_where(body)} has {len(row)} data inputs; its op takes {count}.")
    if numbers == range(len(body)):
        body.inputs = rows
        return
    for node, row in zip(numbers, rows, strict=True):
        body.inputs[node] = row


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
