"""When training counts as stuck, and what is said then. What the callbacks do in `fit` is in test_fit.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.optimizers.families import MONITORS
from tfmp.optimizers.loss_scale import ScaleState
from tfmp.optimizers.policies import DynamicLossScale, FixedLossScale, NoLossScale
from tfmp.optimizers.stuck import is_stuck, stuck_message


def skipped(scale: float, in_a_row: int, good: int = 0) -> ScaleState:
    return ScaleState(scale, good, 0, in_a_row, in_a_row, in_a_row, 0)


@pytest.mark.parametrize(
    ("policy", "state", "stuck"),
    [
        (DynamicLossScale(), skipped(1.0, 10), True),
        (DynamicLossScale(), skipped(1.0, 9), False),
        (DynamicLossScale(), skipped(2.0, 50), False),  # it can still fall
        (DynamicLossScale(), skipped(1.0, 50, good=1), False),  # it has just taken a step
        (DynamicLossScale(initial=64, minimum=32), skipped(32.0, 10), True),
        (FixedLossScale(128), skipped(128.0, 10), True),
        (NoLossScale(), skipped(1.0, 99), False),
    ],
)
def test_stuck_means_many_skips_in_a_row_at_the_floor(policy: Any, state: ScaleState, stuck: bool) -> None:
    assert is_stuck(policy, state, patience=10) is stuck


def test_the_message_has_scale_skips_variable_and_loss_and_says_what_to_do() -> None:
    message = stuck_message(DynamicLossScale(), skipped(1.0, 12), "dense/kernel", 3.5)
    for part in ("the last 12 steps were skipped", "at its minimum, 1.", "First bad gradient: dense/kernel.", "Last loss: 3.5.", "12 of 12 steps"):
        assert part in message
    for remedy in ("learning rate", "in float32", "bfloat16", "DynamicLossScale(minimum=...)"):
        assert remedy in message
    fixed = stuck_message(FixedLossScale(128), skipped(128.0, 12), "", None)
    for part in ("fixed at 128.", "First bad gradient: unknown.", "Last loss: unknown.", "loss_scale='dynamic'"):
        assert part in fixed


@pytest.mark.parametrize("monitor", MONITORS.values())
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"at_floor": "stop"}, "at_floor='stop' must be one of 'warn', 'raise', 'ignore'."),
        ({"patience": 0}, "patience=0 must be at least 1."),
        ({"every": 0}, "every=0 must be at least 1."),
    ],
)
def test_bad_arguments_are_named(monitor: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        monitor(**arguments)
