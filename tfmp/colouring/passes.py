"""The passes in order, as two tables, and the one function that runs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tfmp.colouring import clusters, guards, spread
from tfmp.colouring.canvas import Canvas, Reason, Rules
from tfmp.colouring.typegraph import TypeGraph
from tfmp.graph.view import Body


@dataclasses.dataclass(frozen=True)
class Pass:
    """One step of the colouring: its name in reports and tests, and what it does to a canvas and the tensor list clusters."""

    name: str
    run: Callable[[Canvas, clusters.Clusters], None]


def _plain(name: str, run: Callable[[Canvas], None]) -> Pass:
    return Pass(name, lambda canvas, lists: run(canvas))


_MATCH_LISTS = Pass("match tensor lists", clusters.match_tensor_lists)

EXACT: tuple[Pass, ...] = (
    _plain("seed allow", spread.seed_allow),
    _plain("spread deny", spread.spread_deny),
    _MATCH_LISTS,
    _plain("allow between", spread.allow_between),
    _plain("allow after", spread.allow_after),
    _plain("allow through clear", spread.allow_through_clear),
    _plain("drop unsupported", spread.drop_unsupported),
    _MATCH_LISTS,
    _plain("match loop edges", clusters.match_loop_edges),
    _plain("retarget casts", clusters.retarget_casts),
)
"""The order of `AutoMixedPrecisionImpl::Optimize` in TensorFlow 2.21. Its result hangs on node order, and so does this."""

FOLLOWS_IN_FLOAT16 = (2, 20)
"""From this TensorFlow version on, "allow after" runs in the CUDA (float16) mode too, not only in the bfloat16 mode (found by running 2.18 to 2.21)."""


def exact(dtype: str, version: tuple[int, ...]) -> tuple[Pass, ...]:
    """Returns the passes that TensorFlow of that version (major, minor) runs for `dtype` ("float16" or "bfloat16")."""
    follows = dtype == "bfloat16" or version >= FOLLOWS_IN_FLOAT16
    return tuple(step for step in EXACT if follows or step.name != "allow after")


DEFAULT: tuple[Pass, ...] = (
    _plain("leave calls", guards.leave_calls),
    _plain("keep ops without kernel", guards.keep_ops_without_kernel),
    _plain("keep constant readers", guards.keep_constant_readers),
    _plain("keep integer readers", guards.keep_integer_readers),
    _plain("keep integer sources", guards.keep_integer_sources),
    _plain("keep weight updates", guards.keep_weight_updates),
    _plain("seed allow", spread.seed_allow),
    _plain("spread deny", spread.spread_deny),
    _MATCH_LISTS,
    _plain("allow between", spread.allow_between),
    _plain("allow after", spread.allow_after_everywhere),
    _plain("allow through clear", spread.allow_through_clear),
    _plain("drop unsupported", spread.drop_unsupported),
    _MATCH_LISTS,
    _plain("match loop edges", clusters.match_loop_edges_everywhere),
    _plain("retarget casts", clusters.retarget_casts_everywhere),
    _plain("follow into casts", clusters.follow_into_casts),
)
"""The same, with guards first and every order-dependent sweep run to its fixed point."""


@dataclasses.dataclass(frozen=True)
class Colouring:
    """The colours of one body.

    Attributes:
      graph: the type graph that was coloured.
      sixteen: vertex to 1 if its type becomes the 16-bit type.
      reasons: vertex to its reason; a float32 vertex that no pass touched has none and stays because nothing asked for it.
      kinds: node to the list its op is on, or None.
      processable: node to 1 if its types might have been changed.
    """

    graph: TypeGraph
    sixteen: bytes
    reasons: dict[int, Reason]
    kinds: tuple[str | None, ...]
    processable: bytes

    @property
    def converted(self) -> int:
        """Number of type attributes that become 16 bit."""
        return sum(self.sixteen)


def colour(body: Body, rules: Rules, passes: tuple[Pass, ...]) -> Colouring:
    """Returns the colours of `body` under `rules`; raises `GraphError` for a malformed loop."""
    canvas = Canvas(body, rules)
    lists = clusters.find_tensor_lists(canvas)
    for step in passes:
        step.run(canvas, lists)
    sixteen = bytes(int(canvas.allow[v] and canvas.is_float32(v) and bool(canvas.graph.slot(v).attr)) for v in range(len(canvas.graph)))
    return Colouring(canvas.graph, sixteen, canvas.reasons, tuple(canvas.kind), bytes(canvas.processable))
