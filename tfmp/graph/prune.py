"""A function without nodes that nothing needs."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import TypeVar

import numpy as np

from tfmp.graph.body import Body

T = TypeVar("T")


def pruned(body: Body, needless: Collection[int]) -> Body:
    """Returns the body of a function without some nodes; the others keep their order and are, byte for byte, what they were.

    Args:
      body: as it was read or has grown; not changed.
      needless: the nodes to leave out, of which nothing else may read one or wait for one (`program.liveness`): no arguments or results.
    """
    keep = np.ones(len(body), bool)
    keep[list(needless)] = False
    number = (np.cumsum(keep) - 1).tolist()
    first = [*zip(number, itertools.repeat(0))]  # noqa: B905  (made once, since most edges are of first outputs)
    mask = keep.tolist()

    def still_there(values: Mapping[int, T]) -> dict[int, T]:
        return {number[node]: value for node, value in values.items() if mask[node]}

    new = Body(body.name, attrs=body.attrs, arguments=body.arguments, results=body.results, kinds=body.kinds, rest=body.rest)
    new.control_results, new.called_as_ops = body.control_results, body.called_as_ops
    for column in ("names", "ops", "devices", "kind_of", "layouts", "types", "nodes"):
        setattr(new, column, list(itertools.compress(getattr(body, column), mask)))
    new.inputs = [[(number[source], port) if port else first[source] for source, port in edges] for edges in itertools.compress(body.inputs, mask)]
    new.resized = {node: (number[source], port) for node, (source, port) in still_there(body.resized).items()}
    new.made, new.shapes = still_there(body.made), still_there(body.shapes)
    new.controlled = {node: [number[source] for source in sources] for node, sources in still_there(body.controlled).items()}
    new.marked, new.residual = ({number[node] for node in nodes if mask[node]} for nodes in (body.marked, body.residual))
    new.gone = tuple((body.ops[node], body.nodes[node], number[kernel]) for node, kernel in body.replaced.items() if not mask[node])
    new.replaced = {node: number[kernel] for node, kernel in still_there(body.replaced).items()}
    new.pruned = len(needless)
    new.dead = ()
    new.make_readable(range(len(new) - new.results))
    return new
