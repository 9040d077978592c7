"""Walks on arrays find what the plain search finds, in the same order."""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmp.colouring.guards import Filtered
from tfmp.colouring.typegraph import reach
from tfmp.graph import neighbours as module
from tfmp.graph.neighbours import Neighbours

SIZE = 9
PAIRS = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=25)
FLAGS = st.lists(st.booleans(), min_size=SIZE, max_size=SIZE)


def neighbours(pairs: list[tuple[int, int]]) -> Neighbours:
    """Returns the neighbours that `pairs` connect."""
    vertices, others = np.array(pairs, np.int32).reshape(-1, 2).T
    return Neighbours(vertices, others, SIZE)


@given(pairs=PAIRS, added=PAIRS)
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
def test_neighbours_come_in_the_order_in_which_they_were_given(pairs: list[tuple[int, int]], added: list[tuple[int, int]]) -> None:
    found = neighbours(pairs)
    for vertex, other in added:
        found.add(vertex, other)
    expected = [[other for one, other in (*pairs, *added) if one == vertex] for vertex in range(SIZE)]
    assert list(found) == expected
    inner = found.among(np.arange(SIZE) % 2 == 0)
    assert list(inner) == [[other for other in others if other % 2 == 0] for others in expected]
    assert list(found) == expected  # now that what was added is sorted in


@given(pairs=PAIRS, added=PAIRS, starts=st.lists(st.integers(0, SIZE - 1), max_size=4), enter=FLAGS, leave=FLAGS, asks=st.tuples(st.booleans(), st.booleans()))
@settings(max_examples=200, deadline=None, database=None, derandomize=True)
def test_a_walk_is_the_plain_search(
    pairs: list[tuple[int, int]], added: list[tuple[int, int]], starts: list[int], enter: list[bool], leave: list[bool], asks: tuple[bool, bool]
) -> None:
    graph = neighbours(pairs)
    for vertex, other in added:
        graph.add(vertex, other)
    lists = [[other for one, other in (*pairs, *added) if one == vertex] for vertex in range(SIZE)]
    onwards = Filtered(lists, (lambda vertex: leave[vertex]) if asks[1] else (lambda vertex: True))
    expected = reach(starts, (onwards,), enter.__getitem__ if asks[0] else lambda vertex: True)
    flags = [np.array(flags) if asked else None for flags, asked in zip((enter, leave), asks, strict=True)]
    for few in (0, 3, module.FEW):  # on arrays, on lists as long as few are found, on lists
        with mock.patch.object(module, "FEW", few):
            found, origins = graph.walk(np.array(starts, np.int32), *flags)
        assert list(zip(found.tolist(), origins.tolist(), strict=True)) == expected
    reached = graph.reached(np.isin(np.arange(SIZE), starts), np.array(enter))
    assert set(np.flatnonzero(reached).tolist()) == {vertex for vertex, _ in reach(starts, (lists,), enter.__getitem__)}
