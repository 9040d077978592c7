"""What was found around one tensor is found again around the next that is spelled alike, without being worked out again.

A model has one normalisation many times, in its training step and in its evaluation, and whether something is one, and which node plays which part, hangs on
nothing but what was looked at (`spelling`): where all of that is the same elsewhere, so is the result. (A build system trusts such notes likewise: "verifying
traces" in Mokhov, Mitchell and Peyton Jones, "Build systems à la carte", 2018.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from tfmp.fusion.spelling import Found, Notes, Spelling
from tfmp.fusion.surroundings import Surroundings, numbered
from tfmp.graph.body import Edge

VARIANTS = 8
"""How many spellings are remembered that begin alike. Our own choice: the layers of a model are spelled in two or three ways."""

MOST = 1000
"""How many kinds of starts, and hundred times as many kinds of nodes, are remembered at most; then all is forgotten. A process has a few dozen mostly."""


class Memory(Generic[Found]):
    """What was found around tensors of any number of bodies. Holds nothing of those.

    Attributes:
      numbers: what kinds of nodes are like, to its number.
      known: start of a search to what is known of such.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.numbers = numbered()
        self.known: dict[Any, list[Spelling[Found]]] = {}

    @property
    def is_full(self) -> bool:
        """Whether there is too much of it, so that a new one should be begun."""
        return len(self.known) > MOST or len(self.numbers) > 100 * MOST


class Repeats(Generic[Found]):
    """What was found around tensors of one body, and of others that share its memory."""

    def __init__(self, around: Surroundings, memory: Memory[Found]) -> None:
        """Adds to `memory`, whose numbers those of `around` must be."""
        self._around, self._known = around, memory.known

    def find(self, data: Edge, key: Any, look: Callable[[Surroundings], Found]) -> Found:
        """Returns what `look` finds around the tensor `data`.

        Args:
          data: where it starts: whatever it looks at, it is to reach from there, through what nodes read and who reads them.
          key: equal for those starts for which `look` does the same, as long as it sees the same.
          look: finds something in the surroundings that it is given.
        """
        known = self._known.setdefault((data[1], len(self._around.readers[data[0]]), key), [])
        for spelling in known:
            nodes = spelling.nodes_at(data[0], self._around)
            if nodes is not None:
                if spelling is not known[0]:  # layers that are alike come one after the other
                    known[:] = [spelling, *(other for other in known if other is not spelling)]
                return spelling.found.renumbered(nodes.__getitem__)
        notes = Notes(self._around)
        found = look(notes.surroundings)
        known.insert(0, Spelling.of(notes, data[0], found))
        del known[VARIANTS:]
        return found
