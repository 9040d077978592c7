"""Which nodes of a function nothing needs, before kernels are written and after: what nothing needs any more is what they replace.

A node is needed if a path of tensors or control edges leads from it to what TensorFlow does not prune (`program.liveness`, which finds the same in the function
once it is written). In a graph without cycles, what is not needed is peeled off: nodes that nothing reads, then nodes that only those read, and so on. That
looks at the nodes that nothing needs, which are few.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from tfmp.graph.body import Body, Edge
from tfmp.graph.readers import Readers
from tfmp.program.liveness import counts, peeled


class Needs:
    """What is needed of a body once it is rewritten as announced."""

    def __init__(self, body: Body, readers: Readers) -> None:
        """Nothing is announced yet; `body` has no cycle, and `readers` are `body.readers`."""
        self._body = body
        self._changed: dict[int, Sequence[Edge]] = {}
        self._sums: dict[int, tuple[set[int], list[Edge]]] = {}
        self._stand_in: dict[int, int] = {}
        self._made: list[Sequence[Edge]] = []
        self._readers = readers

    def reads(self, node: int, edges: Iterable[Edge]) -> None:
        """Says that `node` will read `edges` and nothing else."""
        self._changed[node] = tuple(edges)

    def adds(self, node: int, edges: Iterable[Edge], ports: Iterable[int]) -> None:
        """Says that the sum `node` will read `edges` in the place of what it reads at `ports`; and what is said of other ports of it holds as well."""
        dropped, others = self._sums.setdefault(node, (set(), []))
        dropped.update(ports)
        others.extend(edges)
        self._changed[node] = [*(edge for port, edge in enumerate(self._body.inputs[node]) if port not in dropped), *others]

    def redirects(self, reader: Edge, edge: Edge) -> None:
        """Says that one input will be `edge`."""
        node, port = reader
        self._changed[node] = [edge if place == port else one for place, one in enumerate(self._changed.get(node, self._body.inputs[node]))]

    def hands_out(self, node: int, edges: Iterable[Edge]) -> None:
        """Says that those who read `node` will read something that is made of `edges`, unless that was said of others."""
        if node not in self._stand_in:
            self._stand_in[node] = len(self._body) + len(self._made)
            self._made.append(tuple(edges))

    def is_read(self, node: int) -> bool:
        """Returns whether something stands in for `node` that anything needed will read; to be asked when all is announced."""
        return node in self._stand_in and self._stand_in[node] not in self.needless

    def needless_of(self, after: Body, touched: Iterable[int]) -> tuple[int, ...]:
        """Returns what `dead_nodes` finds in the body `after`, to which this one has grown.

        Args:
          after: the same arguments and nodes, then new nodes, which are not stateful, then results.
          touched: the nodes and results of this one whose inputs changed.
        """
        stop, old = after.proto_nodes.stop, self._body.proto_nodes
        shift, read = stop - old.stop, set[int]()
        todo = [node if node < old.stop else node + shift for node in touched if node not in self.needless]
        while todo:
            for source, _ in after.inputs[todo.pop()]:
                if source >= old.stop and source not in read:
                    read.add(source)
                    todo.append(source)
        return *sorted(node for node in self.needless if node in old), *[node for node in range(old.stop, stop) if node not in read]

    @functools.cached_property
    def needless(self) -> set[int]:
        """The nodes that nothing needs in the body once it is rewritten, and what stands in for nodes in vain; to be asked when all is announced."""
        body, stand_in = self._body, self._stand_in
        inputs: list[Sequence[Edge]] = [*body.inputs, *self._made]
        read = [*counts(body), *[0] * len(self._made)]
        for node, instead in stand_in.items():
            read[instead] = self._readers.count_of(node)
            read[node] -= read[instead]
        for node, edges in self._changed.items():
            for source, _ in inputs[node]:
                read[stand_in.get(source, source)] -= 1
            inputs[node] = edges
        for edges in (*self._changed.values(), *self._made):
            for source, _ in edges:
                read[stand_in.get(source, source)] += 1
        return peeled(read, inputs, body.controlled, stand_in)
