"""Switching on by wrapping an optimizer: the one line of `tf.compat.v1.mixed_precision`, for every optimizer family."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfmp.hooks import activation
from tfmp.settings import Switches


def enable_mixed_precision_graph_rewrite(opt: Any = None, loss_scale: Any = "dynamic") -> Any:
    """Switches the graph rewrite on and returns `opt` wrapped in a loss scale, ready for `model.compile` or `minimize`.

    The counterpart of `tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite`. Where the 16-bit type is bfloat16, whose range is that of
    float32, the wrapper does not scale. Models that are compiled with other optimizers from now on are rewritten, too, and so get a loss scale as after
    `tfmp.enable`, unless loss scaling was switched off before, or `loss_scale` is None.

    Args:
      opt: a Keras 3, tf_keras or `tf.compat.v1.train` optimizer; None switches the rewrite on without one.
      loss_scale: "dynamic" (starts at 2**15, doubles after 2000 good steps, halves at an overflow), a number (fixed scale), None, or a policy of
        `tfmp` (`DynamicLossScale`, ...).

    Returns:
      A wrapper of the same family as `opt`, or None if `opt` is None.

    Raises:
      TypeError: `opt` is no optimizer of a known family.
      ValueError: `opt` is wrapped already, or `loss_scale` is not one of the above.
      SettingsError: an environment variable has a value that cannot be used.
    """
    wrapped = None if opt is None else _wrap(opt, loss_scale)
    asked = activation.current()
    settings = asked.settings
    scaling = asked.loss_scaling or (not asked.graph_rewrite and loss_scale is not None)
    activation.enable(loss_scaling=scaling, **{field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)})
    return wrapped


def disable_mixed_precision_graph_rewrite() -> None:
    """Switches the graph rewrite off for what is traced from now on; wrapped optimizers stay wrapped (as in TensorFlow)."""
    activation.disable()


def scales_losses(switches: Switches) -> bool:
    """Returns whether the 16-bit type that `switches` lead to here needs a loss scale: float16 does, bfloat16 does not, and no conversion does not."""
    from tfmp.hooks import hardware

    settings = hardware.decide(switches.settings, hardware.detect()).settings
    return settings is not None and settings.dtype == "float16"


def _wrap(opt: Any, loss_scale: Any) -> Any:
    from tfmp.optimizers.wrap import wrap

    return wrap(opt, loss_scale if scales_losses(activation.current()) else None)
