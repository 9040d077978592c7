from __future__ import annotations

import math
from typing import Any

import pytest

from tfmp.optimizers.policies import (
    LARGEST_SCALE,
    NEVER,
    POLICIES,
    SMALLEST_SCALE,
    DynamicLossScale,
    FixedLossScale,
    LossScalePolicy,
    NoLossScale,
    as_policy,
    policy_config,
)

EXAMPLES = [
    DynamicLossScale(),
    DynamicLossScale(initial=8, growth_factor=4, backoff_factor=0.25, growth_interval=3, minimum=0.125, maximum=64, hysteresis=2),
    FixedLossScale(128),
    FixedLossScale(0.5, skip_nonfinite=False),
    NoLossScale(),
]


def test_defaults_are_those_of_the_issue() -> None:
    assert DynamicLossScale() == DynamicLossScale(
        initial=2**15, growth_factor=2, backoff_factor=0.5, growth_interval=2000, minimum=1, maximum=2**24, hysteresis=1
    )


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"initial": "big"}, TypeError, "DynamicLossScale: initial='big' must be a number, but is a str."),
        ({"initial": True}, TypeError, "initial=True must be a number, but is a bool."),
        ({"initial": math.nan}, ValueError, "initial=nan must be a finite number."),
        ({"initial": 0.5}, ValueError, r"initial=0.5 must lie in 1 to 1.67772e\+07 \(minimum to maximum\)."),
        ({"initial": 2**25}, ValueError, r"initial=3.35544e\+07 must lie in 1 to 1.67772e\+07 \(minimum to maximum\)."),
        ({"growth_factor": 1}, ValueError, "growth_factor=1.0 must be above 1."),
        ({"growth_factor": math.inf}, ValueError, "growth_factor=inf must be a finite number."),
        ({"backoff_factor": 1}, ValueError, "backoff_factor=1.0 must lie between 0 and 1."),
        ({"backoff_factor": 0}, ValueError, "backoff_factor=0.0 must lie between 0 and 1."),
        ({"growth_interval": 0}, ValueError, r"growth_interval=0 must be at least 1 and at most 2\^62."),
        ({"growth_interval": 2.5}, TypeError, "growth_interval=2.5 must be an integer, but is a float."),
        ({"hysteresis": 0}, ValueError, r"hysteresis=0 must be at least 1 and at most 2\^62."),
        ({"hysteresis": False}, TypeError, "hysteresis=False must be an integer, but is a bool."),
        ({"minimum": 0}, ValueError, "minimum=0 must lie in 1.17549e-38 to"),
        ({"minimum": -1}, ValueError, "minimum=-1 must lie in"),
        ({"maximum": 2.0**127}, ValueError, r"maximum=1.70141e\+38 must lie in"),
    ],
)
def test_bad_arguments_of_a_dynamic_scale_are_named(arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        DynamicLossScale(**arguments)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"value": None}, TypeError, "FixedLossScale: value=None must be a number, but is a NoneType."),
        ({"value": 0}, ValueError, "FixedLossScale: value=0 must lie in"),
        ({"value": -2}, ValueError, "FixedLossScale: value=-2 must lie in"),
        ({"value": math.inf}, ValueError, "value=inf must be a finite number."),
        ({"value": 2, "skip_nonfinite": 1}, TypeError, "skip_nonfinite=1 must be True or False."),
    ],
)
def test_bad_arguments_of_a_fixed_scale_are_named(arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        FixedLossScale(**arguments)


def test_the_reciprocals_of_the_bounds_are_normal_float32_numbers() -> None:
    smallest_normal = 2.0**-126
    for bound in (SMALLEST_SCALE, LARGEST_SCALE):
        assert smallest_normal <= bound <= 2.0**127
        assert smallest_normal <= 1 / bound <= 2.0**127


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        DynamicLossScale().initial = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ("dynamic", DynamicLossScale()),
        (None, NoLossScale()),
        (1024, FixedLossScale(1024.0)),
        (0.5, FixedLossScale(0.5)),
        *[(policy, policy) for policy in EXAMPLES],
    ],
)
def test_users_arguments_name_policies(given: Any, policy: LossScalePolicy) -> None:
    assert as_policy(given) == policy


def test_tensorflows_loss_scales_are_read() -> None:
    from tensorflow.compat.v1 import mixed_precision as tensorflows

    assert as_policy(tensorflows.FixedLossScale(16)) == FixedLossScale(16)
    read = as_policy(tensorflows.DynamicLossScale(initial_loss_scale=2**30, increment_period=7, multiplier=4.0))
    assert read == DynamicLossScale(initial=2**30, growth_factor=4, backoff_factor=0.25, growth_interval=7, minimum=1, maximum=2**30)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ("static", ValueError, """loss_scale='static' is not known. Give "dynamic", a number for a fixed scale, None for no scaling, or a DynamicLossScale"""),
        (True, TypeError, "loss_scale=True is a bool. Give"),
        ([2], TypeError, r"loss_scale=\[2\] is a list. Give"),
        (0, ValueError, "FixedLossScale: value=0 must lie in"),
        ({"policy": "magic"}, ValueError, "policy='magic' in a loss scale configuration is not one of dynamic, fixed, none."),
    ],
)
def test_other_arguments_are_refused(given: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        as_policy(given)


@pytest.mark.parametrize("policy", EXAMPLES)
def test_the_configuration_keeps_every_field(policy: LossScalePolicy) -> None:
    import json

    assert as_policy(json.loads(json.dumps(policy_config(policy)))) == policy


def test_every_policy_has_what_the_rule_asks_for() -> None:
    for policy in (DynamicLossScale(), FixedLossScale(8), NoLossScale()):
        assert POLICIES[policy.name] is type(policy)
        assert policy.minimum <= policy.initial <= policy.maximum
        assert 1 <= policy.growth_interval <= NEVER
