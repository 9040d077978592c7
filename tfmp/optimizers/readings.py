"""What every wrapper tells about its loss scale."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from tfmp.optimizers.guard import Guard
from tfmp.optimizers.loss_scale import ScaleState, initial_state
from tfmp.optimizers.policies import FixedLossScale, LossScalePolicy
from tfmp.optimizers.state import TENSORS


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
