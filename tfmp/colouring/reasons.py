"""Reasons in words: one sentence for every rule that colours or keeps a type attribute."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import numpy as np

from tfmp.colouring.canvas import LISTS
from tfmp.colouring.painted import Reason
from tfmp.colouring.passes import Colouring
from tfmp.oplists import CLEAR, DENY, INFER

WORDS = {
    "allowlist": "fast and safe in 16 bit",
    "forced": "forced by the level",
    "between allow ops": "lies between ops that are fast in 16 bit",
    "directly after an allow op": "follows an op that is fast in 16 bit",
    "next to an allow op": "has no numerical effect and touches a 16-bit op",
    "shares a tensor list with allow": "shares a tensor list with a 16-bit op",
    "closes a 16-bit loop edge": "carries a 16-bit value round a loop",
    "existing cast, read by 16-bit ops only": "an existing cast whose readers are all 16 bit",
    "cheapest in 16 bit": "its neighbours are 16 bit, and a cast to float32 and back would cost more",
    "cheapest in float32": "a cast to 16 bit and back would cost more than it saves",
    "denylist": "loses too much in 16 bit",
    "downstream of deny": "handles what an op that loses too much in 16 bit has computed",
    "list handle leaves the graph": "its tensor list is used where it cannot be seen",
    "shares a tensor list with deny": "shares a tensor list with an op that must stay in float32",
    "closes a float32 loop edge": "carries a value round a loop that stays in float32",
    "no kernel": "there is no 16-bit kernel on the device",
    "slow kernel": "its 16-bit kernel is slow here",
    "no 16-bit form": "the op does not allow this type to be 16 bit",
    "quantized": "the op is quantized",
    "constant out of range": "works with a constant that the 16-bit type cannot hold",
    "mask of unknown size": "adds a mask that is handed in and may be beyond the 16-bit type",
    "integer from a cast": "works with integers that 16 bit would round",
    "integer for a cast": "hands integers that 16 bit would round to a cast",
    "decides by a constant": "compares with a number that 16 bit would round",
    "only decides": "only decides or counts something, which rounding might change",
    "read by a logarithm": "a logarithm reads its result, whose small values 16 bit would round away",
    "weight update": "lies between a variable's read and its write",
    "call": "hands values to a function whose arguments and results stay float32",
    "reads a reference": "reads a variable at the moment it runs, which a cast before it could not",
    "sum over a loop": "adds up over the steps of a loop, which loses too much in 16 bit",
    "replaced by a kernel": "a kernel that takes 16 bit computes it in its stead",
    "residual sum": "adds to what all layers before it have made, and its rounding would be there to the end",
    "square that is summed": "squares what only a float32 sum reads: in 16 bit it may overflow, or vanish",
    "sum of one operand": "multiplies nothing, and may add up many numbers",
    "measured out of range": "measured values of what it reads or computes do not fit into 16 bit",
    "kept by a user rule": "a rule keeps it in float32",
    "forced by a user rule": "a rule forces it into 16 bit",
    "forced without a kernel": "a rule would force it into 16 bit, but there is no 16-bit kernel on the device",
    "forced without a 16-bit form": "a rule would force it into 16 bit, but the op has no 16-bit form that computes the same",
    "fixed type": "the op definition fixes this type",
    "fetched": "is an argument, a result or fetched, whose type must stay, or runs on another device",
    "unlisted": "the op is on no list",
    "nothing asked": "no 16-bit op on both sides of it",
}
"""Rule to what it means for a user."""

REPLACED = "replaced by a kernel"
"""The rule about nodes that nothing needs any more."""

ROUNDS_BADLY = frozenset({"constant out of range", "measured out of range", "read by a logarithm"})
"""Rules about numbers that must not be rounded, whatever kernels there are: not even the weights of such a product may be stored in 16 bit."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """What was decided for one type attribute that was float32.

    Attributes:
      function: name of the body, "" for the main graph.
      node, op: the node's name and op type.
      attribute: "T", "T[2]", or "fixed 1".
      converted: whether it becomes 16 bit.
      rule: which rule decided (a key of `WORDS`).
      cause: name of the node that brought it (the deny op upstream, a sibling), or "".
      detail: the user's rule, where one decided, or "".
    """

    function: str
    node: str
    op: str
    attribute: str
    converted: bool
    rule: str
    cause: str
    detail: str = ""

    @property
    def reason(self) -> str:
        """One sentence for the user."""
        via = f" (through {self.cause})" if self.cause else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.op}: {WORDS[self.rule]}{detail}{via}"


def decisions(colouring: Colouring, ops: Collection[str] | None = None, *, only_float32: bool = False) -> Iterator[Decision]:
    """Yields the decision for every float32 type attribute of what was coloured, in node order. A function with several instances comes several times.

    With `ops`, only those of nodes of these op types; with `only_float32`, only those for float32.
    """
    graph, union = colouring.graph, colouring.union
    body, sixteen = graph.body, np.frombuffer(colouring.sixteen, bool)
    meant = graph.is_float32 & ~sixteen if only_float32 else graph.is_float32
    for vertex in np.flatnonzero(meant if ops is None else meant & graph.are_of(ops)).tolist():
        node, why = graph.node_of[vertex], _why(colouring, vertex)
        origin = body.names[graph.node_of[why.cause]] if why.cause >= 0 else ""
        function, converted = union.instances[union.instance_of(node)].function, bool(sixteen[vertex])
        yield Decision(function, body.names[node], body.ops[node], str(graph.slot(vertex)), converted, why.rule, origin, why.detail)


def _why(colouring: Colouring, vertex: int) -> Reason:
    node = colouring.graph.node_of[vertex]
    found = colouring.reasons.get(colouring.graph.stands_for[vertex])
    if found is not None:
        return found
    if not colouring.processable[node]:
        return Reason("fetched")
    if not colouring.graph.slot(vertex).attr:
        return Reason("fixed type")
    kind = LISTS[colouring.lists[node]]
    tied = colouring.graph.stands_for[vertex] in colouring.graph.tied
    return Reason("nothing asked" if tied or kind in (CLEAR, INFER, DENY) else "unlisted")
