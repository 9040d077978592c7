"""When training counts as stuck at the floor of the loss scale, and what is said then."""

from __future__ import annotations

from absl import logging

from tfmp.optimizers.loss_scale import ScaleState
from tfmp.optimizers.policies import LossScalePolicy

#: What to do when training is stuck.
AT_FLOOR: tuple[str, ...] = ("warn", "raise", "ignore")


def is_stuck(policy: LossScalePolicy, state: ScaleState, patience: int) -> bool:
    """Returns whether the scale cannot fall further and yet at least `patience` steps in a row were skipped.

    Skips on the way down are how a dynamic scale finds its level, and mean nothing: from 2^15 to 1 it takes 15.

    Args:
        policy: how the scale moves; one that is not active is never stuck.
        state: the state in Python numbers.
        patience: skips in a row, at least 1.
    """
    return policy.active and state.scale <= policy.minimum and state.consecutive_skips() >= patience


def stuck_message(policy: LossScalePolicy, state: ScaleState, variable: str, loss: float | None) -> str:
    """Returns what being stuck means and what to do about it, with the numbers of this case."""
    floor = "fixed at" if policy.name == "fixed" else "at its minimum,"
    return (
        f"Training is stuck: the last {state.consecutive_skips()} steps were skipped because of infinite or NaN gradients, and the loss "
        f"scale is {floor} {state.scale:g}. First bad gradient: {variable or 'unknown'}. Last loss: {'unknown' if loss is None else f'{loss:g}'}. "
        f"{state.skipped_steps} of {state.steps} steps were skipped so far. The loss scale cannot be the cause any more: the model itself "
        "overflows in 16 bit, or produces NaN in float32 too. Check the data for NaN and the learning rate; keep the layers around that variable "
        "in float32; or train in bfloat16. "
        + _REMEDIES[policy.name]
    )


_REMEDIES = {
    "fixed": "Or choose a lower fixed scale, or loss_scale='dynamic'.",
    "dynamic": "A lower DynamicLossScale(minimum=...) helps only if the loss itself is huge.",
}


def check_arguments(at_floor: str, **counts: int) -> None:
    """Checks what to do when training is stuck, and counts.

    Raises:
        ValueError: `at_floor` is unknown, or a count is below 1.
    """
    if at_floor not in AT_FLOOR:
        raise ValueError(f"at_floor={at_floor!r} must be one of {', '.join(map(repr, AT_FLOOR))}.")
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1.")


def report(message: str, at_floor: str) -> None:
    """Raises the message as a `RuntimeError`, logs it as a warning, or ignores it."""
    if at_floor == "raise":
        raise RuntimeError(message)
    if at_floor == "warn":
        logging.warning("%s", message)
