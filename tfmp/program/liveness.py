"""Which nodes of a function TensorFlow will run at all: the others are pruned before the first step, so nothing is gained by converting them.

Keras, for one, traces a recurrent cell once outside its loop to learn shapes, and leaves it in the graph.
"""

from __future__ import annotations

import numpy as np

from tfmp.graph.body import ARG, RETVAL, Body
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


FEW = 300
"""Nodes up to which a walk takes less time than to set up arrays. (Measured; arrays take 0.1 ms for any body, a walk 0.4 us a node.)"""


def _dead_nodes(body: Body) -> list[int]:
    needed = np.frombuffer(_walked(body), bool) if len(body) <= FEW else _found_on_arrays(body)
    return [node for node in np.flatnonzero(~needed).tolist() if node >= body.arguments]


def _walked(body: Body) -> bytearray:
    """Returns for each node whether TensorFlow runs it (1) or not (0)."""
    needed, todo = bytearray(len(body)), roots(body)
    while todo:
        node = todo.pop()
        if not needed[node]:
            needed[node] = 1
            todo += [source for source, _ in body.inputs[node]]
            todo += body.controlled.get(node, ())
    return needed


def _found_on_arrays(body: Body) -> Array:
    """Returns what `_walked` does."""
    readers, sources = arrows(body)
    needed = np.zeros(len(body), bool)
    needed[Neighbours(readers, sources, len(body)).walk(np.array(roots(body), np.int32))[0]] = True
    return needed


def roots(body: Body) -> list[int]:
    """Returns the nodes of a function that TensorFlow runs whoever reads them: stateful ones, calls of functions by their name, results, control results."""

    def always_runs(kind: Kind) -> bool:
        return kind.op in body.called_as_ops or (kind.op not in (ARG, RETVAL) and registered_schema(kind.op).stateful)

    found = np.flatnonzero(body.kinds.which(always_runs)[body.kind_array]).tolist()
    return [*found, *range(len(body) - body.results, len(body)), *(body.by_name[name] for name in body.control_results)]


def arrows(body: Body) -> tuple[Array, Array]:
    """Returns who waits for whom: the node of each input, control inputs too, and the node that it comes from."""
    readers, sources = body.control_edges
    return np.concatenate([body.edges.reader, readers]), np.concatenate([body.edges.source, sources])
