"""Inputs that read another tensor than the graph says, with the same value, before anything is coloured."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from tfmp.graph.body import Body, Edge
from tfmp.program.program import Program
from tfmp.program.rearrange import rearranged
from tfmp.program.shapes import Graphs, Sizes
from tfmp.program.writes import Writes, read_once


def move_edges(program: Program, fetches: Collection[str], graphs: Graphs, *, feedable: bool = False) -> dict[str, Body]:
    """Returns the bodies of `program` with arithmetic moved or passed by, and with each variable read once.

    Args:
      program: not changed.
      fetches: nodes of a main graph that are fetched or fed; who reads one goes on reading it.
      graphs: finds the Python graph of a function.
      feedable: whether any read of a variable in the main graph may be fed some day, so that each keeps its readers.
    """
    writes = Writes(program.bodies)
    bodies = {name: rearranged(body, Sizes.of_body(body, graphs)) for name, body in program.bodies.items()}
    bodies = {name: body if feedable and not name else read_once(body, writes) for name, body in bodies.items()}
    if fetches:
        bodies[program.root] = _still_reading(fetches, program.bodies[program.root], bodies[program.root])
    return bodies


def _still_reading(names: Collection[str], before: Body, after: Body) -> Body:
    kept = {before.by_name[name] for name in names if name in before.by_name}
    back = [(reader, source) for reader, source in moved_edges(after, before) if source[0] in kept]
    if not back:
        return after
    inputs = list(after.inputs)
    for (node, port), source in back:
        inputs[node] = [source if number == port else edge for number, edge in enumerate(inputs[node])]
    return after.with_inputs(inputs, {})


def moved_edges(before: Body, after: Body) -> Iterator[tuple[Edge, Edge]]:
    """Yields each input that reads something else in `after`, with what it reads there."""
    for number in np.flatnonzero(before.edges.tensor != after.edges.tensor).tolist():
        node, port = after.edges.input(number)
        yield (node, port), after.inputs[node][port]
