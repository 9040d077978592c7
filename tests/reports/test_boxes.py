"""Boxes of the picture: scopes and calls nest, nothing is lost, and no box has too many parts."""

from __future__ import annotations

import collections

import pytest

from tests.graph_text import parse
from tests.reports.keras_steps import FAMILIES, details
from tfmp import engine
from tfmp.reports.boxes import CALL, HIDDEN, MOST, RUN, Box, boxes_of
from tfmp.reports.describe import describe
from tfmp.reports.records import OTHER, Details


def path(boxes: list[Box], number: int) -> str:
    names = []
    while number > 0:
        names.append(boxes[number].name)
        number = boxes[number].parent
    return "/".join(reversed(names))


def parts(boxes: list[Box], homes: list[int]) -> collections.Counter[int]:
    """Returns how many parts each box has."""
    found = collections.Counter(box.parent for box in boxes[1:])
    found.update(home for index, home in enumerate(homes) if home >= 0 and boxes[home].node != index)
    return found


def check(found: Details) -> tuple[list[Box], list[int]]:
    boxes, homes = boxes_of(found)
    assert boxes[0].parent == -1 and all(0 <= box.parent < number for number, box in enumerate(boxes[1:], 1))
    assert max(parts(boxes, homes).values()) <= MOST
    assert set(range(len(boxes))) == {0, *parts(boxes, homes), *homes} - {-1}
    for index, (node, home) in enumerate(zip(found.nodes, homes, strict=True)):
        drawn = bool(node.calls) or (node.colour != OTHER and node.op not in HIDDEN)
        assert (home >= 0) == drawn
        assert not node.calls or boxes[home].node == index
    return boxes, homes


@pytest.mark.parametrize("family", FAMILIES)
def test_boxes_of_a_keras_step(family: str) -> None:
    found = details(family)
    boxes, homes = check(found)
    paths = [path(boxes, number) for number in range(len(boxes))]
    assert any(one.endswith(("memory_1/while", "memory/PartitionedCall/while")) for one in paths)
    assert any("gradient_tape/net" in one for one in paths)
    inside = next(index for index, node in enumerate(found.nodes) if node.op == "MatMul" and node.flops and "memory" in node.layer and not node.gradient)
    home = homes[inside]
    kinds = set()
    while home >= 0:
        kinds.add(boxes[home].kind)
        home = boxes[home].parent
    assert CALL in kinds


def test_names_of_a_loop_that_repeat_the_callers_path_do_not_nest_twice() -> None:
    found = details("keras")
    boxes, homes = check(found)
    paths = {path(boxes, homes[index]) for index, node in enumerate(found.nodes) if node.name.endswith("lstm_cell_1/MatMul") and node.flops}
    assert len(paths) == 1
    (only,) = paths
    assert only.count("memory_1") == 1 and only.endswith("memory_1/while/body/lstm_cell_1")


def test_many_neighbours_are_put_into_runs() -> None:
    lines = ["x = Placeholder() shape=[8, 8]", "net/n0 = MatMul(x, x)"]
    lines += [f"net/n{i} = Relu(net/n{i - 1})" for i in range(1, 3000)]
    found = describe(engine.convert_graph_def(parse("\n".join(lines)), device="CPU"))
    boxes, homes = check(found)
    assert {box.kind for box in boxes} == {"scope", RUN}
    outer = [box.name for box in boxes if box.parent == 1]
    assert (outer[0], len(outer)) == ("Relu, MatMul (24) \u2013 Relu (24)", 6)
    inner = [number for number, box in enumerate(boxes) if box.parent == 2]
    assert (boxes[inner[1]].name, len(inner)) == ("Relu (24)", 24)
    assert [found.nodes[index].name for index, home in enumerate(homes) if home == inner[1]] == [f"net/n{i}" for i in range(24, 48)]


def drawn(*lines: str) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Returns name and parent of each box of a graph, and name of each drawn node to its box."""
    found = describe(engine.convert_graph_def(parse("\n".join(lines)), device="CPU"))
    boxes, homes = check(found)
    return [(box.name, box.parent) for box in boxes], {node.name: home for node, home in zip(found.nodes, homes, strict=True) if home >= 0}


def test_nodes_between_boxes_are_put_into_runs_that_keep_the_order() -> None:
    between = [f"n{i} = Relu({f'n{i - 1}' if i else 'a/m'})" for i in range(6)]
    boxes, homes = drawn("x = Placeholder() shape=[8, 8]", "a/n = MatMul(x, x)", "a/m = Neg(a/n)", *between, "b/n = Neg(n5)", "b/m = Neg(b/n)", "z = Abs(b/m)")
    assert boxes == [("graph", -1), ("a", 0), ("b", 0), ("Relu (6)", 0)]
    assert homes == {"x": 0, "z": 0, "a/n": 1, "a/m": 1, "b/n": 2, "b/m": 2, **{f"n{i}": 3 for i in range(6)}}


def test_scopes_with_one_part_are_no_boxes_of_their_own() -> None:
    boxes, homes = drawn("x = Placeholder() shape=[8, 8]", "a/b/c/n = MatMul(x, x)", "a/b/c/m = Neg(a/b/c/n)", "d/e/f = Neg(a/b/c/m)", "g = Neg(d/e/f)")
    assert boxes == [("graph", -1), ("a/b/c", 0)]
    assert homes == {"x": 0, "g": 0, "a/b/c/n": 1, "a/b/c/m": 1, "d/e/f": 0}
