"""What is found does not depend on the order of nodes, as long as each comes after what it reads."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.fusion.test_several import BARE, PROGRAMS, SHAPES, computes_the_same, fused, kernels
from tfmp import tf_api


def reordered(nodes: Sequence[tf_api.NodeDef], seed: int) -> list[tf_api.NodeDef]:
    """Returns nodes in another order in which each comes after what it reads or waits for."""
    draw, left = random.Random(seed), {node.name: node for node in nodes}
    waits = {node.name: {text.removeprefix("^").partition(":")[0] for text in node.input} & left.keys() for node in nodes}
    found: list[tf_api.NodeDef] = []
    while left:
        name = draw.choice([name for name in left if left.keys().isdisjoint(waits[name])])
        found.append(left.pop(name))
    return found


@pytest.mark.parametrize("where", SHAPES)
@pytest.mark.parametrize("program", ["parallel", "moved", "doubled before", "equal"])
def test_another_order(program: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, real = (PROGRAMS | BARE)[program], tf_api.function_definition
    plain = fused(forward, where)
    for seed in (1, 2):

        def definition(name: str, seed: int = seed) -> tf_api.FunctionDef:
            proto = tf_api.FunctionDef.FromString(real(name).SerializeToString())
            nodes = reordered(proto.node_def, seed)
            assert [node.name for node in nodes] != [node.name for node in proto.node_def]
            del proto.node_def[:]
            proto.node_def.extend(nodes)
            return proto

        with monkeypatch.context() as patch:
            patch.setattr(tf_api, "function_definition", definition)
            function = fused(forward, where)
        assert kernels(function) == kernels(plain) and not function.live_ops["Rsqrt"]
        computes_the_same(function, where)
