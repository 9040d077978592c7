"""What a conversion of a file goes by. Nothing here imports TensorFlow, so that the command line can show its help at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tfmp.dtypes import FLOAT32, SIXTEEN_BIT, FloatFormat
from tfmp.errors import SettingsError
from tfmp.settings import Settings, make_settings


@dataclasses.dataclass(frozen=True)
class Device:
    """A device that a file can be converted for.

    Attributes:
      name: how users write it.
      type: the device type of TensorFlow whose nodes are converted.
      compiled: whether everything on it is compiled by XLA, so that only XLA's kernels count.
      dtype: the 16-bit type that it is good at: float16 has tensor cores on every GPU since 2017, CPUs have instructions for bfloat16 (`hooks/hardware.py`).
      meaning: one phrase for the documentation.
    """

    name: str
    type: str
    compiled: bool
    dtype: str
    meaning: str


DEVICES = {
    device.name: device
    for device in (
        Device("gpu", "GPU", compiled=False, dtype="float16", meaning="a GPU that runs TensorFlow's own kernels"),
        Device("cpu", "CPU", compiled=False, dtype="bfloat16", meaning="a CPU that runs TensorFlow's own kernels"),
        Device("xla_gpu", "GPU", compiled=True, dtype="float16", meaning="a GPU on which XLA compiles the whole model"),
        Device("xla_cpu", "CPU", compiled=True, dtype="bfloat16", meaning="a CPU on which XLA compiles the whole model"),
    )
}

AUTO = "auto"
IO_FORMATS = {**SIXTEEN_BIT, FLOAT32.name: FLOAT32}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How a file is converted.

    Attributes:
      device: where it will run.
      settings: what the graphs are converted by; dtype and device are decided.
      io_dtype: the float type of the signatures' inputs and outputs that were float32, or "" if they stay.
      keep_weights: weights stay stored in float32.
      outputs: nodes or tensors of a frozen graph that are its outputs; without any, the nodes that nothing reads.
      modules: Python modules that register ops.
    """

    device: Device
    settings: Settings
    io_dtype: str = ""
    keep_weights: bool = False
    outputs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def format(self) -> FloatFormat:
        """The 16-bit type."""
        return SIXTEEN_BIT[self.settings.dtype]


def make_options(
    *,
    device: str = "gpu",
    dtype: str = AUTO,
    level: str = "default",
    io_dtype: str | None = None,
    keep_weights: bool = False,
    outputs: Iterable[str] | None = (),
    modules: Iterable[str] | None = (),
    **settings: Any,
) -> Options:
    """Returns the options; the arguments are those of `tfmp.convert`.

    Raises:
      SettingsError: a value that cannot be used; the message names it and lists the valid ones.
    """
    _one_of("device", device, DEVICES)
    _one_of("dtype", dtype, (AUTO, *SIXTEEN_BIT))
    _one_of("io_dtype", io_dtype or FLOAT32.name, IO_FORMATS)
    target = DEVICES[device]
    decided = make_settings(dtype=target.dtype if dtype == AUTO else dtype, level=level, device=target.type, **_given(settings))
    kept = io_dtype is None or io_dtype == FLOAT32.name
    names = {"outputs": tuple(outputs or ()), "modules": tuple(modules or ())}
    return Options(device=target, settings=decided, io_dtype="" if kept else str(io_dtype), keep_weights=keep_weights, **names)


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out what was left empty, so that every option of the command line can be handed on."""
    return {name: value for name, value in settings.items() if value not in (None, (), [], "")}


def _one_of(what: str, value: object, valid: Iterable[str]) -> None:
    if value not in tuple(valid):
        raise SettingsError(f"{what} is {value!r}; valid values are {', '.join(map(repr, valid))}.")
