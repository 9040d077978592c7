"""What a loop does not change is cast before it: no cast of a weight, or of any other value that goes round unchanged, in what a loop runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.programs import test_constructs, test_recurrent
from tests.programs.constructs import CONSTRUCTS, Construct
from tests.programs.constructs.recurrent import ROWS, Recurrent
from tests.programs.written import Version, Written, called_by

LOOPS = [construct for construct in CONSTRUCTS if construct.loops]


def in_loops(program: Written) -> set[str]:
    """Returns the names of the functions that loops run: their bodies, and everything that those call."""
    bodies = {node.attr["body"].func.name for version in program.versions.values() for node in version.after.node_def if "body" in node.attr}
    todo = list(bodies)
    while todo:
        new = {name for node in program.versions[todo.pop()].after.node_def for name in called_by(node)} - bodies
        bodies |= new
        todo += new
    return bodies


def unchanged(version: Version) -> set[str]:
    """Returns the arguments that a loop's body hands back as they came."""
    pairs = zip(version.after.signature.input_arg, version.after.signature.output_arg, strict=False)
    return {argument.name for argument, result in pairs if version.after.ret[result.name] == argument.name}


def repeated_casts(program: Written) -> Iterator[str]:
    """Yields the casts in loops whose result is the same in every step."""
    for name in in_loops(program):
        version = program.versions[name]
        nodes = {node.name: node for node in version.after.node_def}
        for cast in version.casts:
            source = cast.input[0].partition(":")[0]
            while source in nodes and nodes[source].op == "Identity":
                source = nodes[source].input[0].partition(":")[0]
            if (source in nodes and nodes[source].op in ("ReadVariableOp", "Const")) or ("body" in version.name and source in unchanged(version)):
                yield f"{version.name}: {source}"


@pytest.mark.parametrize("construct", LOOPS, ids=str)
def test_no_construct_casts_a_weight_in_every_step(construct: Construct, dtype: str) -> None:
    program = test_constructs.written(construct, test_constructs.WITH_GRADIENT, dtype)
    assert in_loops(program)
    assert list(repeated_casts(program)) == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.name != "lstm_unrolled"], ids=str)
@pytest.mark.parametrize("package", test_recurrent.PACKAGES)
def test_no_recurrent_layer_casts_a_weight_in_every_step(row: Recurrent, package: str, dtype: str) -> None:
    program = test_recurrent.written(row, package, dtype)
    assert in_loops(program)
    assert list(repeated_casts(program)) == []


def test_a_weight_that_the_loop_assigns_is_found_by_the_search(dtype: str) -> None:
    from tests.programs.test_training import convert, sgd

    weight, train = sgd()
    found: list[Any] = list(repeated_casts(convert(train, dtype)))
    assert len(found) == 1
    assert weight.shape == (8, 2)
