"""Type attributes given another type one by one, whatever their neighbours are: how stored weights and signatures change, where a colouring decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from tfmp.dtypes import FLOAT32, FloatFormat
from tfmp.graph.body import Body, Edge
from tfmp.graph.readers import Readers
from tfmp.graph.remove import without_idle_casts
from tfmp.graph.schema import OpSchema, Slot
from tfmp.graph.wire import Proto, as_proto
from tfmp.rewriting.apply import apply
from tfmp.rewriting.plan import FreeNames, InsertCast, Plan, Retype, Shortcut

End = tuple[int, Slot]
"""A node and one of its slots."""


def retyped(body: Body, original: Proto, ends: Iterable[End], target: FloatFormat, library: Mapping[str, OpSchema], devices: tuple[str, ...] = ()) -> Proto:
    """Returns a copy of `original` in which the float32 slots `ends` are of type `target`, with casts where their neighbours are not.

    A cast that is there already is used, or gone where it has nothing to do any more, rather than undone by another.

    Args:
      body: the view of `original`.
      original: a FunctionDef or GraphDef.
      ends: the slots to change. Those that bring their neighbours a value keep theirs in float32 through a cast.
      target: the 16-bit type.
      library: schemas of functions that nodes name as their op.
      devices: device types on which every changed node must have a kernel.

    Raises:
      RewriteError: as `apply` does.
    """
    chosen = set(ends)
    readers = body.readers
    chosen |= set(_casts_onwards(body, chosen, readers, target))
    casts, shortcuts, names = [], [], FreeNames(body)
    for edge, found in _mismatches(body, chosen, readers):
        node, port = edge
        origin, end = (target, FLOAT32) if _is_output(body, edge, chosen) else (FLOAT32, target)
        if end is target and _is_cast(body, node, target, FLOAT32):
            shortcuts.append(Shortcut(body.inputs[node][0], found))
        else:
            casts.append(InsertCast(names.take(body.names[node], port, end), edge, origin, end, found))
    retypes = tuple(Retype(node, slot, target.number) for node, slot in sorted(chosen, key=lambda end: (end[0], end[1].attr, end[1].index)))
    return without_idle_casts(as_proto(apply(Plan(body, retypes, tuple(casts), tuple(shortcuts)), original, library, devices)))


def _casts_onwards(body: Body, chosen: Collection[End], readers: Readers, target: FloatFormat) -> Iterator[End]:
    """Yields the source type of every cast to `target` that reads one of `chosen`: from now on it has nothing to do."""
    for node in {node for node, _ in chosen}:
        for port, found in enumerate(readers[node]):
            if _is_output(body, (node, port), chosen):
                yield from ((reader, Slot("SrcT")) for reader, _ in found if _is_cast(body, reader, FLOAT32, target))


def _mismatches(body: Body, chosen: Collection[End], readers: Readers) -> Iterator[tuple[Edge, tuple[Edge, ...]]]:
    """Yields each tensor that has readers of another type than its own from now on, with those."""
    nodes = {node for node, _ in chosen}
    sources = {source for node in nodes for source, _ in body.inputs[node]}
    for node in sorted(nodes | sources):
        for port, found in enumerate(readers[node]):
            own = _is_output(body, (node, port), chosen)
            wrong = tuple(reader for reader in found if _is_input(body, reader, chosen) != own)
            if wrong:
                yield (node, port), wrong


def _is_output(body: Body, edge: Edge, chosen: Collection[End]) -> bool:
    layout = body.layouts[edge[0]]
    return (edge[0], layout.slots[layout.outputs[edge[1]]]) in chosen


def _is_input(body: Body, edge: Edge, chosen: Collection[End]) -> bool:
    layout = body.layouts[edge[0]]
    return (edge[0], layout.slots[layout.inputs[edge[1]]]) in chosen


def _is_cast(body: Body, node: int, source: FloatFormat, target: FloatFormat) -> bool:
    numbers = body.layouts[node].number
    return body.ops[node] == "Cast" and [body.types[node][numbers[Slot(attr)]] for attr in ("SrcT", "DstT")] == [source.number, target.number]
