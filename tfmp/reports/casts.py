"""The casts of a rewritten program, with what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tfmp.dtypes import FLOAT32, FloatFormat
from tfmp.graph.flat import Shape
from tfmp.reports.parts import Part, size_of
from tfmp.reports.records import Cast
from tfmp.rewriting.plan import HoistedRead, InsertCast

BYTES = {FLOAT32.name: 4}
"""Bytes of an element, by format; the others have two."""


def bytes_of(target: FloatFormat) -> int:
    """Returns the bytes of one element."""
    return BYTES.get(target.name, 2)


def casts_of(part: Part, parts: Sequence[Part]) -> Iterator[Cast]:
    """Yields the casts that the plan of `part` adds; `parts` are those of the whole program."""
    for cast in part.result.plan.casts:
        yield _inserted(part, cast)
    for read in part.result.plan.reads:
        yield _hoisted(part, parts, read)


def _inserted(part: Part, cast: InsertCast) -> Cast:
    node, port = cast.source
    shape = part.shapes[node][port]
    runs = 0 if cast.constant or part.result.plan.is_pruned(cast, part.dead) else part.runs
    written = size_of(shape) * (bytes_of(cast.target) + (4 if cast.round_trip else 0))
    kind = "constant" if cast.constant else "rounding" if cast.round_trip else "cast"
    readers = tuple(dict.fromkeys(part.first + reader for reader, _ in cast.readers))
    return Cast(kind, part.first + node, port, cast.target.name, readers, shape, runs * (1 + cast.round_trip), runs * written)


def _hoisted(part: Part, parts: Sequence[Part], read: HoistedRead) -> Cast:
    """A read that a caller has already cast, and hands in, or that shares another cast, costs nothing here."""
    shape, readers = _read_inside(part, parts, read)
    runs = part.runs if read.is_new else 0
    source, port = read.handle
    return Cast("variable", part.first + source, port, read.target.name, readers, shape, runs, runs * size_of(shape) * bytes_of(read.target))


def _read_inside(part: Part, parts: Sequence[Part], read: HoistedRead) -> tuple[Shape, tuple[int, ...]]:
    """Returns the shape of the variable that something called reads, and the index of the node that did."""
    todo = [callee.instance for callee in part.instance.calls.get(read.node, ())]
    seen = set(todo)
    for number in todo:  # grows while it is walked
        inner = parts[number]
        node = inner.body.by_name.get(read.like.name)
        if node is not None and inner.body.ops[node] == read.like.op:
            return inner.shapes[node][0], (inner.first + node,)
        deeper = [callee.instance for callees in inner.instance.calls.values() for callee in callees if callee.instance not in seen]
        seen.update(deeper)
        todo += deeper
    return None, ()
