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
from tfmp.graph.wire import written_one


def reread(
    body: Body,
    proto: tf_api.FunctionDef | tf_api.GraphDef,
    touched: Mapping[int, bool],
    library: Mapping[str, OpSchema],
    as_written: Sequence[bytes] = (),
) -> Body:
    """Returns the view of `proto`, an edited copy of what `body` was read from, by reading only what the edit may have changed.

    Args:
      body: the view before the edit.
      proto: the copy: the same nodes in the same order, then added ones. The added ones come last in the view, after the results.
      touched: numbers of the nodes of which something may differ, and of the results whose sources may: to whether that may be more than what they read.
      library: as for `read_function`.
      as_written: the nodes of `proto` as `wire.written` returns them, if they are at hand.
    """
    changed, start, in_proto = [number for number, more in touched.items() if more], len(body), body.proto_nodes
    nodes, signature = (proto.node_def, proto.signature) if body.name else (proto.node, tf_api.OpDef())
    new = _copy(body)
    for number in [number for number in touched if number in in_proto]:
        new.protos[number] = nodes[number - body.arguments]
    find = as_written.__getitem__ if as_written else lambda index: written_one(nodes[index])
    again = [number for number in changed if number in in_proto]
    _reread_nodes(new, again, [find(number - body.arguments) for number in again], library)
    _reread_pseudo(new, [number for number in changed if number < in_proto.start], signature.input_arg, 0)
    _reread_pseudo(new, [number for number in changed if number >= in_proto.stop], signature.output_arg, in_proto.stop)
    add_pseudo(new, ARG, signature.input_arg[body.arguments :])
    add_nodes(new, nodes[len(in_proto) :], [find(index) for index in range(len(in_proto), len(nodes))], library)
    new.make_readable(range(start, len(new)))
    connect(new, [*touched, *range(start, len(new))], proto.ret if body.name else {})
    return new


def _reread_nodes(body: Body, numbers: Sequence[int], as_written: Sequence[bytes], library: Mapping[str, OpSchema]) -> None:
    """Gives the nodes in `numbers` the ops and types that their protos have, of which `as_written` has the attributes."""
    protos: list[tf_api.NodeDef] = [body.protos[number] for number in numbers]
    for number, kind in zip(numbers, body.kinds.read(as_written, protos, library), strict=True):
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
    new, stop = _copy(body), body.proto_nodes.stop
    for number, proto in growth.edited.items():
        new.protos[number] = proto
    changed = [number for number, more in growth.touched.items() if more]
    for number in changed:
        new.tensors.pop(new._first_text(number), None)
    _reread_nodes(new, changed, [written_one(new.protos[number]) for number in changed], library)
    new.tensors.update({new._first_text(number): (number, 0) for number in changed})
    columns: list[list[Any]] = [new.names, new.ops, new.devices, new.kind_of, new.layouts, new.types, new.protos, new.inputs]
    results = [column[stop:] for column in columns]
    for column in columns:
        del column[stop:]
    add_nodes(new, growth.added, growth.common, library)
    new.make_readable(range(stop, len(new)))
    moved = len(new) - stop
    for column, rest in zip(columns, results, strict=True):
        column += rest
    connect(new, [*(number if number < stop else number + moved for number in growth.touched), *range(stop, stop + moved)], growth.results)
    return new


CHANGED = (
    "names", "ops", "devices", "kinds", "kind_of", "layouts", "types", "inputs", "protos", "by_name", "tensors", "controlled", "marked",
)  # fmt: skip
"""What reading again may change of a body."""

FOUND_OUT = frozenset({"dead", "shapes", "serialised", *(name for name, value in vars(Body).items() if isinstance(value, functools.cached_property))})
"""What is found out of a body, and holds no more once it has changed."""


def _copy(body: Body) -> Body:
    """Returns a copy of `body` that can be changed, without what was found out about it."""
    new = Body(body.name)
    new.__dict__.update({name: value for name, value in body.__dict__.items() if name not in FOUND_OUT})
    for name in CHANGED:
        setattr(new, name, copy.copy(getattr(body, name)))
    return new
