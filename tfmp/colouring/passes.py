"""The passes in order, as two tables, and the one function that runs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tfmp.colouring import clusters, cut, dangers, decisions, guards, kernels, logarithms, masks, measured, slow, spread, squares, user_rules
from tfmp.colouring.canvas import Canvas
from tfmp.colouring.painted import Reason
from tfmp.colouring.rules import Devices, Rules
from tfmp.colouring.typegraph import TypeGraph
from tfmp.graph.body import Body
from tfmp.graph.edges import Array
from tfmp.program.shapes import Graphs, unknown
from tfmp.program.union import Union


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
    _plain("leave replaced", kernels.leave_replaced),
    _plain("leave calls", guards.leave_calls),
    _plain("leave reference readers", guards.leave_reference_readers),
    _plain("keep ops without kernel", guards.keep_ops_without_kernel),
    _plain("keep slow kernels", slow.keep_slow_kernels),
    _plain("keep constant readers", guards.keep_constant_readers),
    _plain("keep given masks", masks.keep_given_masks),
    _plain("keep integer readers", guards.keep_integer_readers),
    _plain("keep integer sources", guards.keep_integer_sources),
    _plain("keep fine decisions", decisions.keep_fine_decisions),
    _plain("keep what only decides", decisions.keep_what_only_decides),
    _plain("keep what logarithms read", logarithms.keep_what_logarithms_read),
    _plain("keep weight updates", guards.keep_weight_updates),
    _plain("keep loop sums", guards.keep_loop_sums),
    _plain("keep residual sums", kernels.keep_residual_sums),
    _plain("keep summed squares", squares.keep_summed_squares),
    _plain("keep sums of one operand", squares.keep_sums_of_one_operand),
    _plain("seed allow", spread.seed_allow),
    _plain("drop unsupported", spread.drop_unsupported),
    _plain("spread danger", dangers.spread_danger),
    _MATCH_LISTS,
    Pass("cut casts", cut.cut_casts),
)
"""Guards first, then what must be 16 bit and what must not, then the cheapest choice for the rest."""


def with_user_rules(table: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """Returns `table` with the two passes that carry out the user's rules: what is kept comes before everything, what is forced after all guards."""
    seed = [step.name for step in table].index("seed allow")
    keep, force = _plain("keep user rules", user_rules.keep_user_rules), _plain("force user rules", user_rules.force_user_rules)
    return (keep, *table[:seed], force, *table[seed:])


def with_ranges(table: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """Returns `table` with the two passes that go by measured ranges, first of all: a user's rule still comes before them."""
    return (_plain("keep what is out of range", measured.keep_out_of_range), _plain("free what is in range", measured.free_in_range), *table)


@dataclasses.dataclass(frozen=True)
class Colouring:
    """The colours of a program, or of one part of it.

    Attributes:
      graph: the type graph that was coloured.
      sixteen: vertex to 1 if its type becomes the 16-bit type.
      reasons: vertex to its reason; a float32 vertex that no pass touched has none and stays because nothing asked for it.
      lists: node to the number in `canvas.LISTS` of the list that its op is on.
      processable: node to 1 if its types might have been changed.
      union: the bodies that were coloured together.
    """

    graph: TypeGraph
    sixteen: bytes
    reasons: Mapping[int, Reason]
    lists: bytes
    processable: bytes
    union: Union

    @property
    def converted(self) -> int:
        """Number of type attributes that become 16 bit."""
        return sum(self.sixteen)

    def part(self, instance: int, body: Body) -> Colouring:
        """Returns the colours of one instance, whose body is `body`, with its own node and vertex numbers and without reasons."""
        if body is self.graph.body:
            return self
        node = self.union.offsets[instance]
        start = self.graph.first[node] if len(body) else 0
        graph = self.graph.part(body, node)
        nodes = slice(node, node + len(body))
        return Colouring(graph, self.sixteen[start : start + len(graph)], {}, self.lists[nodes], self.processable[nodes], self.union)


def colour(
    union: Union, rules: Rules, devices: Sequence[Devices], passes: tuple[Pass, ...], graphs: Graphs = unknown, weights: Array | None = None
) -> Colouring:
    """Returns the colours of `union`; arguments are those of `Canvas`. Raises `GraphError` for a malformed loop or call."""
    canvas = Canvas(union, rules, devices, graphs, weights)
    lists = clusters.find_tensor_lists(canvas)
    for step in passes:
        step.run(canvas, lists)
    graph = canvas.graph
    is_free = np.array([bool(slot.attr) for kind in union.body.kinds.table for slot in kind.layout.slots], bool)  # the op definition does not fix it
    sixteen = canvas.allowed[graph.stand_ins] & graph.is_float32 & is_free[graph.sort]
    return Colouring(graph, sixteen.tobytes(), canvas.reasons, canvas.lists.tobytes(), bytes(canvas.processable), union)
