"""Gradients that were unscaled before the step: what was found about them, and how the step finds it again."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfmp import tf_api
from tfmp.optimizers.gradients import Gradient

#: How many unscalings without a step are remembered. More losses than this feed no single step; a loop that only looks at gradients makes them.
_REMEMBERED = 1000


@dataclass(frozen=True)
class Unscaled:
    """Unscaled gradients and what the finite test found about them.

    Attributes:
        gradients: the unscaled gradients, in the order and with the Nones they came with.
        finite: bool, for each gradient that is not None whether it is finite on this replica.
        places: place in `gradients` of each element of `finite`, -1 if it is not known.
    """

    gradients: list[Gradient]
    finite: tf.Tensor
    places: list[int]


class UnscaledAhead:
    """Remembers, for each graph and each replica, what was unscaled since the latest step began.

    A user may unscale gradients, look at them or clip them, and apply the results later, perhaps in a branch, in a loop or in another function.
    The optimizer then has to know that they are unscaled already, and whether they were finite before they were clipped. They are recognised by
    identity, or, if they were changed, by when they came: a training step begins with the first loss that is scaled after gradients were applied.

    Attributes:
        used: whether anything was ever unscaled.
    """

    def __init__(self) -> None:
        """Knows of nothing yet."""
        self.used = False
        self._waiting = 0  # unscalings in any graph that no step has found
        self._begun = 0  # graphs in which a loss was scaled and nothing was unscaled or applied

    def __reduce__(self) -> tuple[type[UnscaledAhead], tuple[()]]:
        """Copies and pickles start afresh: what is remembered belongs to the graphs of this process."""
        return UnscaledAhead, ()

    def begin(self) -> None:
        """Forgets what was unscaled, if gradients were applied since: a loss is being scaled."""
        step = self._steps()[0]
        if step.applied:
            step.entries.clear()
        self._begun += not step.begun
        step.scaled, step.applied, step.begun = True, False, True

    def add(self, scaled: Sequence[Gradient], unscaled: Unscaled) -> None:
        """Remembers that `unscaled` came from `scaled`."""
        steps = self._steps()
        entry = _Entry(steps[0], _references(scaled), _references(unscaled.gradients), unscaled.finite, unscaled.places)
        for step in steps:
            step.entries.append(entry)
        self.used = True
        self._waiting += 1
        self._end(steps)

    def find(self, gradients: Sequence[Gradient], *, scaled: bool) -> Unscaled | None:
        """Returns what is known about gradients that are being applied; None if they are still scaled.

        If they are exactly what was unscaled, the result has their own `finite`. If they are something else, made from it, the result has the
        `finite` of all that was unscaled in this step, and no gradients.

        Args:
            gradients: what the optimizer was given.
            scaled: whether the optimizer takes scaled gradients. If not, and nothing tells, they count as unscaled.

        Raises:
            ValueError: `scaled`, and what is known fits both.
        """
        steps = self._steps()
        entries = list({id(entry): entry for step in steps for entry in step.entries}.values())
        for step in steps:
            step.applied = True
        self._waiting -= sum(entry.consume() for entry in entries)
        try:
            return self._judge(gradients, steps, entries)
        except _CannotTell:
            if scaled:
                raise ValueError(_CANNOT_TELL) from None
            return unknown()
        finally:
            self._end(steps)

    def _judge(self, gradients: Sequence[Gradient], steps: list[_Step], entries: list[_Entry]) -> Unscaled | None:
        present = [gradient for gradient in gradients if gradient is not None]
        still, already = ([entry for entry in entries if entry.has(present, side)] for side in ("scaled", "unscaled"))
        if still and already:
            raise _CannotTell
        if still:
            for step in steps:  # they were only looked at
                step.entries = deque((entry for entry in step.entries if entry not in still), _REMEMBERED)
            return None
        reachable = [entry for entry in already or entries if entry.step in steps]
        if already or reachable:
            exact = next((entry for entry in reachable if entry.is_all_of(present)), None)
            return Unscaled(list(gradients), exact.finite, exact.places) if exact else _together([one for one in reachable if one.step.readable(steps)])
        here = any(step.scaled for step in steps)
        if entries:  # in a function that was called from this one
            if here:
                raise _CannotTell
            return unknown()
        if not self._waiting or here:
            return None
        if self._begun:
            raise _CannotTell
        return unknown()

    def _end(self, steps: Iterable[_Step]) -> None:
        for step in steps:
            self._begun -= step.begun
            step.begun = False

    def _steps(self) -> list[_Step]:
        """Returns the step of this replica in the graph that is being built and in each that encloses it, innermost first; eagerly, the only one."""
        if tf.executing_eagerly():
            return [self._step(self)]
        return [self._step(graph) for graph in tf_api.enclosing_graphs()]

    def _step(self, owner: Any) -> _Step:
        # What belongs to a graph hangs on the graph: tensors hold their graph, so that a dictionary here would keep every graph ever traced alive.
        by_user: weakref.WeakKeyDictionary[UnscaledAhead, dict[Any, _Step]] | None = getattr(owner, _ATTRIBUTE, None)
        if by_user is None:
            by_user = weakref.WeakKeyDictionary()
            setattr(owner, _ATTRIBUTE, by_user)
        return by_user.setdefault(self, {}).setdefault(_replica(), _Step(tf_api.is_branch(owner)))


_ATTRIBUTE = "_tfmp_unscaled_ahead"

_CANNOT_TELL = (
    "Cannot tell whether these gradients are still scaled: some were unscaled with get_unscaled_gradients in another function. Call "
    "get_unscaled_gradients in the same function as apply_gradients, or give the scaled gradients, which are unscaled then."
)


class _CannotTell(Exception):
    pass


@dataclass(eq=False)
class _Step:
    """What happened in one graph on one replica since the latest step began.

    Attributes:
        branch: whether the graph is a branch or the body of a loop, which can read what the graph around it computed.
        entries: what was unscaled in the graph or in one inside of it.
        scaled: whether a loss was scaled in the graph.
        applied: whether gradients were applied since.
        begun: whether a loss was scaled in the graph and neither unscaling nor a step has followed.
    """

    branch: bool
    entries: deque[_Entry] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    scaled: bool = False
    applied: bool = False
    begun: bool = False

    def readable(self, steps: list[_Step]) -> bool:
        """Returns whether the graph of `steps[0]` can read tensors of this one: if nothing but branches lies between."""
        return all(step.branch for step in steps[: steps.index(self)])


@dataclass(eq=False)
class _Entry:
    """One unscaling: where it was done, weak references to the gradients, so that nothing lives longer for it, and the result of the test."""

    step: _Step
    scaled: list[weakref.ref[Any]]
    unscaled: list[weakref.ref[Any]]
    finite: tf.Tensor
    places: list[int]
    waiting: bool = True

    def consume(self) -> bool:
        """Notes that a step has found it; returns whether this is the first to do so."""
        first, self.waiting = self.waiting, False
        return first

    def has(self, gradients: Sequence[Any], side: str) -> bool:
        """Returns whether one of the gradients is among the scaled or among the unscaled ones."""
        known = {id(gradient) for reference in getattr(self, side) if (gradient := reference()) is not None}
        return any(id(gradient) in known for gradient in gradients)

    def is_all_of(self, gradients: Sequence[Any]) -> bool:
        """Returns whether the gradients are the unscaled ones, all and in order."""
        return len(gradients) == len(self.unscaled) and all(one() is other for one, other in zip(self.unscaled, gradients, strict=True))


def _references(gradients: Sequence[Gradient]) -> list[weakref.ref[Any]]:
    return [weakref.ref(gradient) for gradient in gradients if gradient is not None]


def _together(entries: Sequence[_Entry]) -> Unscaled:
    if not entries:
        return unknown()
    # Of several unscalings nothing tells which of the gradients that are applied comes from which.
    places = [place if len(entries) == 1 else -1 for entry in entries for place in entry.places]
    return Unscaled([], tf.concat([entry.finite for entry in entries], axis=0), places)


def unknown() -> Unscaled:
    """Returns what is known about gradients of which only that they are unscaled."""
    return Unscaled([], tf.zeros([0], tf.bool), [])


def _replica() -> Any:
    """Returns what tells replicas apart. Each runs in a thread, which need not be the same from one `strategy.run` to the next."""
    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        return tf_api.replica_id()
    return f"thread {threading.get_ident()}"
