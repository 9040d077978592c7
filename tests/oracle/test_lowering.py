"""Lowered graphs compute what their functional forms compute, and have no calls or functional loops left."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracle import orders
from tests.oracle.lowering import lower
from tests.zoo import GraphCase, tagged
from tests.zoo.running import evaluate

FUNCTIONAL_OPS = {"PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"}

LOWERED = [case for case in tagged("function") if case.lower]
# Marked by their authors as not to be inlined (tf_keras marks the bodies of its recurrent layers).
NOT_INLINED = ("layers/noninlined_funcdef", "tf_keras/lstm", "tf_keras/gru")


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in LOWERED])
def test_no_functional_op_is_left(case: GraphCase) -> None:
    graph_def, fetches = case.build()
    lowered = lower(graph_def, fetches)
    assert {node.op for node in graph_def.node} & FUNCTIONAL_OPS
    assert bool({node.op for node in lowered.node} & FUNCTIONAL_OPS) == case.name.startswith(NOT_INLINED)
    assert not any(node.device for node in lowered.node)
    assert set(fetches) <= {node.name for node in lowered.node}


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in LOWERED])
def test_order_is_topological(case: GraphCase) -> None:
    graph_def, fetches = case.build()
    lowered = lower(graph_def, fetches)
    place = {node.name: index for index, node in enumerate(lowered.node)}
    for node in lowered.node:
        sources = {name.lstrip("^").partition(":")[0] for name in node.input}
        late = {name for name in sources if place[name] > place[node.name]}
        assert node.op == "Merge" or not late
    assert sorted(place) == sorted(node.name for node in orders.topological(lowered).node)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in LOWERED if "variables" not in case.tags])
def test_numbers_stay(case: GraphCase) -> None:
    graph_def, fetches = case.build()
    # The same float32 ops in the same order: nothing may differ but the rounding of another kernel choice.
    for before, after in zip(evaluate(graph_def, fetches), evaluate(lower(graph_def, fetches), fetches), strict=True):
        np.testing.assert_allclose(after, before, rtol=8 * np.finfo(np.float32).eps)
