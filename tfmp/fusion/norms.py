"""Normalisations of data by their own mean and variance, and their gradients, found by what they compute.

y = (x - mean) * rsqrt(variance + epsilon) * scale + offset. The statistics are of a channel of all examples, and scale and offset have one number a channel
(Ioffe and Szegedy, "Batch Normalization", 2015); or they are of one row of the last axis, and scale and offset have one number for each of its elements
(Ba, Kiros and Hinton, "Layer Normalization", 2016).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion.algebra import number_of, same
from tfmp.fusion.counts import Constants, axes_of
from tfmp.fusion.forms import Form, form_of
from tfmp.fusion.found import Gradient, Norm, Norms
from tfmp.fusion.gradients import Gradients
from tfmp.fusion.groups import UNKNOWN_SIZES, Groups
from tfmp.fusion.ready import SAME_NUMBERS
from tfmp.fusion.repeats import Memory, Repeats
from tfmp.fusion.surroundings import Surroundings
from tfmp.graph.body import Body, Edge
from tfmp.graph.readers import Readers
from tfmp.program.shapes import Shape, Sizes

CHANNEL_RANKS = (4, 5)
"""Of data that are normalised by channel: what `FusedBatchNormV3` takes."""

SHORTEST_ROW = 16
"""Shorter rows are normalised as they are spelled: the kernel takes each row for a channel, and would have next to nothing to do for it. Our own choice."""

ADDITIONS = frozenset({"Add", "AddV2"})


_memories: list[Memory[Norms]] = [Memory()]
"""How normalisations were spelled that this process has met, in the last one. One in use is never emptied: another thread may be reading it."""


def memory() -> Memory[Norms]:
    """Returns the memory of this process: a new one if there is too much in it."""
    if _memories[-1].is_full:
        _memories[:] = [Memory()]
    return _memories[-1]


def norms(body: Body, sizes: Sizes, readers: Readers, kept: frozenset[int]) -> Iterator[Norm]:
    """Yields the normalisations of `body`.

    Args:
      body: a function.
      sizes: the shapes of its tensors.
      readers: `body.readers`.
      kept: nodes that must stay as they are.
    """
    done, looked, results, summed = set[Edge](), set[Any](), set[int](), set[Edge]()
    remembered = memory()
    around = Surroundings(body, sizes, readers, numbers=remembered.numbers)
    repeats = Repeats(around, remembered)
    known = dict[Any, tuple[int, ...] | None]()
    for node in body.nodes_of(["Mean"]):
        if body.inputs[node][0] not in done:
            data, where = body.inputs[node]
            axes = _axes_of_kind(body, sizes, data, where, around.constants, known)
            if axes is None or (data, axes) in looked:
                continue
            looked.add((data, axes))
            found = repeats.find(data, (axes, sizes.shape(data)), lambda seen, data=data, axes=axes: _found(seen, data, axes))  # type: ignore[misc]
            for norm in found:
                if norm.result not in results and not (kept and _is_kept(norm, kept)):
                    ends = norm.gradient.summed(body) if norm.gradient else set()
                    results.add(norm.result)
                    done.update((one, 0) for one in norm.inner if one != norm.result)
                    yield norm if summed.isdisjoint(ends) else dataclasses.replace(norm, gradient=None)
                    summed |= ends


def _is_kept(norm: Norm, kept: frozenset[int]) -> bool:
    """Returns whether something that a normalisation is made of must stay as it is, or something beside it."""
    return not kept.isdisjoint((*norm.inner, *norm.beside)) or (norm.gradient is not None and norm.gradient.data in kept)


def _axes_of_kind(body: Body, sizes: Sizes, data: Edge, where: Edge, constants: Constants, known: dict[Any, tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """Returns what `_axes` does. Axes that are a constant are `known` for all data of one shape and type: the value of a constant is up to its kind, as the
    type of the data is.
    """
    if body.ops[where[0]] != "Const":
        return _axes(body, sizes, data, where, constants)
    alike = sizes.shape(data), body.kind_of[data[0]], data[1], body.kind_of[where[0]]
    if alike not in known:
        known[alike] = _axes(body, sizes, data, where, constants)
    return known[alike]


def _axes(body: Body, sizes: Sizes, data: Edge, where: Edge, constants: Constants) -> tuple[int, ...] | None:
    """Returns the axes of a mean whose groups are channels or rows; else None."""
    node, port = data
    shape = sizes.shape(data)
    if shape is None or len(shape) < 2 or shape[-1] is None or body.types[node][body.layouts[node].outputs[port]] != DT_FLOAT:
        return None
    axes = axes_of(body, where, len(shape), lambda edge: None, constants)
    if axes is None:
        return None
    by_row = axes == (len(shape) - 1,) and shape[-1] >= SHORTEST_ROW
    by_channel = axes == tuple(range(len(shape) - 1)) and len(shape) in CHANNEL_RANKS
    return axes if (by_row or by_channel) and _has_two(shape, axes) else None


def _has_two(shape: Shape, axes: tuple[int, ...]) -> bool:
    """Returns whether a group has two elements at least: of a single one, cuDNN and TensorFlow do not agree what the corrected variance is.

    Data that are known to have no element at all have none: nothing is gained, and a size that is not known beside a 0 does not follow from their number.
    """
    return 0 not in (shape or ()) and math.prod(size for axis in axes if (size := (shape or ())[axis]) is not None) > 1


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """What normalises the data.

    Attributes:
      node: computes the normalised data.
      form: how it uses scale and offset.
      epsilon: what it adds to the variance.
      root: the reciprocal root of that.
      inner: the nodes that it is made of, and itself.
    """

    node: int
    form: Form
    epsilon: float
    root: float
    inner: Collection[int]


def _found(around: Surroundings, data: Edge, axes: Sequence[int]) -> Norms:
    """Returns the normalisations of the tensor `data` along `axes`, none of which is made of another one, whatever the sizes that are not known."""
    found, *others = (_found_for(around, data, axes, sizes) for sizes in (UNKNOWN_SIZES if None in (around.sizes.shape(data) or ()) else UNKNOWN_SIZES[:1]))
    return Norms(norm for norm in found if all(norm in other for other in others))


def _found_for(around: Surroundings, data: Edge, axes: Sequence[int], unknown_sizes: Sequence[int]) -> Norms:
    """Returns the same if `unknown_sizes` are the sizes that are not known.

    What has a gradient for the data comes before what has one for scale and offset only, and that before what has none; then, what scale and offset are
    applied to comes before what they are not.
    """
    body, groups = around.body, Groups(around, data, axes, unknown_sizes)
    groups.spread(data)
    mean, variance = groups.computing(groups.mean), groups.computing(groups.variance)
    if not mean or not variance:
        return Norms()
    candidates = sorted(_candidates(body, groups), key=lambda one: (one.form.scale is None) + (one.form.offset is None))
    gradients, chosen = Gradients(body, groups), list[tuple[_Candidate, Gradient | None]]()
    for look in (gradients.for_data, gradients.for_parameters, None):
        for one in candidates:
            if not any(one.node in other.inner or other.node in one.inner for other, _ in chosen):
                gradient = look(one.form, one.root, one.inner) if look else None
                if gradient is not None or look is None:
                    chosen.append((one, gradient))
    count = None if any(groups.shape[axis] is None for axis in groups.axes) else groups.count
    results, inner = {one.node for one, _ in chosen}, set[int]().union(*(one.inner for one, _ in chosen))
    like_data = tuple(node for node in groups.nodes if node not in results and groups.is_data((node, 0)))
    beside = tuple(node for node in groups.nodes if node not in inner)

    def norm(one: _Candidate, gradient: Gradient | None) -> Norm:
        scale, offset, own = one.form.scale, one.form.offset, tuple(sorted(one.inner))
        return Norm(groups.by_row, data, one.node, scale, offset, one.epsilon, count, mean, variance, like_data, gradient, own, beside)

    return Norms(norm(*one) for one in chosen)


def _candidates(body: Body, groups: Groups) -> Iterator[_Candidate]:
    """Yields what normalises the data of `groups`."""
    known, adding = set(groups.nodes), dict[float, set[int]]()
    for node, epsilon in _epsilons(body, groups):
        adding.setdefault(epsilon, set()).add(node)
    for epsilon, nodes in adding.items():
        root = (groups.variance + epsilon) ** -0.5
        for node in groups.nodes:
            if body.ops[node] not in SAME_NUMBERS and (form := form_of(body, groups, node, root)) is not None:
                inner = _made_of(body, node, known)
                if not nodes.isdisjoint(inner):  # it may be so near to another epsilon that they cannot be told apart by numbers
                    yield _Candidate(node, form, epsilon, root, inner)


def _made_of(body: Body, node: int, known: Collection[int]) -> set[int]:
    """Returns those of the nodes `known` that a node is made of, and itself."""
    found, todo = {node}, [node]
    while todo:
        for source, _ in body.inputs[todo.pop()]:
            if source in known and source not in found:
                found.add(source)
                todo.append(source)
    return found


def _epsilons(body: Body, groups: Groups) -> Iterator[tuple[int, float]]:
    """Yields the nodes that add a number to the variance, with that number."""
    for node, value in groups.statistics():
        if body.ops[node] in ADDITIONS and len(body.inputs[node]) == 2:
            for own, other in (body.inputs[node], reversed(body.inputs[node])):
                number = groups.number(other) if same(number_of(groups.values[own]) or 0.0, groups.variance) else None
                if number is not None and number > 0 and same(value, groups.variance + number):
                    yield node, number
