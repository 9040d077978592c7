"""The ranges of a whole program: one record for every op, in every place it was called from."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfmp.errors import TfmpError
from tfmp.measured.counts import Counts

WEIGHT, ACTIVATION, ACTIVATION_GRADIENT, WEIGHT_GRADIENT, UPDATE = "weight", "activation", "activation gradient", "weight gradient", "update"
KINDS = (WEIGHT, ACTIVATION, ACTIVATION_GRADIENT, WEIGHT_GRADIENT, UPDATE)
"""What a tensor is for: a variable's value; what the model computes; the gradients of either; what becomes of gradients (clipping, optimizer)."""

HANDS_ON = frozenset({
    "_Arg", "Const", "Enter", "Exit", "ExpandDims", "Identity", "IdentityN", "Merge", "NextIteration", "Placeholder", "PreventGradient", "ReadVariableOp",
    "Reshape", "Squeeze", "StopGradient", "Switch", "TensorListGetItem", "TensorListPopBack", "TensorListStack", "Transpose", "VariableV2",
})  # fmt: skip
"""Ops whose outputs are values that have been counted where they were made, or that nothing has computed."""

GRADIENTS = (ACTIVATION_GRADIENT, WEIGHT_GRADIENT)


@dataclasses.dataclass(frozen=True)
class OpRange:
    """What one op computed, in one place of a program.

    Attributes:
      place: the calls that lead to the op's function, each as "node:attribute"; () for the root.
      node, op: name and type of the node; "_Arg" for an argument of a function.
      function: name of the function, without TensorFlow's prefix and number.
      layer: names of the Keras layers that it belongs to, or of its name scopes, joined by "/"; or "".
      kind: one of `KINDS`.
      inputs: the tensors that it reads, each as "node:port", in order.
      outputs: output port to what it had; only float outputs.
      is_call: whether it is a call, a loop or a branch, whose ops have records of their own.
      alias: the node's name without the numbers that depend on what else a process has made (`naming.aliases`).
    """

    place: tuple[str, ...]
    node: str
    op: str
    function: str
    layer: str
    kind: str
    inputs: tuple[str, ...]
    outputs: Mapping[int, Counts]
    is_call: bool = False
    alias: str = ""

    @property
    def key(self) -> tuple[tuple[str, ...], str]:
        """What names the op in its program."""
        return self.place, self.node

    def __add__(self, other: OpRange) -> OpRange:
        """Returns the record over both; raises `TfmpError` if they are of different ops."""
        if (self.key, self.op) != (other.key, other.op):
            raise TfmpError(f"the ranges are of different programs: node {self.node!r} is a {self.op} in one and a {other.op} in the other.")
        ports = sorted({*self.outputs, *other.outputs})
        return dataclasses.replace(self, outputs={port: self.outputs.get(port, Counts()) + other.outputs.get(port, Counts()) for port in ports})

    def to_json(self) -> dict[str, Any]:
        """Returns what `from_json` reads."""
        return {**vars(self), "outputs": {str(port): counts.to_json() for port, counts in self.outputs.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OpRange:
        """Returns the record that `to_json` wrote; raises TypeError, KeyError or ValueError if `data` is nothing of the kind."""
        outputs = {int(port): Counts.from_json(counts) for port, counts in data["outputs"].items()}
        return cls(**{**data, "place": tuple(data["place"]), "inputs": tuple(data["inputs"]), "outputs": outputs})


@dataclasses.dataclass(frozen=True)
class Ranges:
    """The ranges of a program over some batches. They add up: `a + b`, `sum`, or `a.merge(b, c)`.

    Attributes:
      ops: a record for each op with float outputs, in the order in which they ran.
      batches: how many batches were run.
      loss_scale: what the loss was multiplied by while gradients were recorded; 1 if by nothing.
      training_scale: what it will be multiplied by in training; None: by the scale that is proposed (`risk.proposed_loss_scale`).
    """

    ops: tuple[OpRange, ...] = ()
    batches: int = 0
    loss_scale: float = 1.0
    training_scale: float | None = None

    @functools.cached_property
    def by_key(self) -> Mapping[tuple[tuple[str, ...], str], OpRange]:
        """The records by place and node."""
        return {one.key: one for one in self.ops}

    def __iter__(self) -> Iterator[OpRange]:
        """Yields the records."""
        return iter(self.ops)

    def __len__(self) -> int:
        """Returns the number of records."""
        return len(self.ops)

    def __add__(self, other: Ranges) -> Ranges:
        """Returns the ranges over the batches of both; raises `TfmpError` if they are of different programs or loss scales."""
        if not self.batches or not other.batches:
            return self if self.batches else other
        mine, theirs = (self.loss_scale, self.training_scale), (other.loss_scale, other.training_scale)
        if mine != theirs:
            raise TfmpError(f"ranges with the loss scales (recorded, in training) {mine} do not add to those with {theirs}.")
        common = [one + other.by_key[one.key] if one.key in other.by_key else one for one in self.ops]
        ops = (*common, *(one for one in other.ops if one.key not in self.by_key))
        return dataclasses.replace(self, ops=ops, batches=self.batches + other.batches)

    __radd__ = __add__

    def merge(self, *others: Ranges) -> Ranges:
        """Returns the ranges over the batches of this and all `others`; raises as `+` does."""
        return sum(others, self)

    def counts(self, kinds: Iterable[str], *, without: Iterable[str] = ()) -> Counts:
        """Returns the counts of all tensors of some kinds together; those of ops whose type is in `without` are left out, and those of calls."""
        wanted, left_out = frozenset(kinds), frozenset(without)
        chosen = (one for one in self.ops if one.kind in wanted and one.op not in left_out and not one.is_call)
        return sum((counts for one in chosen for counts in one.outputs.values()), Counts())

    def read(self, one: OpRange) -> Iterator[tuple[str, Counts]]:
        """Yields "node:port" and counts of each float tensor that `one` reads."""
        for text in one.inputs:
            node, _, port = text.rpartition(":")
            source = self.by_key.get((one.place, node))
            if source is not None and int(port) in source.outputs:
                yield text, source.outputs[int(port)]
