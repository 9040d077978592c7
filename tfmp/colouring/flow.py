"""A minimum cut, by a maximum flow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from tfmp.graph.edges import Array, starts_of

LARGEST_TOTAL = 2**30
"""Sum of all capacities, so that a flow fits the 32-bit integers of `scipy.sparse.csgraph.maximum_flow`."""


def least_side(size: int, terminals: tuple[int, int], arcs: Sequence[Array], implied: Array) -> Array:
    """Returns vertex to whether it is on the side of the first terminal in the minimum cut that has fewest vertices there.

    Args:
      size: number of vertices.
      terminals: the source and the sink.
      arcs: where each starts, where it ends, and its capacity; there is one at least, and of several between the same two, capacities add up.
      implied: more arcs, in rows of two, which are never cut.
    """
    (source, sink), (starts, ends, capacities) = terminals, arcs
    scale = min(1.0, LARGEST_TOTAL / capacities.sum())
    starts, ends = np.concatenate([starts, implied[:, 0]]), np.concatenate([ends, implied[:, 1]])
    capacities = np.concatenate([capacities * scale, np.full(len(implied), LARGEST_TOTAL)])
    whole = _summed(size, starts, ends, capacities)
    residual = whole - maximum_flow(whole, source, sink).flow
    residual.eliminate_zeros()
    reached = np.zeros(size, bool)
    reached[breadth_first_order(residual, source, directed=True, return_predecessors=False)] = True
    return reached


def _summed(size: int, starts: Array, ends: Array, capacities: Array) -> csr_array:
    """Returns the arcs as whole numbers, at least 1, those between the same two added up."""
    arcs = starts.astype(np.int64) * size + ends
    order = np.argsort(arcs, kind="stable")
    arcs = arcs[order]
    first = starts_of(arcs)
    summed = np.clip(np.rint(np.add.reduceat(capacities[order], first)), 1, LARGEST_TOTAL).astype(np.int32)
    start, end = np.divmod(arcs[first], size)
    rows = np.searchsorted(start, np.arange(size + 1)).astype(np.int32)
    return csr_array((summed, end.astype(np.int32), rows), shape=(size, size))
