"""Which nodes of a function TensorFlow will run at all: the others are pruned before the first step, so nothing is gained by converting them.

Keras, for one, traces a recurrent cell once outside its loop to learn shapes, and leaves it in the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tfmp.graph.body import ARG, RETVAL, Body, Edge
from tfmp.graph.edges import Array
from tfmp.graph.kinds import Kind
from tfmp.graph.neighbours import Neighbours
from tfmp.graph.schema import registered_schema


def dead_nodes(body: Body) -> tuple[int, ...]:
    """Returns the nodes of a function from which no path of tensors or control edges leads to a result, a control result or a stateful op.

    (`PruneFunctionGraph` in TensorFlow's `graph_optimizer` keeps just those.) A main graph has none: what is fetched from it next time is not known.
    """
    if body.dead is None:
        body.dead = tuple(_dead_nodes(body)) if body.name else ()
    return body.dead


LOOP_BACK = frozenset({"NextIteration", "RefNextIteration"})
"""Ops that lead back to where a loop begins that is no function: the only cycles that a graph may have, and that can keep themselves going with nothing that
needs them.
"""


def _dead_nodes(body: Body) -> list[int]:
    if not LOOP_BACK.isdisjoint(body.by_op):
        needed = np.zeros(len(body), bool)
        readers, sources = arrows(body)
        needed[Neighbours(readers, sources, len(body)).walk(np.array(roots(body), np.int32))[0]] = True
        found: Iterable[int] = np.flatnonzero(~needed).tolist()
    else:
        found = sorted(peeled(counts(body), body.inputs, body.controlled))
    return [node for node in found if node >= body.arguments]


def counts(body: Body) -> list[int]:
    """Returns node to how many nodes read it or wait for it, one more for those that always run."""
    found = np.bincount(np.concatenate([body.edges.source, body.control_edges[1], np.array(roots(body), np.int32)]), minlength=len(body))
    return found.tolist()


def peeled(
    read: list[int], inputs: Sequence[Sequence[Edge]], waits: Mapping[int, Sequence[int]], stand_in: Mapping[int, int] = MappingProxyType({})
) -> set[int]:
    """Returns the nodes that nothing needs in a graph without cycles: those that nothing reads, then those that only they read, and so on.

    Args:
      read: for each node how many read it or wait for it; used up.
      inputs: what each node reads.
      waits: what nodes wait for without reading it.
      stand_in: nodes to others that are read in their place.
    """
    found = [node for node, count in enumerate(read) if not count]
    for node in found:  # grows while it is walked
        for source, _ in inputs[node]:
            if source in stand_in:
                source = stand_in[source]
            read[source] -= 1
            if not read[source]:
                found.append(source)
        for source in waits.get(node, ()):
            read[source] -= 1
            if not read[source]:
                found.append(source)
    return set(found)


def roots(body: Body) -> list[int]:
    """Returns the nodes of a function that TensorFlow runs whoever reads them: stateful ones, calls of functions by their name, results, control results."""

    def always_runs(kind: Kind) -> bool:
        return kind.op in body.called_as_ops or _is_stateful(kind.op)

    found = np.flatnonzero(body.kinds.which(always_runs)[body.kind_array]).tolist()
    return [*found, *range(len(body) - body.results, len(body)), *(body.by_name[name] for name in body.control_results)]


@functools.cache
def _is_stateful(op: str) -> bool:
    return op not in (ARG, RETVAL) and registered_schema(op).stateful


def arrows(body: Body) -> tuple[Array, Array]:
    """Returns who waits for whom: the node of each input, control inputs too, and the node that it comes from."""
    readers, sources = body.control_edges
    return np.concatenate([body.edges.reader, readers]), np.concatenate([body.edges.source, sources])
