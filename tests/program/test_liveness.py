"""What TensorFlow prunes is what no walk from what always runs comes to."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.graph_text import functions, parse
from tests.zoo import ZOO, tagged
from tfmp import tf_api
from tfmp.graph import neighbours
from tfmp.graph.body import Body
from tfmp.graph.view import library_schemas, read_function
from tfmp.program.liveness import dead_nodes, roots
from tfmp.program.program import from_function

TEXT = """
function f(a: float, unread: float) -> (r: float)
  dead = Neg(a)
  dead_too = Relu(dead:y:0, ^waited_by_dead)
  waited_by_dead = NoOp()
  waited_for = Square(a)
  read = Exp(a, ^waited_for)
  noise = RandomUniform(shape:output:0)
  shape = Const() dtype=int32 value=[2]
  always = Sqrt(a)
  return r = read:y:0
  control kept = always
"""


def test_by_hand() -> None:
    body = read_function(functions(parse(TEXT))["f"], {})
    assert [body.names[node] for node in dead_nodes(body)] == ["dead", "dead_too", "waited_by_dead"]  # noise changes the state of a generator


def bodies_of_the_zoo() -> list[Body]:
    graphs = [ZOO[case.name].build()[0] for case in tagged("hand")]
    return [read_function(one, library_schemas(graph.library.function)) for graph in graphs for one in graph.library.function]


def bodies_of_a_loop() -> list[Body]:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = tf.tanh(x @ x)
            tf.exp(x)
        return x

    name = step.get_concrete_function(tf.ones([2, 2])).inference_fn.name
    return list(from_function(name.decode() if isinstance(name, bytes) else name, tf_api.function_definition).bodies.values())


def walked(body: Body) -> list[int]:
    """Returns the nodes that no walk from what always runs comes to."""
    needed, todo = set[int](), roots(body)
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo += [source for source, _ in body.inputs[node]]
            todo += body.controlled.get(node, ())
    return [node for node in range(body.arguments, len(body)) if node not in needed]


def test_what_a_walk_does_not_come_to_is_dead() -> None:
    bodies = [*bodies_of_the_zoo(), *bodies_of_a_loop()]
    for body in bodies:
        body.dead = None
        assert list(dead_nodes(body)) == walked(body), body.name
    assert any(map(dead_nodes, bodies))


LOOP = """
function f(a: float) -> (r: float)
  enter = {ref}Enter(a) frame_name=loop
  merge = {ref}Merge(enter:output:0, next:output:0)
  next = {ref}NextIteration(merge:output:0)
  y = Neg({read})
  return r = y:y:0
"""


@pytest.mark.parametrize("few", [0, neighbours.FEW])
@pytest.mark.parametrize("ref", ["", "Ref"])
@pytest.mark.parametrize(("read", "dead"), [("a", ["enter", "merge", "next"]), ("merge:output:0", [])])
def test_a_loop_that_nothing_needs_is_dead(read: str, dead: list[str], ref: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "FEW", few)
    body = read_function(functions(parse(LOOP.format(ref=ref, read=read)))["f"], {})
    found = dead_nodes(body)
    assert [body.names[node] for node in found] == dead
    assert list(found) == walked(body)
