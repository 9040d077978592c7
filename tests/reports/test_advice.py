"""Advice: each rule on a graph that needs it, and none on one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graph_text import parse
from tests.reports.keras_steps import details
from tfmp import engine
from tfmp.reports.describe import describe
from tfmp.reports.records import Advice


def advice(text: str, **settings: Any) -> dict[str, list[Advice]]:
    """Returns the advice on a graph, by kind."""
    found: dict[str, list[Advice]] = {}
    for one in describe(engine.convert_graph_def(parse(text), device="CPU", **settings)).advice:
        found.setdefault(one.kind, []).append(one)
    return found


def product(rows: object, inner: int, columns: int) -> str:
    return f"x = Placeholder() shape=[{rows}, {inner}]\nw = Const() value=0.5 shape=[{inner}, {columns}]\nnet/y = MatMul(x, w)\nout = Identity(net/y)"


def test_a_large_product_of_good_shape_needs_no_advice() -> None:
    assert advice(product(2**13, 2**13, 2**13)) == {}


@pytest.mark.parametrize(
    ("sizes", "odd"),
    [
        ((63, 64, 64), "rows 63 (next: 64)"),
        ((64, 63, 64), "inner dimension 63 (next: 64)"),
        ((72, 64, 66), "columns 66 (next: 72)"),
        (("?", 64, 66), "columns 66 (next: 72)"),
        ((1, 2, 3), "rows 1 (next: 8) and columns 3 (next: 8) and inner dimension 2 (next: 8)"),
    ],
)
def test_dimensions_that_are_not_multiples_of_eight(sizes: tuple[object, int, int], odd: str) -> None:
    (found,) = advice(product(*sizes))["dimensions"]
    shapes = f"[{sizes[0]}, {sizes[1]}] x [{sizes[1]}, {sizes[2]}]"
    assert (found.layer, found.node, found.weight) == ("net", "net/y", 1.0)
    assert found.text.startswith(f"MatMul {shapes}: {odd}. Tensor Cores work in blocks of 8")


@pytest.mark.parametrize(
    ("graph", "odd"),
    [
        ("x = Placeholder() shape=[8, 9, 9, 3]\nw = Const() value=0.5 shape=[3, 3, 3, 20]\ny = Conv2D(x, w) strides=[1, 1, 1, 1] padding=VALID",
         "input channels 3 (next: 8) and output channels 20 (next: 24)"),
        ('x = Placeholder() shape=[5, 7, 8]\nw = Const() value=0.5 shape=[5, 8, 12]\ny = Einsum(x, w) equation="bij,bjk->bik"',
         "'i' 7 (next: 8) and 'k' 12 (next: 16)"),
        ("x = Placeholder() shape=[9, 16]\nw = Const() value=0.5 shape=[9, 8]\ny = MatMul(x, w) transpose_a=true", "inner dimension 9 (next: 16)"),
    ],
)  # fmt: skip
def test_dimensions_of_convolutions_and_einsums(graph: str, odd: str) -> None:
    (found,) = advice(f"{graph}\nout = Identity(y)")["dimensions"]
    assert f": {odd}. " in found.text


def test_equal_products_are_one_advice() -> None:
    text = "x = Placeholder() shape=[8, 9]\nw = Const() value=0.5 shape=[9, 9]\n"
    text += "\n".join(f"net/{name}/y = MatMul(x, w)\nout_{name} = Identity(net/{name}/y)" for name in "abc")
    (found,) = advice(text)["dimensions"]
    assert found.text.endswith("Likewise in net/b, net/c.") and found.weight == pytest.approx(1)


def test_a_node_that_blocks_a_region() -> None:
    text = "\n".join([
        "x = Placeholder() shape=[64, 64]",
        "axis = Const() value=[1] dtype=int32",
        "net/y = MatMul(x, x)",
        "net/mean = Mean(net/y, axis) keep_dims=true",
        *(f"net/n{i + 1} = Neg({'net/mean' if i == 0 else f'net/n{i}'})" for i in range(4)),
        "net/end = Tanh(net/n4)",
        "out = Identity(net/end)",
    ])  # fmt: skip
    (found,) = advice(text)["blocks"]
    assert (found.layer, found.node) == ("net", "net/mean")
    assert found.text == (
        "Mean: sums must stay in float32; pulled 5 neighbours with it (Neg x 4, Tanh x 1), 1.28 kB that stay in float32. If its values are harmless, "
        "denylist_remove='Mean' lets what follows it be 16 bit; watch the loss."
    )
    assert "blocks" not in advice(text, denylist_remove="Mean")


def test_the_remedy_for_a_blocking_node_works() -> None:
    text = (
        "x = Placeholder() shape=[64, 64]\naxis = Const() value=[1] dtype=int32\ny = MatMul(x, x)\nm = Sum(y, axis) keep_dims=true\n"
        "a = Mul(y, m)\nb = Mul(a, a)\nc = Mul(b, a)\nz = MatMul(c, x)\nout = Identity(z)"
    )
    before, after = (engine.convert_graph_def(parse(text), device="CPU", **settings) for settings in ({}, {"denylist_remove": "Sum"}))
    assert (before.converted, after.converted) == (2, 5)


def test_an_op_on_no_list_between_16_bit_ones() -> None:
    (found,) = advice("""
        x = Placeholder() shape=[64, 64]
        y = MatMul(x, x)
        r = Rsqrt(y)
        z = MatMul(r, r)
        out = Identity(z)
    """)["unlisted"]
    assert (found.node, found.text.startswith("Rsqrt is on no list and lies between 16-bit ops 1 times: 24.6 kB of casts around it.")) == ("r", True)
    assert "inferlist_add='Rsqrt'" in found.text


def test_a_product_that_stays_in_float32_and_an_override_without_effect() -> None:
    found = advice(product(4096, 4096, 4096), allowlist_remove="MatMul", inferlist_add="Softmax", keep_float32="name:attention/*")
    assert [one.text for one in found["float32"]] == ["MatMul x 1, 100% of the FLOPs, stays in float32: the op is on no list."]
    assert [one.text for one in found["no effect"]] == [
        "Softmax was moved between lists, but this program has no such op.",
        "the rule name:attention/* covers nothing in this program.",
    ]


def test_a_program_too_small_to_gain() -> None:
    (found,) = advice(product(64, 64, 64))["too small"]
    # 2 * 64^3 FLOPs are 0.0334 us in float32 and 0.00419 us in float16 on a V100; x and the result are cast.
    assert found.text.startswith("too small to gain: in 16 bit its 524 kFLOP are done about 0.03 microseconds sooner on an NVIDIA V100, and its 2 casts")
    assert "take at least 10 microseconds." in found.text


def test_advice_on_a_keras_step_names_layers() -> None:
    found = details("keras").advice
    assert {one.layer.partition("/")[2] for one in found if one.kind == "dimensions"} == {"picture_1", "memory_1/lstm_cell_1"}
    assert [one.weight for one in found] == sorted((one.weight for one in found), reverse=True)
