"""The rule against ten lines of plain Python that share nothing with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfmp.optimizers.loss_scale import STATE_FIELDS, ScaleState, initial_state, next_state
from tfmp.optimizers.policies import DynamicLossScale, FixedLossScale, LossScalePolicy, NoLossScale


def oracle(policy: LossScalePolicy, outcomes: Sequence[bool]) -> dict[str, Any]:
    """What the issue says, over a whole history: grow after each full interval of good steps in a row, fall on an overflow."""
    scale, in_a_row, allowance = policy.initial, 0, policy.hysteresis - 1
    for good in outcomes:
        in_a_row = in_a_row + 1 if good else 0
        if good and in_a_row == policy.growth_interval:
            scale, in_a_row, allowance = min(scale * policy.growth_factor, policy.maximum), 0, policy.hysteresis - 1
        elif not good and allowance:
            allowance -= 1
        elif not good:
            scale = max(scale * policy.backoff_factor, policy.minimum)
    bad = [step for step, good in enumerate(outcomes, 1) if not good]
    trailing = next((n for n, good in enumerate(reversed(outcomes)) if good), len(outcomes))
    return {"scale": scale, "steps": len(outcomes), "skipped": len(bad), "last": bad[-1] if bad else 0, "trailing": trailing, "allowance": allowance}


def run(policy: LossScalePolicy, outcomes: Sequence[bool]) -> ScaleState:
    state = initial_state(policy)
    for good in outcomes:
        state = next_state(policy, state, good)
    return state


powers = st.integers(-8, 8).map(lambda exponent: 2.0**exponent)
dynamic = st.builds(
    lambda low, initial, high, **rest: DynamicLossScale(minimum=min(low, initial), initial=initial, maximum=max(initial, high), **rest),
    low=powers,
    initial=powers,
    high=powers,
    growth_factor=st.sampled_from([1.5, 2.0, 4.0, 1000.0]),
    backoff_factor=st.sampled_from([0.5, 0.25, 0.7, 1e-3]),
    growth_interval=st.integers(1, 5),
    hysteresis=st.integers(1, 4),
)
policies = st.one_of(dynamic, st.just(FixedLossScale(8.0)))


@given(policies, st.lists(st.booleans(), max_size=60))
def test_random_histories_end_as_in_plain_python(policy: LossScalePolicy, outcomes: list[bool]) -> None:
    state, expected = run(policy, outcomes), oracle(policy, outcomes)
    assert state.scale == expected["scale"]
    assert state.steps == expected["steps"]
    assert state.skipped_steps == expected["skipped"]
    assert state.last_skip_step == expected["last"]
    assert state.consecutive_skips() == expected["trailing"]
    assert state.hysteresis_left == expected["allowance"]


@given(dynamic, st.lists(st.booleans(), max_size=60))
def test_the_scale_stays_within_its_bounds(policy: DynamicLossScale, outcomes: list[bool]) -> None:
    state = initial_state(policy)
    for good in outcomes:
        state = next_state(policy, state, good)
        assert policy.minimum <= state.scale <= policy.maximum


def test_three_hundred_overflows_end_at_the_floor_and_recovery_is_at_once() -> None:
    policy = DynamicLossScale(growth_interval=1)
    state = run(policy, [False] * 300)
    assert (state.scale, state.skipped_steps, state.consecutive_skips(), state.last_skip_step) == (1.0, 300, 300, 300)
    state = next_state(policy, state, True)
    assert (state.scale, state.consecutive_skips()) == (2.0, 0)


def test_ten_thousand_growth_periods_end_at_the_ceiling() -> None:
    policy = DynamicLossScale(growth_interval=1)
    state = run(policy, [True] * 10_000)
    assert state.scale == 2.0**24
    assert next_state(policy, state, False).scale == 2.0**23


def test_hysteresis_spares_the_scale_but_never_the_step() -> None:
    policy = DynamicLossScale(initial=1024, hysteresis=3, growth_interval=2)
    scales = [run(policy, [False] * count).scale for count in range(1, 6)]
    assert scales == [1024, 1024, 512, 256, 128]
    assert run(policy, [False] * 3).skipped_steps == 3
    assert run(policy, [False] * 2 + [True] * 2 + [False] * 2).scale == 2048  # growth refilled the allowance


@pytest.mark.parametrize("dead", [0.0, math.nan, 1e-30, math.inf])
def test_a_dead_scale_from_a_foreign_checkpoint_comes_back_to_life(dead: float) -> None:
    policy = DynamicLossScale(initial=8, minimum=4, maximum=64)
    state = next_state(policy, ScaleState(dead, *[0] * (len(STATE_FIELDS) - 1)), False)
    assert 4 <= state.scale <= 64


def test_a_fixed_scale_never_moves_but_counts() -> None:
    state = run(FixedLossScale(8), [True, False, False, True] * 1000)
    assert (state.scale, state.steps, state.skipped_steps) == (8.0, 4000, 2000)


def test_the_place_of_the_bad_gradient_is_kept_through_good_steps() -> None:
    policy = DynamicLossScale()
    state = next_state(policy, next_state(policy, initial_state(policy), False, bad_gradient=7), True)
    assert state.last_bad_gradient == 7


def test_a_good_step_touches_nothing_but_scale_and_count() -> None:
    """The wrappers leave the other fields unread: they are None here and must come back as they are."""
    state = next_state(DynamicLossScale(), ScaleState(8.0, 3, *[None] * (len(STATE_FIELDS) - 2)), True)
    assert state == ScaleState(8.0, 4, *[None] * (len(STATE_FIELDS) - 2))


def test_no_scaling_is_a_scale_of_one() -> None:
    assert initial_state(NoLossScale()).scale == 1.0
