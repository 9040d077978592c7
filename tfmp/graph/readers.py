"""Who reads what the nodes of a body make."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfmp.graph.edges import Edges


@dataclasses.dataclass(frozen=True)
class Readers(Sequence[list[list[tuple[int, int]]]]):
    """Node to the (node, input port) pairs that read each of its outputs, in node order.

    Whoever asks of very many nodes takes the columns themselves: no list is made then that was not there.

    Attributes:
      nodes, ports: the node and the port of each input, in the order of what they read (tensors are numbered as in `Edges`).
      starts: tensor to where its readers start in those; one entry more says where the last one's end.
      first: node to the number of its first tensor; one entry more is the number of tensors.
    """

    nodes: Sequence[int]
    ports: Sequence[int]
    starts: Sequence[int]
    first: Sequence[int]

    @classmethod
    def of(cls, edges: Edges) -> Readers:
        """Returns the readers of a body."""
        order = np.argsort(edges.tensor, kind="stable")
        starts = np.cumsum(np.bincount(edges.tensor, minlength=len(edges.maker)))
        return cls(edges.reader[order].tolist(), edges.port[order].tolist(), [0, *starts.tolist()], [*edges.first.tolist(), len(edges.maker)])

    def __len__(self) -> int:
        """Returns the number of nodes."""
        return len(self.first) - 1

    def __getitem__(self, node: Any) -> Any:
        """Returns who reads each output of `node`."""
        return [self.of_tensor(tensor) for tensor in range(self.first[node], self.first[node + 1])]

    def of_tensor(self, tensor: int) -> list[tuple[int, int]]:
        """Returns who reads the tensor with that number."""
        inputs = slice(self.starts[tensor], self.starts[tensor + 1])
        return [*zip(self.nodes[inputs], self.ports[inputs], strict=True)]

    def count_of(self, node: int) -> int:
        """Returns how many inputs read what `node` makes."""
        return self.starts[self.first[node + 1]] - self.starts[self.first[node]]
