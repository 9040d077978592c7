"""Graph dumps in TensorFlow's form."""

from __future__ import annotations

import json
import pathlib

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2

import tfmp


def test_dumps_hold_the_program_before_and_after_and_the_lists(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "made" / "for it"
    with tfmp.mixed_precision(dtype="float16", ignore_performance=True, log_path=str(folder)):
        tf.function(lambda x: x @ x)(tf.ones([2, 2]))
    files = {path.name.split("___")[0] + path.suffix: path for path in folder.iterdir()}
    colours = json.loads(files.pop("model_explorer.json").read_text())
    ((function, graph),) = colours.items()
    assert function.startswith("__inference_") and [node["value"] for node in graph["results"].values()] == ["float16", "float32"]
    assert sorted(files) == [
        "graphdef_AutoMixedPrecision.pb", "graphdef_AutoMixedPrecision.txt", "graphdef_preop.pb", "graphdef_preop.txt", "paintbuckets_AutoMixedPrecision.txt",
    ]  # fmt: skip

    def matmul_type(path: pathlib.Path) -> int:
        graph = graph_pb2.GraphDef()
        if path.suffix == ".pb":
            graph.ParseFromString(path.read_bytes())
        else:
            text_format.Parse(path.read_text(), graph)
        (node,) = [node for function in graph.library.function for node in function.node_def if node.op == "MatMul"]
        return node.attr["T"].type

    assert matmul_type(files["graphdef_preop.pb"]) == matmul_type(files["graphdef_preop.txt"]) == 1
    assert matmul_type(files["graphdef_AutoMixedPrecision.pb"]) == matmul_type(files["graphdef_AutoMixedPrecision.txt"]) == 19
    buckets = files["paintbuckets_AutoMixedPrecision.txt"].read_text()
    assert "AllowList:\n" in buckets and "\nMatMul\n" in buckets and "DenyList:\nExp\n" in buckets
