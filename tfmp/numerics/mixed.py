"""The converted program beside the float32 one, each with its sites."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfmp import engine, tf_api
from tfmp.dtypes import FloatFormat, sixteen_bit
from tfmp.numerics.sites import Sites, find_sites
from tfmp.numerics.tracing import Traced
from tfmp.program.program import from_function
from tfmp.settings import Settings, make_settings

_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Pair:
    """A traced function in float32 and as it is converted.

    Attributes:
      traced: the function and its arguments.
      settings: what it was converted by.
      full: the float32 program.
      mixed: the converted one; the same as `full` if nothing was converted.
      incomparable: names of the nodes that compute something else in `mixed` (`Plan.other_results`).
    """

    traced: Traced
    settings: Settings
    full: Sites
    mixed: Sites
    incomparable: frozenset[str] = frozenset()

    @property
    def format(self) -> FloatFormat:
        """The 16-bit type."""
        return sixteen_bit(self.settings.dtype)


def settings_for(traced: Traced, changes: Mapping[str, Any]) -> Settings:
    """Returns the settings of a comparison: those in force where the function was traced (see `tfmp.enable`), or the defaults, with `changes` made.

    A dtype that is left to the hardware is float16, the type in which more can go wrong; a device that is left open is a GPU if TensorFlow sees one.
    """
    chosen = make_settings(traced.settings, **changes)
    device = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return dataclasses.replace(chosen, dtype="float16" if chosen.dtype == "auto" else chosen.dtype, device=device if chosen.device == "auto" else chosen.device)


def convert(traced: Traced, changes: Mapping[str, Any]) -> Pair:
    """Returns both programs of `traced`; raises what `tfmp.convert_function` does."""
    settings = settings_for(traced, changes)
    conversion = engine.convert_named(traced.name, tf_api.serialised_function, settings, graphs=tf_api.python_graphs([traced.atomic]).get)
    number = next(_numbers)
    linked = conversion.functions(lambda name, version: f"{name}_mixed_{number}" + (f"_{version}" if version else ""))
    protos = {one.name: one.proto for one in linked}
    mixed = from_function(linked[0].name, lambda name: protos[name] if name in protos else tf_api.serialised_function(name))
    incomparable = frozenset().union(*(body.plan.other_results for body in conversion.bodies.values()))
    return Pair(traced, settings, find_sites(traced.program()), find_sites(mixed), incomparable)
