"""Which kernels this process has registered: an op definition may allow float16 where no kernel exists (Cholesky; AvgPool3D on a CPU)."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tfmp import tf_api

DEFAULT_DEVICE = "DEFAULT"
"""Kernels of this device type serve every device that has none of its own (`FindKernelRegistration` in `op_kernel.cc`)."""

XLA_DEVICES = {"GPU": "XLA_GPU_JIT", "CPU": "XLA_CPU_JIT"}
"""Device type to the one under which XLA's just-in-time compiler registers what it can compile."""

Types = Mapping[str, frozenset[int]]
"""Type attribute to the types in it: one for a plain attribute, any number for a list."""


def has_kernel(op: str, device: str, types: Types) -> bool:
    """Returns whether a node of type `op` with the type attributes `types` can run on `device` ("GPU", "CPU" or an XLA device).

    A constraint on something other than a type counts as met, since no conversion changes it.
    """
    return _has_kernel(op, device, frozenset(types.items()))


@functools.cache
def _has_kernel(op: str, device: str, types: frozenset[tuple[str, frozenset[int]]]) -> bool:
    wanted = dict(types)
    for candidate in (device, DEFAULT_DEVICE):
        if any(_fits(constraints, wanted) for constraints in _constraints(op, device in XLA_DEVICES.values()).get(candidate, ())):
            return True
    return False


def _fits(constraints: tuple[tuple[str, frozenset[int]], ...], types: Types) -> bool:
    return all(allowed.issuperset(types.get(attr, ())) for attr, allowed in constraints)


@functools.cache
def _constraints(op: str, xla: bool) -> dict[str, list[tuple[tuple[str, frozenset[int]], ...]]]:
    """Device type to the type constraints of each unlabelled kernel. `xla` is part of the key only so that XLA's kernels are read once registered."""
    if xla:
        tf_api.register_xla_kernels()
    found: dict[str, list[tuple[tuple[str, frozenset[int]], ...]]] = {}
    for kernel in tf_api.kernels_of(op):
        if not kernel.label:  # a labelled kernel is used only where the graph names the label
            types = tuple((c.name, frozenset(c.allowed_values.list.type)) for c in kernel.constraint if c.allowed_values.list.type)
            found.setdefault(kernel.device_type, []).append(types)
    return found
