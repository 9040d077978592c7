"""The tensors of a body as arrays, for what looks at all of them at once.

Tensors are numbered node by node and output by output; inputs come node by node and port by port.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tfmp.graph.schema import Layout

Array = np.ndarray
"""One-dimensional, of int32 unless something else is said."""


@dataclasses.dataclass(frozen=True)
class Edges:
    """Who makes and who reads every tensor of a body.

    Attributes:
      first: node to the number of its first tensor.
      maker, maker_slot: tensor to the node that makes it, and to the slot with its type there.
      tensor: input to the tensor that it reads.
      source: input to the node that makes that tensor.
      reader, port, reader_slot: input to its node, to its place among that node's, and to the slot with its type there.
    """

    first: Array
    maker: Array
    maker_slot: Array
    tensor: Array
    source: Array
    reader: Array
    port: Array
    reader_slot: Array

    def input(self, number: int) -> tuple[int, int]:
        """Returns the node that has an input, and its port."""
        return int(self.reader[number]), int(self.port[number])

    def with_inputs(self, changed: Mapping[int, Sequence[tuple[int, int]]]) -> Edges:
        """Returns the edges if the nodes in `changed` read other tensors, as many as before."""
        is_changed = np.zeros(len(self.first), bool)
        is_changed[list(changed)] = True
        inputs = np.flatnonzero(is_changed[self.reader])
        ends = _flat(itertools.chain.from_iterable(changed.values())).reshape(-1, 2)
        tensor, source = self.tensor.copy(), self.source.copy()
        tensor[inputs], source[inputs] = self.first[ends[:, 0]] + ends[:, 1], ends[:, 0]
        return dataclasses.replace(self, tensor=tensor, source=source)


def edges_of(layouts: Sequence[Layout], layout_of: Array, inputs: Sequence[Sequence[tuple[int, int]]]) -> Edges:
    """Returns the edges of a body.

    Args:
      layouts: the different layouts of its nodes.
      layout_of: node to the number of its layout.
      inputs: node to what it reads (`Body.inputs`).
    """
    first, maker, _, maker_slot = _ports([layout.outputs for layout in layouts], layout_of)
    _, reader, port, reader_slot = _ports([layout.inputs for layout in layouts], layout_of)
    source, output = _flat(itertools.chain.from_iterable(inputs)).reshape(-1, 2).T
    return Edges(first, maker, maker_slot, first[source] + output, source.copy(), reader, port, reader_slot)


def _ports(slots: Sequence[Sequence[int]], layout_of: Array) -> tuple[Array, Array, Array, Array]:
    """Returns where the ports of each node start, and for each port its node, its place among that node's, and its slot.

    Args:
      slots: for each layout the slots of its ports.
      layout_of: node to the number of its layout.
    """
    start_of, _ = laid_out(slots)
    lengths = np.fromiter(map(len, slots), np.int32, len(slots))[layout_of]
    first = np.cumsum(lengths, dtype=np.int32) - lengths
    node = np.repeat(np.arange(len(layout_of), dtype=np.int32), lengths)
    place = np.arange(len(node), dtype=np.int32) - first[node]
    return first, node, place, _flat(slots)[start_of[layout_of[node]] + place]


def laid_out(rows: Sequence[Sequence[object]]) -> tuple[Array, Array]:
    """Returns where each of `rows` starts if they are laid end to end, and for each entry the row that it is in."""
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return np.cumsum(lengths, dtype=np.int32) - lengths, np.repeat(np.arange(len(rows), dtype=np.int32), lengths)


def _flat(rows: Iterable[Iterable[int]]) -> Array:
    return np.fromiter(itertools.chain.from_iterable(rows), np.int32)


def distinct(numbers: Array) -> Array:
    """Returns the different ones of `numbers`, in order; as `numpy.unique` does, which takes four times as long since it hashes."""
    ordered = np.sort(numbers)
    return ordered[starts_of(ordered)]


def starts_of(ordered: Array) -> Array:
    """Returns where each of the different ones of `ordered`, which are in order, starts."""
    starts = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=starts[1:])
    return np.flatnonzero(starts)
