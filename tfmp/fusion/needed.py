"""Which nodes of a function are needed, before kernels are written and after: what nothing needs any more is what they replace.

A node is needed if a path of tensors or control edges leads from it to what TensorFlow does not prune (`program.liveness`, which says the same of the function
once it is written).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from tfmp.graph.view import Body, Edge
from tfmp.program.liveness import roots


class Needs:
    """What is needed of a body once it is rewritten as announced."""

    def __init__(self, body: Body) -> None:
        """Nothing is announced yet."""
        self._body = body
        self._inputs: list[Sequence[Edge]] = list(body.inputs)
        self._stand_in = list(range(len(body)))

    def reads(self, node: int, edges: Iterable[Edge]) -> None:
        """Says that `node` will read `edges` and nothing else."""
        self._inputs[node] = tuple(edges)

    def redirects(self, reader: Edge, edge: Edge) -> None:
        """Says that one input will be `edge`."""
        node, port = reader
        self._inputs[node] = [edge if place == port else one for place, one in enumerate(self._inputs[node])]

    def hands_out(self, node: int, edges: Iterable[Edge]) -> None:
        """Says that those who read `node` will read something that is made of `edges`."""
        self._stand_in[node] = len(self._inputs)
        self._inputs.append(tuple(edges))

    @functools.cached_property
    def before(self) -> Sequence[int]:
        """Node to whether it is needed in the body as it is; to be asked when all is announced."""
        return _reached(self._body, self._body.inputs, range(len(self._body)))

    @functools.cached_property
    def after(self) -> Sequence[int]:
        """The same of the body once it is rewritten. What stands in for nodes comes after all nodes."""
        return _reached(self._body, self._inputs, self._stand_in)

    def is_read(self, node: int) -> bool:
        """Returns whether anything that is needed will read what stands in for `node`."""
        return bool(self.after[self._stand_in[node]])


def _reached(body: Body, inputs: Sequence[Sequence[Edge]], stand_in: Sequence[int]) -> Sequence[int]:
    """Returns for each entry of `inputs` whether something needed reads it."""
    found, controlled = bytearray(len(inputs)), body.controlled
    todo = roots(body)
    for node in todo:
        found[node] = 1
    while todo:
        node = todo.pop()
        for source, _ in inputs[node]:
            other = stand_in[source]
            if not found[other]:
                found[other] = 1
                todo.append(other)
        if node in controlled:
            for other in body.waits_for(node):
                if not found[other]:
                    found[other] = 1
                    todo.append(other)
    return found
