"""Node orders. The result of the C++ pass depends on the order in which it sees the nodes, so tests must know and vary it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Collection, Sequence
from typing import Any


def _source(name: str) -> str:
    """Returns the node in an input such as "a", "a:1", "^a" or, in a function, "a:y:0"."""
    return name.lstrip("^").partition(":")[0]


def _earliest_first(names: Sequence[str], sources: Sequence[Collection[str]]) -> list[str]:
    """Returns `names` in topological order; of all names that are ready, the one given first comes first."""
    index_of = {name: index for index, name in enumerate(names)}
    readers: list[list[int]] = [[] for _ in names]
    for index, read in enumerate(sources):
        for source in read:
            readers[index_of[source]].append(index)
    waits_for = [len(read) for read in sources]
    ready = [index for index, count in enumerate(waits_for) if not count]
    ordered = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(names[index])
        for reader in readers[index]:
            waits_for[reader] -= 1
            if not waits_for[reader]:
                heapq.heappush(ready, reader)
    if len(ordered) < len(names):
        raise ValueError(f"no topological order: there is a cycle through {sorted(set(names) - set(ordered))[:5]}")
    return ordered


def function_order(function: Any) -> tuple[str, ...]:
    """Returns the names of a FunctionDef's arguments and nodes in the order in which the C++ pass sees them.

    That is the order of TensorFlow's graph constructor (graph_constructor.cc): topological, the earliest ready node first,
    the arguments counting as the first nodes. The results, which the pass sees last, are left out.

    Raises:
        ValueError: the function has a cycle.
    """
    names = [argument.name for argument in function.signature.input_arg]
    sources: list[set[str]] = [set() for _ in names]
    names.extend(node.name for node in function.node_def)
    sources.extend({_source(name) for name in node.input} for node in function.node_def)
    return tuple(_earliest_first(names, sources))


def _with_order(graph_def: Any, names: Sequence[str]) -> Any:
    nodes = {node.name: node for node in graph_def.node}
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    del result.node[:]
    result.node.extend(nodes[name] for name in names)
    return result


def topological(graph_def: Any) -> Any:
    """Returns a copy of GraphDef `graph_def` with its main graph in topological order, the earliest ready node first.

    The edge from a NextIteration back to its Merge does not count.

    Raises:
        ValueError: there is another cycle.
    """
    names = [node.name for node in graph_def.node]
    back = {node.name for node in graph_def.node if node.op in ("NextIteration", "RefNextIteration")}
    sources = [{_source(name) for name in node.input} - (back if node.op in ("Merge", "RefMerge") else set()) for node in graph_def.node]
    return _with_order(graph_def, _earliest_first(names, sources))


def shuffled(graph_def: Any, seed: int) -> Any:
    """Returns a copy of GraphDef `graph_def` with the nodes of its main graph in random order, the same for each `seed`."""
    names = [node.name for node in graph_def.node]
    random.Random(seed).shuffle(names)
    return _with_order(graph_def, names)
