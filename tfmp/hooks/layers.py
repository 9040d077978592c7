"""Marks the nodes of Keras layers while rules that name layers are in force."""

from __future__ import annotations

from tfmp import layer_marks
from tfmp.hooks import activation

_WHO = "rules"


def watch() -> None:
    """Hooks into the layers of every Keras that has been imported, once each."""
    layer_marks.watch(_WHO, lambda: activation.current().settings.has_rules_of("layer"))


def uninstall() -> None:
    """Takes the hooks out again, unless somebody else needs them."""
    layer_marks.unwatch(_WHO)
