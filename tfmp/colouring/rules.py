"""What one colouring goes by."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tfmp.colouring.user_rules import Wishes
from tfmp.dtypes import FloatFormat
from tfmp.measured.rules import Measured
from tfmp.oplists import OpLists

Devices = tuple[str, ...]
"""The device types whose kernels must all exist: "GPU", "CPU", "XLA_CPU_JIT", "XLA_GPU_JIT"."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """What one colouring goes by.

    Attributes:
      format: the 16-bit type.
      lists: op lists in force.
      device: where nodes without a device run, and which nodes are converted: "GPU" or "CPU".
      force: paint everything that may be forced (TensorFlow's UNSAFE_FORCE_ALL).
      follow_handles: follow list handles that are elements of other lists, and optionals (TensorFlow's pass does neither).
      fetches: names of nodes whose types must stay (`NodesToPreserve` in TensorFlow).
      wishes: what the user's rules cover.
      slow: op type to the reason why its 16-bit kernel is slow on `device`.
      slow_filter: why depthwise convolutions with filters that cuDNN does not take are slow there; "" if they are not.
      measured: the nodes that measured ranges keep in float32 or free.
    """

    format: FloatFormat
    lists: OpLists
    device: str
    force: bool = False
    follow_handles: bool = True
    fetches: frozenset[str] = frozenset()
    wishes: Wishes = Wishes()
    slow: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slow_filter: str = ""
    measured: Measured = Measured()
