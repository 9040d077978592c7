"""What every wrapper tells about its loss scale."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from tfmp.optimizers.guard import Guard
from tfmp.optimizers.loss_scale import ScaleState, initial_state
from tfmp.optimizers.policies import FixedLossScale, LossScalePolicy
from tfmp.optimizers.state import TENSORS
from tfmp.optimizers.stuck import check_arguments, is_stuck, report, stuck_message


class Readings:
    """Properties that read the scale and its history: tensors, so that they can be read in functions and Sessions too, unless they say otherwise."""

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
        policy, variables = self._guard.policy, self._guard.variables
        if variables is None:
            return initial_state(policy)
        # A checkpoint may hold another scale than the fixed one, which stays what it is.
        return replace(variables.numbers(), scale=policy.initial) if isinstance(policy, FixedLossScale) else variables.numbers()

    def check_loss_scale(self, at_floor: str = "warn", patience: int = 10, loss: float | None = None) -> bool:
        """Looks whether training is stuck; for loops of one's own, now and then. In `fit` the callback `LossScaleMonitor` does it. Eager only.

        Args:
            at_floor: "warn" logs one warning for as long as training stays stuck, "raise" raises, "ignore" does neither.
            patience: training counts as stuck when so many steps in a row were skipped with the scale at its minimum.
            loss: the latest loss, for the message.

        Returns:
            Whether training is stuck. Skips while the scale finds its level do not count.

        Raises:
            RuntimeError: training is stuck, and `at_floor` is "raise".
            ValueError: `at_floor` is unknown, or `patience` is below 1.
        """
        check_arguments(at_floor, patience=patience)
        state = self.loss_scale_state()
        stuck = is_stuck(self._guard.policy, state, patience)
        if stuck and not (self._guard.reported_stuck and at_floor == "warn"):
            self._guard.reported_stuck = True
            report(stuck_message(self._guard.policy, state, self.last_bad_variable, loss), at_floor)
        self._guard.reported_stuck = stuck
        return stuck
