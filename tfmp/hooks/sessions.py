"""The hook on `tf.compat.v1.Session`: when one first runs while mixed precision is on, it gets a graph of its own to run, see `shadow`.

Kept apart from what it attaches, so that a process in which no Session is converted loads nothing more than this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tfmp import tf_callbacks
from tfmp.hooks import activation
from tfmp.hooks.wrapping import Wrapped

_STATE = "_tfmp_state"
_METHODS = ("_extend_graph", "partial_run_setup")
"""The methods of a Session that come before anything is run; the first of them is part of every `run` and of every callable that is made."""

_lock = threading.RLock()
_wrapped = Wrapped()


def install() -> None:
    """Hooks Sessions, once. Changes nothing by itself: each Session asks, when it first runs, whether mixed precision is on."""
    for name in _METHODS:
        _wrapped.wrap(tf_callbacks.session_class(), name, _before)


def uninstall() -> None:
    """Takes the hook out again; Sessions that have been converted stay so."""
    _wrapped.restore()


def _before(wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    state = session.__dict__.get(_STATE)
    if state is None:
        with _lock:
            if _STATE not in session.__dict__:
                session.__dict__[_STATE] = _first_run(session)
        if wrapped.__name__ in session.__dict__:  # what has been attached has its own
            return session.__dict__[wrapped.__name__](*args, **kwargs)
    elif isinstance(state, _Unconverted):
        state.runs_again(session)
    return wrapped(*args, **kwargs)


def _first_run(session: Any) -> object:
    active = activation.current()
    if not active.graph_rewrite:
        return _Unconverted()
    from tfmp.hooks import notices, shadow_session

    notices.switched_on()
    with notices.falling_back("graph", active.settings.strict, what="the graph of a tf.compat.v1.Session"):
        shadow_session.attach(session)
    return object()


class _Unconverted:
    """What is remembered of a Session that ran before mixed precision was switched on."""

    def __init__(self) -> None:
        self._runs, self._version, self._told = 0, -1, False

    def runs_again(self, session: Any) -> None:
        """Warns, once, if mixed precision is on by now: asks when the graph has grown, and after 1, 2, 4, 8, ... runs, since asking takes time."""
        self._runs += 1
        grown, self._version = session.graph.version != self._version, session.graph.version
        if not self._told and (grown or self._runs & (self._runs - 1) == 0) and activation.current().graph_rewrite:
            from tfmp.hooks import notices

            self._told = True
            notices.session_ran_too_early(session.graph)
