"""What the tensors around one tensor of data hold, group by group (`algebra`)."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Iterator, Sequence

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion.algebra import DY, ELEMENTWISE, WEIGHTS, Monomial, Polynomial, X, constant, number_of, same, scale
from tfmp.fusion.broadcast import broadcast
from tfmp.fusion.counts import axes_of, numbers
from tfmp.fusion.ready import SAME_NUMBERS, is_ready
from tfmp.fusion.surroundings import Surroundings
from tfmp.graph.body import Edge
from tfmp.program.rearrange import COPIES as REPEATING
from tfmp.program.rearrange import REDUCTIONS
from tfmp.program.shapes import Shape

LIMIT = 400
"""How many ops are looked at around one tensor. Our own choice: a normalisation and its gradient are 80 at most."""

UNKNOWN_SIZES = ((101, 103, 107, 109), (61, 67, 71, 73))
"""Stand for the sizes that are not known, in their order: prime, so that no product of them is another one's by chance. Twice, since the program may have such
numbers of its own, but not the count that either makes: what holds with both holds with any.
"""

DATA, STATISTIC, WEIGHT = "data", "statistic", "weight"


class Groups:
    """The values of tensors that are computed from one tensor of data, which falls into groups.

    Attributes:
      data: the tensor.
      axes: those along which the data of one group lie; positive, in ascending order.
      shape: of the data.
      count: elements of a group.
      values: tensor to what it holds.
      leaves: tensors with one number for each group that do not come from the data, to the random numbers that stand for them.
      weights: tensors that are the same for all groups, to the symbols that stand for them.
      nodes: the nodes whose values are known, in the order in which they were found.
      unknown: tensors of the data's shape whose values are not known, to the nodes that read them beside known ones.
      partial: sums of which some summands only are known, to the ports of those.
      across: sums over all groups, to what is summed there.
      mean, variance: random numbers that stand for a group's statistics.
    """

    def __init__(self, around: Surroundings, data: Edge, axes: Sequence[int], unknown_sizes: Sequence[int] = UNKNOWN_SIZES[0]) -> None:
        """Looks at nothing yet; `data` must have a known rank, and `unknown_sizes` stand for those of its sizes that are not known."""
        self._around, self._unknown_sizes = around, unknown_sizes
        self._body, self._sizes, self._readers, self._constants = around.body, around.sizes, around.readers, around.constants
        self._random = random.Random(0)
        self.data, self.axes = data, tuple(axes)
        self.shape = tuple(self._sizes.shape(data) or ())
        substitutes = itertools.cycle(unknown_sizes)
        self._dimensions = [next(substitutes) if size is None else size for size in self.shape]
        self._of_statistics = tuple(1 if axis in self.axes else size for axis, size in enumerate(self.shape))
        self._of_weights = tuple(size if axis in self.axes else 1 for axis, size in enumerate(self.shape))
        self._shapes: dict[Edge, Shape] = {}
        self._kinds: dict[Edge, str] = {}
        self.count = math.prod(self._dimensions[axis] for axis in axes)
        self.mean, self.variance = self._draw(), self._draw()
        self._moments: dict[Monomial, float] = {(): 1.0, (X,): self.mean, (X, X): self.variance + self.mean**2}
        self.values: dict[Edge, Polynomial] = {data: {(X,): 1.0}}
        self.leaves: dict[Edge, float] = {}
        self.weights: dict[Edge, int] = {}
        self.nodes: list[int] = []
        self.unknown: dict[Edge, list[int]] = {}
        self.partial: dict[int, list[int]] = {}
        self.across: dict[int, Polynomial] = {}
        self._shapeless: dict[Edge, str] = {}
        self._passing: set[Edge] = set()

    @property
    def by_row(self) -> bool:
        """Whether a group is a row of the last axis."""
        return self.axes == (len(self.shape) - 1,)

    def _draw(self) -> float:
        return self._random.uniform(0.5, 1.5)

    def moment(self, power: Monomial) -> float:
        """Returns the number that stands for the mean over a group of a monomial."""
        if power not in self._moments:
            self._moments[power] = self._draw()
        return self._moments[power]

    def kind(self, edge: Edge) -> str:
        """Returns what a tensor has numbers for: DATA for each element, STATISTIC for each group, or one for all, WEIGHT for each element of a group, the same
        for all groups; or "".
        """
        found = self._kinds.get(edge)
        if found is None:
            found = self._kinds[edge] = self._kind_of(self.shape_of(edge))
        return found

    def shape_of(self, edge: Edge) -> Shape:
        """Returns the shape of a tensor; of the result of elementwise ops, as it follows from their operands' shapes."""
        found = self._shapes.get(edge)
        if found is None:
            found = self._shapes[edge] = self._sizes.shape(edge)
        return found

    def _kind_of(self, shape: Shape) -> str:
        if shape == self.shape:
            return DATA
        if shape == ():
            return STATISTIC
        if shape is None or len(shape) > len(self.shape):
            return ""
        aligned = (*(1,) * (len(self.shape) - len(shape)), *shape)
        return STATISTIC if aligned == self._of_statistics else WEIGHT if aligned == self._of_weights else ""

    def is_data(self, edge: Edge) -> bool:
        """Returns whether a tensor has the data's shape."""
        return self.kind(edge) == DATA

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
                    if not self._passing.isdisjoint(self._body.inputs[node]):
                        self._passing.add((node, 0))
                    for reader, _ in self._readers[node][0]:
                        heapq.heappush(todo, reader)

    def with_gradient(self, gradient: Edge) -> Groups:
        """Returns these groups with what is computed from `gradient`, a tensor of the data's shape, as well.

        What else has one number a group and was not known may be among that, and is known anew; what is there before the data stays what it is.
        """
        other = Groups(self._around, self.data, self.axes, self._unknown_sizes)
        other._kinds, other._shapes, other._random = self._kinds, self._shapes, self._random
        other.leaves = {edge: number for edge, number in self.leaves.items() if edge not in self._passing}
        other.weights = {edge: symbol for edge, symbol in self.weights.items() if edge not in self._passing}
        other.values = {edge: value for edge, value in self.values.items() if edge not in self._passing} | {gradient: {(DY,): 1.0}}
        other.spread(gradient)
        return other

    def statistics(self) -> Iterator[tuple[int, float]]:
        """Yields the nodes whose results hold one number for each group, with that number."""
        for node in self.nodes:
            number = number_of(self.values[node, 0]) if self.kind((node, 0)) != DATA else None
            if number is not None:
                yield node, number

    def computing(self, target: float) -> tuple[int, ...]:
        """Returns the nodes that compute `target` for each group from what is something else."""
        found = [node for node, number in self.statistics() if same(number, target)]
        return tuple(node for node in found if not any(source in found for source, _ in self._body.inputs[node]))

    def number(self, edge: Edge) -> float | None:
        """Returns what a scalar holds, None if that cannot be told before the program runs."""
        found = numbers(self._body, edge, self._sizes_of, self._constants)
        return float(found.item()) if found is not None and found.size == 1 else None

    def _value(self, node: int) -> Polynomial | None:
        body = self._body
        op, layout = body.ops[node], body.layouts[node]
        if not layout.outputs or body.types[node][layout.outputs[0]] != DT_FLOAT:
            return None
        if op in ELEMENTWISE:
            inputs = body.inputs[node]
            values = [self._operand(edge, node) for edge in inputs]
            if all(value is not None for value in values):
                self._shapes.setdefault((node, 0), broadcast(op, [self.shape_of(edge) for edge in inputs]))
                return ELEMENTWISE[op](values) if self.kind((node, 0)) else None  # type: ignore[arg-type]
            if op == "AddN":
                self.partial[node] = [port for port, value in enumerate(values) if value is not None]
        elif op in SAME_NUMBERS:
            return self._copied(node)
        elif op in REDUCTIONS:
            return self._reduced(node)
        return None

    def _operand(self, edge: Edge, reader: int) -> Polynomial | None:
        """Returns the value of a tensor; one with a number for each group, or for each element of a group, gets a symbol if nothing is known of it."""
        if edge in self.values:
            return self.values[edge]
        kind = self.kind(edge)
        if kind == DATA:
            self.unknown.setdefault(edge, []).append(reader)
            return None
        if kind == STATISTIC:
            held = self.number(edge) if self.shape_of(edge) == () else None
            if held is None:
                held = self.leaves[edge] = self._draw()
            self.values[edge] = constant(held)
        elif kind == WEIGHT:
            self.weights[edge] = WEIGHTS + len(self.weights)
            self.values[edge] = {(self.weights[edge],): 1.0}
        if (edge in self.leaves or edge in self.weights) and not is_ready(self._body, edge):
            self._passing.add(edge)
        return self.values.get(edge)

    def _sizes_of(self, edge: Edge) -> Sequence[int] | None:
        shape = self.shape_of(edge)
        if shape is not None and None not in shape:
            return shape  # type: ignore[return-value]
        if edge not in self.values or self.kind(edge) not in (DATA, STATISTIC):
            return None
        aligned = self._dimensions[len(self._dimensions) - len(shape or ()) :]
        return [other if size is None else size for size, other in zip(shape or (), aligned, strict=True)]

    def _copied(self, node: int) -> Polynomial | None:
        source, result = self._body.inputs[node][0], (node, 0)
        value = self.values.get(source)
        if value is None:
            return None
        own, made = self._shapeless.get(source) or self.kind(source), self.kind(result)
        if self._body.ops[node] in REPEATING and made == DATA:
            return value if own == STATISTIC else None
        return value if own == made != "" else None

    def _reduced(self, node: int) -> Polynomial | None:
        source, where = self._body.inputs[node]
        value, own, result = self.values.get(source), self.shape_of(source), (node, 0)
        if value is None or own is None:
            return None
        axes = axes_of(self._body, where, len(own), self._sizes_of, self._constants)
        if axes is None:
            return None
        if self.kind(source) != DATA:
            return value if all(own[axis] == 1 for axis in axes) and self._fits(result, STATISTIC) else None
        if not axes and self._fits(result, DATA):
            return value
        if axes == self.axes and self._fits(result, STATISTIC):
            mean = constant(sum(size * self.moment(power) for power, size in value.items() if size))
            return mean if self._body.ops[node] == "Mean" else scale(mean, self.count)
        if axes and not set(axes) & set(self.axes) and len(axes) + len(self.axes) == len(own) and self._body.ops[node] == "Sum":
            self.across[node] = value
        return None

    def _fits(self, result: Edge, kind: str) -> bool:
        """Returns whether the result of a reduction is of a kind. One of whose sizes TensorFlow knows none is, and will be reshaped to what it was made of."""
        shape = self.shape_of(result)
        if shape is None or (shape and not any(shape)):
            self._shapeless[result] = kind
            return True
        return self.kind(result) == kind
