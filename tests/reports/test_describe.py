"""What a report says of a program, against counts worked out by hand on small graphs and against the conversion's own on Keras steps."""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.graph_text import parse
from tests.reports.keras_steps import FAMILIES, details, trained
from tests.reports.only import records_of
from tfmp import engine
from tfmp.reports.describe import describe
from tfmp.reports.records import CONVERTED, KEPT, OTHER, Details, Node
from tfmp.reports.words import WHY_DENIED, in_units

ON: dict[str, Any] = {"dtype": "float16", "ignore_performance": True}


def described(text: str, **settings: Any) -> Details:
    return describe(engine.convert_graph_def(parse(text), device="CPU", **settings))


def node(details: Details, name: str) -> Node:
    (found,) = [one for one in details.nodes if one.name == name]
    return found


PRODUCT_AND_SUM = """
    x = Placeholder() shape=[16, 24]
    model/a/w = Const() value=0.5 shape=[24, 8]
    model/a/product = MatMul(x, model/a/w)
    model/a/relu = Relu(model/a/product)
    axis = Const() value=[1] dtype=int32
    model/b/mean = Mean(model/a/relu, axis)
    model/b/neg = Neg(model/b/mean)
    model/b/root = Tanh(model/b/neg)
    out = Identity(model/b/root)
"""


def test_a_small_graph_by_hand() -> None:
    found = described(PRODUCT_AND_SUM)
    assert (found.function, found.dtype, found.device, found.level, found.estimated) == ("", "float16", "CPU", "default", False)
    assert (found.total, found.converted, found.flops, found.flop_share) == (9, 2, 2 * 16 * 24 * 8, 1.0)
    assert [node(found, f"model/a/{name}").colour for name in ("product", "relu")] == [CONVERTED, CONVERTED]
    assert [node(found, name).colour for name in ("model/b/mean", "model/b/root", "x", "axis")] == [KEPT, KEPT, KEPT, OTHER]
    # x is cast down, the weight is stored in 16 bit, what Mean reads is cast up.
    assert [(cast.kind, found.nodes[cast.source].name, cast.to, cast.times, cast.bytes) for cast in found.casts] == [
        ("cast", "x", "float16", 1, 16 * 24 * 2),
        ("constant", "model/a/w", "float16", 0, 0),
        ("cast", "model/a/relu", "float32", 1, 16 * 8 * 4),
    ]
    assert (found.casts_per_run, found.cast_bytes) == (2, 16 * 24 * 2 + 16 * 8 * 4)
    written = 4 * (16 * 8 + 16 * 8 + 16 + 16 + 16)  # product, relu, mean, neg, tanh
    assert (found.memory.written_before, found.memory.written_after) == (written, written - 2 * 2 * 16 * 8 + found.cast_bytes)
    assert (found.memory.saved_before, found.memory.saved_after) == (0, 0)
    a, b = (next(layer for layer in found.layers if layer.layer == f"model/{name}") for name in "ab")
    assert (a.nodes, a.converted, a.kept, a.flops, a.flops_converted) == (3, 2, 1, found.flops, found.flops)
    assert (a.casts, a.cast_bytes, a.bytes_before, a.bytes_after) == (1, 512, 1024, 512 + 512)
    assert (b.nodes, b.converted, b.kept) == (3, 0, 3)
    assert [layer.layer for layer in found.layers] == ["model/a", "model/b", ""]


def test_reasons_name_the_op_and_what_it_pulled_along() -> None:
    found = described(PRODUCT_AND_SUM)
    mean, neg, root = (node(found, f"model/b/{name}") for name in ("mean", "neg", "root"))
    assert (mean.reason, mean.pulled, mean.root) == ("sums must stay in float32", 2, -1)
    assert neg.reason == root.reason == "follows Mean 'model/b/mean', which stays in float32"
    assert found.nodes[root.root] is mean and found.nodes[neg.root] is mean
    (b,) = [layer for layer in found.layers if layer.layer == "model/b"]
    assert {(why.reason, why.nodes) for why in b.why} == {
        ("Mean: sums must stay in float32; pulled 2 neighbours with it", 1),
        ("Neg, Tanh: follows Mean 'model/b/mean', which stays in float32", 2),
    }
    moved = described(PRODUCT_AND_SUM, denylist_add="Relu")
    assert node(moved, "model/a/relu").reason == "you put it on the denylist"


def test_variables_and_constants_are_not_blamed_on_lists() -> None:
    whys = [why.reason for layer in details("keras").layers for why in layer.why]
    assert "ReadVariableOp: variables stay in float32; what reads one in 16 bit gets a cast copy" in whys
    assert any(why.startswith("Assign") and why.endswith("variables stay in float32, and so does what is written to them") for why in whys)
    assert not [why for why in whys if "on no list" in why and ("Variable" in why or "Const" in why)]


def test_every_op_of_the_denylist_has_a_reason_of_its_own() -> None:
    lists = tfmp.Settings().lists("float16")
    assert lists.ops("deny") == set(WHY_DENIED)


def test_what_the_backward_pass_reads_is_counted_in_the_form_it_is_read_in() -> None:
    found = described("""
        x = Placeholder() shape=[8, 8]
        net/w = Const() value=0.5 shape=[8, 8]
        net/product = MatMul(x, net/w)
        net/exp = Exp(net/product)
        net/view = Reshape(net/exp, shape)
        shape = Const() value=[64] dtype=int32
        gradient_tape/net/MatMul/product = MatMul(net/product, net/product)
        gradient_tape/net/Exp/mul = Mul(net/exp, net/exp)
        gradient_tape/net/Reshape/mul = Square(net/view)
        out = Identity(gradient_tape/net/MatMul/product)
        out_2 = Identity(gradient_tape/net/Exp/mul)
        out_3 = Identity(gradient_tape/net/Reshape/mul)
    """)
    n = 8 * 8
    assert [node(found, name).gradient for name in ("net/exp", "gradient_tape/net/Exp/mul")] == [False, True]
    # product, and exp once although it is read as itself and as its reshaped view; x and the weight are there anyway.
    assert found.memory.saved_before == 4 * n + 4 * n
    assert found.memory.saved_after == 2 * n + 4 * n


def test_calls_and_loops_count_as_often_as_they_run() -> None:
    weight = tf.Variable(tf.ones([8, 8]))

    def loop(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(5):
            x = tf.tanh(x @ weight)
        return x

    function = tf.function(loop)
    with records_of() as report, tfmp.mixed_precision(**ON):
        function(tf.ones([4, 8]))
    (found,) = report().details
    body = next(one for one in found.functions if "body" in one.name)
    assert (body.runs, body.flops, body.flops_converted) == (5, 5 * 2 * 4 * 8 * 8, 5 * 2 * 4 * 8 * 8)
    assert found.flops == body.flops
    (read,) = [cast for cast in found.casts if cast.kind == "variable"]
    assert (read.shape, read.times, read.bytes) == ([8, 8], 1, 8 * 8 * 2)
    assert sum(cast.times for cast in found.casts) == found.casts_per_run == report()[0].casts
    (loop_node,) = [one for one in found.nodes if one.op == "StatelessWhile" or one.op == "While"]
    assert [found.functions[callee].runs for callee in loop_node.calls] == [6, 5]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_keras_step_agrees_with_its_record(family: str) -> None:
    _, report = trained(family)
    (record,), found = report, details(family)
    assert (found.function, found.converted, found.total, found.casts_per_run) == (record.function, record.converted, record.total, record.casts)
    assert found.flop_share == record.flop_share == 1.0
    assert found.estimated == (family == "tf_keras")  # its LSTM is a function of any batch size
    assert sum(layer.nodes for layer in found.layers) == found.total
    assert sum(layer.casts for layer in found.layers) == found.casts_per_run
    assert sum(layer.flops for layer in found.layers) == pytest.approx(found.flops)
    assert sum(layer.bytes_before for layer in found.layers) == pytest.approx(found.memory.written_before)
    assert sum(layer.bytes_after for layer in found.layers) == pytest.approx(found.memory.written_after)
    assert found.memory.saved_before > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layers_of_a_keras_step_are_those_of_the_model(family: str) -> None:
    found = details(family)
    leaves = {layer.layer.rpartition("/")[2].removesuffix("_1") for layer in found.layers}
    assert {"picture", "normal", "sequence", "memory", "classes"} <= leaves
    others = leaves - {"picture", "normal", "sequence", "memory", "classes", "lstm_cell"}
    assert {re.sub(r"_\d+$", "", name.lower()) for name in others} == {"", "adam", "sparse_categorical_crossentropy"}
    products = {layer.layer.partition("/")[2].removesuffix("_1") for layer in found.layers if layer.flops}
    assert {name.partition("/")[0].removesuffix("_1") for name in products} == {"picture", "memory", "classes"}
    nodes = [node for node in found.nodes if node.flops]
    assert {node.gradient for node in nodes} == {False, True}


def test_layers_are_exact_where_rules_have_marked_them() -> None:
    import keras

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="first"), keras.layers.Dense(8, name="second")], name="net")
    function = tf.function(lambda x: model(model(x)))
    with records_of() as report, tfmp.mixed_precision(**ON, keep_float32="layer:net/second"):
        function(tf.ones([8, 8]))
    (found,) = report().details
    layers = {layer.layer: layer for layer in found.layers}
    assert set(layers) == {"net/first", "net/second", ""}
    assert (layers["net/first"].flops_converted, layers["net/second"].flops_converted) == (2 * 2 * 8**3, 0)
    assert "MatMul: a rule keeps it in float32: layer:net/second" in [why.reason for why in layers["net/second"].why]


def test_flops_of_a_keras_step_are_those_of_its_layers_by_hand() -> None:
    flops = {layer.layer.partition("/")[2].partition("/")[0]: layer.flops for layer in details("keras").layers if layer.flops}
    convolution, dense, step = 2 * 4 * 10 * 10 * 8 * 27, 2 * 4 * 5 * 10, 2 * 4 * 20 * (8 + 5)
    # The gradient of a product is two products, but nobody asks for that of the pictures.
    assert flops == {"picture_1": 2 * convolution, "memory_1": 3 * 100 * step, "classes_1": 3 * dense}


def test_details_are_the_same_whether_or_not_the_function_was_traced_here() -> None:
    @tf.function(input_signature=[tf.TensorSpec([16, 8])])
    def net(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: inner(x) @ tf.ones([8, 4]), lambda: tf.zeros([16, 4]))

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x @ tf.ones([8, 8]))

    concrete = net.get_concrete_function()
    conversion = tfmp.convert_function(concrete)
    from tfmp.reports.shapes import graphs_of

    traced, worked_out = describe(conversion, graphs_of([concrete._inference_function])), describe(conversion)
    assert traced == worked_out
    assert traced.flops == 2 * 16 * 8 * 8 + 2 * 16 * 8 * 4


def test_unknown_dimensions_are_estimated_and_said_so() -> None:
    found = described("x = Placeholder() shape=[?, 8]\nw = Const() value=1.0 shape=[8, 8]\ny = MatMul(x, w)\nout = Identity(y)")
    assert found.estimated
    assert found.flops == 2 * 32 * 8 * 8


def test_a_report_keeps_no_function_alive() -> None:
    function = tf.function(lambda x: x @ x)
    with records_of() as report, tfmp.mixed_precision(**ON):
        function(tf.ones([8, 8]))
    assert report().details[0] is not None
    del function
    gc.collect()
    assert report().details == (None,)
    assert report()[0].converted > 0


def test_emulation_saves_nothing_and_says_so() -> None:
    found = described(PRODUCT_AND_SUM, emulate=True)
    assert found.memory.written_after == found.memory.written_before + found.cast_bytes
    assert {cast.kind for cast in found.casts} == {"rounding"}


def test_numbers_have_three_digits_and_a_unit() -> None:
    assert [in_units(number, "B") for number in (0, 7, 999, 1000, 1234567, 99.96e9, 1e20)] == [
        "0 B", "7 B", "999 B", "1.00 kB", "1.23 MB", "100 GB", "100000 PB",
    ]  # fmt: skip
    assert np.isclose(float(in_units(45.6e6, "B").split()[0]), 45.6)
