"""Loss-scale policies: how a scale starts, moves and stops. Plain records, checked once, without TensorFlow."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

#: A growth interval no training reaches: 2^62 steps fit into the int64 counters.
NEVER = 2**62

#: The scale and its reciprocal must both be normal float32 numbers, or unscaling would divide by zero:
#: the smallest normal float32 is 2^-126, and 2^126 is the largest power of two with a normal reciprocal.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**126


@dataclass(frozen=True)
class DynamicLossScale:
    """A loss scale that falls at once on an overflow and grows after a run of good steps.

    Attributes:
        initial: scale of the first step. 2^15 as in TensorFlow's `DynamicLossScale` and Keras.
        growth_factor: what the scale is multiplied by after `growth_interval` good steps; above 1.
        backoff_factor: what it is multiplied by on an overflow; between 0 and 1.
        growth_interval: good steps in a row before the scale grows. 2000 as in TensorFlow, Keras, PyTorch, Apex.
        minimum: the scale never falls below it. 1 as in TensorFlow; Keras 3 and PyTorch have no floor.
        maximum: the scale never rises above it. 2^24 as in Apex.
        hysteresis: overflows per growth period that it takes to make the scale fall. 1: the first does it.
            More is the "hysteresis" of DeepSpeed and Megatron: `hysteresis - 1` overflows skip their step but
            leave the scale alone; the allowance is refilled when the scale grows.

    Raises:
        TypeError: an argument is not a number, or a count is not an integer.
        ValueError: an argument is out of range; the text names the argument, its value and the range.
    """

    initial: float = 2.0**15
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    minimum: float = 1.0
    maximum: float = 2.0**24
    hysteresis: int = 1

    name: ClassVar[str] = "dynamic"
    active: ClassVar[bool] = True
    skip_nonfinite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Checks every argument; see the class."""
        for field in ("initial", "growth_factor", "backoff_factor", "minimum", "maximum"):
            object.__setattr__(self, field, _number("DynamicLossScale", field, getattr(self, field)))
        for field in ("growth_interval", "hysteresis"):
            object.__setattr__(self, field, _count("DynamicLossScale", field, getattr(self, field)))
        for field in ("minimum", "maximum"):
            _within("DynamicLossScale", field, getattr(self, field), SMALLEST_SCALE, LARGEST_SCALE)
        _within("DynamicLossScale", "initial", self.initial, self.minimum, self.maximum, "minimum to maximum")
        if not self.growth_factor > 1:
            raise ValueError(f"DynamicLossScale: growth_factor={self.growth_factor} must be above 1.")
        if not 0 < self.backoff_factor < 1:
            raise ValueError(f"DynamicLossScale: backoff_factor={self.backoff_factor} must lie between 0 and 1.")


@dataclass(frozen=True)
class FixedLossScale:
    """A loss scale that never moves.

    Attributes:
        value: the scale, 2^-126 to 2^126.
        skip_nonfinite: whether a step with an infinite or NaN gradient is skipped (and counted). TensorFlow's
            `FixedLossScale` applies such a step and loses the weights; `False` does the same.

    Raises:
        TypeError: `value` is not a number or `skip_nonfinite` not a bool.
        ValueError: `value` is out of range.
    """

    value: float
    skip_nonfinite: bool = True

    name: ClassVar[str] = "fixed"
    active: ClassVar[bool] = True
    growth_factor: ClassVar[float] = 1.0
    backoff_factor: ClassVar[float] = 1.0
    growth_interval: ClassVar[int] = NEVER
    hysteresis: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Checks every argument; see the class."""
        object.__setattr__(self, "value", _number("FixedLossScale", "value", self.value))
        _within("FixedLossScale", "value", self.value, SMALLEST_SCALE, LARGEST_SCALE)
        if not isinstance(self.skip_nonfinite, bool):
            raise TypeError(f"FixedLossScale: skip_nonfinite={self.skip_nonfinite!r} must be True or False.")

    @property
    def initial(self) -> float:
        """The same number as `value`."""
        return self.value

    @property
    def minimum(self) -> float:
        """The same number as `value`: a fixed scale is always at its floor."""
        return self.value

    @property
    def maximum(self) -> float:
        """The same number as `value`."""
        return self.value


@dataclass(frozen=True)
class NoLossScale:
    """No loss scaling: the loss, the gradients and the optimizer's step stay exactly as they are.

    Right for bfloat16, whose exponent range is float32's. Nothing is tested, skipped or counted.
    """

    name: ClassVar[str] = "none"
    active: ClassVar[bool] = False
    skip_nonfinite: ClassVar[bool] = False
    initial: ClassVar[float] = 1.0
    growth_factor: ClassVar[float] = 1.0
    backoff_factor: ClassVar[float] = 1.0
    growth_interval: ClassVar[int] = NEVER
    minimum: ClassVar[float] = 1.0
    maximum: ClassVar[float] = 1.0
    hysteresis: ClassVar[int] = 1


#: Any of the three policy records.
LossScalePolicy: TypeAlias = DynamicLossScale | FixedLossScale | NoLossScale

#: The policies by the name they have in a saved configuration.
POLICIES: Mapping[str, Callable[..., LossScalePolicy]] = {policy.name: policy for policy in (DynamicLossScale, FixedLossScale, NoLossScale)}


def as_policy(loss_scale: Any) -> LossScalePolicy:
    """Returns the policy meant by a user's `loss_scale` argument.

    Args:
        loss_scale: "dynamic" (the defaults of `DynamicLossScale`), a number (`FixedLossScale`), None
            (`NoLossScale`), a policy record (itself), a dictionary from `policy_config`, or a loss scale object of
            `tf.compat.v1.mixed_precision` (read through its `get_config`; it backs off by one over its multiplier
            and has a floor of 1, as there).

    Raises:
        TypeError: it is none of these.
        ValueError: it is a string other than "dynamic", or a number out of range.
    """
    if isinstance(loss_scale, DynamicLossScale | FixedLossScale | NoLossScale):
        return loss_scale
    if loss_scale is None:
        return NoLossScale()
    if isinstance(loss_scale, str):
        if loss_scale == "dynamic":
            return DynamicLossScale()
        raise ValueError(f"loss_scale={loss_scale!r} is not known. {_ACCEPTED}")
    if isinstance(loss_scale, numbers.Real) and not isinstance(loss_scale, bool):
        return FixedLossScale(float(loss_scale))
    if isinstance(loss_scale, Mapping):
        return _from_config(loss_scale)
    if hasattr(loss_scale, "get_config"):
        return _from_tensorflow(loss_scale)
    raise TypeError(f"loss_scale={loss_scale!r} is a {type(loss_scale).__name__}. {_ACCEPTED}")


_ACCEPTED = (
    'Give "dynamic", a number for a fixed scale, None for no scaling, or a '
    "DynamicLossScale, FixedLossScale or NoLossScale record."
)


def policy_config(policy: LossScalePolicy) -> dict[str, Any]:
    """Returns the policy as a dictionary of JSON values, which `as_policy` turns back into an equal policy."""
    return {"policy": policy.name, **asdict(policy)}


def _from_config(config: Mapping[str, Any]) -> LossScalePolicy:
    arguments = dict(config)
    name = arguments.pop("policy", None)
    if name not in POLICIES:
        raise ValueError(f"policy={name!r} in a loss scale configuration is not one of {', '.join(POLICIES)}.")
    return POLICIES[name](**arguments)


def _from_tensorflow(loss_scale: Any) -> LossScalePolicy:
    config = loss_scale.get_config()
    if set(config) == {"loss_scale_value"}:
        return FixedLossScale(config["loss_scale_value"])
    if set(config) == {"initial_loss_scale", "increment_period", "multiplier"}:
        return DynamicLossScale(
            initial=config["initial_loss_scale"],
            growth_factor=config["multiplier"],
            backoff_factor=1 / config["multiplier"],
            growth_interval=config["increment_period"],
            maximum=max(DynamicLossScale.maximum, config["initial_loss_scale"]),
        )
    raise TypeError(f"loss_scale={loss_scale!r} is a {type(loss_scale).__name__}. {_ACCEPTED}")


def _number(owner: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{owner}: {name}={value!r} must be a number, but is a {type(value).__name__}.")
    if not math.isfinite(value):
        raise ValueError(f"{owner}: {name}={value!r} must be a finite number.")
    return float(value)


def _count(owner: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{owner}: {name}={value!r} must be an integer, but is a {type(value).__name__}.")
    count = int(value)
    if not 1 <= count <= NEVER:
        raise ValueError(f"{owner}: {name}={count} must be at least 1 and at most 2^62.")
    return count


def _within(owner: str, name: str, value: float, low: float, high: float, meaning: str = "") -> None:
    if not low <= value <= high:
        span = f"{low:g} to {high:g}" + (f" ({meaning})" if meaning else "")
        raise ValueError(f"{owner}: {name}={value:g} must lie in {span}.")
