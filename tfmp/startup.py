"""Watches for TensorFlow and Keras being imported and then calls `tfmp.hooks.arrival.arrived`.

This module runs at the start of every Python process of an environment that has tfmp (through `tfmp.pth`), so it costs next to
nothing: it imports only modules that a bare interpreter has loaded already, defers all real work until TensorFlow or Keras has
arrived, and leaves every other import alone. That is also why it does without `from __future__ import annotations`, which loads a file.

The finder follows PEP 451 (finders return a spec, loaders execute the module); the switch is read by `tfmp.settings`, not here.
"""

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False  # stands for `typing.TYPE_CHECKING`: `typing` is not loaded in a bare interpreter
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

WATCHED = ("tensorflow", "keras", "tf_keras")
"""The modules whose arrival is reported: TensorFlow, Keras 3, and Keras 2 under the name it has had since TensorFlow 2.16."""

STRICT_WORDS = ("1", "true", "yes", "on")
"""Values of `TFMP_STRICT` that let an error of the hooks through (`tfmp.settings.TRUE_WORDS`, not imported: it may be the cause)."""


class Watcher:
    """A finder for `sys.meta_path` that finds nothing itself: it asks the others and reports watched modules once they have run."""

    def __init__(self) -> None:
        """Makes a watcher; `install` puts it to work."""
        self._searching: set[tuple[int, str]] = set()
        self._unfinished: dict[str, ModuleType] = {}
        self._warned = False

    def find_spec(self, fullname: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None) -> "ModuleSpec | None":
        """Returns None for all but a watched module; for that one the spec that the other finders give, its loader reporting.

        Nothing is imported. A spec without a loader that can execute (a namespace package) is returned as it is.
        """
        if self._unfinished:
            self._report_finished()
        search = (get_ident(), fullname)
        if fullname not in WATCHED or search in self._searching:
            return None
        self._searching.add(search)
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._searching.discard(search)
        loader: Any = spec and spec.loader
        if spec is not None and hasattr(loader, "exec_module") and type(loader) is not ReportingLoader:
            spec.loader = ReportingLoader(loader, self.report)  # type: ignore[assignment]  # duck-typed, as `Loader` is itself
        return spec

    def report_loaded(self) -> None:
        """Reports the watched modules that are loaded already; one that is still executing is reported at a later import."""
        for name in WATCHED:
            module = sys.modules.get(name)
            if module is not None and _is_executing(module):
                self._unfinished[name] = module
            elif module is not None:
                self.report(name, module)

    def report(self, name: str, module: "ModuleType") -> None:
        """Calls `tfmp.hooks.arrival.arrived(name, module)`, importing it now. A failure is one warning a process and otherwise without effect.

        Raises:
          SettingsError: a variable has a value that cannot be used. Whatever else fails is raised only under `TFMP_STRICT=1`.
        """
        try:
            from tfmp.hooks import arrival

            arrival.arrived(name, module)
        except Exception as error:  # a hook boundary: no fault of tfmp may keep the user from importing TensorFlow
            if _must_raise(error):
                raise
            self._warn_once(name, error)

    def _report_finished(self) -> None:
        for name, module in tuple(self._unfinished.items()):
            if _is_executing(module):
                continue
            claimed = self._unfinished.pop(name, None)  # by one thread only
            if claimed is not None and sys.modules.get(name) is claimed:
                self.report(name, claimed)

    def _ask_others(self, fullname: str, path: "Sequence[str] | None", target: "ModuleType | None") -> "ModuleSpec | None":
        for finder in tuple(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None:
                return spec
        return None

    def _warn_once(self, name: str, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        import warnings

        from tfmp.errors import MixedPrecisionWarning

        warnings.warn(
            f"tfmp could not attach to {name}, so this process runs without mixed precision: {type(error).__name__}: {error}. "
            "TFMP_STRICT=1 raises this error instead.",
            MixedPrecisionWarning,
            stacklevel=3,  # _warn_once, report, then the user's import: `warnings` skips the import machinery
        )


class ReportingLoader:
    """Stands for another loader: every attribute, and `isinstance`, answer as that loader does; executing a module also reports it."""

    def __init__(self, loader: "Any", report: "Callable[[str, ModuleType], None]") -> None:
        """Makes a stand-in for `loader`, any object with an `exec_module`; `report` is called with the module and its name."""
        self._loader = loader
        self._report = report

    def __getattr__(self, name: str) -> "Any":
        """Returns the attribute of the real loader."""
        return getattr(self._loader, name)

    @property  # type: ignore[misc]  # read-only here; there so that isinstance(spec.loader, SourceFileLoader) holds
    def __class__(self) -> "Any":
        """The class of the real loader."""
        return type(self._loader)

    def exec_module(self, module: "ModuleType") -> None:
        """Gives `module` its real loader back, executes it, and reports it if that went well; what it raises passes through."""
        name, loader = module.__name__, self._loader
        module.__loader__ = loader
        if module.__spec__ is not None:
            module.__spec__.loader = loader
        loader.exec_module(module)
        self._report(name, sys.modules.get(name, module))


def _as_import_machinery(code: "CodeType") -> "CodeType":
    """Returns `code` under the file name whose frames Python leaves out of the traceback of a failed import (CPython's `import.c`)."""
    return code.replace(co_filename="<frozen importlib._bootstrap>")


ReportingLoader.exec_module.__code__ = _as_import_machinery(ReportingLoader.exec_module.__code__)


def install() -> Watcher:
    """Puts one watcher at the head of `sys.meta_path` and returns it; one that is there already, even from before a reload, stays.

    Watched modules that are loaded already are reported at once.
    """
    for finder in sys.meta_path:
        if (type(finder).__module__, type(finder).__qualname__) == (__name__, "Watcher"):
            return finder  # type: ignore[return-value]  # a Watcher by name: after a reload it is not one by identity
    watcher = Watcher()
    sys.meta_path.insert(0, watcher)
    watcher.report_loaded()
    return watcher


def _is_executing(module: "ModuleType") -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _must_raise(error: Exception) -> bool:
    from tfmp.errors import SettingsError

    strict = os.environ.get("TFMP_STRICT", "")  # noqa: TID251  # tfmp.settings may be what failed
    return isinstance(error, SettingsError) or strict.strip().lower() in STRICT_WORDS
