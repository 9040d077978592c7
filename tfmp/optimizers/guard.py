"""The guard: scales losses, unscales gradients, and takes a step or skips it. All wrappers are glue around it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfmp.optimizers import agreement, gradients as gradient_rules
from tfmp.optimizers.gradients import Gradient
from tfmp.optimizers.loss_scale import STATE_FIELDS, ScaleState, initial_state, next_state
from tfmp.optimizers.policies import FixedLossScale, LossScalePolicy
from tfmp.optimizers.state import TENSORS, ScaleVariables


class Readings:
    """What every wrapper tells about its loss scale. Tensors, so that they can be read in functions and Sessions too."""

    _guard: Guard

    @property
    def loss_scale_policy(self) -> LossScalePolicy:
        """How the scale moves."""
        return self._guard.policy

    @property
    def scale(self) -> tf.Tensor:
        """The current loss scale, float32 scalar."""
        return self._guard.scale

    @property
    def skipped_steps(self) -> tf.Tensor:
        """How many steps were skipped since the beginning, int64 scalar."""
        return self._guard.value("skipped_steps")

    @property
    def consecutive_skips(self) -> tf.Tensor:
        """How many steps in a row were skipped up to and including the latest, int64 scalar."""
        return self._guard.state().consecutive_skips(TENSORS)

    @property
    def last_skip_step(self) -> tf.Tensor:
        """Which step (1 is the first, skipped ones count) was skipped last, int64 scalar; 0 if none was."""
        return self._guard.value("last_skip_step")

    @property
    def last_step_skipped(self) -> tf.Tensor:
        """Whether the latest step was skipped, bool scalar."""
        return self.consecutive_skips > 0

    @property
    def last_bad_variable(self) -> str:
        """Name of the first variable with a non-finite gradient in the latest skipped step, "" if unknown. Eager only."""
        return self._guard.last_bad_variable

    def loss_scale_state(self) -> ScaleState:
        """Returns the whole state of the scale in Python numbers. Eager only."""
        return ScaleState(**{field: value.numpy().item() for field, value in vars(self._guard.state()).items()})


@dataclass(frozen=True)
class Unscaled:
    """Gradients that were unscaled and tested ahead of the step.

    Attributes:
        gradients: what `Guard.unscale` returned.
        nonfinite: float32, one element per gradient that is not None, 1.0 where it is not finite.
    """

    gradients: tuple[Gradient, ...]
    nonfinite: tf.Tensor


class Guard:
    """A loss scale with its state.

    Attributes:
        policy: how the scale moves.
        variables: the state; None if the policy is not active.
    """

    def __init__(self, policy: LossScalePolicy) -> None:
        """Creates the state in the current distribution strategy's scope.

        Raises:
            ValueError: the policy is active and the current strategy's replicas do not run in step.
        """
        self.policy = policy
        self.variables: ScaleVariables | None = None
        self._names: tuple[str, ...] = ()
        self._ahead: weakref.WeakKeyDictionary[Any, list[Unscaled]] = weakref.WeakKeyDictionary()
        if policy.active:
            agreement.check_strategy()
            self.variables = ScaleVariables(policy)

    @property
    def scale(self) -> tf.Tensor:
        """The current loss scale, float32 scalar; a constant if the policy never moves it."""
        if self.variables is None or isinstance(self.policy, FixedLossScale):
            return tf.constant(self.policy.initial, tf.float32)
        return self.variables.value("scale")

    def value(self, field: str) -> tf.Tensor:
        """Returns a field of the state as a scalar tensor; its initial value if the policy is not active."""
        if field == "scale":
            return self.scale
        if self.variables is None:
            return tf.constant(getattr(initial_state(self.policy), field), tf.int64)
        return self.variables.value(field)

    def state(self) -> ScaleState:
        """Returns the state as scalar tensors; the initial state if the policy is not active."""
        return ScaleState(**{field: self.value(field) for field in STATE_FIELDS})

    @property
    def last_bad_variable(self) -> str:
        """Name of the variable of the first non-finite gradient of the latest skipped step; "" if unknown."""
        place = int(self.value("last_bad_gradient"))
        return self._names[place] if 0 <= place < len(self._names) else ""

    def scale_loss(self, loss: Any) -> Any:
        """Returns the loss times the scale; for a function that returns a loss, such a function.

        A 16-bit loss comes back in float32. If the policy is not active the loss comes back as it is.
        """
        if callable(loss):
            return lambda: self.scale_loss(loss())
        return gradient_rules.scale_loss(loss, self.scale) if self.policy.active else loss

    def unscale(self, gradients: Sequence[Gradient], *, widen: bool) -> Unscaled:
        """Returns the gradients divided by the scale, tested; see `gradients.unscale`."""
        if not self.policy.active:
            return Unscaled(tuple(gradients), tf.zeros([0], tf.float32))
        unscaled = gradient_rules.unscale(gradients, self.scale, widen=widen)
        return Unscaled(tuple(unscaled), self._test(unscaled, scaled=False))

    def unscale_ahead(self, gradients: Sequence[Gradient], *, widen: bool) -> list[Gradient]:
        """Like `unscale`, and remembers the result until `take_ahead` asks for it in the same graph."""
        unscaled = self.unscale(gradients, widen=widen)
        self._ahead.setdefault(_graph(), []).append(unscaled)
        return list(unscaled.gradients)

    def take_ahead(self) -> Unscaled | None:
        """Returns and forgets the oldest result of `unscale_ahead` in this graph; None if there is none."""
        waiting = self._ahead.get(_graph())
        return waiting.pop(0) if waiting else None

    def apply(
        self,
        gradients: Sequence[Gradient],
        take: Callable[[Sequence[Gradient]], Any],
        *,
        scaled: bool,
        ahead: Unscaled | None = None,
        names: Sequence[str] = (),
    ) -> Any:
        """Calls `take(gradients)` on all replicas or on none, and moves the scale.

        Args:
            gradients: what `take` gets.
            take: applies the gradients in replica context; its result, if any, is what a Session must run.
            scaled: whether the gradients are still multiplied by the scale, so that `take` has to unscale them.
            ahead: what `unscale` found. Gradients that come straight from it are not tested again; if others come (the
                caller clipped them, say), both are tested, so that no clipping can hide an overflow.
            names: name of each gradient's variable, for reports.

        Returns:
            What `take` returned if no step is ever skipped; else a bool scalar, whether the step was taken.
        """
        if not self.policy.skip_nonfinite:
            return take(gradients)
        places = _places(gradients)
        if ahead is None:
            nonfinite = self._test(gradients, scaled)
        elif _same(gradients, ahead.gradients):
            nonfinite = ahead.nonfinite
        else:
            nonfinite = tf.concat([self._test(gradients, scaled), ahead.nonfinite], axis=0)
            places = places + _places(ahead.gradients)
        self._names = tuple(names) or self._names
        return agreement.step_together(
            gradients, nonfinite, take, lambda finite, total: self.settle(finite, total, places)
        )

    def settle(self, finite: bool, nonfinite: tf.Tensor, places: Sequence[int]) -> list[Any]:
        """Moves the state by one step; returns the assignments.

        Args:
            finite: whether the step was taken.
            nonfinite: float32, positive for each non-finite gradient.
            places: what to record as the place of each gradient.
        """
        if self.variables is None:
            return []
        bad = None if finite else tf.gather(tf.constant(places, tf.int64), tf.argmax(nonfinite > 0))
        before = self.variables.state(history=not finite or self.policy.hysteresis > 1)
        return self.variables.assign(next_state(self.policy, before, finite, bad, TENSORS))

    def _test(self, gradients: Sequence[Gradient], scaled: bool) -> tf.Tensor:
        replicas = agreement.replica_count()
        # Dividing by a scale of at least 1 cannot make a finite number infinite: no need to divide for the test.
        if replicas == 1 and (not scaled or self.policy.minimum >= 1):
            return gradient_rules.count_nonfinite(gradients)
        scale = self.scale if scaled else tf.constant(1.0)
        return gradient_rules.count_nonfinite(gradients, scale, replicas)


def _places(gradients: Sequence[Gradient]) -> list[int]:
    return [place for place, gradient in enumerate(gradients) if gradient is not None]


def _same(gradients: Sequence[Gradient], others: Sequence[Gradient]) -> bool:
    present = {id(gradient) for gradient in gradients if gradient is not None}
    return present == {id(other) for other in others if other is not None}


def _graph() -> Any:
    """Returns what stands for the graph that operations currently go to, eager execution included."""
    return _EAGER if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


class _Eager:
    """Stands for eager execution among graphs."""


_EAGER = _Eager()
