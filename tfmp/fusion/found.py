"""What a normalisation and its gradient are made of, once they are found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tfmp.graph.body import Body, Edge


@dataclasses.dataclass(frozen=True)
class Gradient:
    """The gradient of one normalisation.

    Attributes:
      incoming: the gradient for the result.
      data: the node that computes the gradient for the data, or adds it to others; None if nothing needs it.
      summands: the input ports of that node that it is the sum of; () for what is one as a whole.
      scale, offset: the nodes that compute the gradients for scale and offset.
      around: the nodes that compute something of the incoming gradient and the data.
    """

    incoming: Edge
    data: int | None
    summands: tuple[int, ...]
    scale: tuple[int, ...]
    offset: tuple[int, ...]
    around: tuple[int, ...]

    def renumbered(self, number: Callable[[int], int]) -> Gradient:
        """Returns the same of other nodes; `number` tells of each which."""
        node, port = self.incoming
        data = None if self.data is None else number(self.data)
        scale, offset, around = (tuple(map(number, nodes)) for nodes in (self.scale, self.offset, self.around))
        return Gradient((number(node), port), data, self.summands, scale, offset, around)

    def summed(self, body: Body) -> set[Edge]:
        """Returns which inputs of the node that computes the gradient for the data its kernel takes the place of."""
        return set() if self.data is None else {(self.data, port) for port in self.summands or range(len(body.inputs[self.data]))}


@dataclasses.dataclass(frozen=True)
class Norm:
    """One normalisation.

    Attributes:
      by_row: whether the rows of the last axis are normalised, and not the channels.
      data: what is normalised.
      result: the node that computes the normalised data.
      scale, offset: None for 1 and 0.
      epsilon: what is added to the variance.
      count: how many elements a group has; None if only the program knows.
      mean, variance: the nodes that compute the statistics.
      like_data: the nodes that compute something of the data's shape, but for the results of normalisations.
      gradient: its gradient, if that is in the same graph.
      inner: the nodes that the result is made of, and itself.
      beside: the nodes that compute something else of the data, and that no other one's result is made of.
    """

    by_row: bool
    data: Edge
    result: int
    scale: Edge | None
    offset: Edge | None
    epsilon: float
    count: int | None
    mean: tuple[int, ...]
    variance: tuple[int, ...]
    like_data: tuple[int, ...]
    gradient: Gradient | None
    inner: tuple[int, ...]
    beside: tuple[int, ...]

    def renumbered(self, number: Callable[[int], int]) -> Norm:
        """Returns the same of other nodes; `number` tells of each which."""
        data, scale, offset = (edge and (number(edge[0]), edge[1]) for edge in (self.data, self.scale, self.offset))
        mean, variance, like_data = (tuple(map(number, nodes)) for nodes in (self.mean, self.variance, self.like_data))
        inner, beside = tuple(map(number, self.inner)), tuple(map(number, self.beside))
        gradient = self.gradient and self.gradient.renumbered(number)
        result = number(self.result)
        return Norm(self.by_row, data, result, scale, offset, self.epsilon, self.count, mean, variance, like_data, gradient, inner, beside)  # type: ignore[arg-type]

    @property
    def scaled(self) -> bool:
        """Whether it has a scale or an offset."""
        return self.scale is not None or self.offset is not None

    @property
    def own(self) -> tuple[int, ...]:
        """The nodes that the result is made of, and those that compute something of the gradient that comes back for it."""
        if self.gradient is None:
            return self.inner
        return (*self.inner, *self.gradient.around, *(() if self.gradient.data is None else (self.gradient.data,)))


class Norms(tuple[Norm, ...]):
    """Normalisations of one tensor of data, along the same axes."""

    __slots__ = ()

    def renumbered(self, number: Callable[[int], int]) -> Norms:
        """Returns the same of other nodes; `number` tells of each which."""
        return Norms(norm.renumbered(number) for norm in self)
