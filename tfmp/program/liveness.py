"""Which nodes of a function TensorFlow will run at all: the others are pruned before the first step, so nothing is gained by converting them.

Keras, for one, traces a recurrent cell once outside its loop to learn shapes, and leaves it in the graph.
"""

from __future__ import annotations

import numpy as np

from tfmp.graph.edges import Array, reachable
from tfmp.graph.schema import registered_schema
from tfmp.graph.view import ARG, RETVAL, Body


def dead_nodes(body: Body) -> tuple[int, ...]:
    """Returns the nodes of a function from which no path of tensors or control edges leads to a result, a control result or a stateful op.

    (`PruneFunctionGraph` in TensorFlow's `graph_optimizer` keeps just those.) A main graph has none: what is fetched from it next time is not known.
    """
    if body.dead is None:
        body.dead = tuple(_dead_nodes(body)) if body.name else ()
    return body.dead


def _dead_nodes(body: Body) -> list[int]:
    stateful = {op: op not in body.called_as_ops and registered_schema(op).stateful for op in body.by_op.keys() - {ARG, RETVAL}}
    roots = {op for op, is_stateful in stateful.items() if is_stateful or op in body.called_as_ops}
    needed = np.zeros(len(body), bool)
    needed[body.nodes_of(roots)] = True
    needed[len(body) - body.results :] = True
    needed[[body.by_name[name] for name in body.control_results]] = True
    needed = reachable(arrows(body), needed)
    needed[: body.arguments] = True
    return np.flatnonzero(~needed).tolist()


def arrows(body: Body) -> tuple[Array, Array]:
    """Returns who waits for whom: the node of each input, control inputs too, and the node that it comes from."""
    waiting = [(node, source) for node in body.controlled for source in body.waits_for(node)]
    readers, sources = np.array(waiting, np.int32).reshape(-1, 2).T
    return np.concatenate([body.edges.reader, readers]), np.concatenate([body.edges.source, sources])
