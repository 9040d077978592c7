"""Whether flipping what tfmp was free to choose would lower traffic, and what its guards cost: a rewritten graph, its casts taken out, coloured anew."""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import types_pb2

from benchmarks.bound import Problem, Vertex, least, problem
from benchmarks.costs import plain
from benchmarks.executed import Edge
from benchmarks.flat import Flat, Program
from tfmp.colouring.network import PER_CAST, SAVED

CHOSEN = frozenset({
    "between allow ops", "cheapest in 16 bit", "cheapest in float32", "closes a 16-bit loop edge", "closes a float32 loop edge", "directly after an allow op",
    "existing cast of a 16-bit value", "existing cast, read by 16-bit ops only", "next to an allow op", "shares a tensor list with allow",
})  # fmt: skip
"""The rules by which tfmp says that a colour was a matter of cost; every other one says that it had to be. ("nothing asked" is an inferlist op that no 16-bit
value reaches: that one is not free.)
"""

SIXTEEN = frozenset({types_pb2.DT_HALF, types_pb2.DT_BFLOAT16})
TOLERANCE = 1e-4
"""Share of traffic below which a guard's cost is not printed."""

ROUNDING = 1e-6
"""Share of traffic that the rounding of tfmp's solver to whole numbers may hide."""


def undone(program: Program) -> tuple[Program, dict[Vertex, bool]]:
    """Returns `program` in float32, casts between floats as identities, and the colours that it had."""
    colours: dict[Vertex, bool] = {}
    graph = type(program.graph)(library=program.graph.library, versions=program.graph.versions)
    floats = SIXTEEN | {types_pb2.DT_FLOAT}
    for node in program.graph.node:
        copy = graph.node.add()
        copy.CopyFrom(node)
        for name, value in node.attr.items():
            if value.WhichOneof("value") == "type" and value.type in floats:
                colours[node.name, name, 0] = value.type in SIXTEEN
                copy.attr[name].type = types_pb2.DT_FLOAT
            for index, dtype in enumerate(value.list.type):
                if dtype in floats:
                    colours[node.name, name, index] = dtype in SIXTEEN
                    copy.attr[name].list.type[index] = types_pb2.DT_FLOAT
        if node.op == "Cast" and {node.attr[name].type for name in ("SrcT", "DstT")} <= floats:
            copy.op = "Identity"
            copy.ClearField("attr")
            copy.attr["T"].type = types_pb2.DT_FLOAT
            colours[node.name, "T", 0] = node.attr["DstT"].type in SIXTEEN
        if node.op == "Const" and node.attr["dtype"].type in SIXTEEN:
            value = tf.make_ndarray(node.attr["value"].tensor).astype("float32")
            copy.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return Program(Flat(graph, program.fetches)), colours


@dataclasses.dataclass(frozen=True)
class Flips:
    """What recolouring could gain, in bytes.

    Attributes:
      traffic: of the program as tfmp coloured it, by the cost model; it differs from the measured one only by casts that are redundant.
      regions: how many connected regions of one colour, all of which was free to choose, and single vertices were flipped.
      best: the gain of the best of those flips in traffic, and the names of (at most three of) its nodes with tfmp's rules; 0 and () if none lowers traffic.
      paying: the same with what tfmp says that a cast costs beyond its bytes, and a byte that waits for the backward part (`PER_CAST`, `SAVED`).
      together: the gain if everything that was free to choose were coloured anew, by a minimum cut: no set of flips gains more.
      guards: rule to what it costs: the gain if only that rule's vertices were free as well.
    """

    traffic: int
    regions: int
    best: tuple[int, tuple[str, ...]]
    paying: tuple[int, tuple[str, ...]]
    together: int
    guards: Mapping[str, int]

    @property
    def pays(self) -> bool:
        """Whether every colour pays for itself: no flip lowers what tfmp minimises, traffic and the price of casts and saved bytes, up to its rounding."""
        return self.paying[0] <= ROUNDING * self.traffic


def flips(program: Program, conversion: Any) -> Flips:
    """Returns what recolouring tfmp's `program` could gain; `conversion` is tfmp's record, for its reasons."""
    before, colours = undone(program)
    found = problem(before)
    rules = {vertex: rule for vertex, rule in _rules(before, conversion) if vertex not in found.forced}
    vertices = {end for cell in found.cells.values() for end in (cell.maker, *cell.readers) if end} | found.moved.keys() | found.forced.keys()
    pinned = {vertex: colours.get(vertex, False) for vertex in vertices if vertex in found.forced or rules.get(vertex) not in (None, *CHOSEN)}
    pinned |= {vertex: colours[vertex] for vertex, wanted in found.forced.items() if vertex in colours and colours[vertex] != wanted}
    own = found.traffic(colours)
    held = dataclasses.replace(found, forced=pinned)
    together = own - found.traffic(least(held))
    regions = list(_regions(found, colours, pinned))
    later = {edge: [one for one in cell.readers if one and one[0] in before.backward] for edge, cell in found.cells.items() if edge[0] not in before.backward}
    later = {edge: readers for edge, readers in later.items() if readers and not before.is_weight(edge)}
    gains = [(found.gain(colours, region), region) for region in regions]
    priced = [(gain - _dearer(found, later, colours, region), region) for gain, region in gains if gain > 0]

    def largest(gains: list[tuple[int, frozenset[Vertex]]]) -> tuple[int, tuple[str, ...]]:
        gain, region = max(gains, key=lambda one: one[0], default=(0, frozenset[Vertex]()))
        names = (f"{name} ({rules.get((name, attribute, number), 'new')})" for name, attribute, number in sorted(region)[:3])
        return (gain, tuple(names)) if gain > 0 else (0, ())

    guards = {}
    for rule in sorted({rules[vertex] for vertex in pinned if vertex in rules}):
        freed = {vertex: colour for vertex, colour in pinned.items() if rules.get(vertex) != rule}
        guards[rule] = own - together - found.traffic(least(dataclasses.replace(found, forced=freed)))
    return Flips(own, len(regions), largest(gains), largest(priced), together, guards)


def _dearer(found: Problem, later: Mapping[Edge, list[Vertex]], colours: Mapping[Vertex, bool], region: frozenset[Vertex]) -> int:
    """Returns by how many bytes more the casts and saved bytes count beyond traffic if `region` is flipped; `later`: who reads a tensor backwards."""
    flipped = ChainMap({vertex: not colours.get(vertex, False) for vertex in region}, colours)  # type: ignore[arg-type]

    def price(edge: Edge, sixteen: Mapping[Vertex, bool]) -> float:
        widths = {sixteen.get(reader, False) for reader in later.get(edge, ())}
        waiting = sum(found.cells[edge].bytes // (2 if narrow else 1) for narrow in widths)
        return PER_CAST * (found.cast_bytes(edge, sixteen) > 0) + SAVED * waiting

    return int(sum(price(edge, flipped) - price(edge, colours) for edge in found.touching(region)))


def _rules(before: Program, conversion: Any) -> Iterator[tuple[Vertex, str]]:
    """Yields what tfmp says of each type attribute; nodes inside functions are found by the end of their names."""
    known: dict[str, dict[str, str]] = {}
    for one in conversion.decisions():
        known.setdefault(one.node, {}).setdefault(one.attribute, one.rule)
    for name, node in before.nodes.items():
        parts = plain(name).split("/")
        match = next((known[end] for end in ("/".join(parts[start:]) for start in range(len(parts))) if end in known), {})
        for attribute, value in node.attr.items():
            for index in range(max(1, len(value.list.type))):
                rule = match.get(f"{attribute}[{index}]", match.get(attribute))
                if rule:
                    yield (name, attribute, index), rule


def _regions(found: Problem, colours: Mapping[Vertex, bool], pinned: Mapping[Vertex, bool]) -> Iterator[frozenset[Vertex]]:
    """Yields the largest connected sets of free vertices of one colour, and, where those have more members, each vertex with what is tied to it."""
    links: dict[Vertex, set[Vertex]] = {}
    ties: dict[Vertex, set[Vertex]] = {}
    for cell in found.cells.values():
        for reader in cell.readers:
            if cell.maker and reader:
                links.setdefault(cell.maker, set()).add(reader)
                links.setdefault(reader, set()).add(cell.maker)
    for first, second in found.tied:
        for one, other in ((first, second), (second, first)):
            links.setdefault(one, set()).add(other)
            ties.setdefault(one, set()).add(other)
    free = {vertex for vertex in links if vertex not in pinned}
    for graph, whole in ((links, True), (ties, False)):
        seen: set[Vertex] = set()
        for vertex in sorted(free):
            if vertex not in seen:
                region, todo = {vertex}, [vertex]
                while todo:
                    colour = colours.get(todo[-1], False)
                    new = {one for one in graph.get(todo.pop(), ()) if (one in free and colours.get(one, False) == colour) or not whole} - region
                    region |= new
                    todo += new
                seen |= region
                if region <= free:
                    yield frozenset(region)


def lines(found: Flips, measured: int) -> list[str]:
    """Returns the printed lines; `measured` is the variant's traffic."""
    mib = 2**20
    result = [
        f"flips: {found.regions} regions; by bytes alone, the best gains {found.best[0] / 1024:.2f} KiB, all together {found.together / mib:.3f} MiB of "
        f"{found.traffic / mib:.1f} ({measured / mib:.1f} measured); "
        + ("no flip pays" if found.pays else f"A FLIP PAYS: {found.paying[0] / 1024:.2f} KiB, {', '.join(found.paying[1])}"),
    ]
    return result + [
        f"  guard {rule!r} costs {cost / mib:.3f} MiB ({cost / found.traffic:.4f})"
        for rule, cost in sorted(found.guards.items(), key=lambda i: -i[1])
        if cost > TOLERANCE * found.traffic
    ]
