"""Nodes that are alike, and how to tell at once which ones are.

A graph of thousands of nodes has a few dozen kinds: nodes of one op with the same attributes. What is up to op and attributes is worked out once a kind. To
ask each attribute of each node for its value would be most of the work of reading a graph, and so two nodes are of one kind if their attributes are written
with the same bytes (two kinds that are one cost a little time and nothing else).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from tfmp import tf_api
from tfmp.dtypes import DT_FLOAT
from tfmp.graph.edges import Array
from tfmp.graph.schema import Layout, OpSchema, Slot, registered_schema
from tfmp.user_rules import FLOAT32_MARK

NEWER = {"FusedBatchNorm": "FusedBatchNormV2", "FusedBatchNormGrad": "FusedBatchNormGradV2"}
"""Ops that are read as their newer version, whose statistics have a type of their own, U, and stay float32 (`ConvertBatchNormOpsToV2`)."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What nodes have in common that are alike.

    Attributes:
      op: op type; of what is read as a newer version, that.
      layout: its slots and ports.
      types: type number of each slot. Never written to.
      written: op and attributes of the nodes as they are written; b"" for arguments and results, which are not.
      marked: whether the nodes are in a region that the user keeps in float32.
      value: of constants whose tensor takes at most `SMALL_TENSOR` bytes, that tensor, serialised; else b"".
    """

    op: str
    layout: Layout
    types: list[int]
    written: bytes
    marked: bool = False
    value: bytes = b""

    @property
    def is_pseudo(self) -> bool:
        """Whether the nodes are arguments or results."""
        return not self.written

    @property
    def node(self) -> tf_api.NodeDef:
        """Op and attributes of the nodes, as a node that has nothing else; made anew whenever it is asked for."""
        return tf_api.NodeDef.FromString(self.written)

    def type_of(self, slot: Slot) -> int:
        """Returns the type number of one of the slots."""
        return self.types[self.layout.number[slot]]


class Kinds:
    """The kinds of the nodes of one body, numbered from 0 in the order in which they were met.

    Attributes:
      table: number to kind.
    """

    def __init__(self) -> None:
        """Starts with none."""
        self.table: list[Kind] = []
        self._ops: list[str] = []
        self._numbers: dict[object, int] = collections.defaultdict(itertools.count().__next__)

    def __copy__(self) -> Kinds:
        """Returns the same kinds, to which others can be added."""
        other = Kinds()
        other.table, other._ops = list(self.table), list(self._ops)
        other._numbers = collections.defaultdict(itertools.count(len(self.table)).__next__, self._numbers)
        return other

    def take_in(self, other: Kinds) -> list[int]:
        """Adds the kinds of another body; returns their numbers here."""
        return self._read([(other, number) for number in range(len(other.table))], other.table.__getitem__)

    def which(self, question: Callable[[Kind], object], ops: Collection[str] | None = None) -> Array:
        """Returns number of a kind to whether its op is one of `ops`, if they are given, and the answer to `question` is yes."""
        if ops is None:
            return np.array([bool(question(kind)) for kind in self.table], bool)
        return np.array([op in ops and bool(question(kind)) for op, kind in zip(self._ops, self.table, strict=True)], bool)

    def are_of(self, ops: Collection[str]) -> Array:
        """Returns number of a kind to whether its op is one of `ops`."""
        return np.array([op in ops for op in self._ops], bool)

    def pseudo(self, op: str, layout: Layout, types: Sequence[int]) -> list[int]:
        """Returns the numbers of the kinds of arguments or results of these types."""
        return self._read([(op, dtype) for dtype in types], lambda position: Kind(op, layout, [types[position]], b""))

    def read(self, attributes: Sequence[bytes], library: Mapping[str, OpSchema]) -> list[int]:
        """Returns the numbers of the kinds of nodes.

        Args:
          attributes: for each node its op and attributes, written alike for nodes that are alike (`wire.Columns`).
          library: schemas of functions that nodes may name as their op.

        Raises:
          GraphError: an op is unknown.
        """
        return self._read(attributes, lambda position: _kind(attributes[position], library))

    def _read(self, keys: Sequence[object], make: Callable[[int], Kind]) -> list[int]:
        """Returns the numbers of `keys`; `make` makes the kind of a new one, by its position."""
        numbers, position = list(map(self._numbers.__getitem__, keys)), 0
        while len(self.table) < len(self._numbers):
            position = numbers.index(len(self.table), position)
            self.table.append(make(position))
            self._ops.append(self.table[-1].op)
        return numbers


SMALL = 512
"""Bytes up to which op and attributes are remembered for the next function. Our own choice: more has only a constant or a function with many results."""

SMALL_TENSOR = 64
"""Bytes of a serialised tensor up to which values are looked at kind by kind: graphs have few different scalars, axes and shapes, and the same ones. Our own
choice.
"""


def _kind(written: bytes, library: Mapping[str, OpSchema]) -> Kind:
    if len(written) <= SMALL and _op(written) not in library:
        return _remembered(written)
    return _read_kind(written, library)


@functools.lru_cache(maxsize=4096)
def _op(written: bytes) -> str:
    return str(tf_api.NodeDef.FromString(written).op)


@functools.lru_cache(maxsize=4096)
def _remembered(written: bytes) -> Kind:
    return _read_kind(written, {})


def _read_kind(written: bytes, library: Mapping[str, OpSchema]) -> Kind:
    node = tf_api.NodeDef.FromString(written)
    op, attrs = node.op, node.attr
    schema = library[op] if op in library else registered_schema(NEWER.get(op, op))
    layout, types = schema.read(attrs)
    if op in NEWER:
        op = NEWER[op]
        types[layout.number[Slot("U")]] = DT_FLOAT
    return Kind(op, layout, types, written, FLOAT32_MARK in attrs, _small_value(attrs) if op == "Const" else b"")


def _small_value(attrs: tf_api.Message) -> bytes:
    value = attrs.get("value")
    return b"" if value is None or value.tensor.ByteSize() > SMALL_TENSOR else bytes(value.tensor.SerializeToString())
