"""Training inside the graph: loops that assign the weights which they read, averages kept over steps, several steps in one execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests import graph_text
from tests.behaviour.on_off import ROUNDINGS, normal, run
from tests.programs.constructs.loops import repeat
from tests.programs.constructs.recurrent import keras_package
from tests.programs.written import Written
from tfmp import tf_api
from tfmp.dtypes import SIXTEEN_BIT

X, TARGET, W = normal(16, 8), normal(8, 2, seed=14), normal(8, 8, seed=12, scale=0.3)


def float64(*tensors: Any) -> list[np.ndarray]:
    """Returns float64 copies."""
    return [np.asarray(tensor, np.float64) for tensor in tensors]


def convert(function: Any, dtype: str, *arguments: Any) -> Written:
    """Returns the converted program of a `tf.function`."""
    return Written(tfmp.convert_function(function.get_concrete_function(*arguments), dtype=dtype))


def casts_in_bodies(program: Written) -> int:
    """Returns how many casts were added to the bodies of loops."""
    return sum(len(version.casts) for version in program.versions.values() if "body" in version.name)


STEPS, RATE = 50, 0.3


def sgd() -> tuple[tf.Variable, Any]:
    """Returns a weight and 50 untraced steps of gradient descent on it, in one `tf.while_loop`."""
    w = tf.Variable(tf.zeros([8, 2]))

    def step(i: Any, loss: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((X @ w - X @ TARGET) ** 2)
        w.assign_sub(RATE * tape.gradient(loss, w))
        return (loss,)

    return w, tf.function(lambda: repeat(step, tf.constant(0.0), steps=STEPS), autograph=False)


def test_fifty_sgd_steps_in_a_while_loop_end_at_the_right_weights(dtype: str) -> None:
    def program() -> Any:
        w, train = sgd()
        train()
        return w.read_value()

    runs = run(program, dtype).check()
    x, target = float64(X, TARGET)
    w = np.zeros((8, 2))
    for _ in range(STEPS):
        w -= RATE * 2 / (16 * 2) * x.T @ (x @ w - x @ target)
    assert np.abs(runs.on - w).max() < ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff * np.abs(w).max()
    assert np.abs(w - target).max() < 0.05


def test_the_weight_of_a_training_loop_is_read_and_cast_in_every_step(dtype: str) -> None:
    w, train = sgd()
    program = convert(train, dtype)
    assert program.types("AssignSubVariableOp", attr="dtype") == {"float32"}
    body = next(version for version in program.versions.values() if "body" in version.name)
    assert [cast.input[0] for cast in body.casts if "ReadVariableOp" in cast.input[0]] != []
    assert not [node.name for node in program.nodes("ReadVariableOp") if "tfmp_weight" in node.name]
    assert w.dtype == tf.float32


def _directly(w: tf.Variable) -> Callable[[], Any]:
    return lambda: w.assign(0.5 * w)


def _in_a_function(w: tf.Variable) -> Callable[[], Any]:
    return tf.function(lambda: w.assign(0.5 * w).op and None, autograph=False, experimental_attributes={"_noinline": True})


def _in_a_loop(w: tf.Variable) -> Callable[[], Any]:
    def halve(i: Any, n: Any) -> Any:
        w.assign(0.5 * w)
        return (n,)

    return lambda: repeat(halve, tf.constant(0), steps=1)


def _in_a_branch(w: tf.Variable) -> Callable[[], Any]:
    return lambda: tf.cond(tf.reduce_sum(w) > -1e6, lambda: w.assign(0.5 * w), lambda: w.read_value())


def _with_another_op(w: tf.Variable) -> Callable[[], Any]:
    return lambda: w.scatter_nd_update([[i] for i in range(8)], 0.5 * w)


@pytest.mark.parametrize("halve", [_directly, _in_a_function, _in_a_loop, _in_a_branch, _with_another_op], ids=lambda one: one.__name__.strip("_"))
def test_a_weight_that_is_assigned_between_two_products_is_never_stale(halve: Any, jit: bool, dtype: str) -> None:
    def program() -> Any:
        w = tf.Variable(W)
        assign = halve(w)

        def body(i: Any, y: Any) -> Any:
            y = tf.tanh(y @ w)
            with tf.control_dependencies([y]):
                assign()
            return (y @ w + X,)

        step = tf.function(lambda x: repeat(body, x), autograph=False, jit_compile=jit)
        return step(X), w.read_value(), step(X), w.read_value()

    runs = run(program, dtype).check()
    w, x = float64(W, X)
    y = x
    for _ in range(3):
        y = np.tanh(y @ w)
        w = 0.5 * w
        y = y @ w + x
    assert np.abs(runs.on[0] - y).max() < ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff * np.abs(y).max()
    np.testing.assert_array_equal(runs.on[1], W / 8)
    np.testing.assert_array_equal(runs.on[3], W / 64)


ALIASES = """
v = VarHandleOp() dtype=float shape=[4, 4] shared_name="aliased" container="" debug_name=""
start = Const() value=1.0 shape=[4, 4]
init = AssignVariableOp(v, start) dtype=float validate_shape=false
x = Const() value=1.0 shape=[4, 4]
call = StatefulPartitionedCall(x, v, v) Tin=[float, resource, resource] Tout=[float] f=steps
result = Identity(call)

function steps(x: float, read: resource, write: resource) -> (y: float)
  zero = Const() value=0 dtype=int32
  loop = While(zero:output:0, x, read, write) T=[int32, float, resource, resource] cond=more body=step
  return y = loop:output:1

function more(i: int32, x: float, read: resource, write: resource) -> (c: bool)
  limit = Const() value=3 dtype=int32
  less = Less(i, limit:output:0) T=int32
  return c = less:z:0

function step(i: int32, x: float, read: resource, write: resource) -> (i_out: int32, y: float, read_out: resource, write_out: resource)
  one = Const() value=1 dtype=int32
  next = AddV2(i, one:output:0) T=int32
  weight = ReadVariableOp(read) dtype=float
  product = MatMul(x, weight:value:0)
  half = Const() value=0.5
  smaller = Mul(weight:value:0, half:output:0)
  assign = AssignVariableOp(write, smaller:z:0, ^product) dtype=float
  done = Identity(product:product:0, ^assign)
  return i_out = next:z:0
  return y = done:output:0
  return read_out = read
  return write_out = write
"""


def test_one_variable_behind_two_handles_is_never_stale(dtype: str) -> None:
    """The loop reads through one argument and assigns through another, and both are one variable: no read may leave the loop."""
    graph = graph_text.parse(ALIASES)
    conversion = tfmp.convert_graph_def(graph, fetches=["result", "init"], dtype=dtype, device="CPU")
    assert conversion.converted > 0
    results = [_evaluate(one) for one in (graph, conversion.graph_def)]
    np.testing.assert_array_equal(results[0], np.full((4, 4), 4.0**3 * 0.5**3))
    np.testing.assert_array_equal(results[1], results[0])  # powers of two: exact in 16 bit


def _evaluate(graph: tf_api.GraphDef) -> np.ndarray:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(graph, name="")
        session.run("init")
        return session.run("result:0")


def test_a_moving_average_in_a_loop_keeps_moving(dtype: str) -> None:
    """Each step changes the average by less than half a step of the 16-bit type; a master copy in 16 bit would stand still."""
    rate, steps = SIXTEEN_BIT[dtype].unit_roundoff / 8, 200

    def program() -> Any:
        w, average = tf.Variable(W), tf.Variable(tf.ones([16, 8]))

        def step(i: Any, n: Any) -> Any:
            average.assign(average - (average - X @ w) * rate)
            return (n,)

        tf.function(lambda: repeat(step, tf.constant(0), steps=steps), autograph=False)()
        return average.read_value()

    runs = run(program, dtype).check()
    x, w = float64(X, W)
    goal = x @ w
    expected = goal + (1 - goal) * (1 - rate) ** steps
    moved = np.abs(expected - 1).max()
    assert np.abs(runs.on - expected).max() < ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff * moved * 2
    assert moved > 4 * SIXTEEN_BIT[dtype].unit_roundoff


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_several_steps_in_one_execution_train_the_same_weights(package: str, dtype: str) -> None:
    inputs, targets = normal(32, 8).numpy(), (normal(32, 8) @ TARGET).numpy()

    def program() -> Any:
        keras = keras_package(package)
        keras.backend.clear_session()
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", steps_per_execution=4, jit_compile=False)
        history = model.fit(inputs, targets, batch_size=4, epochs=2, shuffle=False, verbose=0)
        return [np.float32(loss) for loss in history.history["loss"]], model.get_weights()

    runs = run(program, dtype).check(2 * ROUNDINGS)
    assert runs.on[0][1] < runs.on[0][0]


VOCABULARY, BEAMS, WIDTH, LENGTH = 11, 3, 8, 6
EMBEDDING, RECURRENT = normal(VOCABULARY, WIDTH, seed=1059), normal(WIDTH, WIDTH, seed=2059, scale=0.4)
OUTPUT = normal(WIDTH, VOCABULARY, seed=3059, scale=4.0)
START = [0.0] + [-1e4] * (BEAMS - 1)


def beam_search() -> Any:
    """Returns the tokens and parents of every step and the final scores; each beam has a state of its own."""

    def step(i: Any, ids: Any, scores: Any, state: Any, tokens: Any, parents: Any) -> Any:
        state = tf.tanh(tf.gather(EMBEDDING, ids) + state @ RECURRENT)
        total = scores[:, None] + tf.nn.log_softmax(state @ OUTPUT)
        best, flat = tf.math.top_k(tf.reshape(total, [-1]), BEAMS)
        parent, ids = flat // VOCABULARY, flat % VOCABULARY
        return ids, best, tf.gather(state, parent), tokens.write(i, ids), parents.write(i, parent)

    arrays = [tf.TensorArray(tf.int32, LENGTH, element_shape=[BEAMS]) for _ in range(2)]
    start = tf.zeros([BEAMS], tf.int32), tf.constant(START), tf.zeros([BEAMS, WIDTH])
    _, scores, _, tokens, parents = repeat(step, *start, *arrays, steps=LENGTH)
    return tokens.stack(), parents.stack(), scores


def beam_search_by_numpy() -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Returns the same in float64, and the smallest distance between two scores whose order decides."""
    embedding, recurrent, output, scores = float64(EMBEDDING, RECURRENT, OUTPUT, START)
    ids, state, tokens, parents, distance = np.zeros(BEAMS, int), np.zeros((BEAMS, WIDTH)), [], [], np.inf
    for _ in range(LENGTH):
        state = np.tanh(embedding[ids] + state @ recurrent)
        logits = state @ output
        total = (scores[:, None] + logits - np.log(np.exp(logits).sum(1, keepdims=True))).ravel()
        order = np.argsort(-total)
        distance = min(distance, -np.diff(total[order[: BEAMS + 1]]).max())
        chosen = order[:BEAMS]
        ids, scores, state = chosen % VOCABULARY, total[chosen], state[chosen // VOCABULARY]
        tokens.append(ids)
        parents.append(chosen // VOCABULARY)
    return np.array(tokens), np.array(parents), scores, distance


def test_a_beam_search_finds_identical_tokens(jit: bool, dtype: str) -> None:
    runs = run(lambda: tf.function(beam_search, autograph=False, jit_compile=jit)(), dtype)
    assert runs.converted > 0
    tokens, parents, scores, distance = beam_search_by_numpy()
    for found in (runs.off, runs.on):
        np.testing.assert_array_equal(found[0], tokens)
        np.testing.assert_array_equal(found[1], parents)
    assert len(np.unique(tokens)) > BEAMS
    error = np.abs(runs.on[2] - scores).max()
    assert error < LENGTH * ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff * np.abs(scores).max()
    assert error < distance
