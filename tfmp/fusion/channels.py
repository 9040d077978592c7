"""What the tensors around one tensor of data hold, channel by channel (`algebra`)."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Sequence

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion.algebra import DATA, ELEMENTWISE, GRADIENT, ONE, Polynomial, add, constant, scale
from tfmp.fusion.counts import numbers
from tfmp.graph.view import ARG, Body, Edge
from tfmp.program.shapes import Shape, Sizes

LIMIT = 400
"""How many ops are looked at around one tensor. Our own choice: a batch normalisation and its gradient are 80 at most."""

UNKNOWN_SIZES = (101.0, 103.0, 107.0, 109.0)
"""Stand for the sizes that are not known, in their order: prime, so that no product of them is another one's by chance."""

COPIES = frozenset({"BroadcastTo", "ExpandDims", "Identity", "PreventGradient", "Reshape", "Squeeze", "StopGradient", "Tile"})
NEAR = 4
"""How many such ops away what is READY is looked for. Our own choice."""

READY = frozenset({ARG, "Const", "ReadVariableOp"})
REDUCTIONS = frozenset({"Mean", "Sum"})


class Channels:
    """The values of tensors that are computed from one tensor of data whose last axis are channels.

    Attributes:
      data: the tensor.
      values: tensor to what it holds.
      leaves: tensors with one number a channel that do not come from the data, to the random numbers that stand for them.
      nodes: the nodes whose values are known, in the order in which they were found.
      unknown: tensors of the data's shape whose values are not known, to the nodes that read them beside known ones.
      partial: sums of which some summands only are known, to the ports of those.
      count: elements of a channel.
      mean, variance: random numbers that stand for the channel's statistics.
      gradient_sum, product_sum: likewise for the sum of the gradient, and the sum of the gradient times the data.
    """

    def __init__(self, body: Body, sizes: Sizes, readers: Sequence[Sequence[Sequence[Edge]]], data: Edge) -> None:
        """Looks at nothing yet; `data` must have a known rank and number of channels."""
        self._body, self._sizes, self._readers = body, sizes, readers
        self._random = random.Random(0)
        self.data = data
        self.shape = tuple(sizes.shape(data) or ())
        substitutes = iter(UNKNOWN_SIZES)
        self._dimensions = [next(substitutes) if size is None else float(size) for size in self.shape]
        self.count = math.prod(self._dimensions[:-1])
        self.mean, self.variance, self.gradient_sum, self.product_sum = (self._draw() for _ in range(4))
        self.values: dict[Edge, Polynomial] = {data: {DATA: 1.0}}
        self.leaves: dict[Edge, float] = {}
        self.nodes: list[int] = []
        self.unknown: dict[Edge, list[int]] = {}
        self.partial: dict[int, list[int]] = {}

    def _draw(self) -> float:
        return self._random.uniform(0.5, 1.5)

    def is_data(self, edge: Edge) -> bool:
        """Returns whether a tensor has the data's shape."""
        return self._sizes.shape(edge) == self.shape

    def is_statistic(self, edge: Edge) -> bool:
        """Returns whether a tensor has one number for each channel, or one for all."""
        return self.fits(self._sizes.shape(edge))

    def fits(self, shape: Shape) -> bool:
        """Returns whether a tensor of that shape has one number for each channel, or one for all."""
        if shape is None or len(shape) > len(self.shape):
            return False
        return not shape or (shape[-1] == self.shape[-1] and all(size == 1 for size in shape[:-1]))

    def spread(self, *starts: Edge) -> None:
        """Finds the values of what is computed from `starts`, whose own values are known, and from what is known beside them."""
        todo = [node for start in starts for node, _ in self._readers[start[0]][start[1]]]
        heapq.heapify(todo)
        seen: set[int] = set()
        while todo and len(self.nodes) < LIMIT:
            node = heapq.heappop(todo)
            if node not in seen:
                seen.add(node)
                found = self._value(node) if (node, 0) not in self.values else None
                if found is not None:
                    self.values[node, 0] = found
                    self.nodes.append(node)
                    for reader, _ in self._readers[node][0]:
                        heapq.heappush(todo, reader)

    def with_gradient(self, gradient: Edge) -> Channels:
        """Returns these channels with what is computed from `gradient`, a tensor of the data's shape, as well.

        What else has one number a channel and was not known may be among that, and is known anew; what is there before the data stays what it is.
        """
        other = Channels(self._body, self._sizes, self._readers, self.data)
        other.leaves = {edge: number for edge, number in self.leaves.items() if is_ready(self._body, edge)}
        other.values |= {edge: constant(number) for edge, number in other.leaves.items()} | {gradient: {GRADIENT: 1.0}}
        other._random = self._random
        other.spread(self.data, gradient)
        return other

    def sum_of_known(self, node: int) -> Polynomial:
        """Returns the sum of the summands of `node` whose values are known (`partial`)."""
        return add([self.values[self._body.inputs[node][port]] for port in self.partial[node]])

    def _value(self, node: int) -> Polynomial | None:
        body = self._body
        op, inputs, layout = body.ops[node], body.inputs[node], body.layouts[node]
        if not layout.outputs or body.types[node][layout.outputs[0]] != DT_FLOAT:
            return None
        if op in ELEMENTWISE:
            values = [self._operand(edge, node) for edge in inputs]
            if all(value is not None for value in values):
                return ELEMENTWISE[op](values) if self._has_a_place((node, 0)) else None  # type: ignore[arg-type]
            if op == "AddN":
                self.partial[node] = [port for port, value in enumerate(values) if value is not None]
        elif op in COPIES:
            return self._copied(node)
        elif op in REDUCTIONS:
            return self._reduced(node)
        return None

    def _has_a_place(self, edge: Edge) -> bool:
        return self.is_data(edge) or self.is_statistic(edge)

    def _operand(self, edge: Edge, reader: int) -> Polynomial | None:
        """Returns the value of a tensor; one with a number for each channel gets a random one if nothing is known of it."""
        if edge in self.values:
            return self.values[edge]
        if self.is_data(edge):
            self.unknown.setdefault(edge, []).append(reader)
            return None
        if not self.is_statistic(edge):
            return None
        held = self.number(edge) if self._sizes.shape(edge) == () else None
        if held is None:
            held = self.leaves[edge] = self._draw()
        self.values[edge] = constant(held)
        return self.values[edge]

    def number(self, edge: Edge) -> float | None:
        """Returns what a scalar holds, None if that cannot be told before the program runs."""
        found = numbers(self._body, edge, self._sizes_of)
        return float(found.item()) if found is not None and found.size == 1 else None

    def _sizes_of(self, edge: Edge) -> Sequence[int] | None:
        shape = self._sizes.shape(edge)
        if shape is not None and None not in shape:
            return shape  # type: ignore[return-value]
        return [int(size) for size in self._dimensions] if edge in self.values and shape == self.shape else None

    def _copied(self, node: int) -> Polynomial | None:
        source = self._body.inputs[node][0]
        value = self.values.get(source)
        if value is None or not self._has_a_place((node, 0)):
            return None
        spreads = self._body.ops[node] in ("BroadcastTo", "Tile") and self.is_statistic(source)
        return value if spreads or self.is_data(source) == self.is_data((node, 0)) else None

    def _reduced(self, node: int) -> Polynomial | None:
        source, axes = self._body.inputs[node]
        value, own, result = self.values.get(source), self._sizes.shape(source), self._sizes.shape((node, 0))
        if value is None or own is None or result is None:
            return None
        if not self.is_data(source):
            return value if self.is_statistic((node, 0)) and _without_ones(own) == _without_ones(result) else None
        reduced = numbers(self._body, axes, self._sizes_of)
        if reduced is None or sorted(axis % len(own) for axis in reduced.ravel().tolist()) != list(range(len(own) - 1)):
            return None
        moments = [self._expected(power, size) for power, size in value.items() if size]
        if any(moment is None for moment in moments):
            return None
        mean = constant(sum(moments))  # type: ignore[arg-type]
        return mean if self._body.ops[node] == "Mean" else scale(mean, self.count)

    def _expected(self, power: tuple[int, int], size: float) -> float | None:
        """Returns the mean over a channel of `size` times the monomial `power`."""
        moments = {
            ONE: 1.0,
            DATA: self.mean,
            (2, 0): self.variance + self.mean**2,
            GRADIENT: self.gradient_sum / self.count,
            (1, 1): self.product_sum / self.count,
        }
        return size * moments[power] if power in moments else None

    def statistics(self) -> Iterator[tuple[int, float]]:
        """Yields the nodes whose results hold one number for each channel, with that number."""
        for node in self.nodes:
            value = self.values[node, 0]
            if set(value) <= {ONE} and not self.is_data((node, 0)):
                yield node, value.get(ONE, 0.0)


def is_ready(body: Body, edge: Edge) -> bool:
    """Returns whether a tensor is there before any data is, in the shape that it has or in another."""
    for _ in range(NEAR):
        if body.ops[edge[0]] not in COPIES:
            break
        edge = body.inputs[edge[0]][0]
    return body.ops[edge[0]] in READY


def _without_ones(shape: Sequence[int | None]) -> list[int | None]:
    return [size for size in shape if size != 1]
