"""What happens when TensorFlow or a Keras has been imported. Imports nothing but the standard library until then."""

from __future__ import annotations

import importlib
from types import ModuleType

_INSTALLERS = {
    "tensorflow": (("tfmp.hooks.tracing", "install"), ("tfmp.hooks.sessions", "install"), ("tfmp.hooks.restored", "install"), ("tfmp.hooks.saving", "install")),
    "keras": (("tfmp.hooks.keras_compile", "install_keras"),),
    "tf_keras": (("tfmp.hooks.keras_compile", "install_tf_keras"),),
}
"""Imported module to the (module, function) pairs that install the hooks for it. Installing changes nothing by itself: each hook asks, at every trace and every
`compile`, whether mixed precision is on, so that the variable may be set at any time."""


def arrived(module_name: str, module: ModuleType) -> None:
    """Installs the hook for a module that has just been imported; does nothing for a module that tfmp does not watch."""
    for home, function in _INSTALLERS.get(module_name, ()):
        getattr(importlib.import_module(home), function)()
