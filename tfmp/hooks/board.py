"""TensorBoard: the loss scale, skipped steps, gradients that float16 cannot hold, and the report of the rewrite, for custom loops and for `fit`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfmp.optimizers.gradient_watch import GradientCounts, GradientWatch, by_layer, count_gradients, put_watch, watch_of
from tfmp.optimizers.monitor import MonitorRules, loss_scale_scalars, write_scalar
from tfmp.optimizers.readings import Readings
from tfmp.reports.account import Report, report

SHARES = ("zeros", "underflow", "subnormal", "overflow")
"""Attributes of `GradientCounts` whose shares are written, as `gradients/<share>/<layer>`."""

REPORT_TAG = "tfmp/report"

_TEXT = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "text"}, data_class="DATA_CLASS_TENSOR")
"""Marks a summary as one of TensorBoard's texts. `tf.summary.text` writes the same, but needs the tensorboard package."""


def write_summaries(
    step: int,
    *,
    optimizer: Any = None,
    gradients: Iterable[tuple[Any, Any]] | None = None,
    scale: Any = None,
    rewrite: Report | None = None,
    writer: Any = None,
) -> None:
    """Writes what TensorBoard shows of mixed precision in a custom training loop; call it eagerly, for example every hundred steps.

    Args:
      step: the step to write under.
      optimizer: one of tfmp's wrappers, or a `LossScaler`: `loss_scale/scale`, `loss_scale/skipped_steps` and `loss_scale/consecutive_skips` are written.
        One without a loss scale is passed over.
      gradients: (gradient, variable) pairs: for each layer, the shares of its gradients that are zero, and that would underflow, lose digits or overflow in
        float16 (see `GradientCounts`) are written as `gradients/underflow/<layer>` and so on.
      scale: what the gradients must be multiplied with to be those of the scaled loss: 1 if they still are (the default), `optimizer.scale` if they were
        unscaled before.
      rewrite: a report, to be written as the text `tfmp/report`; `tfmp.report()` gives one.
      writer: a writer of `tf.summary.create_file_writer`; without one, the default writer.

    Raises:
      RuntimeError: it is called while a graph is being built.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("write_summaries was called inside a tf.function; call it between steps, on what the step returns.")
    with _writing(writer, step):
        if isinstance(optimizer, Readings) and optimizer.loss_scale_policy.active:
            for name, value in loss_scale_scalars(optimizer.loss_scale_state()).items():
                write_scalar(name, value)
        if gradients is not None:
            pairs = list(gradients)
            counts = count_gradients([gradient for gradient, _ in pairs], 1.0 if scale is None else scale)
            _write_shares(by_layer([getattr(variable, "path", variable.name) for _, variable in pairs], counts.numpy().tolist()))
        if rewrite is not None:
            tf.summary.write(REPORT_TAG, tf.constant(rewrite.to_markdown()), metadata=_TEXT)


@contextlib.contextmanager
def _writing(writer: Any, step: int) -> Iterator[None]:
    with contextlib.nullcontext() if writer is None else writer.as_default():
        before = tf.summary.experimental.get_step()
        tf.summary.experimental.set_step(step)
        try:
            yield
        finally:
            tf.summary.experimental.set_step(before)


def _write_shares(layers: Mapping[str, GradientCounts]) -> None:
    for (layer, counts), what in itertools.product(layers.items(), SHARES):
        if counts.elements:
            write_scalar(f"gradients/{what}/{layer}", counts.share(what))


class BoardRules(MonitorRules):
    """What a Keras callback needs to fill TensorBoard; each family mixes it with its own `Callback`, and either serves models of both. Beside what
    `MonitorRules` writes:

    - `gradients/zeros/<layer>`, `gradients/underflow/<layer>`, `gradients/subnormal/<layer>` and `gradients/overflow/<layer>`: the share of the elements of
      the layer's gradients, of the scaled loss, that are zero; smaller than float16's smallest number; so small that float16 loses digits; too large;
    - `tfmp/report`: the report of what was converted, as text, after the first epoch in which something was.
    """

    def __init__(self, log_dir: str, every: int = 100, gradients: bool = True, rewrite: bool = True, at_floor: str = "warn", patience: int = 10) -> None:
        """Sets what to write.

        Args:
          log_dir: folder for TensorBoard; it must not be that of another callback's writer.
          every: batches from one look to the next. In between, a step costs what it costs without the callback (but for one look at a switch).
          gradients: whether to count gradients. The training step is traced anew when this callback meets a model for the first time.
          rewrite: whether to write the report, which takes as long as the rewrite did.
          at_floor: as for `LossScaleMonitor`.
          patience: likewise.

        Raises:
          ValueError: `at_floor` is unknown, or `patience` or `every` is below 1.
        """
        super().__init__(at_floor=at_floor, patience=patience, every=every, log_dir=log_dir)
        self._gradients, self._rewrite = gradients, rewrite
        self._reported_programs = 0

    def set_model(self, model: Any) -> None:
        """Puts a watch on the model's optimizer; the training step is traced anew if it was traced before that."""
        super().set_model(model)  # type: ignore[misc]  # of the Callback it is mixed with
        optimizer = getattr(model, "optimizer", None)
        if self._gradients and optimizer is not None and watch_of(optimizer) is None:
            paths = [getattr(variable, "path", variable.name) for variable in model.trainable_variables] if model.built else ()
            put_watch(optimizer, GradientWatch(self._scale_of(optimizer), getattr(model, "distribute_strategy", None), paths))
            model.train_function = None

    def _scale_of(self, optimizer: Any) -> Any:
        if getattr(optimizer, "takes_scaled", False) or not isinstance(optimizer, Readings):
            return lambda: 1.0
        return lambda: optimizer.scale

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts anew."""
        super().on_train_begin(logs)
        self._reported_programs = len(report())

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Switches counting on for a batch that will be looked at."""
        watch = self._watch()
        if watch is not None and (self._batches + 1) % self._every == 0:
            watch.switch(True)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Looks, every so many batches.

        Raises:
          RuntimeError: training is stuck, and `at_floor` is "raise".
        """
        super().on_train_batch_end(batch, logs)
        watch = self._watch()
        if watch is not None and self._batches % self._every == 0:
            watch.switch(False)
            with _writing(self._writer, self._batches):
                _write_shares(watch.take())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Looks at the scale, and writes the report if something was converted in this epoch.

        Raises:
          RuntimeError: training is stuck, and `at_floor` is "raise".
        """
        super().on_epoch_end(epoch, logs)
        programs = report()
        if self._rewrite and len(programs) > self._reported_programs:
            write_summaries(self._batches, rewrite=programs[self._reported_programs :], writer=self._writer)
            self._reported_programs = len(programs)

    def _watch(self) -> GradientWatch | None:
        optimizer = self.model.optimizer  # type: ignore[attr-defined]  # of the Callback it is mixed with
        return watch_of(optimizer) if self._gradients else None
