"""Reasons on arrays are what a dictionary of reasons would be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfmp.colouring.painted import Reason, Reasons, first_of_each
from tfmp.graph.edges import distinct

SIZE = 6
VERTICES = st.lists(st.integers(0, SIZE - 1), max_size=8)
RULES = st.sampled_from(["allowlist", "denylist", "no kernel"])
STEPS = st.lists(st.tuples(st.sampled_from(["set", "set_first", "set_all", "set_all_first"]), VERTICES, RULES, st.sampled_from(["", "a rule"])), max_size=8)


@given(steps=STEPS)
@settings(max_examples=200, deadline=None, database=None, derandomize=True)
def test_reasons_are_those_of_a_dictionary_in_its_order(steps: list[tuple[str, list[int], str, str]]) -> None:
    reasons, expected = Reasons(SIZE), dict[int, Reason]()
    for how, given_, rule, detail in steps:
        vertices = list(dict.fromkeys(given_)) if how == "set_all" else given_
        causes = [vertex + 10 * number for number, vertex in enumerate(vertices)]
        if how.startswith("set_all"):
            getattr(reasons, how)(np.array(vertices, np.int32), rule, np.array(causes, np.int32))
        for vertex, cause in zip(vertices, causes, strict=True):
            reason = Reason(rule, cause, detail if how == "set" else "")
            if how == "set":
                reasons.set(vertex, rule, cause, detail)
            elif how == "set_first":
                reasons.set_first(vertex, rule, cause)
            if how.endswith("first"):
                expected.setdefault(vertex, reason)
            else:
                expected[vertex] = reason
    assert list(reasons.items()) == list(expected.items())
    assert len(reasons) == len(expected)
    wanted = {"denylist", "no kernel", "unheard of"}
    assert reasons.of_rules(wanted) == [vertex for vertex, reason in expected.items() if reason.rule in wanted]


def test_a_vertex_without_a_reason_has_none() -> None:
    reasons = Reasons(2)
    reasons.set(1, "allowlist")
    assert (reasons.get(0), reasons.get(1), reasons.get(-1), reasons.get(2)) == (None, Reason("allowlist"), None, None)
    with pytest.raises(KeyError):
        reasons[0]


@given(numbers=VERTICES)
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
def test_what_is_there_twice_counts_once(numbers: list[int]) -> None:
    found, positions = first_of_each(np.array(numbers, np.int32))
    assert found.tolist() == list(dict.fromkeys(numbers))
    assert positions.tolist() == [numbers.index(number) for number in found.tolist()]
    assert distinct(np.array(numbers, np.int32)).tolist() == sorted(set(numbers))
