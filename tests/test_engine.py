"""The front door: graphs and traced functions in, records of what was decided and done out."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.contracts import running
from tests.graph_text import nodes, parse
from tfmp import engine, tf_api, tf_callbacks
from tfmp.dtypes import BFLOAT16, DT_HALF, FLOAT16
from tfmp.errors import GraphError, SettingsError, TfmpError
from tfmp.program.program import from_graph
from tfmp.settings import Settings, make_settings

TEXT = """
x = Placeholder() shape=[4, 4]
m = MatMul(x, x)
s = Softmax(m)
n = MatMul(s, s)
f = Identity(n)
"""


def convert(text: str = TEXT, **changes: Any) -> engine.Conversion:
    """Returns the conversion of a text for the CPU."""
    return engine.convert_graph_def(parse(text), device="CPU", **changes)


def half_nodes(conversion: engine.Conversion) -> set[str]:
    """Returns the main graph's nodes with a half type, casts left out."""
    return {name for name, node in nodes(conversion.graph_def).items() if node.attr["T"].type == DT_HALF}


def test_the_record_says_what_was_done() -> None:
    conversion = convert()
    assert (conversion.converted, conversion.total, conversion.casts, conversion.changed) == (3, 5, 2, True)
    assert (conversion.root, conversion.format, conversion.settings.level) == ("", FLOAT16, "default")
    assert list(conversion.bodies) == [""]
    assert conversion.lists.kind_of["MatMul"] == "allow"
    assert conversion.seconds > 0
    assert {decision.node: decision.converted for decision in conversion.decisions()} == {"x": False, "m": True, "s": True, "n": True, "f": False}


def test_settings_can_be_given_by_name() -> None:
    assert half_nodes(convert()) == {"m", "s", "n"}
    assert half_nodes(convert(denylist_add="Softmax")) == {"m", "n"}
    assert half_nodes(convert(allowlist_remove=["MatMul"])) == set()
    assert half_nodes(convert(level="TENSOR_CORES_ONLY")) == {"m", "n"}
    assert convert(dtype="bfloat16").format is BFLOAT16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float8"}, "dtype is 'float8'; valid values are 'auto', 'float16', 'bfloat16'."),
        ({"dtype": "auto"}, "dtype is 'auto'; tfmp converts to one of 'float16', 'bfloat16'."),
        ({"level": "O4"}, "level is 'O4'"),
        ({"denylist": "Sin"}, "unknown setting 'denylist' = 'Sin'; did you mean 'denylist_add'?"),
        ({"allowlist_add": "Sin", "denylist_add": "Sin"}, "op 'Sin' is added to the allowlist and to the denylist; keep one of the two."),
    ],
)
def test_settings_that_cannot_be_used_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        convert(**changes)
    assert message in str(error.value)


def test_a_device_must_be_decided() -> None:
    with pytest.raises(SettingsError) as error:
        engine.convert(from_graph(parse(TEXT)), make_settings(dtype="float16"))
    assert str(error.value) == "device is 'auto'; tfmp asks for the kernels of one of 'GPU', 'CPU'."


def test_overrides_that_no_op_matched_are_named() -> None:
    assert convert(denylist_add="Softmax,Nonesuch,Tanh", clearlist_remove="Relu").unused_overrides() == ["Nonesuch", "Relu", "Tanh"]
    assert convert().unused_overrides() == []


def test_the_same_graph_gives_the_same_result() -> None:
    assert convert().graph_def == convert().graph_def


def test_a_conversion_does_not_change_when_the_input_does() -> None:
    graph = parse(TEXT)
    conversion = engine.convert_graph_def(graph, device="CPU")
    expected = convert().graph_def
    assert conversion.graph_def == expected
    graph.node[1].op = "BatchMatMul"
    assert conversion.graph_def == expected


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_as_it_was_afterwards(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        convert()
        assert gc.isenabled() is enabled
        with pytest.raises(GraphError):
            convert("r = Relu(nobody)\n")
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def _engine_alone() -> Iterator[None]:
    """Takes tfmp's own hook away, which would remember the functions that are traced here."""
    callbacks = tf_callbacks.concrete_function_callbacks()
    saved = list(callbacks)
    callbacks.clear()
    yield
    callbacks[:] = saved


@tf.function(input_signature=[tf.TensorSpec([4, 4])])
def step(x: tf.Tensor) -> tf.Tensor:
    """A function with a call, a branch and a captured constant."""
    y = tf.linalg.matmul(x, tf.constant(np.eye(4, dtype=np.float32) * 0.5))
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.linalg.matmul(y, x), lambda: tf.nn.relu(y))


def test_a_traced_function_is_converted_and_stays() -> None:
    concrete = step.get_concrete_function()
    before = tf_api.function_definition(concrete.name).SerializeToString(deterministic=True)
    conversion = engine.convert_function(concrete, dtype="float16", device="CPU")
    assert conversion.root == tf.compat.as_str(concrete.name)
    assert conversion.changed
    assert conversion.converted >= 2
    assert tf_api.function_definition(concrete.name).SerializeToString(deterministic=True) == before
    body = conversion.bodies[conversion.root]
    assert body.proto.signature.input_arg[0].type == 1
    assert body.proto.signature.output_arg[0].type == 1


def test_the_graph_of_a_function_is_in_its_bodies() -> None:
    conversion = engine.convert_function(step.get_concrete_function())
    with pytest.raises(AttributeError, match="this conversion came from a function; its definitions are in `bodies`"):
        _ = conversion.graph_def


def test_converted_functions_run_and_agree() -> None:
    conversion = engine.convert_function(step.get_concrete_function())
    root, *others = conversion.functions(lambda name, version: f"{name}_{version}_half")
    graph = parse(f"x = Placeholder() shape=[4, 4]\ny = PartitionedCall(x) Tout=[float] f={root.name}\n")
    graph.library.function.extend(function.proto for function in (root, *others))
    graph.library.function.extend(conversion.originals.values())
    for seed in (1, -1):
        x = (np.arange(16, dtype=np.float32).reshape(4, 4) - 4) / 17 * seed
        result = running.run(graph, ["y"], {"x": x})["y"]
        np.testing.assert_allclose(result, step(x), atol=20 * FLOAT16.unit_roundoff)
        assert not np.array_equal(result, step(x))


def test_public_names_are_the_engines() -> None:
    assert tfmp.convert_graph_def is engine.convert_graph_def
    assert tfmp.convert_function is engine.convert_function
    assert tfmp.Conversion is engine.Conversion


def test_all_errors_are_of_one_family() -> None:
    for call in (lambda: convert(dtype="x"), lambda: convert("r = Relu(nobody)\n"), lambda: convert(fetches=["q"])):
        with pytest.raises(TfmpError):
            call()


def test_settings_of_a_conversion_are_complete() -> None:
    assert convert(emulate=True).settings == Settings(dtype="float16", device="CPU", emulate=True)
