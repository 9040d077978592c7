"""A `tf.compat.v1.Session` that runs a shadow of its graph.

The Session itself, and all that users see of it, stays; only the C session behind it is another one, and fetches and feeds are translated on their way there.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tfmp import tf_api, tf_sessions
from tfmp.errors import SettingsError
from tfmp.hooks import activation, graph_conversion, notices
from tfmp.hooks.shadow import Shadow
from tfmp.hooks.shadow_steps import Request, Step, translate
from tfmp.tf_sessions import BaseSession, Output

WHAT = "the graph of a tf.compat.v1.Session"

Result = TypeVar("Result")


def attach(session: BaseSession) -> None:
    """Lets `session`, which must not have run yet, run a shadow of its graph from now on. If it raises, the session is as it was."""
    runner = _Runner(session)
    tf_sessions.replace_session(session, runner.native)
    vars(session).update(runner.methods())


class _Runner:
    """What runs instead of the methods that hand something to the C session. It does not keep the Session, which keeps it, alive."""

    def __init__(self, session: BaseSession) -> None:
        self._reference, self._graph = weakref.ref(session), session.graph
        self._shadow = Shadow(session.graph)
        self.native = tf_sessions.new_session(session, self._shadow.native)
        self._lock = threading.RLock()
        self._pending: dict[str, Any] = {}
        self._scanned, self._extended, self._strict, self._dtype = 0, 0, False, ""

    @property
    def _session(self) -> BaseSession:
        session = self._reference()
        if session is None:
            raise ReferenceError("the Session is gone")
        return session

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Returns, by name, what replaces methods of `BaseSession`."""
        return {
            "_extend_graph": _nothing,  # done when it is known what is run
            "_call_tf_sessionrun": self._run,
            "_call_tf_sessionprun": self._run_in_part,
            "_do_call": self._call,
            "_make_callable_from_options": self._make_callable,
        }

    def _run(self, options: Any, feeds: Mapping[Output, Any], fetches: Sequence[Output], targets: Sequence[Any], metadata: Any) -> list[Any]:
        def run(step: Step) -> list[Any]:
            if step.overflows(feeds.values()):
                self._fall_back(OverflowError(f"a value is fed that {self._dtype} cannot hold"))
                step = self._translated(request)
            return tf_sessions.run(self.native, options, self._feeds(step, feeds), *self._handles(step), metadata)

        def run_as_it_was(session: BaseSession) -> list[Any]:
            return session._call_tf_sessionrun(options, feeds, fetches, targets, metadata)

        request = Request.of(feeds, fetches, targets)
        return self._serve(request, run, run_as_it_was)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Stands for `BaseSession._do_call`, through which `partial_run_setup` goes straight to the C session."""
        session = self._session
        if function.__name__ != "_setup_fn":
            return BaseSession._do_call(session, function, *args)

        def set_up(step: Step) -> str:
            return tf_sessions.set_up_partial_run(self.native, [*map(self._shadow.native.output, step.tensors_fed)], *self._handles(step))

        def set_up_as_it_was(session: BaseSession) -> str:
            return function(session._session, *args[1:])

        return BaseSession._do_call(session, self._serve, Request.of(*args[1:]), set_up, set_up_as_it_was)

    def _run_in_part(self, handle: str, feeds: Mapping[Output, Any], fetches: Sequence[Output]) -> list[Any]:
        step = self._translated(Request.of(feeds, fetches, ()))
        return tf_sessions.run_in_part(self.native, handle, self._feeds(step, feeds), self._handles(step)[0])

    def _make_callable(self, options: Any) -> Callable[..., Any]:
        """Stands for `BaseSession._make_callable_from_options`, which tf_keras's functions use in graph mode."""

        def make(step: Step) -> Callable[..., Any]:
            return tf_sessions.native_callable(self._session, options, step.plain, step.fetched, step.targets)

        return self._serve(Request.of_callable(options), make, lambda session: session._make_callable_from_options(options))

    def _serve(self, request: Request, serve: Callable[[Step], Result], serve_as_it_was: Callable[[BaseSession], Result]) -> Result:
        """Returns `serve` of what `request` is in the shadow, once everything is there that it needs."""
        if not self._has(request):
            try:
                self._prepare(request)
            except SettingsError:
                raise
            except Exception as error:
                if self._strict or self._shadow.there:
                    raise
                return serve_as_it_was(self._given_up(error))
        try:
            return serve(self._translated(request))
        except tf_api.OpError as error:
            if not self._shadow.table.altered or not notices.could_not_start(error):
                raise
            self._fall_back(error)
        return serve(self._translated(request))

    def _has(self, request: Request) -> bool:
        return self._shadow.there.issuperset(request.names)

    def _prepare(self, request: Request) -> None:
        """Adds what is missing for `request`: as it is, or if there is something to convert, everything that the graph has by now, converted."""
        with self._lock, tf_sessions.unchanging(self._graph):
            self._look_for_new_operations()
            needed = self._missing(request.names)
            active = activation.current()
            self._strict = active.settings.strict
            settings = graph_conversion.decided(active, self._session) if any(map(graph_conversion.may_gain, needed.values())) else None
            if settings is not None:
                needed = dict(self._pending)
                results = [tensor for tensor in request.fetched if tensor[0] in needed]
                fed = [name for name, _ in (*request.fed, *request.plain)]
                graph_conversion.add_converted(self._shadow, [*needed.values()], results, fed, settings, self._session)
                graph_conversion.warn_if_unscaled(active, settings, self._graph)
                self._dtype = settings.dtype
            elif needed:
                self._shadow.add([operation for name, operation in self._pending.items() if name in needed])
            for name in needed:
                del self._pending[name]
            self._extend()

    def _look_for_new_operations(self) -> None:
        operations = self._graph.get_operations()
        self._pending.update((operation.name, operation) for operation in operations[self._scanned :])
        self._scanned = len(operations)

    def _missing(self, names: Sequence[str]) -> dict[str, Any]:
        """Returns the operations that are not there yet among `names` and all that they hang on."""
        found, todo = dict[str, Any](), list(names)
        while todo:
            name = todo.pop()
            if name in self._pending and name not in found:
                operation = found[name] = self._pending[name]
                todo += [tensor.op.name for tensor in operation.inputs]
                todo += [one.name for one in operation.control_inputs]
        return found

    def _translated(self, request: Request) -> Step:
        with self._lock:
            step = translate(request, self._shadow)
            if step is None:
                self._fall_back(NotImplementedError("a tensor is fed that the converted graph does not read"))
                step = translate(request, self._shadow)
            self._extend()
        return step  # type: ignore[return-value]  # a graph that has fallen back has everything

    def _fall_back(self, error: Exception) -> None:
        if self._strict:
            raise error
        with self._lock, tf_sessions.unchanging(self._graph):
            notices.fell_back("graph", error, WHAT)
            self._shadow.fall_back()
            self._extend()

    def _given_up(self, error: Exception) -> BaseSession:
        """Lets the Session, for which nothing has run yet, run the user's graph itself, and returns it."""
        session = self._session
        notices.fell_back("graph", error, WHAT)
        tf_sessions.replace_session(session, tf_sessions.new_session(session))
        for name in self.methods():
            del vars(session)[name]
        session._extend_graph()
        return session

    def _extend(self) -> None:
        if len(self._shadow.native) != self._extended:
            tf_sessions.extend(self.native)
            self._extended = len(self._shadow.native)

    def _feeds(self, step: Step, feeds: Mapping[Output, Any]) -> dict[Output, Any]:
        return dict(zip(map(self._shadow.native.output, step.tensors_fed), step.values(feeds.values()), strict=True))

    def _handles(self, step: Step) -> tuple[list[Output], list[Any]]:
        native = self._shadow.native
        return [*map(native.output, step.fetched)], [*map(native.operation, step.targets)]


def _nothing() -> None:
    """Does nothing."""
