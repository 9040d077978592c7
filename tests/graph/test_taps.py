"""Copies of functions with taps: what is added, in which order things run, and that nothing else changes."""

from __future__ import annotations

import pytest

from tests.graph_text import functions, parse
from tfmp import tf_api
from tfmp.graph.body import Body
from tfmp.graph.retarget import Retarget
from tfmp.graph.taps import Tap, topological, with_taps
from tfmp.graph.view import library_schemas, read_function

TEXT = """
function inner(a: float) -> (b: float) _XlaMustCompile=true
  r = Relu(a)
  return b = r:activations:0

function outer(x: float, h: resource) -> (y: float) _XlaMustCompile=true
  late = Neg(early:y:0)
  early = Sqrt(x)
  noise = RandomStandardNormal(shape) dtype=float T=int32
  shape = Const() value=[2]
  call = PartitionedCall(late:y:0) Tin=[float] Tout=[float] f=inner _XlaMustCompile=true
  sum = AddV2(call:output:0, noise:output:0)
  write = AssignVariableOp(h, sum:z:0) dtype=float
  return y = sum:z:0
  control write = write
"""


def read(text: str, name: str) -> tuple[Body, tf_api.FunctionDef]:
    library = functions(parse(text))
    return read_function(library[name], library_schemas(library.values())), library[name]


def tapped(in_turn: bool, place: str = "") -> tf_api.FunctionDef:
    body, proto = read(TEXT, "outer")
    nodes = {name: number for number, name in enumerate(body.names)}
    taps = [Tap(nodes[name], (0,), f"token of {name}") for name in ("x", "early", "late", "call", "noise", "sum")]
    before = proto.SerializeToString(deterministic=True)
    retargets = [Retarget("call", "f", 0, "inner_tapped")]
    copy = with_taps(body, "outer_tapped", taps, [nodes["call"]], retargets, place=place, in_turn=in_turn)
    assert proto.SerializeToString(deterministic=True) == before
    return copy


def test_every_tap_reads_its_node_and_always_runs() -> None:
    copy = tapped(in_turn=False)
    added = {node.name: node for node in copy.node_def if node.op == "PyFunc"}
    assert {node.input[0] for node in added.values()} == {"x", "early:y:0", "late:y:0", "call:output:0", "noise:output:0", "sum:z:0"}
    assert all(len(node.input) == 1 and list(node.attr["Tin"].list.type) == [1] and not node.attr["Tout"].list.type for node in added.values())
    assert {node.attr["token"].s for node in added.values()} == {f"token of {name}".encode() for name in ("x", "early", "late", "call", "noise", "sum")}
    assert {name: name for name in added} == {key: value for key, value in copy.control_ret.items() if key != "write"}
    assert set(copy.signature.control_output) >= set(added) and copy.signature.is_stateful


def test_calls_of_tapped_functions_are_stateful_and_never_compiled() -> None:
    copy = tapped(in_turn=False)
    (call,) = (node for node in copy.node_def if node.name == "call")
    assert (call.op, call.attr["f"].func.name) == ("StatefulPartitionedCall", "inner_tapped")
    assert "_XlaMustCompile" not in call.attr and "_XlaMustCompile" not in copy.attr


def test_in_turn_a_node_waits_for_the_taps_before_it() -> None:
    copy = tapped(in_turn=True)
    waits = {node.name: [text[1:] for text in node.input if text.startswith("^")] for node in copy.node_def}
    tap_of = {node.input[0].partition(":")[0]: node.name for node in copy.node_def if node.op == "PyFunc"}
    assert waits["early"] == [tap_of["x"]]
    assert waits["late"] == waits[tap_of["late"]] == [tap_of["early"]]
    assert waits["call"] == [tap_of["late"]]
    assert waits[tap_of["call"]] == ["call"]
    assert waits["noise"] == [], "a stateful op might be waited for by another device"
    assert not any(node.input for node in tapped(in_turn=False).node_def if any(text.startswith("^") for text in node.input))


def test_random_ops_are_seeded_by_their_place() -> None:
    seeds = [next(node.attr["seed2"].i for node in tapped(True, place).node_def if node.name == "noise") for place in ("", "a:f", "")]
    assert seeds[0] == seeds[2] != seeds[1] and 0 not in seeds


def test_topological_order_respects_data_and_control() -> None:
    body, _ = read(TEXT, "outer")
    order = [body.names[number] for number in topological(body)]
    assert sorted(order) == sorted(body.names[: body.proto_nodes.stop])
    place = {name: index for index, name in enumerate(order)}
    assert place["x"] < place["early"] < place["late"] < place["call"] < place["sum"] < place["write"]
    assert place["shape"] < place["noise"] < place["sum"]


@pytest.mark.parametrize(
    ("device", "beside"),
    [
        ("", ""),
        ("/device:CPU:1", "/device:CPU:1"),
        ("/device:GPU:1", "/device:CPU:0"),
        ("/gpu:0", "/CPU:0"),
        ("/cpu:0", "/cpu:0"),
        ("/job:worker/replica:0/task:3/device:XLA_GPU:2", "/job:worker/replica:0/task:3/device:CPU:0"),
    ],
)
def test_python_runs_on_the_cpu_beside_the_device(device: str, beside: str) -> None:
    body, proto = read(TEXT, "inner")
    body.devices[1] = device
    copy = with_taps(body, "inner_tapped", [Tap(1, (0,), "token")], [], [], place="", in_turn=True)
    assert copy.node_def[-1].device == beside
