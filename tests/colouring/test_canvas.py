"""What may be painted at all: devices, fetches, types and kernels."""

from __future__ import annotations

import pytest

from tests.graph_text import parse
from tfmp import oplists
from tfmp.colouring.canvas import Canvas
from tfmp.colouring.rules import Rules
from tfmp.dtypes import FLOAT16
from tfmp.oplists import OpLists
from tfmp.program.program import from_graph
from tfmp.program.unfold import unfold
from tfmp.program.union import unite

X = "x = Placeholder() shape=[4, 4]\n"


def canvas(text: str, device: str = "CPU", fetches: frozenset[str] = frozenset()) -> Canvas:
    """Returns a canvas for a graph whose functions are all interpreted."""
    program = from_graph(parse(text))
    instances = unfold(program)
    rules = Rules(FLOAT16, OpLists(oplists.default_lists("float16", exact=False)), device, fetches=fetches)
    return Canvas(unite(program, instances), rules, [(device,)] * len(instances))


@pytest.mark.parametrize(
    ("device", "on_cpu", "on_gpu"),
    [
        ("", True, True),
        ("/device:CPU:0", True, False),
        ("/device:GPU:1", False, True),
        ("/job:localhost/replica:0/task:0/device:CPU:0", True, False),
        ("/job:worker/replica:0/task:3/device:GPU:7", False, True),
        ("/cpu:0", True, False),
        ("/gpu:0", False, True),
        ("/job:ps/task:1/gpu:0", False, True),
        ("/device:gpu:0", False, True),
        ("/device:TPU:0", False, False),
        ("/device:XLA_CPU:0", False, False),
        ("/job:worker/task:0", False, False),
    ],
)
def test_nodes_are_painted_on_their_device_only(device: str, on_cpu: bool, on_gpu: bool) -> None:
    text = f"{X}m = MatMul(x, x){' @' + device if device else ''}\n"
    assert [bool(canvas(text, target).processable[1]) for target in ("CPU", "GPU")] == [on_cpu, on_gpu]


def test_fetched_nodes_are_not_painted() -> None:
    assert list(canvas(X + "m = MatMul(x, x)\n", fetches=frozenset({"m"})).processable) == [1, 0]


def test_arguments_of_functions_that_are_called_may_be_painted_and_those_with_a_stand_in_may_not() -> None:
    text = X + "c = PartitionedCall(x) Tout=[float] f=g\n\nfunction g(a: float) -> (b: float){}\n  r = Relu(a)\n  return b = r:activations:0\n"
    assert list(canvas(text.format("")).processable) == [1, 1, 1, 1, 1]
    assert list(canvas(text.format(' api_implements="g"')).processable) == [1, 1, 0, 1, 0]


def test_the_first_reason_stays() -> None:
    paint = canvas(X + "m = MatMul(x, x)\n")
    paint.paint_allow(1, "allowlist")
    paint.paint_allow(1, "forced", 0)
    assert (paint.reasons[1].rule, paint.allow[1]) == ("allowlist", 1)
    paint.unpaint_allow(1, "quantized", 0)
    assert (paint.reasons[1].rule, paint.reasons[1].cause, paint.allow[1]) == ("quantized", 0, 0)


def test_keeping_denies_and_leaving_does_not() -> None:
    paint = canvas(X + "i = Const() dtype=int32 value=1\nl = IdentityN(x, i) T=[float, int32]\n")
    paint.leave(2, "call")
    assert (paint.processable[2], any(paint.deny)) == (0, False)
    paint.keep(2, "no kernel")
    assert [bool(denied) for denied in paint.deny] == [False, False, True, False]
    assert paint.reasons[2].rule == "no kernel"


@pytest.mark.parametrize(
    ("line", "slot", "type_allows", "supported"),
    [
        ("n = Relu(x)", 0, True, True),
        ("n = Cholesky(x)", 0, True, False),
        ("n = SparseMatMul(x, x)", 0, False, False),
        ("n = FusedBatchNormV3(x, x, x, x, x)", 0, True, True),
        ("n = FusedBatchNormV3(x, x, x, x, x)", 1, False, False),
        ("n = SparseMatMul(x, x)", 2, False, False),
    ],
)
def test_an_attribute_needs_a_half_form_and_a_kernel(line: str, slot: int, type_allows: bool, supported: bool) -> None:
    paint = canvas(f"{X}{line}\n")
    vertex = paint.graph.first[1] + slot
    assert (paint.supports_type(vertex), paint.supports(vertex)) == (type_allows, supported)


def test_vertices_of_a_list_come_in_order() -> None:
    paint = canvas(X + "m = MatMul(x, x)\nr = Relu(m)\ns = Softmax(r)\nn = MatMul(s, s)\n")
    assert paint.on_lists({"allow"}) == [1, 4]
    assert paint.on_lists({"infer", "clear"}) == [2, 3]
    assert paint.processable_allow_ops().tolist() == [1, 4]
