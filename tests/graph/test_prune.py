"""A function without nodes that nothing needs is the same function otherwise."""

from __future__ import annotations

import dataclasses

from tests.graph_text import functions, parse
from tfmp import tf_api
from tfmp.graph.body import Body
from tfmp.graph.edges import Edges
from tfmp.graph.prune import pruned
from tfmp.graph.view import read_function
from tfmp.program.liveness import dead_nodes

TEXT = """
function f(a: float, b: float) -> (r: float, again: float)
  idle = Neg(a)
  first = Relu(a)
  idler = AddV2(idle:y:0, first:activations:0)
  second = AddV2(first:activations:0, b, ^idlest)
  idlest = NoOp()
  never = Mul(idler:z:0, second:z:0, ^idlest) device=/device:CPU:0
  return r = second:z:0
  return again = b
"""


def view() -> tuple[Body, object]:
    function = functions(parse(TEXT))["f"]
    function.attr["_mark"].s = b"here"
    function.node_def[1].experimental_debug_info.original_node_names.append("somewhere")
    return read_function(function, {}), function


def test_what_is_left_is_what_a_reader_of_the_smaller_function_sees() -> None:
    body, function = view()
    before = function.SerializeToString(deterministic=True)
    assert [body.names[node] for node in dead_nodes(body)] == ["idle", "idler", "never"]
    smaller = pruned(body, dead_nodes(body))
    proto = tf_api.FunctionDef.FromString(smaller.joined())
    assert [node.name for node in proto.node_def] == ["first", "second", "idlest"]
    again = read_function(smaller.joined(), {})
    for field in ("names", "ops", "devices", "types", "layouts", "inputs", "by_name", "tensors", "controlled", "arguments", "results", "nodes", "rest"):
        assert getattr(smaller, field) == getattr(again, field), field
    for field in dataclasses.fields(Edges):
        found, expected = getattr(smaller.edges, field.name), getattr(again.edges, field.name)
        assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist()), field.name
    assert smaller.by_op == again.by_op
    assert function.SerializeToString(deterministic=True) == before


def test_every_other_byte_stays() -> None:
    body, function = view()
    proto = tf_api.FunctionDef.FromString(pruned(body, dead_nodes(body)).joined())
    expected = type(proto)()
    expected.CopyFrom(function)
    for name in ("never", "idler", "idle"):
        del expected.node_def[[node.name for node in expected.node_def].index(name)]
    assert proto.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


def test_what_is_known_of_nodes_goes_with_them() -> None:
    body, function = view()
    number = {name: node for node, name in enumerate(body.names)}
    notes = {"made": {number["second"]: ((2,),)}, "shapes": {number["second"]: [(2,)], number["idle"]: [(3,)]}}
    body = dataclasses.replace(body, **notes, replaced={number["idler"]: number["second"]}, residual={number["second"]}, marked={number["never"]})
    smaller = pruned(body, dead_nodes(body))
    second = smaller.names.index("second")
    assert (smaller.made, smaller.shapes, smaller.residual, smaller.marked) == ({second: ((2,),)}, {second: [(2,)]}, {second}, set())
    assert (smaller.replaced, smaller.pruned) == ({}, 3)
    assert smaller.gone == (("AddV2", body.nodes[number["idler"]], second),)
    assert dead_nodes(smaller) == ()
