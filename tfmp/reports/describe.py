"""From a conversion to the record that every printed form of a report reads."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from tfmp.colouring.reasons import Decision
from tfmp.conversion import Conversion
from tfmp.dtypes import DT_FLOAT
from tfmp.graph.body import ARG
from tfmp.reports.advice import advise
from tfmp.reports.casts import casts_of
from tfmp.reports.memory import memory_of, written
from tfmp.reports.parts import Part, parts_of
from tfmp.reports.records import CONVERTED, KEPT, Cast, Details, Function, Layer, Node, Why
from tfmp.reports.shapes import Graphs, output_shapes
from tfmp.reports.words import DOWNSTREAM, PLAIN, pulling, why

NAMED = 3
"""How many op types a reason names."""

Decisions = list[Decision | None]
"""Index of a node to the decision that tells of it: of its first 16-bit type attribute, else of the first that might have been."""


def describe(conversion: Conversion, graphs: Graphs | None = None) -> Details:
    """Returns what a report says of `conversion`.

    Args:
      conversion: the result of `engine.convert_...`.
      graphs: the Python graphs that its functions were traced into, by name (`shapes.graphs_of`); without them shapes are worked out, which takes
        TensorFlow some seconds for 10,000 nodes.
    """
    parts = parts_of(conversion, output_shapes(conversion, graphs))
    decided = _decisions(conversion, parts)
    roots = _roots(parts, decided)
    nodes = _nodes(conversion, parts, decided, roots)
    casts = tuple(cast for part in parts for cast in casts_of(part, parts))
    details = Details(
        conversion.root,
        conversion.format.name,
        conversion.settings.device,
        conversion.settings.level,
        conversion.seconds,
        any(part.estimated for part in parts),
        tuple(_function(part, nodes, casts) for part in parts),
        tuple(_layers(parts, nodes, casts)),
        casts,
        memory_of(parts, casts, conversion.roots, conversion.settings.emulate),
        nodes,
        unused_overrides=tuple(conversion.unused_overrides()),
        unused_rules=tuple(conversion.unused_rules),
    )
    return dataclasses.replace(details, advice=tuple(advise(details, parts)))


def _decisions(conversion: Conversion, parts: Sequence[Part]) -> Decisions:
    """`Conversion.decisions` comes instance by instance, node by node, one for each type attribute that was float32."""
    stream, found = conversion.decisions(), Decisions()
    for part in parts:
        for types in part.body.types:
            own = [next(stream) for dtype in types if dtype == DT_FLOAT]
            found.append(min(own, key=lambda decision: (not decision.converted, decision.attribute.startswith("fixed")), default=None))
    return found


def _roots(parts: Sequence[Part], decided: Decisions) -> list[int]:
    """Returns, for each node that stayed in float32 because of what it computes with, the index of the node where that begins; else -1."""
    causes = [-1] * len(decided)
    for part in parts:
        for node in range(len(part.body)):
            decision = decided[part.first + node]
            if decision is not None and decision.rule == DOWNSTREAM:
                causes[part.first + node] = _find(parts, part, decision.cause)
    roots = [-1] * len(decided)
    for index, cause in enumerate(causes):
        seen = {index}
        while cause >= 0 and causes[cause] >= 0 and cause not in seen:
            seen.add(cause)
            cause = causes[cause]
        roots[index] = -1 if cause == index else cause
    return roots


def _find(parts: Sequence[Part], part: Part, name: str) -> int:
    """Returns the index of the node called `name`, in `part` if it is there, else in the first part that has it."""
    for candidate in (part, *parts):
        node = candidate.body.by_name.get(name)
        if node is not None:
            return candidate.first + node
    return -1


def _nodes(conversion: Conversion, parts: Sequence[Part], decided: Decisions, roots: Sequence[int]) -> tuple[Node, ...]:
    pulled = collections.Counter(root for root in roots if root >= 0)

    def make(number: int, part: Part, node: int) -> Node:
        body, index = part.body, part.first + node
        decision, root = decided[index], decided[roots[index]] if roots[index] >= 0 else None
        return Node(
            function=number,
            name=body.names[node],
            op=body.ops[node],
            layer=part.places[node].layer,
            gradient=part.places[node].gradient,
            colour=part.colour(node),
            rule=decision.rule if decision else "",
            reason=why(decision, root, decision.op in conversion.lists.overridden) if decision else "",
            root=roots[index],
            pulled=pulled[index],
            shape=next(iter(part.shapes[node]), None),
            flops=part.flops(node),
            inputs=tuple((part.first + source, port) for source, port in body.inputs[node]),
            calls=tuple(callee.instance for callee in part.instance.calls.get(node, ())),
        )

    return tuple(make(number, part, node) for number, part in enumerate(parts) for node in range(len(part.body)))


def _function(part: Part, nodes: Sequence[Node], casts: Iterable[Cast]) -> Function:
    own = [nodes[part.first + node] for node in part.body.proto_nodes]
    mine = [cast for cast in casts if part.first <= cast.source < part.first + len(part.body)]
    colours = collections.Counter(node.colour for node in own)
    return Function(
        part.label,
        part.runs,
        len(own),
        colours[CONVERTED],
        colours[KEPT],
        sum(node.flops for node in own),
        sum(node.flops for node in own if node.colour == CONVERTED),
        sum(cast.times for cast in mine),
        sum(cast.bytes for cast in mine),
    )


def _layers(parts: Sequence[Part], nodes: Sequence[Node], casts: Iterable[Cast]) -> Iterator[Layer]:
    """Yields the layers, those with most FLOPs first, then those that write most."""
    members: dict[str, list[int]] = {}
    sizes: dict[str, list[float]] = {}
    for part in parts:
        for node in part.body.proto_nodes:
            layer = part.places[node].layer
            members.setdefault(layer, []).append(part.first + node)
            sums = sizes.setdefault(layer, [0.0, 0.0])
            for position, size in enumerate(written(part, node)):
                sums[position] += size
    cast_by: dict[str, list[Cast]] = {}
    for cast in casts:
        cast_by.setdefault(_layer_of(cast, nodes), []).append(cast)
    for layer in cast_by:
        members.setdefault(layer, [])
        sizes.setdefault(layer, [0.0, 0.0])
    made = [_layer(name, [nodes[index] for index in own], cast_by.get(name, []), *sizes[name]) for name, own in members.items()]
    yield from sorted(made, key=lambda layer: (-layer.flops, -layer.bytes_before, layer.layer))


def _layer_of(cast: Cast, nodes: Sequence[Node]) -> str:
    """The layer that makes the tensor; of an argument, the layer that reads it."""
    maker = nodes[cast.source]
    return nodes[cast.readers[0]].layer if maker.op == ARG and cast.readers else maker.layer


def _layer(name: str, own: Sequence[Node], casts: Sequence[Cast], before: float, after: float) -> Layer:
    colours = collections.Counter(node.colour for node in own)
    cast_bytes = sum(cast.bytes for cast in casts)
    return Layer(
        name,
        len(own),
        colours[CONVERTED],
        colours[KEPT],
        sum(node.flops for node in own),
        sum(node.flops for node in own if node.colour == CONVERTED),
        sum(cast.times for cast in casts),
        cast_bytes,
        before,
        after + cast_bytes,
        _whys(own),
    )


def _whys(own: Iterable[Node]) -> tuple[Why, ...]:
    """The reasons of what stayed in float32: of nodes with FLOPs first, then where others begin, plain ones last, and common ones before rare ones."""
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in own:
        if node.colour == KEPT:
            groups.setdefault(("" if node.root >= 0 else node.op, node.reason), []).append(node)

    def urgency(members: Sequence[Node]) -> tuple[bool, bool, bool, int]:
        return not any(node.flops for node in members), members[0].rule in PLAIN, not any(node.pulled for node in members), -len(members)

    ordered = sorted(groups.items(), key=lambda group: (*urgency(group[1]), group[0]))
    return tuple(Why(_sentence(reason, members), len(members)) for (_, reason), members in ordered)


def _sentence(reason: str, members: Sequence[Node]) -> str:
    ops = collections.Counter(node.op for node in members)
    names = ", ".join(op for op, _ in ops.most_common(NAMED)) + (", ..." if len(ops) > NAMED else "")
    return f"{names}: {pulling(reason, sum(node.pulled for node in members), len(members))}"
