"""What becomes of a weight's value: the ops that compute with it, in 16 bit or in float32, past whatever only hands it on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from tfmp.dtypes import FloatFormat
from tfmp.files.flows import REFERENCES, Place, arguments
from tfmp.files.savers import ASSIGNMENTS, SAVE
from tfmp.files.views import GraphView
from tfmp.graph.body import RETVAL, Body
from tfmp.graph.schema import Slot
from tfmp.oplists import ALLOW, OpLists
from tfmp.program.calls import CALLING_OPS

CARRIERS = frozenset({"Identity", "Reshape", "Transpose", "ExpandDims", "Squeeze", "StopGradient", "Snapshot"})
"""Ops that hand on all values of their first input, unchanged."""

LOOKUPS = frozenset({"Gather", "GatherV2", "ResourceGather", "SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum"})
"""Ops that pick rows out of their first input (embeddings)."""

SHORTEST_ROW = 8
"""A table whose rows have fewer numbers is no embedding but rather coordinates or ids, which rounding would falsify. Our own choice."""

READERS_OF_STATE = frozenset({"IsVariableInitialized", *ASSIGNMENTS})
"""Ops that take a reference, but not the value behind it."""


@dataclasses.dataclass(frozen=True)
class Use:
    """One op that computes with a weight.

    Attributes:
      sixteen: whether it gets the value in 16 bit.
      op, node: its op and name.
      tolerant: whether what it computes means the same with a rounded weight: products, and rows that are looked up.
    """

    sixteen: bool
    op: str
    node: str
    tolerant: bool


class Uses:
    """Finds the uses of values in the graphs of a file."""

    def __init__(self, views: Sequence[GraphView], target: FloatFormat, lists: OpLists, kept: Callable[[str, str], bool]) -> None:
        """Looks into `views`.

        Casts to `target` are 16-bit uses, products are the allowlist of `lists`, and `kept` says whether the user's rules or a guard keep an op (type, node
        name) in float32, which then tolerates nothing.
        """
        self._views, self._target, self._products, self._kept = views, target, lists.ops(ALLOW), kept

    def of(self, place: Place, shape: Sequence[int]) -> Iterator[Use]:
        """Yields the uses of the value at `place`, whose weight has the shape `shape`. Savers, and what neither signatures nor calls need, are left out."""
        todo, seen = [place], {place}
        while todo:
            here = todo.pop()
            view = self._views[here.graph]
            body = view.bodies[here.body]
            if here.body and here.body not in view.live:
                continue
            if not here.body and body.names[here.node] in view.outputs:
                yield Use(sixteen=False, op="output", node=body.names[here.node], tolerant=False)
            for reader, port in self._takers(here):
                if not here.body and not view.needed[reader]:
                    continue
                onwards = list(self._onwards(view, here, reader, port))
                new = [one for one in onwards if isinstance(one, Place) and one not in seen]
                seen.update(new)
                todo += new
                yield from (one for one in onwards if isinstance(one, Use))
                if not onwards:
                    use = self._use(body, reader, port, shape)
                    yield from [use] if use else []

    def _onwards(self, view: GraphView, here: Place, reader: int, port: int) -> Iterator[Place | Use]:
        body = view.bodies[here.body]
        op = body.ops[reader]
        if op == "IdentityN" or (op in CARRIERS and port == 0):
            yield Place(view.number, here.body, reader, port if op == "IdentityN" else 0)
        elif op in CALLING_OPS:
            for end in arguments(view, here.body, reader, port):
                yield end if isinstance(end, Place) else Use(sixteen=False, op=op, node=body.names[reader], tolerant=False)

    def _use(self, body: Body, reader: int, port: int, shape: Sequence[int]) -> Use | None:
        op, name = body.ops[reader], body.names[reader]
        if op == SAVE:
            return None
        if op == "Cast" and body.types[reader][body.layouts[reader].number[Slot("DstT")]] == self._target.number:
            return Use(sixteen=True, op=op, node=name, tolerant=True)
        product = op in self._products
        lookup = op in LOOKUPS and port == 0 and len(shape) > 1 and shape[-1] >= SHORTEST_ROW
        return Use(sixteen=False, op="result" if op == RETVAL else op, node=name, tolerant=(product or lookup) and not self._kept(op, name))

    def readers(self, place: Place) -> list[tuple[int, int]]:
        """Returns the nodes that read the tensor at `place`, each with its input port."""
        return self._views[place.graph].bodies[place.body].readers[place.node][place.port]

    def _takers(self, place: Place) -> list[tuple[int, int]]:
        """The readers that take the value; of a reference, not those that only ask for the state."""
        found = self.readers(place)
        if self._views[place.graph].bodies[place.body].ops[place.node] in REFERENCES:
            ops = self._views[place.graph].bodies[place.body].ops
            return [(reader, port) for reader, port in found if port or ops[reader] not in READERS_OF_STATE]
        return found
