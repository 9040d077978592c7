"""An edited proto to a body, by reading only what the edit may have changed."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from tfmp import tf_api
from tfmp.graph.body import ARG, Body
from tfmp.graph.grow import Grown
from tfmp.graph.schema import OpSchema
from tfmp.graph.view import add_nodes, add_pseudo, connect
from tfmp.graph.wire import columns_of_nodes


def reread(body: Body, proto: tf_api.FunctionDef | tf_api.GraphDef, touched: Mapping[int, bool], library: Mapping[str, OpSchema]) -> Body:
    """Returns the view of `proto`, an edited copy of what `body` was read from, by reading only what the edit may have changed.

    Args:
      body: the view before the edit.
      proto: the copy: the same nodes in the same order, then added ones. The added ones come last in the view, after the results.
      touched: numbers of the nodes of which something may differ, and of the results whose sources may: to whether that may be more than what they read.
      library: as for `read_function`.
    """
    start, in_proto = len(body), body.proto_nodes
    nodes, signature = (proto.node_def, proto.signature) if body.name else (proto.node, tf_api.OpDef())
    numbers = [number for number in touched if number in in_proto]
    columns = columns_of_nodes([*(nodes[number - body.arguments] for number in numbers), *nodes[len(in_proto) :]])
    new, (again, added) = _copy(body), columns.parted(len(numbers))
    for number, node in zip(numbers, again.nodes, strict=True):
        new.nodes[number] = node
    _reread_nodes(new, numbers, again.attributes, library)
    changed = [number for number, more in touched.items() if more]
    _reread_pseudo(new, [number for number in changed if number < in_proto.start], signature.input_arg, 0)
    _reread_pseudo(new, [number for number in changed if number >= in_proto.stop], signature.output_arg, in_proto.stop)
    add_pseudo(new, ARG, more := signature.input_arg[body.arguments :])
    add_nodes(new, added, library)
    new.make_readable(range(start, len(new)))
    results = [number for number in touched if number >= in_proto.stop]
    texts = [*again.inputs, *([proto.ret[body.names[number]]] for number in results), *[()] * len(more), *added.inputs]
    connect(new, [*numbers, *results, *range(start, len(new))], texts)
    return new


def _reread_nodes(body: Body, numbers: Sequence[int], attributes: Sequence[bytes], library: Mapping[str, OpSchema]) -> None:
    """Gives the nodes in `numbers` the ops and types that `attributes` say."""
    for number, kind in zip(numbers, body.kinds.read(attributes, library), strict=True):
        one = body.kinds.table[kind]
        body.kind_of[number] = kind
        body.ops[number], body.layouts[number], body.types[number] = one.op, one.layout, one.types


def _reread_pseudo(body: Body, numbers: Sequence[int], args: Sequence[tf_api.Message], first: int) -> None:
    """Gives arguments, or results, the types that `args` have, which start at node `first`."""
    if numbers:
        kinds = body.kinds.pseudo(body.ops[first], body.layouts[first], [args[number - first].type for number in numbers])
        for number, kind in zip(numbers, kinds, strict=True):
            body.kind_of[number], body.types[number] = kind, body.kinds.table[kind].types


def grown(body: Body, growth: Grown, library: Mapping[str, OpSchema]) -> Body:
    """Returns the view of the function that `body` has become as `read_function` does, with the added nodes before the results, by reading only those and what
    was edited. `library` is as for `read_function`.
    """
    new, stop, (again, added) = _copy(body), body.proto_nodes.stop, growth.columns.parted(len(growth.edited))
    new.rest = growth.rest
    for number, node in zip(growth.edited, again.nodes, strict=True):
        new.nodes[number] = node
        new.tensors.pop(new._first_text(number), None)
    _reread_nodes(new, growth.edited, again.attributes, library)
    new.tensors.update({new._first_text(number): (number, 0) for number in growth.edited})
    columns: list[list[Any]] = [new.names, new.ops, new.devices, new.kind_of, new.layouts, new.types, new.nodes, new.inputs]
    results = [column[stop:] for column in columns]
    for column in columns:
        del column[stop:]
    add_nodes(new, added, library)
    new.make_readable(range(stop, len(new)))
    moved = len(new) - stop
    for column, rest in zip(columns, results, strict=True):
        column += rest
    changed = [number for number in growth.touched if number >= stop]
    texts = [*again.inputs, *([growth.results[body.names[number]]] for number in changed), *added.inputs]
    connect(new, [*growth.edited, *(number + moved for number in changed), *range(stop, stop + moved)], texts)
    return new


CHANGED = (
    "names", "ops", "devices", "kinds", "kind_of", "layouts", "types", "inputs", "nodes", "by_name", "tensors", "controlled", "marked",
)  # fmt: skip
"""What reading again may change of a body."""

FOUND_OUT = frozenset({"dead", "shapes", *(name for name, value in vars(Body).items() if isinstance(value, functools.cached_property))})
"""What is found out of a body, and holds no more once it has changed."""


def _copy(body: Body) -> Body:
    """Returns a copy of `body` that can be changed, without what was found out about it."""
    new = Body(body.name)
    new.__dict__.update({name: value for name, value in body.__dict__.items() if name not in FOUND_OUT})
    for name in CHANGED:
        setattr(new, name, copy.copy(getattr(body, name)))
    return new
