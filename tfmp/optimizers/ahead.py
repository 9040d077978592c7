"""Gradients that were unscaled before the step: what was found about them, and how the step finds it again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfmp.optimizers.gradients import Gradient


@dataclass(frozen=True)
class Unscaled:
    """Unscaled gradients and what the finite test found about them.

    Attributes:
        gradients: the unscaled gradients, in the order and with the Nones they came with.
        finite: bool, for each gradient that is not None whether it is finite on this replica.
        places: place in `gradients` of each element of `finite`.
    """

    gradients: list[Gradient]
    finite: tf.Tensor
    places: list[int]


class UnscaledAhead:
    """Remembers, for each graph and each replica, what was unscaled since the latest step began.

    A user may unscale gradients, look at them or clip them, and apply the results later. The optimizer then has to know that they are unscaled
    already, and whether they were finite before they were clipped. They are recognised by identity, or, if they were changed, by when they came: a
    training step begins with the first loss that is scaled after gradients were applied.
    """

    def begin(self) -> None:
        """Forgets what was unscaled, if gradients were applied since: a loss is being scaled."""
        step = self._step()
        if step.applied:
            step.entries.clear()
            step.applied = False

    def add(self, scaled: Sequence[Gradient], unscaled: Unscaled) -> None:
        """Remembers that `unscaled` came from `scaled`."""
        self._step().entries.append(_Entry(_references(scaled), _references(unscaled.gradients), unscaled.finite, unscaled.places))

    def find(self, gradients: Sequence[Gradient]) -> Unscaled | None:
        """Returns what is known about gradients that are being applied; None if they are still scaled.

        If they are exactly what was unscaled, the result has their own `finite`. If they are something else, made from it, the result has the
        `finite` of all that was unscaled in this step, and no gradients.
        """
        step = self._step()
        step.applied = True
        for entry in step.entries:
            if _are(gradients, entry.scaled):
                return None
            if _are(gradients, entry.unscaled):
                return Unscaled(list(gradients), entry.finite, entry.places)
        if not step.entries:
            return None
        places = [place for entry in step.entries for place in entry.places]
        return Unscaled([], tf.concat([entry.finite for entry in step.entries], axis=0), places)

    def _step(self) -> _Step:
        # What belongs to a graph hangs on the graph: tensors hold their graph, so that a dictionary here would keep every graph ever traced alive.
        owner = self if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        by_user: weakref.WeakKeyDictionary[UnscaledAhead, dict[int, _Step]] | None = getattr(owner, _ATTRIBUTE, None)
        if by_user is None:
            by_user = weakref.WeakKeyDictionary()
            setattr(owner, _ATTRIBUTE, by_user)
        # Each replica runs in a thread of its own, in a function as well as eagerly.
        return by_user.setdefault(self, {}).setdefault(threading.get_ident(), _Step())


_ATTRIBUTE = "_tfmp_unscaled_ahead"


@dataclass(frozen=True)
class _Entry:
    """Weak references, so that nothing lives longer for having been unscaled, and the result of the test."""

    scaled: list[weakref.ref[Any]]
    unscaled: list[weakref.ref[Any]]
    finite: tf.Tensor
    places: list[int]


@dataclass
class _Step:
    entries: list[_Entry] = field(default_factory=list)
    applied: bool = False


def _references(gradients: Sequence[Gradient]) -> list[weakref.ref[Any]]:
    return [weakref.ref(gradient) for gradient in gradients if gradient is not None]


def _are(gradients: Sequence[Gradient], references: list[weakref.ref[Any]]) -> bool:
    present = [gradient for gradient in gradients if gradient is not None]
    return len(present) == len(references) and all(reference() is gradient for gradient, reference in zip(present, references, strict=True))
