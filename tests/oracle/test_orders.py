"""Node orders: topological ones, shuffled ones, and cycles."""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracle import orders
from tests.zoo import ZOO


def names(graph_def: Any) -> list[str]:
    return [node.name for node in graph_def.node]


def test_a_topological_graph_stays_as_it_is() -> None:
    graph_def, _ = ZOO["chain/simple"].build()
    assert orders.topological(graph_def) == graph_def


@pytest.mark.parametrize("name", ["random/09", "loop/colour_mismatch", "keras/lstm/training"])
def test_sources_come_before_readers(name: str) -> None:
    graph_def, _ = ZOO[name].build()
    ordered = orders.topological(orders.shuffled(graph_def, seed=5))
    place = {node: index for index, node in enumerate(names(ordered))}
    late = [
        (source, node.name)
        for node in ordered.node
        for source in (text.lstrip("^").partition(":")[0] for text in node.input)
        if place[source] > place[node.name] and not source.startswith("next_")
    ]
    assert late == []


def test_shuffling_keeps_all_nodes_and_follows_the_seed() -> None:
    graph_def, _ = ZOO["chain/simple"].build()
    one, same, other = (names(orders.shuffled(graph_def, seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert sorted(one) == sorted(names(graph_def))


def test_a_cycle_is_an_error() -> None:
    graph_def, _ = ZOO["chain/simple"].build()
    nodes = {node.name: node for node in graph_def.node}
    nodes["d0"].input[0] = "c1"
    with pytest.raises(ValueError, match="no topological order: there is a cycle through .*'c1'"):
        orders.topological(graph_def)
