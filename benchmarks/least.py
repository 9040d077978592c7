"""The least traffic that any choice of types could reach, by a minimum cut: what a colouring is measured against, found without colouring anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

SIXTEEN = frozenset({"BatchMatMul", "BatchMatMulV2", "MatMul"})
"""Must be in 16 bit: that is what mixed precision is for."""

THIRTY_TWO = frozenset({"Exp", "L2Loss", "Mean", "Pow", "ReadVariableOp", "ResourceApplyGradientDescent", "Softmax", "Sum"})
"""Must be in float32: variables, and the ops that lose too much otherwise."""

FOREVER = 2**30
"""Stands for an infinite capacity; sums of real ones stay below it."""

Edge = tuple[str, int]


class Network:
    """Vertices are ops (source side: 16 bit, sink side: float32) and, for each tensor and direction, the one cast that all its readers share."""

    def __init__(self) -> None:
        """Starts empty."""
        self._numbers: dict[object, int] = {"16": 0, "32": 1}
        self._edges: dict[tuple[int, int], int] = {}
        self._paid = 0

    def op(self, name: str, op: str, traffic: int, kept: bool) -> None:
        """Adds an op that moves `traffic` bytes in float32 and half of them in 16 bit; `kept`: it must stay float32 whatever it is."""
        self._paid += traffic // 2
        if op in SIXTEEN:
            self._connect("16", name, FOREVER)
        elif kept or op in THIRTY_TWO:
            self._paid += traffic - traffic // 2
            self._connect(name, "32", FOREVER)
        else:
            self._connect("16", name, traffic - traffic // 2)  # is cut, and paid, if the op is on the other side

    def tensor(self, maker: str, tensor: Edge, readers: Iterable[str], size: int) -> None:
        """Adds a tensor of `size` bytes in float32; a cast of it reads or writes those, and writes or reads half of them."""
        down, up = ("down", *tensor), ("up", *tensor)
        self._connect(down, maker, size * 3 // 2)
        self._connect(maker, up, size * 3 // 2)
        for reader in readers:
            self._connect(reader, down, FOREVER)
            self._connect(up, reader, FOREVER)

    def least(self) -> int:
        """Returns the smallest traffic in bytes, casts included."""
        size = len(self._numbers)
        rows, columns = zip(*self._edges, strict=True)
        capacities = csr_array((list(self._edges.values()), (rows, columns)), shape=(size, size), dtype="int32")
        return self._paid + int(maximum_flow(capacities, 0, 1).flow_value)

    def _connect(self, start: object, end: object, capacity: int) -> None:
        edge = tuple(self._numbers.setdefault(name, len(self._numbers)) for name in (start, end))
        self._edges[edge] = min(self._edges.get(edge, 0) + capacity, FOREVER)  # type: ignore[index]


def least_traffic(traffic: Mapping[str, tuple[str, int]], tensors: Mapping[Edge, tuple[str, list[str], int]], kept: frozenset[str]) -> int:
    """Returns the least traffic in bytes of a program.

    Args:
      traffic: node to its op and to the bytes that it moves in float32.
      tensors: tensor to the node that makes it, those that read it, and its bytes in float32.
      kept: nodes whose type must stay: arguments and results.
    """
    network = Network()
    for name, (op, size) in traffic.items():
        network.op(name, op, size, name in kept)
    for tensor, (maker, readers, size) in tensors.items():
        network.tensor(maker, tensor, readers, size)
    return network.least()
