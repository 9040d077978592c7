"""The hook on every traced `tf.function`: TensorFlow calls `on_trace`, which attaches to the function if mixed precision is on.

Kept apart from what it attaches, so that a process in which nothing is converted loads nothing more than this.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

from tfmp import tf_callbacks
from tfmp.hooks import activation

if TYPE_CHECKING:
    from tfmp.tf_api import ConcreteFunction


def on_trace(function: ConcreteFunction) -> None:
    """Called by TensorFlow with every newly traced function: attaches to it if mixed precision is on. Raises only `SettingsError`, and what goes wrong
    under `TFMP_STRICT=1`.
    """
    active = activation.current()
    private = tf_callbacks.private_trace(function)
    if private is not None:
        private.settings = active.settings if active.graph_rewrite else None
        return
    from tfmp.hooks import notices

    if not active.graph_rewrite:
        notices.traced_in_float32(function)
        return
    from tfmp.hooks import tf_function

    notices.switched_on()
    activation.watch_layers(active)
    with notices.falling_back(function.name, active.settings.strict):
        tf_function.attach(function, active.settings)


def install() -> None:
    """Puts `on_trace` on TensorFlow's list of callbacks, once; raises `TfmpError` if TensorFlow is too old."""
    tf_callbacks.check_version()
    callbacks = tf_callbacks.concrete_function_callbacks()
    if on_trace not in callbacks:
        callbacks.append(on_trace)
        atexit.register(_tell_eager_users)


def _tell_eager_users() -> None:
    """At the end of the process: the one chance to tell somebody who never traced a function that nothing was converted."""
    if activation.current().graph_rewrite and tf_callbacks.has_run():
        from tfmp.hooks import notices

        notices.nothing_at_all()


def uninstall() -> None:
    """Takes `on_trace` off the list again, and leaves what others have put there."""
    callbacks = tf_callbacks.concrete_function_callbacks()
    if on_trace in callbacks:
        callbacks.remove(on_trace)
        atexit.unregister(_tell_eager_users)
