"""The loss-scale rule: the state, and what one step does to it.

Nothing here knows TensorFlow. The wrappers keep a `ScaleState` in variables, ask `next_state` for the
next one and write it back; that is all the loss scaling they contain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from tfmp.optimizers.policies import NEVER, LossScalePolicy


@dataclass(frozen=True)
class ScaleState:
    """What loss scaling remembers from step to step.

    A good step changes only the first two fields (and the third when the scale grows); what else one wants to know
    about it follows from the others. That keeps the common step cheap. The fields hold Python numbers, or scalar
    tensors of the dtypes given here.

    Attributes:
        scale: the current loss scale (float32).
        good_steps: good steps since the latest skip, or since the beginning (int64).
        hysteresis_left: overflows that will still be skipped without lowering the scale (int64).
        skipped_steps: steps skipped since the beginning (int64).
        skip_run: how many steps in a row were skipped, up to and including the latest skip (int64).
        last_skip_step: which step was skipped last; the first step is 1, skipped steps count; 0 if none was (int64).
        last_bad_gradient: number of the first non-finite gradient of the latest skipped step, -1 if there was none or it is not known which
            (int64). It is the place in the list given to the optimizer; a second list, of other variables, is numbered on from the first.
    """

    scale: Any
    good_steps: Any
    hysteresis_left: Any
    skipped_steps: Any
    skip_run: Any
    last_skip_step: Any
    last_bad_gradient: Any

    @property
    def steps(self) -> Any:
        """All steps so far, taken and skipped."""
        return self.last_skip_step + self.good_steps

    def consecutive_skips(self, arithmetic: Arithmetic | None = None) -> Any:
        """Returns how many steps in a row were skipped up to and including the latest step; 0 if that was good."""
        return (arithmetic or PYTHON).select(self.good_steps > 0, 0, self.skip_run)


#: The fields of `ScaleState`, in order; the first is float32, the others int64.
STATE_FIELDS: tuple[str, ...] = tuple(field.name for field in fields(ScaleState))


@dataclass(frozen=True)
class Arithmetic:
    """The two operations of the rule that Python numbers and tensors spell differently."""

    select: Callable[[Any, Any, Any], Any]
    minimum: Callable[[Any, Any], Any]


#: The rule on Python numbers.
PYTHON = Arithmetic(select=lambda condition, yes, no: yes if condition else no, minimum=min)


def initial_state(policy: LossScalePolicy) -> ScaleState:
    """Returns the state before the first step, in Python numbers."""
    return ScaleState(
        scale=policy.initial,
        good_steps=0,
        hysteresis_left=policy.hysteresis - 1,
        skipped_steps=0,
        skip_run=0,
        last_skip_step=0,
        last_bad_gradient=-1,
    )


def next_state(
    policy: LossScalePolicy,
    state: ScaleState,
    finite: bool,
    bad_gradient: Any = -1,
    arithmetic: Arithmetic = PYTHON,
) -> ScaleState:
    """Returns the state after one step.

    The whole rule. `finite` is a Python bool, since whoever applies the step branches on it anyway and asks
    in each branch; everything else may be tensors. A field that does not change is the same object as before.

    Args:
        policy: how the scale moves.
        state: the state before the step.
        finite: whether all gradients of all replicas were finite, that is whether the step was taken.
        bad_gradient: number of the first non-finite gradient; only read if not `finite`.
        arithmetic: how to select and take minima: `PYTHON`, or the tensor version of the caller.
    """
    if finite:
        return _after_good_step(policy, state, arithmetic)
    return _after_overflow(policy, state, bad_gradient, arithmetic)


def _after_good_step(policy: LossScalePolicy, state: ScaleState, arithmetic: Arithmetic) -> ScaleState:
    """Counts; after every `growth_interval` good steps the scale grows and the hysteresis is refilled."""
    counted = replace(state, good_steps=state.good_steps + 1)
    if policy.growth_interval == NEVER:
        return counted
    full = counted.good_steps % policy.growth_interval == 0
    grown = arithmetic.minimum(state.scale * policy.growth_factor, policy.maximum)
    after = replace(counted, scale=arithmetic.select(full, grown, state.scale))
    if policy.hysteresis == 1:
        return after
    return replace(after, hysteresis_left=arithmetic.select(full, policy.hysteresis - 1, state.hysteresis_left))


def _after_overflow(
    policy: LossScalePolicy, state: ScaleState, bad_gradient: Any, arithmetic: Arithmetic
) -> ScaleState:
    """Records the skip and lowers the scale, to no less than the minimum, once the hysteresis is used up."""
    lowered = arithmetic.minimum(state.scale * policy.backoff_factor, policy.maximum)
    # Written as a comparison and not as a maximum: a scale of 0 or NaN from a foreign checkpoint fails it too.
    lowered = arithmetic.select(lowered >= policy.minimum, lowered, policy.minimum)
    spared = state.hysteresis_left > 0
    return ScaleState(
        scale=arithmetic.select(spared, state.scale, lowered),
        good_steps=0,
        hysteresis_left=arithmetic.select(spared, state.hysteresis_left - 1, 0),
        skipped_steps=state.skipped_steps + 1,
        skip_run=state.consecutive_skips(arithmetic) + 1,
        last_skip_step=state.steps + 1,
        last_bad_gradient=bad_gradient,
    )
