"""Whatever the graph, however it grows, whatever is fetched and fed: a converted Session runs it, and its numbers agree with float32."""

from __future__ import annotations

import collections
import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tfmp
from tests.behaviour.on_off import scope
from tests.contracts import error_bounds, running
from tests.contracts.graphs import FEEDS, RandomGraph, random_graphs
from tests.graph_text import parse
from tfmp import tf_api
from tfmp.dtypes import sixteen_bit
from tfmp.errors import MixedPrecisionWarning

FALLS_BACK_FOR = "is fed that"
"""What a warning of a fallback may say: where a user feeds something that only a float32 graph can take."""


def parts(graph: tf_api.GraphDef, lengths: list[int]) -> list[tf_api.GraphDef]:
    """Returns the nodes of `graph` in parts of these lengths, and the rest, each with the function library."""
    found, start = [], 0
    for end in [*np.cumsum(lengths), len(graph.node)]:
        part = tf_api.GraphDef(library=graph.library, versions=graph.versions)
        part.node.extend(graph.node[start:end])
        found.append(part)
        start = min(end, len(graph.node))
    return [part for part in found if part.node]


def grow(graph: tf.Graph, part: tf_api.GraphDef) -> None:
    """Imports `part`, whose nodes may read and wait for those that are there."""
    names = {operation.name for operation in graph.get_operations()}
    mapping = {}
    for text in {text for node in part.node for text in node.input}:
        name = text.removeprefix("^").partition(":")[0]
        if name in names:
            mapping[text] = graph.get_operation_by_name(name).outputs[0] if text.startswith("^") else graph.get_tensor_by_name(_tensor(text))
    tf.graph_util.import_graph_def(part, input_map=mapping, name="")


def _tensor(name: str) -> str:
    return name if ":" in name else f"{name}:0"


@pytest.mark.parametrize(("dtype", "level"), [("float16", "default"), ("bfloat16", "default"), ("float16", "tensorflow")])
def test_random_graphs_that_grow_are_right_whatever_is_fetched_and_fed(dtype: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: collections.Counter[str] = collections.Counter()
    monkeypatch.setenv("TFMP_STRICT", "0")

    @settings(max_examples=25, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(random_graphs(largest=14), st.lists(st.integers(1, 12), max_size=3), st.data())
    def check(graph: RandomGraph, lengths: list[int], data: Any) -> None:
        inlined, full = parse(graph.inlined), parse(graph.text)
        values = running.run(inlined, running.tensor_names(inlined), FEEDS)
        allowed = error_bounds.carry(inlined, values, sixteen_bit(dtype))
        comparable = set(running.tensor_names(full)) & allowed.keys()
        before = len(tfmp.report())
        with warnings.catch_warnings(record=True) as caught, scope(dtype, level=level), tf.Graph().as_default() as user:
            warnings.simplefilter("always", MixedPrecisionWarning)
            with tf.compat.v1.Session(graph=user, config=running._config()) as session:
                for part in parts(full, lengths):
                    grow(user, part)
                    there = [t.name.removesuffix(":0") for op in user.get_operations() for t in op.outputs if t.name.removesuffix(":0") in comparable]
                    for _ in range(2):
                        fetches = data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=4, unique=True))
                        fed = data.draw(st.lists(st.sampled_from(there), max_size=2, unique=True))
                        feeds = {_tensor(name): values[name] for name in {*fed, *(name for name in ("x", "y") if name in there)}}
                        for name, result in zip(fetches, session.run([*map(_tensor, fetches)], feeds), strict=True):
                            _compare(name, result, values[name], allowed[name].error, counts)
        assert all(FALLS_BACK_FOR in str(one.message) for one in caught if issubclass(one.category, MixedPrecisionWarning)), [*map(str, caught)]
        counts["graphs"] += 1
        counts["converted"] += any(record.converted for record in tfmp.report()[before:])

    with np.errstate(all="ignore"):
        check()
    assert counts["converted"] > counts["graphs"] / 3
    assert counts["bounded"] > 0.8 * counts["elements"]


def _compare(name: str, got: np.ndarray, wanted: np.ndarray, bound: np.ndarray, counts: collections.Counter[str]) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
    finite = np.isfinite(bound)
    off = (np.abs(got.astype(np.float64) - wanted.astype(np.float64)) - bound)[finite]
    counts["elements"] += got.size
    counts["bounded"] += off.size
    assert off.size == 0 or np.all(off <= 0), (name, got, wanted, bound)
