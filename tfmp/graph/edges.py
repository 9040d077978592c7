"""The tensors of a body as arrays, for what looks at all of them at once.

Tensors are numbered node by node and output by output; inputs come node by node and port by port.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
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
      reader, reader_slot: input to its node, and to the slot with its type there.
    """

    first: Array
    maker: Array
    maker_slot: Array
    tensor: Array
    source: Array
    reader: Array
    reader_slot: Array


def edges_of(layouts: Sequence[Layout], inputs: Sequence[Sequence[tuple[int, int]]]) -> Edges:
    """Returns the edges of a body whose nodes have these layouts and inputs (`Body.layouts`, `Body.inputs`)."""
    outputs = [layout.outputs for layout in layouts]
    first, maker = _starts(outputs)
    _, reader = _starts(inputs)
    ends = _flat(itertools.chain.from_iterable(inputs)).reshape(-1, 2)
    slots = _flat(layout.inputs for layout in layouts)
    return Edges(first, maker, _flat(outputs), first[ends[:, 0]] + ends[:, 1], ends[:, 0].copy(), reader, slots)


def _starts(rows: Sequence[Sequence[object]]) -> tuple[Array, Array]:
    """Returns where each of `rows` starts if they are laid end to end, and for each entry the row that it is in."""
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return np.cumsum(lengths, dtype=np.int32) - lengths, np.repeat(np.arange(len(rows), dtype=np.int32), lengths)


def _flat(rows: Iterable[Iterable[int]]) -> Array:
    return np.fromiter(itertools.chain.from_iterable(rows), np.int32)


def adjacency(keys: Array, values: Array, size: int) -> list[list[int]]:
    """Returns for each key from 0 to `size` the values that come with it, in the order in which they come."""
    flat = values[np.argsort(keys, kind="stable")].tolist()
    ends = np.cumsum(np.bincount(keys, minlength=size)).tolist()
    return [flat[start:end] for start, end in zip([0, *ends], ends)]  # noqa: B905  (the ends are one fewer)
