"""Watches a loss scale during `fit`: a warning when training is stuck, TensorBoard scalars, the progress bar."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfmp.optimizers.loss_scale import ScaleState
from tfmp.optimizers.readings import Readings
from tfmp.optimizers.stuck import check_arguments, is_stuck, report, stuck_message

#: Marks a summary as one of TensorBoard's scalars. `tf.summary.scalar` writes the same, but needs the tensorboard package, which training with
#: TensorFlow 2.21 no longer brings along.
_SCALAR = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"}, data_class="DATA_CLASS_SCALAR")


def loss_scale_scalars(state: ScaleState) -> dict[str, float]:
    """Returns what TensorBoard shows of a loss scale, by name."""
    return {
        "loss_scale/scale": state.scale,
        "loss_scale/skipped_steps": float(state.skipped_steps),
        "loss_scale/consecutive_skips": float(state.consecutive_skips()),
    }


def write_scalar(name: str, value: float) -> None:
    """Writes one scalar with the default writer, under its step."""
    tf.summary.write(name, tf.constant(value, tf.float32), metadata=_SCALAR)


class MonitorRules:
    """What a Keras callback needs to watch the optimizer's loss scale; each family mixes it with its own `Callback`.

    Without loss scaling by tfmp in the model's optimizer it does nothing, so it can stay where it is for runs in float32.
    """

    def __init__(
        self,
        at_floor: str = "warn",
        patience: int = 10,
        every: int = 10,
        log_dir: str | None = None,
        progress_bar: bool = False,
    ) -> None:
        """Sets what to watch.

        Args:
            at_floor: "warn" logs one warning in a call of `fit` when training is stuck, "raise" raises, "ignore" does nothing.
            patience: training counts as stuck when so many steps in a row were skipped with the scale at its minimum.
            every: batches from one look at the scale to the next; it is also looked at at the end of each epoch. A look copies
                three small variables to the host.
            log_dir: folder for TensorBoard scalars `loss_scale/scale`, `loss_scale/skipped_steps` and
                `loss_scale/consecutive_skips`, by step; None for none.
            progress_bar: whether to show `loss_scale` and `skipped_steps` in the progress bar and put them into the logs of
                each batch and epoch, where the callbacks that follow find them; this looks at the scale after each batch.

        Raises:
            ValueError: `at_floor` is unknown, or `patience` or `every` is below 1.
        """
        super().__init__()
        check_arguments(at_floor, patience=patience, every=every)
        self._at_floor, self._patience, self._progress_bar = at_floor, patience, progress_bar
        self._every = 1 if progress_bar else every
        self._log_dir = log_dir
        self._writer: Any = None
        self._batches = 0
        self._reported = False

    def _implements_train_batch_hooks(self) -> bool:
        """What tf_keras asks every callback, those that come from Keras 3 too, so that either callback serves models of both."""
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts anew."""
        self._batches, self._reported = 0, False
        if self._log_dir is not None:
            self._writer = tf.summary.create_file_writer(self._log_dir)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Looks at the scale, every so many batches.

        Raises:
            RuntimeError: training is stuck, and `at_floor` is "raise".
        """
        self._batches += 1
        if self._batches % self._every == 0:
            self._look(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Looks at the scale.

        Raises:
            RuntimeError: training is stuck, and `at_floor` is "raise".
        """
        self._look(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Closes the file of scalars."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _look(self, logs: dict[str, Any] | None) -> None:
        optimizer = self.model.optimizer  # type: ignore[attr-defined]  # of the Callback it is mixed with
        if not isinstance(optimizer, Readings) or not optimizer.loss_scale_policy.active:
            return
        state = optimizer.loss_scale_state()
        if self._progress_bar and logs is not None:
            logs["loss_scale"] = state.scale
            logs["skipped_steps"] = float(state.skipped_steps)
        if self._writer is not None:
            self._write(state)
        if not self._reported and is_stuck(optimizer.loss_scale_policy, state, self._patience):
            self._reported = True
            report(stuck_message(optimizer.loss_scale_policy, state, optimizer.last_bad_variable, (logs or {}).get("loss")), self._at_floor)

    def _write(self, state: ScaleState) -> None:
        with self._writer.as_default(step=state.steps):
            for name, value in loss_scale_scalars(state).items():
                write_scalar(name, value)
