"""Whether mixed precision is on, for whom, and with which settings: scopes win over `enable` and `disable`, those over the environment."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from tfmp import startup
from tfmp.errors import SettingsError
from tfmp.hooks import arrival
from tfmp.settings import VARIABLES, Settings, Switches, from_environment, make_settings

OFF = Switches(graph_rewrite=False, loss_scaling=False, settings=Settings())

_scope: contextvars.ContextVar[Switches | None] = contextvars.ContextVar("tfmp_scope", default=None)
_entered: contextvars.ContextVar[tuple[contextvars.Token[Switches | None], ...]] = contextvars.ContextVar("tfmp_entered", default=())


@dataclasses.dataclass
class _Process:
    """What `enable` and `disable` have asked for in this process; None: nothing, so the environment decides."""

    asked: Switches | None = None


_process = _Process()


def current() -> Switches:
    """Returns what is on here and now; raises `SettingsError` if an environment variable has a value that cannot be used."""
    return _scope.get() or _process.asked or _environment(tuple(os.environ.get(row.name, "") for row in VARIABLES))


@functools.lru_cache(maxsize=8)
def _environment(values: tuple[str, ...]) -> Switches:
    return from_environment(dict(zip((row.name for row in VARIABLES), values, strict=True)))


def enable(*, graph_rewrite: bool = True, loss_scaling: bool = True, **settings: Any) -> None:
    """Switches mixed precision on for everything traced and compiled from now on, whatever the environment says. Calling it again replaces the settings.

    Args:
      graph_rewrite: rewrite every `tf.function` traced from now on.
      loss_scaling: let `Model.compile` wrap its optimizer in a dynamic loss scale (float16 only).
      **settings: fields of `tfmp.Settings` (dtype, level, device, ignore_performance, ...) and `allowlist_add`, `denylist_remove`, ...; what is not
        given comes from the environment.

    Raises:
      SettingsError: an unknown setting or a value that cannot be used.
    """
    _process.asked = _switches(graph_rewrite, loss_scaling, settings)
    _install(_process.asked)


def disable() -> None:
    """Switches mixed precision off, whatever the environment says, and takes tfmp's hooks out of TensorFlow and Keras.

    Functions that were traced while it was on stay as they are; functions traced from now on stay in float32. Calling it twice is harmless.
    """
    _process.asked = OFF
    if _scope.get() is None:
        _uninstall()


def _switches(graph_rewrite: bool, loss_scaling: bool, settings: dict[str, Any]) -> Switches:
    for name, value in (("graph_rewrite", graph_rewrite), ("loss_scaling", loss_scaling)):
        if not isinstance(value, bool):
            raise SettingsError(f"{name} is {value!r}; it takes True or False.")
    base = from_environment(os.environ).settings
    return Switches(graph_rewrite, loss_scaling, make_settings(base, **settings))


class mixed_precision(contextlib.ContextDecorator):  # noqa: N801  (used like a function)
    """A scope: functions traced, and models compiled, inside run in mixed precision, and stay so when called outside.

    Usable as `with tfmp.mixed_precision(dtype="float16"):` and as a decorator of a Python function or of a `tf.function` (then for its traces only).
    Scopes nest; the innermost wins; what was before comes back on every way out. A scope belongs to the thread that entered it.

    Args:
      enabled: False makes a float32 scope: functions traced inside are left alone.
      **settings: as for `tfmp.enable`, `graph_rewrite` and `loss_scaling` included.

    Raises:
      SettingsError: as `tfmp.enable`.
    """

    def __init__(self, enabled: bool = True, **settings: Any) -> None:
        """Checks the settings; nothing is switched on before the scope is entered."""
        rewrite, scaling = settings.pop("graph_rewrite", True), settings.pop("loss_scaling", True)
        self._switches = _switches(rewrite, scaling, settings) if enabled else OFF

    def __enter__(self) -> mixed_precision:
        """Enters the scope."""
        _install(self._switches)
        _entered.set((*_entered.get(), _scope.set(self._switches)))  # in the context, since threads may share this object
        return self

    def __exit__(self, *details: object) -> None:
        """Leaves the scope, also when an exception passes."""
        *outer, token = _entered.get()
        _entered.set(tuple(outer))
        _scope.reset(token)

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Returns `function` with every call inside the scope; a `tf.function` comes back as something that still is one for its users."""
        if hasattr(function, "get_concrete_function"):
            from tfmp.hooks.scoped import ScopedFunction

            return ScopedFunction(function, self)
        return super().__call__(function)


def _install(switches: Switches) -> None:
    """Watches for TensorFlow and Keras, and hooks into those that are there already."""
    startup.install()
    for name in startup.WATCHED:
        if name in sys.modules:
            arrival.arrived(name, sys.modules[name])
    watch_layers(switches)


def watch_layers(switches: Switches) -> None:
    """Marks what Keras layers make from now on, if a rule in `switches` names layers."""
    if switches.graph_rewrite and switches.settings.has_rules_of("layer"):
        from tfmp.hooks import layers

        layers.watch()


def _uninstall() -> None:
    for name in ("tfmp.hooks.tracing", "tfmp.hooks.sessions", "tfmp.hooks.restored", "tfmp.hooks.saving", "tfmp.hooks.keras_compile", "tfmp.hooks.layers"):
        if name in sys.modules:
            sys.modules[name].uninstall()
