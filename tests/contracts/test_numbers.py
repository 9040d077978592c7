"""Whatever the graph and the settings: the converted graph runs in TensorFlow, its fetches keep their types, and its numbers agree with float32."""

from __future__ import annotations

import collections
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contracts import error_bounds, running
from tests.contracts.graphs import ALL, CALLS, FEEDS, FUNCTIONS, START, WITHOUT_CALLS, RandomGraph, random_graphs
from tests.graph_text import parse
from tfmp import engine, oplists
from tfmp.dtypes import FLOAT16, FLOAT32, FloatFormat, sixteen_bit

# TensorFlow's own pass colours a functional While in bfloat16 without its functions, and the result does not run; level="tensorflow" does as it does.
# In UNSAFE_FORCE_ALL a call is left alone, and nothing else would be new there.
CASES = (
    ({}, ALL, 120),
    ({"dtype": "bfloat16"}, ALL, 120),
    ({"level": "tensorflow"}, ALL, 80),
    ({"level": "tensorflow", "dtype": "bfloat16"}, WITHOUT_CALLS, 50),
    ({"level": "TENSOR_CORES_ONLY"}, ALL, 50),
    ({"level": "TREAT_INFER_AS_DENY"}, ALL, 50),
    ({"level": "UNSAFE_FORCE_ALL"}, ALL, 80),
    ({"emulate": True}, ALL, 50),
    ({"allowlist_add": "Sin,Exp", "denylist_add": "Relu", "clearlist_add": "Sum"}, ALL, 50),
)
OPS = sorted(set(re.findall(r"= (\w+)\(", "\n".join([START, FUNCTIONS, *(recipe.lines for recipe in ALL)]))))
PARAMETERS = [pytest.param(*row, id=" ".join(f"{name}={value}" for name, value in row[0].items()) or "default") for row in CASES]


def reference(graph: RandomGraph) -> dict[str, np.ndarray]:
    """Returns every tensor of the float32 run of `graph` without its functions."""
    inlined = parse(graph.inlined)
    return running.run(inlined, running.tensor_names(inlined), FEEDS)


def bounds(graph: RandomGraph, values: dict[str, np.ndarray], target: FloatFormat) -> dict[str, np.ndarray]:
    """Returns, for each fetch, how far each of its elements may be off."""
    found = error_bounds.carry(parse(graph.inlined), values, target)
    return {name: found[name].error for name in graph.fetches}


def excess(got: np.ndarray, wanted: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Returns by how much each element with a finite bound is further off than that."""
    finite = np.isfinite(bound)
    return (np.abs(got.astype(np.float64) - wanted.astype(np.float64)) - bound)[finite]


@pytest.mark.parametrize(("changes", "recipes", "examples"), PARAMETERS)
def test_converted_graphs_run_and_agree_with_float32(changes: dict[str, Any], recipes: tuple[Any, ...], examples: int) -> None:
    counts: collections.Counter[str] = collections.Counter()

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(random_graphs(recipes))
    def check(graph: RandomGraph) -> None:
        values = reference(graph)
        conversion = engine.convert_graph_def(parse(graph.text), fetches=graph.fetches, device="CPU", **changes)
        results = running.run(conversion.graph_def, graph.fetches, FEEDS)
        allowed = bounds(graph, values, sixteen_bit(changes.get("dtype", "float16")))
        counts["graphs"] += 1
        counts["converted"] += conversion.converted > 0
        for name, result in results.items():
            assert result.dtype == values[name].dtype
            off = excess(result, values[name], allowed[name])
            counts["elements"] += result.size
            counts["bounded"] += off.size
            assert off.size == 0 or np.all(off <= 0), (name, result, values[name], allowed[name])

    with np.errstate(all="ignore"):
        check()
    assert counts["converted"] > counts["graphs"] / 2
    assert counts["bounded"] > 0.8 * counts["elements"]


def test_whatever_is_moved_between_the_lists_the_graph_runs_and_agrees() -> None:
    @settings(max_examples=80, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(random_graphs(), st.dictionaries(st.sampled_from(OPS), st.sampled_from(oplists.KINDS), min_size=1, max_size=6))
    def check(graph: RandomGraph, moves: dict[str, str]) -> None:
        values = reference(graph)
        changes = {f"{kind}list_add": [op for op, to in moves.items() if to == kind] for kind in oplists.KINDS}
        conversion = engine.convert_graph_def(parse(graph.text), fetches=graph.fetches, device="CPU", **changes)
        results = running.run(conversion.graph_def, graph.fetches, FEEDS)
        allowed = bounds(graph, values, FLOAT16)
        for name, result in results.items():
            assert result.dtype == values[name].dtype
            off = excess(result, values[name], allowed[name])
            assert off.size == 0 or np.all(off <= 0), (name, moves)

    with np.errstate(all="ignore"):
        check()


@settings(max_examples=25, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(random_graphs(CALLS, largest=6))
def test_graphs_with_functions_and_their_inlined_forms_are_the_same(graph: RandomGraph) -> None:
    values = reference(graph)
    results = running.run(parse(graph.text), graph.fetches, FEEDS)
    allowed = bounds(graph, values, FLOAT32)
    with np.errstate(all="ignore"):
        assert all(np.all(excess(results[name], values[name], allowed[name]) <= 0) for name in graph.fetches)
