"""A converted frozen graph runs in plain TensorFlow, under the names it had, with its weights in 16 bit."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.files.conftest import Original
from tests.files.models import frozen_graph
from tests.files.running import contents, run_graph, worst
from tfmp.dtypes import SIXTEEN_BIT
from tfmp.errors import FileError, GraphError

TARGETS: list[dict[str, Any]] = [
    {},
    {"device": "cpu"},
    {"device": "xla_gpu", "dtype": "bfloat16"},
    {"io_dtype": "float16"},
    {"keep_weights": True},
    {"level": "tensorflow"},
    {"outputs": ["y"]},
]


def constants(path: pathlib.Path) -> dict[str, tf.DType]:
    """Returns the types of all constants of more than a hundred numbers, in the main graph and in functions."""
    graph = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    nodes = [node for part in (graph.node, *(function.node_def for function in graph.library.function)) for node in part if node.op == "Const"]
    values = {node.name: tf.make_ndarray(node.attr["value"].tensor) for node in nodes}
    assert all(node.attr["dtype"].type == tf.as_dtype(values[node.name].dtype).as_datatype_enum for node in nodes if values[node.name].dtype != object)
    return {name: tf.as_dtype(value.dtype) for name, value in values.items() if value.size > 100}


@pytest.mark.parametrize("options", TARGETS, ids=lambda options: " ".join(map(str, options.values())) or "default")
@pytest.mark.parametrize("name", ["frozen.pb", "frozen.pbtxt"])
def test_it_computes_the_same_under_the_same_names(original: Original, tmp_path: pathlib.Path, name: str, options: dict[str, Any]) -> None:
    before = contents(original(name))
    report = tfmp.convert(original(name), tmp_path / name, **options)
    assert contents(original(name)) == before
    expected, actual = run_graph(original(name)), run_graph(tmp_path / name)
    assert 0 < worst(expected, actual) < 8 * SIXTEEN_BIT[report.dtype].unit_roundoff
    assert {value.dtype.name for value in actual.values()} == {options.get("io_dtype", "float32")}
    assert [outcome.tally.share for outcome in report.programs] == [1.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_are_stored_once_in_16_bit_under_their_names(original: Original, tmp_path: pathlib.Path, dtype: str) -> None:
    report = tfmp.convert(original("frozen.pb"), tmp_path / "out.pb", dtype=dtype)
    assert constants(tmp_path / "out.pb") == dict.fromkeys(("filter", "square", "rows"), tf.as_dtype(dtype))
    assert {weight.name for weight in report.weights if weight.sixteen} == {"filter", "square", "rows"}
    saved = sum(weight.size for weight in report.weights) * 2
    assert report.before.total - report.after.total > 0.6 * saved  # what casts take is not much


def test_kept_weights_are_stored_once_in_float32(original: Original, tmp_path: pathlib.Path) -> None:
    tfmp.convert(original("frozen.pb"), tmp_path / "out.pb", keep_weights=True)
    assert constants(tmp_path / "out.pb") == dict.fromkeys(("filter", "square", "rows"), tf.float32)


def test_text_and_binary_hold_the_same_graph(original: Original, tmp_path: pathlib.Path) -> None:
    from google.protobuf import text_format

    for name in ("out.pb", "out.pbtxt"):
        tfmp.convert(original("frozen.pb"), tmp_path / name)
    binary = tf.compat.v1.GraphDef.FromString((tmp_path / "out.pb").read_bytes())
    assert text_format.Parse((tmp_path / "out.pbtxt").read_text(), tf.compat.v1.GraphDef()) == binary


def test_a_whole_number_table_and_a_table_of_coordinates_stay(tmp_path: pathlib.Path) -> None:
    with tf.Graph().as_default() as graph:
        ids = tf.compat.v1.placeholder(tf.int32, [None], name="ids")
        numbers = tf.gather(tf.constant(np.arange(16000, dtype=np.float32).reshape(-1, 16), name="numbers"), ids)
        boxes = tf.gather(tf.constant(np.random.default_rng(0).random((900, 4), np.float32), name="boxes"), ids)
        tiny = tf.gather(tf.constant(np.full((100, 16), 1e-6, np.float32), name="tiny"), ids)
        large = tf.gather(tf.constant(np.full((100, 16), 7e4, np.float32), name="large"), ids)
        square = tf.constant(np.eye(16, dtype=np.float32), name="square")
        tf.identity(tf.exp(tf.exp(tiny) @ square) + tf.exp(numbers) + tf.exp(large), name="y")
        tf.exp(boxes, name="rows_out")
    (tmp_path / "in.pb").write_bytes(graph.as_graph_def().SerializeToString())
    report = tfmp.convert(tmp_path / "in.pb", tmp_path / "out.pb")
    assert {weight.name: weight.reason for weight in report.weights} == {
        "numbers": "it has whole numbers that float16 would round",
        "boxes": "GatherV2 node 'GatherV2_1' reads it in float32",
        "tiny": "its values are too small for float16",
        "large": "it has values that float16 cannot hold",
        "square": "",
    }
    assert {name: dtype.name for name, dtype in constants(tmp_path / "out.pb").items()} == {
        "numbers": "float32", "boxes": "float32", "tiny": "float32", "large": "float32", "square": "float16",
    }  # fmt: skip


def test_nothing_to_convert_writes_nothing(tmp_path: pathlib.Path) -> None:
    with tf.Graph().as_default() as graph:
        tf.exp(tf.compat.v1.placeholder(tf.float32, [4]), name="y")
    (tmp_path / "in.pb").write_bytes(graph.as_graph_def().SerializeToString())
    report = tfmp.convert(tmp_path / "in.pb", tmp_path / "out.pb")
    assert (report.converted, report.target, (tmp_path / "out.pb").exists()) == (False, "", False)


def test_an_output_that_is_not_there_is_named(original: Original, tmp_path: pathlib.Path) -> None:
    with pytest.raises(GraphError, match=r"output 'z' is not in the graph, which has \d+ nodes"):
        tfmp.convert(original("frozen.pb"), tmp_path / "out.pb", outputs=["z"])


def test_an_unknown_op_is_named(tmp_path: pathlib.Path) -> None:
    graph = frozen_graph()
    next(node for node in graph.node if node.op == "Conv2D").op = "FromSomewhereElse"
    (tmp_path / "in.pb").write_bytes(graph.SerializeToString())
    with pytest.raises((FileError, GraphError), match="FromSomewhereElse"):
        tfmp.convert(tmp_path / "in.pb", tmp_path / "out.pb")
