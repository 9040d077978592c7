"""An edited proto to a body, by reading only what the edit may have changed."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from tfmp import tf_api
from tfmp.graph.body import ARG, Body
from tfmp.graph.edit import Edited
from tfmp.graph.schema import OpSchema
from tfmp.graph.view import add_pseudo, connect, read_by_results
from tfmp.graph.wire import END, serialise


def reread(body: Body, edited: Edited, library: Mapping[str, OpSchema]) -> Body:
    """Returns the view of what `body` has become, by reading only what has changed.

    Args:
      body: the view before the edit.
      edited: what has changed. What is added, nodes and arguments, comes last in the view, after the results.
      library: as for `read_function`.
    """
    new, start, stop, signature = _copy(body), len(body), body.proto_nodes.stop, edited.head.signature
    kinds = _replace(new, edited, library)
    changed = [number for number, more in edited.touched.items() if more]
    _reread_pseudo(new, [number for number in changed if number < body.arguments], signature.input_arg, 0)
    _reread_pseudo(new, [number for number in changed if number >= stop], signature.output_arg, stop)
    add_pseudo(new, ARG, signature.input_arg[body.arguments :])
    arguments, first = range(start, len(new)), len(new)
    _add(new, edited, kinds)
    new.make_readable(range(start, len(new)))
    results = [number for number in edited.touched if number >= stop]
    texts = [*edited.columns.inputs, *read_by_results([body.names[number] for number in results], edited.head.ret, body), *[END] * len(arguments)]
    connect(new, [*edited.numbers, *range(first, len(new)), *results, *arguments], texts)
    return new


def _replace(body: Body, edited: Edited, library: Mapping[str, OpSchema]) -> list[int]:
    """Gives the edited nodes of `body` what they are now, but for what they read; returns the kinds of all nodes in `edited`."""
    kinds = body.kinds.read(edited.columns.attributes, library)
    for number, kind, node in zip(edited.numbers, kinds, edited.columns.nodes, strict=False):
        body.nodes[number] = node
        if body.kind_of[number] != kind:
            one = body.kinds.table[kind]
            body.kind_of[number] = kind
            body.ops[number], body.layouts[number], body.types[number] = one.op, one.layout, one.types
    return kinds


def _add(body: Body, edited: Edited, kinds: Sequence[int]) -> None:
    """Adds the added nodes, which are of the last ones of `kinds`."""
    columns, count = edited.columns, len(edited.numbers)
    body.add(columns.names[count:], kinds[count:], columns.devices[count:], columns.nodes[count:])


def _reread_pseudo(body: Body, numbers: Sequence[int], args: Sequence[tf_api.Message], first: int) -> None:
    """Gives arguments, or results, the types that `args` have, which start at node `first`."""
    if numbers:
        kinds = body.kinds.pseudo(body.ops[first], body.layouts[first], [args[number - first].type for number in numbers])
        for number, kind in zip(numbers, kinds, strict=True):
            body.kind_of[number], body.types[number] = kind, body.kinds.table[kind].types


def grown(body: Body, edited: Edited, library: Mapping[str, OpSchema]) -> Body:
    """Returns the view of the function that `body` has become as `read_function` does, with the added nodes before the results, by reading only those and what
    was edited. `library` is as for `read_function`.
    """
    new, stop = _copy(body), body.proto_nodes.stop
    new.rest = serialise(edited.head)
    became = [number for number in edited.numbers if edited.touched[number]]
    for number in became:
        new.tensors.pop(new._first_text(number), None)
    kinds = _replace(new, edited, library)
    new.tensors.update({new._first_text(number): (number, 0) for number in became})
    columns: list[list[Any]] = [new.names, new.ops, new.devices, new.kind_of, new.layouts, new.types, new.nodes, new.inputs]
    ends = [column[stop:] for column in columns]
    for column in columns:
        del column[stop:]
    _add(new, edited, kinds)
    new.make_readable(range(stop, len(new)))
    moved = len(new) - stop
    for column, rest in zip(columns, ends, strict=True):
        column += rest
    results = [number for number in edited.touched if number >= stop]
    texts = [*edited.columns.inputs, *read_by_results([body.names[number] for number in results], edited.head.ret, body)]
    connect(new, [*edited.numbers, *range(stop, stop + moved), *(number + moved for number in results)], texts)
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
