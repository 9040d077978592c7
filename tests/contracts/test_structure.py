"""Whatever the graph: a conversion touches only what it must, never its input, and a second one finds nothing to do."""

from __future__ import annotations

import collections
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests.contracts.graphs import ALL, WITHOUT_CALLS, RandomGraph, random_graphs
from tests.graph_text import functions, nodes, parse
from tfmp import engine, oplists, tf_api
from tfmp.dtypes import DT_FLOAT, DT_HALF

many = settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
some = settings(many, max_examples=30)

convert = functools.partial(engine.convert_graph_def, device="CPU")

# UNSAFE_FORCE_ALL forces existing casts, as TensorFlow's does, and so those that the first conversion has made.
IDEMPOTENT: tuple[dict[str, Any], ...] = (
    {},
    {"dtype": "bfloat16"},
    {"level": "tensorflow"},
    {"level": "TENSOR_CORES_ONLY"},
    {"level": "TREAT_INFER_AS_DENY"},
    {"emulate": True},
)
LEVELS = pytest.mark.parametrize("changes", IDEMPOTENT, ids=lambda changes: " ".join(map(str, changes.values())) or "default")


def as_bytes(message: tf_api.Message) -> bytes:
    """Returns the one serialisation of a proto."""
    return message.SerializeToString(deterministic=True)


def for_random_graphs(setting: settings, recipes: tuple[Any, ...] = ALL) -> Callable[[Callable[[RandomGraph], None]], None]:
    """Runs a check on random graphs, there and then."""

    def run(check: Callable[[RandomGraph], None]) -> None:
        setting(given(random_graphs(recipes))(check))()

    return run


@LEVELS
def test_a_second_conversion_changes_nothing(changes: dict[str, Any]) -> None:
    @for_random_graphs(some)
    def check(graph: RandomGraph) -> None:
        once = convert(parse(graph.text), fetches=graph.fetches, **changes).graph_def
        twice = convert(once, fetches=graph.fetches, **changes)
        assert not twice.changed, str(twice.bodies[""].plan)
        assert as_bytes(twice.graph_def) == as_bytes(once)


@given(graph=random_graphs())
@many
def test_the_input_is_never_changed(graph: RandomGraph) -> None:
    given_graph = parse(graph.text)
    before = as_bytes(given_graph)
    conversion = convert(given_graph, fetches=graph.fetches)
    assert list(conversion.decisions())
    assert [str(body.plan) for body in conversion.bodies.values()]
    assert as_bytes(conversion.graph_def) != b""
    assert as_bytes(given_graph) == before


@given(graph=random_graphs())
@some
def test_with_everything_on_the_denylist_the_input_comes_back(graph: RandomGraph) -> None:
    given_graph = parse(graph.text)
    conversion = convert(given_graph, fetches=graph.fetches, denylist_add=[row.op for row in oplists.ROWS])
    assert (conversion.changed, conversion.casts, conversion.converted) == (False, 0, 0)
    assert as_bytes(conversion.graph_def) == as_bytes(given_graph)


@given(graph=random_graphs(), seed=st.integers(0, 2**32))
@many
def test_the_default_level_does_not_depend_on_node_order(graph: RandomGraph, seed: int) -> None:
    given_graph, shuffled = parse(graph.text), parse(graph.text)
    rng = random.Random(seed)
    for owner, field in ((shuffled, "node"), *((function, "node_def") for function in shuffled.library.function)):
        reordered = list(getattr(owner, field))
        rng.shuffle(reordered)
        owner.ClearField(field)
        getattr(owner, field).extend(reordered)
    one, other = (convert(g, fetches=graph.fetches) for g in (given_graph, shuffled))
    assert _colours(one) == _colours(other)
    assert one.casts == other.casts


def _colours(conversion: engine.Conversion) -> collections.Counter[tuple[str, str, str, bool]]:
    """Copies of a function may come in another order, and so be called "f#2" instead of "f"."""
    return collections.Counter((d.function.partition("#")[0], d.node, d.attribute, d.converted) for d in conversion.decisions())


def decorated(text: str, seed: int) -> tf_api.GraphDef:
    """Returns the graph of `text` with all that nodes can carry beside their types."""
    graph, rng = parse(text), random.Random(seed)
    graph.versions.producer, graph.versions.min_consumer = 1882, 12
    for node in (*graph.node, *(node for function in graph.library.function for node in function.node_def)):
        node.experimental_debug_info.original_node_names.append(f"origin of {node.name}")
        node.attr["_output_shapes"].list.shape.add().dim.add(size=4)
        node.attr["_note"].s = b"\xff\x00 any bytes"
        if rng.random() < 0.3:
            node.device = rng.choice(["/job:localhost/replica:0/task:0/device:CPU:0", "/device:CPU:0", "/device:GPU:0"])
    return graph


@given(graph=random_graphs(), seed=st.integers(0, 2**32))
@many
def test_all_but_types_and_inputs_survives_byte_for_byte(graph: RandomGraph, seed: int) -> None:
    before = decorated(graph.text, seed)
    after = convert(before, fetches=graph.fetches).graph_def
    assert [node.name for node in after.node[: len(before.node)]] == [node.name for node in before.node]
    for old, new in zip(before.node, after.node, strict=False):
        assert as_bytes(_with_types_and_inputs_of(old, new)) == as_bytes(old)
    assert after.versions == before.versions
    added = after.node[len(before.node) :]
    assert {node.op for node in added} <= {"Cast", "Const"}
    assert all(node.name.endswith("-AutoMixedPrecision") for node in added)


def _with_types_and_inputs_of(old: tf_api.NodeDef, new: tf_api.NodeDef) -> tf_api.NodeDef:
    """Returns `new` with what a conversion may change put back: float32 types that are half now, data inputs, and names of functions."""
    result = tf_api.NodeDef()
    result.CopyFrom(new)
    assert len(old.input) == len(new.input)
    for port, text in enumerate(old.input):
        if not text.startswith("^"):
            result.input[port] = text
    for name, value in old.attr.items():
        put_back = result.attr[name]
        if value.type == DT_FLOAT and put_back.type == DT_HALF:
            put_back.type = DT_FLOAT
        for index, dtype in enumerate(value.list.type):
            if (dtype, put_back.list.type[index]) == (DT_FLOAT, DT_HALF):
                put_back.list.type[index] = DT_FLOAT
        for ours, theirs in ((put_back.func, value.func), *zip(put_back.list.func, value.list.func, strict=True)):
            if ours.name != theirs.name:
                ours.name = theirs.name
    return result


@given(graph=random_graphs(), seed=st.integers(0, 2**32))
@many
def test_nodes_on_another_device_are_left_alone(graph: RandomGraph, seed: int) -> None:
    before = decorated(graph.text, seed)
    after = nodes(convert(before, fetches=graph.fetches).graph_def)
    for node in before.node:
        if node.device == "/device:GPU:0" and not node.op.endswith(("Call", "While", "If", "Case")):
            assert node.attr == after[node.name].attr


@given(graph=random_graphs())
@many
def test_functions_that_something_else_could_call_stay(graph: RandomGraph) -> None:
    before = parse(graph.text)
    after = functions(convert(before, fetches=graph.fetches).graph_def)
    for name, function in functions(before).items():
        assert (after[name].signature.input_arg, after[name].signature.output_arg) == (function.signature.input_arg, function.signature.output_arg)


def bodies(graph: tf_api.GraphDef) -> Iterator[dict[str, tf_api.NodeDef]]:
    """Yields the nodes of the main graph, and of each function, by name."""
    yield nodes(graph)
    for name in functions(graph):
        yield nodes(graph, name)


def casts_back(body: dict[str, tf_api.NodeDef]) -> set[tuple[str, str]]:
    """Returns the pairs of casts of which the second takes the first back."""
    found = set()
    for node in body.values():
        source = body.get(node.input[0].partition(":")[0]) if node.op == "Cast" else None
        if source is not None and source.op == "Cast":
            (a, b), (c, d) = ((cast.attr["SrcT"].type, cast.attr["DstT"].type) for cast in (source, node))
            if (a, b) == (d, c) and a != b:
                found.add((source.name, node.name))
    return found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_cast_takes_another_back_that_did_not_before(dtype: str) -> None:
    @for_random_graphs(many)
    def check(graph: RandomGraph) -> None:
        before = {pair for body in bodies(parse(graph.text)) for pair in casts_back(body)}
        after = {pair for body in bodies(convert(parse(graph.text), fetches=graph.fetches, dtype=dtype).graph_def) for pair in casts_back(body)}
        assert after <= before


@given(graph=random_graphs())
@many
def test_every_tensor_is_cast_at_most_once_in_each_direction(graph: RandomGraph) -> None:
    for body in bodies(convert(parse(graph.text), fetches=graph.fetches).graph_def):
        ours = [node for node in body.values() if node.name.endswith("-AutoMixedPrecision") and node.op == "Cast"]
        keys = collections.Counter((node.input[0], node.attr["DstT"].type) for node in ours)
        assert not keys or max(keys.values()) == 1


@given(graph=random_graphs())
@some
def test_emulation_changes_no_type(graph: RandomGraph) -> None:
    before = parse(graph.text)
    after = convert(before, fetches=graph.fetches, emulate=True)
    assert all(not body.plan.retypes for body in after.bodies.values())
    new = nodes(after.graph_def)
    for name, old in nodes(before).items():
        assert {key: (value.type, list(value.list.type)) for key, value in old.attr.items()} == {
            key: (value.type, list(value.list.type)) for key, value in new[name].attr.items()
        }


@given(graph=random_graphs(WITHOUT_CALLS))
@some
def test_counts_are_those_of_the_graph(graph: RandomGraph) -> None:
    before = parse(graph.text)
    conversion = convert(before, fetches=graph.fetches)
    after = conversion.graph_def
    old = nodes(before)
    changed = [node for node in after.node if node.name in old and node.attr != old[node.name].attr]
    assert conversion.converted == len(changed)
    assert conversion.casts == sum(node.op == "Cast" for node in after.node) - sum(node.op == "Cast" for node in before.node)
    assert conversion.total == len(before.node)
