"""Where tfmp moves more bytes than the least possible colouring, op type by op type and node by node, with tfmp's own reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from benchmarks import bound
from benchmarks.costs import by_maker, by_node, plain
from benchmarks.flat import Program

KIB = 1024


def lines(problem: bound.Problem, colouring: Mapping[bound.Vertex, bool], before: Program, ours: Program, conversion: Any, top: int) -> list[str]:
    """Returns the printed lines: bytes beyond the bound's colouring, largest first; negative where tfmp moves fewer. The weight update is left out.

    Args:
      problem: the cost model without the weight update.
      colouring: one with the least traffic.
      before: the float32 program.
      ours: what tfmp made of it.
      conversion: tfmp's own record, for its reasons.
      top: how many nodes to print.
    """
    own_nodes, own_casts, moved32 = by_node(ours), by_maker(ours), by_node(before)
    nodes, flexible, casts = Counter[str](), Counter[str](), Counter[str]()
    for vertex, size in problem.moved.items():
        nodes[plain(vertex[0])] += size // 2 if colouring.get(vertex) else size
        flexible[plain(vertex[0])] += size
    for edge in problem.cells:
        casts[plain(before.variable(before.origin(edge)[0]))] += problem.cast_bytes(edge, colouring)
    update = {plain(name) for name in before.update | ours.update}
    excess: dict[tuple[str, str], int] = {}
    for name in {plain(node) for node in before.nodes} - update:
        excess[name, "op"] = own_nodes[name] - nodes[name] - (moved32[name] - flexible[name])
        excess[name, "cast of it"] = own_casts[name] - casts[name]
    for name in (own_nodes.keys() | own_casts.keys()) - {plain(node) for node in before.nodes} - update:
        excess[name, "new op"], excess[name, "cast of it"] = own_nodes[name], own_casts[name]
    return _tables(excess, before, ours, colouring, _reasons(conversion), top)


def _tables(
    excess: Mapping[tuple[str, str], int], before: Program, ours: Program, colouring: Mapping[bound.Vertex, bool], reasons: Mapping[str, str], top: int
) -> list[str]:
    whole = sum(one.traffic for one in before.executions if one.node.name not in before.update)
    ops = {plain(node.name): node.op for program in (ours, before) for node in program.nodes.values()}
    kinds = bound.lists()
    by_type = Counter[tuple[str, str]]()
    for (name, what), size in excess.items():
        by_type[ops[name], what] += size
    total = sum(excess.values())
    result = [f"\nbeyond the bound: {total / KIB:.0f} KiB, {total / whole:.4f} of float32's traffic without the update", "\nby op type (list in brackets):"]
    for (kind, what), size in sorted(by_type.items(), key=lambda item: -abs(item[1]))[:top]:
        if size:
            result.append(f"{size / KIB:12.1f} KiB {size / whole:8.4f}  {kind} ({kinds.get(kind, 'no list')}), {what}")
    result.append("\nby node:")
    wanted = {plain(vertex[0]) for vertex, sixteen in colouring.items() if sixteen}
    has = {plain(one.node.name) for one in ours.executions if any(tensor.sixteen for tensor in one.outputs)}
    for (name, what), size in sorted(excess.items(), key=lambda item: (-abs(item[1]), item[0]))[:top]:
        if size:
            widths = f"bound {16 if name in wanted else 32}, tfmp {16 if name in has else 32}"
            why = reasons.get(name) or next((text for known, text in reasons.items() if name.endswith("/" + known)), "")
            result.append(f"{size / KIB:12.1f} KiB {size / whole:8.4f}  {name} ({ops[name]}), {what}; {widths}; {why}")
    return result


def _reasons(conversion: Any) -> dict[str, str]:
    """Returns node name, as in its function, to what tfmp says of its first type attribute."""
    found: dict[str, str] = {}
    for one in conversion.decisions():
        found.setdefault(one.node, f"{'16' if one.converted else '32'}: {one.rule}{f' via {one.cause}' if one.cause else ''}")
    return found
