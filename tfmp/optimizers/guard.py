"""The guard: scales losses, unscales gradients, and takes a step or skips it. All wrappers are glue around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import tensorflow as tf
from absl import logging

from tfmp.optimizers import agreement
from tfmp.optimizers import gradients as gradient_rules
from tfmp.optimizers.ahead import Unscaled, UnscaledAhead, unknown
from tfmp.optimizers.gradients import Gradient
from tfmp.optimizers.loss_scale import STATE_FIELDS, ScaleState, initial_state, next_state
from tfmp.optimizers.policies import FixedLossScale, LossScalePolicy
from tfmp.optimizers.state import TENSORS, ScaleVariables

_Function = TypeVar("_Function", bound=Callable[..., Any])


def as_written(function: _Function) -> _Function:
    """Returns the function marked so that AutoGraph does not translate it, nor what it calls, inside a user's `tf.function`."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


class Guard:
    """A loss scale with its state.

    Attributes:
        policy: how the scale moves.
        variables: the state; None if the policy is not active.
        reported_stuck: whether it was said that training is stuck, and it has not got going since.
    """

    def __init__(self, policy: LossScalePolicy) -> None:
        """Creates the state in the current distribution strategy's scope.

        Raises:
            ValueError: the policy is active and the current strategy's replicas do not run in step.
        """
        self.policy = policy
        self.variables: ScaleVariables | None = None
        self._names: list[str] = []
        self._first: dict[tuple[str, ...], int] = {}
        self._scaled_a_loss = False
        self._warned = False
        self.reported_stuck = False
        self._ahead = UnscaledAhead()
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

    @as_written
    def scale_loss(self, loss: Any) -> Any:
        """Returns the loss times the scale; for a function that returns a loss, such a function.

        A 16-bit loss comes back in float32. If the policy is not active the loss comes back as it is.
        """
        self._scaled_a_loss = True
        self._ahead.begin()
        if callable(loss):
            return lambda: self.scale_loss(loss())
        return gradient_rules.scale_loss(loss, self.scale) if self.policy.active else loss

    @as_written
    def unscale(self, gradients: Sequence[Gradient], *, widen: bool) -> Unscaled:
        """Returns the gradients divided by the scale, tested; see `gradients.unscale`."""
        if not self.policy.active:
            return Unscaled(list(gradients), tf.zeros([0], tf.bool), [])
        unscaled = gradient_rules.unscale(gradients, self.scale, widen=widen)
        return Unscaled(unscaled, self._test(unscaled, scaled=False), _places(unscaled))

    @as_written
    def unscale_ahead(self, gradients: Sequence[Gradient], *, widen: bool) -> list[Gradient]:
        """Like `unscale`, and remembers the result for `found_ahead`."""
        if not self.policy.active:
            return list(gradients)
        unscaled = self.unscale(gradients, widen=widen)
        self._ahead.add(gradients, unscaled)
        return unscaled.gradients

    @as_written
    def found_ahead(self, gradients: Sequence[Gradient], *, scaled: bool) -> Unscaled | None:
        """Returns what `unscale_ahead` found about gradients that are being applied, None if they are still scaled; see `UnscaledAhead.find`.

        As long as no loss was ever scaled, no gradient is: a loop that knows nothing of loss scaling trains as it did.
        """
        if not self.policy.active:
            return None
        found = self._ahead.find(gradients, scaled=scaled)
        return unknown() if found is None and scaled and not self._scaled_a_loss else found

    @as_written
    def apply(
        self,
        gradients: Sequence[Gradient],
        take: Callable[[Sequence[Gradient]], Any],
        *,
        scaled: bool,
        ahead: Unscaled | None = None,
        reduced: bool = False,
        names: Sequence[str] = (),
    ) -> Any:
        """Calls `take(gradients)` on all replicas or on none, and moves the scale.

        Args:
            gradients: what `take` gets.
            take: applies the gradients in replica context; its result, if any, is what a Session must run.
            scaled: whether the gradients are still multiplied by the scale, so that `take` has to unscale them.
            ahead: what `unscale` found. Gradients that come straight from it are not tested again; if others come (the
                caller clipped them, say), both are tested, so that no clipping can hide an overflow.
            reduced: whether the gradients are already summed over the replicas.
            names: name of each gradient's variable, for reports.

        Returns:
            What `take` returned if no step is ever skipped; else a bool scalar, whether the step was taken.

        Raises:
            ValueError: all gradients are None, or the call is not in replica context.
        """
        if not self.policy.active:
            return take(gradients)
        self._check_use(gradients, scaled or ahead is not None or self._ahead.used, names)
        if not self.policy.skip_nonfinite:
            return take(gradients)
        finite, places = self._finite(gradients, scaled, ahead, reduced)
        first = self._number(names or [""] * len(gradients))
        places = [first + place if 0 <= place < len(gradients) else -1 for place in places]
        return agreement.step_together(
            gradients, finite, take, lambda taken, finite: self._settle(taken, finite, places)
        )

    @as_written
    def step(self, gradients: Sequence[Gradient], take: Callable[[Sequence[Gradient]], Any], ahead: Unscaled) -> Any:
        """Like `apply`, but leaves the scale alone, for several steps before one `update`."""
        if not self.policy.skip_nonfinite:
            return take(gradients)
        finite, _ = self._finite(gradients, False, ahead, False)
        return agreement.step_together(gradients, finite, take, lambda taken, finite: [])

    @as_written
    def update(self, unscaled: Sequence[Unscaled]) -> Any:
        """Moves the scale once for all these gradients together; returns whether all were finite, bool scalar."""
        if not self.policy.skip_nonfinite:
            return tf.constant(True)
        finite = tf.concat([part.finite for part in unscaled], axis=0)
        first = self._number([""] * finite.shape[0])
        places = list(range(first, first + finite.shape[0]))
        return agreement.step_together(
            [], finite, lambda gradients: None, lambda taken, finite: self._settle(taken, finite, places)
        )

    def _number(self, names: Sequence[str]) -> int:
        """Returns the number of the first of these gradients among all that ever came; a list of names that came before has the numbers it had."""
        if tuple(names) not in self._first:
            self._first[tuple(names)] = len(self._names)
            self._names += names
        return self._first[tuple(names)]

    def _settle(self, taken: bool, finite: tf.Tensor, places: Sequence[int]) -> list[Any]:
        """Moves the state by one step and returns the assignments; `finite` is read only if it was not taken."""
        variables = self.variables
        if variables is None:
            return []
        bad = None if taken else tf.gather(tf.constant(places, tf.int64), tf.argmin(tf.cast(finite, tf.int32)))
        before = variables.state(history=not taken or self.policy.hysteresis > 1)
        return variables.assign(next_state(self.policy, before, taken, bad, TENSORS))

    def _check_use(self, gradients: Sequence[Gradient], unscaling: bool, names: Sequence[str]) -> None:
        if all(gradient is None for gradient in gradients):
            raise ValueError(
                f"No gradients provided for any variable: all of {list(names)} have the gradient None. The loss scale is "
                "unchanged. Is the loss computed from these variables, under the gradient tape?"
            )
        if not (self._scaled_a_loss and unscaling) and not self._warned:
            self._warned = True
            logging.warning(_NOT_UNSCALED if self._scaled_a_loss else _NOT_SCALED)

    def _finite(
        self, gradients: Sequence[Gradient], scaled: bool, ahead: Unscaled | None, reduced: bool
    ) -> tuple[tf.Tensor, list[int]]:
        """Returns what must be true for the step to be taken, and the place of the gradient each element is about."""
        if ahead is not None and _same(gradients, ahead.gradients):
            return ahead.finite, ahead.places
        # A scale of 0 out of a foreign checkpoint makes gradients that are finite as long as they are scaled. The rule revives it if the step is skipped.
        alive = [self.scale >= self.policy.minimum] if scaled and self.policy.name == "dynamic" else []
        tested, places = self._test(gradients, scaled, reduced, alive), _places(gradients) + [-1] * len(alive)
        if ahead is None:
            return tested, places
        return tf.concat([tested, ahead.finite], axis=0), places + ahead.places

    def _test(self, gradients: Sequence[Gradient], scaled: bool, reduced: bool = False, also: Sequence[tf.Tensor] = ()) -> tf.Tensor:
        replicas = 1 if reduced else agreement.replica_count()
        # Dividing by a scale of at least 1 cannot make a finite number infinite: no need to divide for the test.
        if replicas == 1 and (not scaled or self.policy.minimum >= 1):
            return gradient_rules.finite_each(gradients, also=also)
        scale = self.scale if scaled else tf.constant(1.0)
        return gradient_rules.finite_each(gradients, scale, replicas, also)


def _places(gradients: Sequence[Gradient]) -> list[int]:
    return [place for place, gradient in enumerate(gradients) if gradient is not None]


def _same(gradients: Sequence[Gradient], others: Sequence[Gradient]) -> bool:
    present = {id(gradient) for gradient in gradients if gradient is not None}
    return present == {id(other) for other in others if other is not None}


_HOW = (
    "Scale the loss under the gradient tape (Keras 3: optimizer.scale_loss; tf_keras and v1: get_scaled_loss on the loss and get_unscaled_gradients on "
    "the gradients), or use minimize or fit, or wrap with loss_scale=None."
)
_NOT_SCALED = (
    "Gradients are applied of a loss that was not scaled. They are taken as they are, so that loss scaling has no effect and small float16 gradients "
    "become zero. " + _HOW
)
_NOT_UNSCALED = "Gradients are applied that were not unscaled, although a loss was scaled: the step is too large by the loss scale. " + _HOW
