"""Running a program once with taps on it, on copies of its variables."""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from tfmp import tf_api
from tfmp.graph.retarget import Retarget
from tfmp.graph.taps import Tap, with_taps
from tfmp.numerics.sites import Site, Sites
from tfmp.numerics.tracing import Traced

Listener = Callable[[Site, Sequence[np.ndarray]], None]
"""Called with a site and the value of each of its `ports`; the arrays are only valid during the call."""

WAITING = ("Collective", "Nccl", "_Send", "_Recv", "Send", "Recv", "XlaSend", "XlaRecv")
"""Beginnings of ops that wait for an op on another device, which must then be free to run."""

_numbers = itertools.count()


class TappedProgram:
    """A registered copy of a program that calls `listen` with what the tapped nodes compute. It is unregistered when it goes.

    Within one run the calls come in an order in which causes precede effects, and that is the same in every run; in a program with collective ops in the
    order in which things happen.
    """

    def __init__(self, sites: Sites, like: tf_api.AtomicFunction, listen: Listener, wanted: Collection[Site]) -> None:
        """Registers the copy.

        Args:
          sites: the program and its sites.
          like: the root's function as TensorFlow has it, float32 or converted: the copy has its type.
          listen: called with each value, one call at a time.
          wanted: which of the sites to tap.
        """
        self._listen, self._lock = listen, threading.Lock()
        self._failures: list[BaseException] = []
        self._callbacks: list[Callable[..., Sequence[Any]]] = []  # TensorFlow holds them weakly
        run = next(_numbers)
        names = [f"{instance.function}_tapped_{run}_{instance.number}" for instance in sites.instances]
        taps: dict[int, list[Tap]] = collections.defaultdict(list)
        for site in wanted:
            taps[site.instance].append(Tap(site.number, site.ports, self._token(site)))
        in_turn = not any(op.startswith(WAITING) for body in sites.program.bodies.values() for op in body.ops)
        protos = [self._proto(sites, number, names, taps[number], in_turn) for number in range(len(sites.instances))]
        children = [tf_api.new_atomic_function(proto.signature.name, proto, like, ()) for proto in protos[1:]]
        self._root = tf_api.new_atomic_function(protos[0].signature.name, protos[0], like, [*like.children, *children])

    @staticmethod
    def _proto(sites: Sites, number: int, names: Sequence[str], taps: Sequence[Tap], in_turn: bool) -> tf_api.FunctionDef:
        instance, body = sites.instances[number], sites.body(number)
        retargets = [
            Retarget(body.names[node], callee.attr, callee.position, names[callee.instance])
            for node, callees in instance.calls.items()
            for callee in callees
        ]
        calls = [node for node, callees in instance.calls.items() if number in sites.live and all(callee.instance in sites.live for callee in callees)]
        place = "/".join(sites.places[number])
        return with_taps(body, names[number], taps, calls, retargets, place=place, in_turn=in_turn)

    def _token(self, site: Site) -> str:
        def callback(*values: Any) -> Sequence[Any]:
            with self._lock:
                try:
                    self._listen(site, [np.asarray(value) for value in values])
                except BaseException as error:
                    self._failures.append(error)
                    raise
            return []

        self._callbacks.append(callback)
        return tf_api.callback_token(callback)

    def run(self, traced: Traced) -> Sequence[Any]:
        """Runs the copy once on the arguments of `traced`, with new copies of its variables, and returns the flat results.

        Raises:
          OpError: an op of the program failed, a check for NaNs for example.
          Exception: what `listen` has raised.
        """
        arguments, variables = traced.private()
        try:
            return self._root.call_flat(*arguments)
        except tf_api.OpError:
            if self._failures:  # TensorFlow hands on no more than its text
                raise self._failures[0] from None
            raise
        finally:
            del variables  # not before the run is over
