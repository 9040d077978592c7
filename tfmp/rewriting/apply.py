"""Carries out a plan, and verifies the result before anyone sees it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping

import numpy as np

from tfmp.dtypes import DT_FLOAT
from tfmp.errors import RewriteError
from tfmp.graph import kernels
from tfmp.graph.body import Body, plain
from tfmp.graph.edit import GraphEditor
from tfmp.graph.reread import reread
from tfmp.graph.schema import OpSchema
from tfmp.graph.wire import Original, Proto
from tfmp.program.calls import CALLING_OPS
from tfmp.rewriting.plan import HoistedRead, InsertCast, Plan


def apply(plan: Plan, original: Proto | None, library: Mapping[str, OpSchema], devices: tuple[str, ...]) -> Original:
    """Returns what `plan` makes of a function, serialised, or of a main graph.

    Args:
      plan: edits of a body.
      original: the FunctionDef or GraphDef with the nodes of `plan.body`, which is not changed; None for a function that is what `plan.body` was read from.
      library: schemas of functions that nodes name as their op.
      devices: device types on which every changed node must have a kernel.

    Raises:
      RewriteError: the result would not run: a tensor and its reader disagree on the type, a changed node has no kernel, or a name is there twice.
    """
    editor = GraphEditor(plan.body, original)
    for move in plan.moves:
        editor.redirect(move.reader, plan.body.tensor_name(move.source))
    for node in plan.body.resized if plan.moves else ():
        editor.forget_shapes(node)
    for retype in plan.retypes:
        editor.retype(retype.node, retype.slot, retype.dtype)
    for cast in plan.casts:
        text = _add(editor, cast)
        for reader in cast.readers:
            editor.redirect(reader, text)
    for shortcut in plan.shortcuts:
        for reader in shortcut.readers:
            editor.redirect(reader, plan.body.tensor_name(shortcut.source))
    for argument in plan.arguments:
        editor.add_argument(argument.name, argument.target.number, argument.returned)
        for reader in argument.readers:
            editor.redirect(reader, argument.name)
    for read in plan.reads:
        editor.hand_over(read.node, read.argument or _cast_read(editor, read), CALLING_OPS[plan.body.ops[read.node]].inputs, read.target.number)
    edited = editor.finish()
    verify(plan.body, reread(plan.body, edited, library), devices, frozenset(retype.node for retype in plan.retypes))
    return editor.definition(edited)


def _add(editor: GraphEditor, cast: InsertCast) -> str:
    body = editor.body
    node = cast.source[0]
    if cast.constant:
        return editor.add_constant(cast.name, node, cast.target.number)
    text = editor.add_cast(cast.name, body.tensor_name(cast.source), body.devices[node], cast.origin.number, cast.target.number)
    if cast.round_trip:
        text = editor.add_cast(f"{cast.name}-Back", text, body.devices[node], cast.target.number, DT_FLOAT)
    return text


def _cast_read(editor: GraphEditor, read: HoistedRead) -> str:
    if read.same_as:
        return editor.cast_output(read.same_as)
    value = editor.add_read(read.name, editor.body.tensor_name(read.handle), read.like, read.node if read.waits else None)
    for writer in read.writers:
        editor.wait_for(writer, read.name)
    # A call that is inlined counts as done when the reads in it are, and none of them waits for this one: what comes after this function must wait for it.
    editor.add_control_output(read.name)
    return editor.add_cast(read.cast_name, value, read.like.device, DT_FLOAT, read.target.number)


def verify(before: Body, after: Body, devices: tuple[str, ...], retyped: frozenset[int] = frozenset()) -> None:
    """Raises `RewriteError` unless `after` is a sound rewrite of `before`, whoever made it.

    Checked: every reader has the type of what it reads; arguments and results, but for those of the nodes `retyped`, are as before; names are unique;
    every node whose types changed has a kernel on each of `devices`.
    """
    if len(after.by_name) < len(after) - after.results:
        raise RewriteError(f"{_name(after)}: two nodes have the same name.")
    outside = (*range(before.arguments), *range(len(before) - before.results, len(before)))
    kept = [node for node in outside if node not in retyped]
    if any((before.names[node], before.types[node]) != (after.names[node], after.types[node]) for node in kept):
        raise RewriteError(f"{_name(after)}: arguments or results changed their types.")
    numbers = range(len(before))
    candidates = itertools.compress(numbers, map(operator.is_not, before.types, after.types))
    retyped_nodes = [node for node in candidates if before.types[node] != after.types[node]]
    redirected = itertools.compress(numbers, map(operator.is_not, before.inputs, after.inputs))
    _verify_edges(before, after, {*retyped_nodes, *redirected, *range(len(before), len(after))})
    _verify_kernels(after, [node for node in retyped_nodes if before.nodes[node] is not None], devices)


def _verify_edges(before: Body, body: Body, changed: set[int]) -> None:
    """Checks the tensors that a changed or new node makes or reads; the others are as they were."""
    makes_anew = np.zeros(len(body), bool)
    makes_anew[list(changed)] = True
    readers = set(before.edges.reader[makes_anew[before.edges.source]].tolist())
    types, layouts = body.types, body.layouts
    for node in sorted(changed | readers):
        own, slots = types[node], layouts[node].inputs
        for port, (source, output) in enumerate(body.inputs[node]):
            given, wanted = types[source][layouts[source].outputs[output]], own[slots[port]]
            if given != wanted and plain(given) != plain(wanted) and wanted and given:  # 0: neither the node nor its op definition gives the type
                raise RewriteError(
                    f"{_name(body)}: input {port} of {body.ops[node]} node {body.names[node]!r} wants type {wanted}, but "
                    f"{body.ops[source]} node {body.names[source]!r} gives type {given}."
                )


def _verify_kernels(body: Body, nodes: Iterable[int], devices: tuple[str, ...]) -> None:
    """Checks one node of every kind: most nodes of a graph are of few op types with few combinations of types."""
    kinds = {(body.ops[node], body.layouts[node].keys, tuple(body.types[node])): node for node in nodes}
    for node in kinds.values():
        types = body.attr_types(node, {})
        for device in devices:
            if not kernels.has_kernel(body.ops[node], device, types):
                text = ", ".join(f"{attr}={'/'.join(map(str, sorted(found)))}" for attr, found in types.items())
                raise RewriteError(f"{_name(body)}: {body.ops[node]} node {body.names[node]!r} has no kernel on {device} for the types {text}.")


def _name(body: Body) -> str:
    return f"function {body.name!r}" if body.name else "the main graph"
