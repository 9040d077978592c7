"""What TensorFlow prunes is found in the same way for small functions and for large ones."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.graph_text import functions, parse
from tests.zoo import ZOO, tagged
from tfmp import tf_api
from tfmp.graph import neighbours
from tfmp.graph.body import Body
from tfmp.graph.view import library_schemas, read_function
from tfmp.program import liveness
from tfmp.program.liveness import dead_nodes
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


def test_a_walk_and_arrays_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, found = [*bodies_of_the_zoo(), *bodies_of_a_loop()], []
    for few, found_at_once in ((0, 0), (0, neighbours.FEW), (10**9, 0)):
        monkeypatch.setattr(liveness, "FEW", few)
        monkeypatch.setattr(neighbours, "FEW", found_at_once)
        for body in bodies:
            body.dead = None
        found.append([dead_nodes(body) for body in bodies])
    assert found[0] == found[1] == found[2]
    assert any(found[0])
