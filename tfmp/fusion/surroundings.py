"""What may be looked at to tell what is computed around a tensor."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tfmp.fusion.counts import Constants
from tfmp.graph.body import Body
from tfmp.graph.kinds import Kind
from tfmp.graph.readers import Readers
from tfmp.program.shapes import Sizes


def numbered() -> Mapping[Any, int]:
    """Returns a mapping that gives whatever it is asked for a number of its own. Two threads may number one thing twice, but never two things alike."""
    return collections.defaultdict(itertools.count().__next__)


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What may be looked at to tell what is computed around a tensor.

    Attributes:
      body: a function; nothing of it but ops, types, layouts, inputs and the values of constants.
      sizes: the shapes of its tensors.
      readers: `body.readers`; nothing of it but the nodes.
      constants: the values of its constants, as far as they were read.
      numbers: what kinds of nodes are like, to its number (`likeness`); of one memory (`repeats`), or of this body alone.
    """

    body: Body
    sizes: Sizes
    readers: Readers
    constants: Constants = dataclasses.field(default_factory=dict)
    numbers: Mapping[Any, int] = dataclasses.field(default_factory=numbered)

    @functools.cached_property
    def likeness(self) -> Sequence[int]:
        """Node to a number that is the same for nodes of one op with the same types and ports, and, if they are constants, the same value."""
        of_kind = [self.numbers[_like(kind)] for kind in self.body.kinds.table]
        return [*map(of_kind.__getitem__, self.body.kind_of)]


def _like(kind: Kind) -> Any:
    """Returns what is the same for kinds of one op with the same types and ports, and, if they are constants, the same value; a large value is no other's."""
    value: Any = (kind.value or object()) if kind.op == "Const" else None
    layout = kind.layout
    return kind.op, layout.keys, layout.inputs, layout.outputs, *kind.types, value
