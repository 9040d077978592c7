"""What a user feeds and fetches, in the terms of the graph that is run instead of the user's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tfmp import tf_api, tf_sessions
from tfmp.dtypes import SIXTEEN_BIT
from tfmp.graph.fragment import parse
from tfmp.hooks.shadow import Shadow, Table
from tfmp.tf_sessions import Output, Tensor


@dataclasses.dataclass(frozen=True)
class Request:
    """What a user feeds, fetches and runs besides, by the names in the user's graph.

    Attributes:
      fed: tensors that get values.
      fetched: tensors whose values are asked for.
      targets: operations that are run besides.
      plain: tensors that get values which cannot be looked at here, so that they must be as in the user's graph.
    """

    fed: Sequence[Tensor]
    fetched: Sequence[Tensor]
    targets: Sequence[str]
    plain: Sequence[Tensor] = ()

    @classmethod
    def of(cls, feeds: Iterable[Output], fetches: Iterable[Output], targets: Iterable[Any]) -> Request:
        """Reads TensorFlow's handles."""
        return cls([*map(tf_sessions.tensor_of, feeds)], [*map(tf_sessions.tensor_of, fetches)], [*map(tf_sessions.name_of, targets)])

    @classmethod
    def of_callable(cls, options: Any) -> Request:
        """Reads a CallableOptions proto; the sources of its connections are the last that are fetched, their ends the last that are `plain`."""
        sources = [parse(one.from_tensor) for one in options.tensor_connection]
        ends = [parse(one.to_tensor) for one in options.tensor_connection]
        return cls((), [*map(parse, options.fetch), *sources], [*options.target], [*map(parse, options.feed), *ends])

    @property
    def names(self) -> list[str]:
        """The names of all operations that are mentioned."""
        return [*(name for name, _ in (*self.fed, *self.fetched, *self.plain)), *self.targets]


@dataclasses.dataclass(frozen=True)
class Step:
    """What the graph that is run gets for a request.

    Attributes:
      fed: for each tensor that the user feeds, those to feed, each with the number of the type to cast the value to, 0 for none.
      fetched: what to fetch.
      targets: what to run besides.
      plain: what else to feed.
    """

    fed: Sequence[Sequence[tuple[Tensor, int]]]
    fetched: Sequence[Tensor]
    targets: Sequence[str]
    plain: Sequence[Tensor] = ()

    @property
    def tensors_fed(self) -> list[Tensor]:
        """All tensors to feed."""
        return [tensor for tensors in self.fed for tensor, _ in tensors]

    def overflows(self, values: Iterable[Any]) -> bool:
        """Returns whether one of the `values` that the user feeds is finite but too large for the type that it would be cast to."""
        return any(_overflows(value, number) for tensors, value in zip(self.fed, values, strict=True) for _, number in tensors if number)

    def values(self, values: Iterable[Any]) -> list[Any]:
        """Returns what to feed to each of `tensors_fed` when the user feeds `values`."""
        return [_as_type(value, number) for tensors, value in zip(self.fed, values, strict=True) for _, number in tensors]


def translate(request: Request, shadow: Shadow) -> Step | None:
    """Returns what `request` is in the shadow, which may get casts for it; None if something is fed that readers in the shadow do not read."""
    table = shadow.table
    if any(tensor in table.bypassed for tensor in request.fed) or any(_is_converted(tensor, table) for tensor in request.plain):
        return None
    fetched = [shadow.view(tensor) for tensor in request.fetched]
    targets = [table.renamed.get(name, name) for name in request.targets]
    return Step([_instead_of(tensor, shadow) for tensor in request.fed], fetched, targets, [shadow.view(tensor) for tensor in request.plain])


def _is_converted(tensor: Tensor, table: Table) -> bool:
    return tensor in table.sixteen or tensor in table.constants or tensor in table.bypassed


def _instead_of(tensor: Tensor, shadow: Shadow) -> list[tuple[Tensor, int]]:
    """A 16-bit tensor gets a rounded value, and its cast to float32 the value itself; so does a constant and its copy."""
    table = shadow.table
    if tensor in table.sixteen:
        return [(shadow.native_name(tensor), table.sixteen[tensor]), *((view, 0) for view in [table.views.get(tensor)] if view)]
    numbers = [form.number for form in SIXTEEN_BIT.values()] if tensor in table.constants else []
    copies = [(table.casts[tensor, number], number) for number in numbers if (tensor, number) in table.casts]
    return [(shadow.view(tensor), 0), *copies]


def _overflows(value: Any, number: int) -> bool:
    return bool((np.isfinite(value) & ~np.isfinite(_as_type(value, number).astype(np.float32))).any())


def _as_type(value: Any, number: int) -> Any:
    return tf_api.to_sixteen(value, number) if number else value
