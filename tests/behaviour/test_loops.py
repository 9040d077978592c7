"""Loops and tensor lists: while loops, TensorArrays, map, scan, vectorised maps, and whole training runs inside one loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run

X, W = normal(4, 8), normal(8, 8, seed=12, scale=0.3)
ELEMENT = {"TensorListSetItem", "TensorListGetItem", "TensorListStack", "TensorListPushBack", "TensorListPopBack", "TensorListFromTensor", "TensorListGather"}


def element_types(nodes: on_off.Nodes) -> set[str]:
    """Returns the float types of the elements that the tensor list ops of a program name."""
    found = {tf.dtypes.as_dtype(node.attr["element_dtype"].type) for node in nodes.of(*ELEMENT)}
    assert found, "the program has no tensor lists"
    return {dtype.name for dtype in found if dtype.is_floating}


@pytest.mark.parametrize(("jit", "bounded"), [(False, False), (False, True), (True, True)])  # XLA differentiates bounded loops only
def test_a_while_loop_with_its_gradient(dtype: str, jit: bool, bounded: bool) -> None:
    def program() -> Any:
        w = tf.Variable(W)

        @tf.function(jit_compile=jit)
        def f(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                limit = {"maximum_iterations": 5} if bounded else {}
                _, y = tf.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, tf.tanh(y @ w)), (0, x), **limit)
                loss = tf.reduce_mean(y**2)
            return y, tape.gradient(loss, w)

        return f(X)

    run(program, dtype).check()


def test_a_loop_written_by_autograph_breaks_and_continues(dtype: str) -> None:
    def program() -> Any:
        @tf.function
        def f(x: tf.Tensor, limit: tf.Tensor) -> Any:
            steps = 0
            for i in tf.range(10):
                if i == 2:
                    continue
                x = tf.nn.relu(x @ W) + 0.1
                steps += 1
                if tf.cast(steps, tf.float32) > limit:
                    break
            return x, steps

        return f(X, tf.constant(4.0)), f(X, tf.constant(1.0))

    runs = run(program, dtype).check()
    assert int(runs.on[0][1]) == 5


def test_fifty_sgd_steps_in_one_loop_train_the_same_weights(dtype: str) -> None:  # R2
    target = normal(8, 2, seed=14)

    def program() -> Any:
        w = tf.Variable(tf.zeros([8, 2]))

        @tf.function
        def train() -> None:
            for _ in tf.range(50):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((X @ w - X @ target) ** 2)
                w.assign_sub(0.3 * tape.gradient(loss, w))

        program.train = train
        train()
        return w.read_value()

    runs = run(program, dtype).check()
    assert np.abs(runs.on).max() > 0.5
    nodes = on_off.convert(program.train, dtype=dtype)
    assert nodes.types("AssignSubVariableOp", attr="dtype") == ["float32"]


def test_a_tensor_array_written_in_a_loop_and_read_after_it(dtype: str, jit: bool) -> None:  # R3
    def program() -> Any:
        w = tf.Variable(W)

        @tf.function(jit_compile=jit)
        def f(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                array = tf.TensorArray(tf.float32, 3, element_shape=[4, 8])
                for i in tf.range(3):
                    array = array.write(i, tf.nn.relu(x @ w) * tf.cast(i + 1, tf.float32))
                loss = tf.reduce_mean(tf.reshape(array.stack(), [12, 8]) @ w)
            return loss, array.stack(), tape.gradient(loss, w)

        return f(X)

    run(program, dtype).check()


def test_a_tensor_array_in_a_flat_graph_holds_16_bit(dtype: str) -> None:  # R3
    def flat(x: tf.Tensor) -> tf.Tensor:
        array = tf.TensorArray(tf.float32, 2, element_shape=[4, 8])
        array = array.write(0, x @ W).write(1, tf.nn.relu(x @ W))
        return array.read(1) @ W + array.read(0)

    run(lambda: tf.function(flat)(X), dtype).check()
    assert element_types(on_off.convert(tf.function(flat), X, dtype=dtype)) == {dtype}


def test_a_tensor_array_handed_to_a_function(dtype: str) -> None:  # R3
    @tf.function(experimental_attributes={"_noinline": True})
    def total(flow: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.raw_ops.TensorListStack(input_handle=flow, element_shape=[4, 8], element_dtype=tf.float32) @ W, 0)

    def program() -> Any:
        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            handle = tf.raw_ops.TensorListReserve(element_shape=[4, 8], num_elements=2, element_dtype=tf.float32)
            for i in range(2):
                handle = tf.raw_ops.TensorListSetItem(input_handle=handle, index=i, item=x @ W)
            return total(handle) @ W

        return f(X)

    run(program, dtype).check()


def test_the_sum_of_the_gradients_of_two_readers_of_a_list(dtype: str) -> None:  # R3
    def program() -> Any:
        w = tf.Variable(W)

        @tf.function
        def f(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                array = tf.TensorArray(tf.float32, 2, element_shape=[4, 8], clear_after_read=False).unstack(tf.stack([x @ w, x @ w]))
                loss = tf.reduce_sum(array.stack() @ w) + tf.reduce_sum(array.read(0) @ w) + tf.reduce_sum(array.gather([1, 0]) @ w)
            return loss, tape.gradient(loss, w)

        return f(X)

    run(program, dtype).check()


@pytest.mark.parametrize("function", ["map_fn", "vectorized_map", "scan", "foldl"])
def test_functional_loops(dtype: str, function: str) -> None:
    calls = {
        "map_fn": lambda xs, w: tf.map_fn(lambda x: tf.tanh(x @ w), xs),
        "vectorized_map": lambda xs, w: tf.vectorized_map(lambda x: tf.tanh(x @ w), xs),
        "scan": lambda xs, w: tf.scan(lambda state, x: tf.tanh(state @ w + x), xs, initializer=tf.zeros([4, 8])),
        "foldl": lambda xs, w: tf.foldl(lambda state, x: tf.tanh(state @ w + x), xs, initializer=tf.zeros([4, 8])),
    }

    def program() -> Any:
        w = tf.Variable(W)

        @tf.function
        def f(xs: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                result = calls[function](xs, w)
                loss = tf.reduce_mean(result**2)
            return result, tape.gradient(loss, w)

        return f(normal(3, 4, 8))

    run(program, dtype).check()


def test_map_fn_over_ragged_rows_with_another_output_type(dtype: str) -> None:
    rows = tf.RaggedTensor.from_row_lengths(normal(6, 8), [1, 2, 3])

    def program() -> Any:
        f = tf.function(lambda ragged: tf.map_fn(lambda row: tf.size(row @ W), ragged, fn_output_signature=tf.int32))
        g = tf.function(lambda ragged: tf.map_fn(lambda row: tf.reduce_max(row @ W, 0), ragged, fn_output_signature=tf.TensorSpec([8])))
        return f(rows), g(rows)

    run(program, dtype).check()


def test_weights_that_a_loop_does_not_change_give_the_same_over_many_steps(dtype: str) -> None:  # R127, its values
    orthogonal = tf.constant(np.linalg.qr(normal(8, 8, seed=15).numpy())[0], tf.float32)

    def program() -> Any:
        f = tf.function(lambda x: tf.while_loop(lambda i, y: i < 200, lambda i, y: (i + 1, tf.math.l2_normalize(y @ orthogonal, 1)), (0, x))[1])
        return f(X)

    run(program, dtype).check(200)


def test_toy_beam_search_chooses_the_same_tokens(dtype: str) -> None:  # R5
    tokens, beams, steps = 12, 3, 4
    start = tf.constant([0.0] + [-np.inf] * (beams - 1), tf.float32)
    weights = tf.constant(4.0 * np.random.default_rng(3).permutation(np.linspace(-1, 1, tokens * tokens)).reshape(tokens, tokens), tf.float32)

    def program() -> Any:
        @tf.function
        def search() -> Any:
            def body(step: Any, ids: Any, scores: Any, history: Any) -> Any:
                log_probabilities = tf.nn.log_softmax(tf.one_hot(ids, tokens) @ weights)
                best, flat = tf.math.top_k(tf.reshape(scores[:, None] + log_probabilities, [-1]), beams)
                history = tf.concat([tf.gather(history, flat // tokens), (flat % tokens)[:, None]], 1)
                return step + 1, flat % tokens, best, history

            state = (0, tf.zeros([beams], tf.int32), start, tf.zeros([beams, 1], tf.int32))
            shapes = (tf.TensorShape([]), tf.TensorShape([beams]), tf.TensorShape([beams]), tf.TensorShape([beams, None]))
            _, _, scores, history = tf.while_loop(lambda step, *_: step < steps, body, state, shape_invariants=shapes)
            penalty = ((5.0 + tf.cast(steps, tf.float32)) / 6.0) ** 0.6
            return history, scores / penalty

        return search()

    runs = run(program, dtype).check()
    assert np.isfinite(runs.on[1]).all()


def test_nested_loops_and_a_loop_in_a_called_function(dtype: str) -> None:
    def program() -> Any:
        @tf.function
        def inner(x: tf.Tensor) -> tf.Tensor:
            for _ in tf.range(2):
                x = tf.tanh(x @ W)
            return x

        @tf.function
        def outer(x: tf.Tensor) -> tf.Tensor:
            for _ in tf.range(2):
                for _ in tf.range(2):
                    x = tf.tanh(x @ W)
                x += inner(x)
            return x

        return outer(X)

    run(program, dtype).check()


def test_a_loop_whose_condition_multiplies_matrices(dtype: str) -> None:
    def program() -> Any:
        f = tf.function(lambda x: tf.while_loop(lambda y: tf.reduce_sum(tf.abs(y @ W)) > 1.0, lambda y: (0.4 * (y @ W),), (x,))[0])
        return f(X)

    run(program, dtype).check(4 * on_off.ROUNDINGS)


@pytest.mark.parametrize("level", ["default", "tensorflow"])
def test_a_loop_between_products_runs_at_the_exact_level_too(dtype: str, level: str) -> None:
    """There bodies keep their signatures; TensorFlow's pass retypes the loop all the same in bfloat16, and its result does not run."""

    def program() -> Any:
        w = tf.Variable(W)

        @tf.function
        def f(x: tf.Tensor) -> Any:
            return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.nn.relu(y @ w)), (0, x @ w))[1] @ w

        return f(X)

    run(program, dtype, level=level).check()
