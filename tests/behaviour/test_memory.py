"""Rewritten functions go away with the functions they were made of, and nothing piles up while they are used (R134)."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.func_graph import FuncGraph

from tests.behaviour.on_off import normal, scope

W = normal(8, 8)
SHAPES = 50
"""How many shapes a function is traced for; a fifth of them where a trace is slow."""


def registered() -> set[str]:
    """Returns the names of the functions that the eager context holds."""
    return set(context.context().list_function_names())


def graphs() -> int:
    """Returns how many function graphs are alive."""
    return sum(isinstance(thing, FuncGraph) for thing in gc.get_objects())


def plain_calls(shapes: int) -> None:
    inner = tf.function(lambda x: x @ W)
    f = tf.function(lambda x: tf.nn.relu(inner(x)) @ W)
    for rows in range(1, shapes + 1):
        f(tf.ones([rows, 8]))


def calls_under_a_tape(shapes: int) -> None:
    w = tf.Variable(W)
    f = tf.function(lambda x: tf.reduce_sum(tf.tanh(x @ w) @ w))
    for rows in range(1, shapes // 5 + 1):
        with tf.GradientTape() as tape:
            loss = f(tf.ones([rows, 8]))
        tape.gradient(loss, w)


def second_order(shapes: int) -> None:
    f = tf.function(lambda x: tf.reduce_sum(tf.tanh(x @ W) @ W))
    x = tf.ones([2, 8])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        slope = inner.gradient(y, x)
    outer.gradient(slope, x)


def loops(shapes: int) -> None:
    f = tf.function(lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.cond(y[0, 0] > 0.0, lambda: y @ W, lambda: y)), (0, x))[1])
    for rows in range(1, shapes // 5 + 1):
        f(tf.ones([rows, 8]))


def keras_training(shapes: int) -> None:
    import keras

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(W.numpy(), W.numpy()[:, :1])
    model.predict(W.numpy(), verbose=0)
    keras.backend.clear_session()


USES = {use.__name__: use for use in (plain_calls, calls_under_a_tape, second_order, loops, keras_training)}


@pytest.mark.parametrize("use", USES)
def test_nothing_is_left_when_the_functions_are_gone(use: str) -> None:
    def left(inside: Any, shapes: int) -> tuple[set[str], int]:
        with inside:
            USES[use](5)  # what a first use makes for good
            gc.collect()
            names, alive = registered(), graphs()
            USES[use](shapes)
            gc.collect()
            return registered() - names, graphs() - alive

    names, alive = left(scope("float16"), SHAPES)
    assert not {name for name in names if "tfmp" in name}
    names_off, alive_off = left(scope("float16", graph_rewrite=False), 5)
    assert len(names) <= len(names_off)
    assert alive <= alive_off


def test_calls_add_no_functions() -> None:
    with scope("float16"):
        w = tf.Variable(W)
        f = tf.function(lambda x: tf.reduce_sum(x @ w))

        def step() -> None:
            with tf.GradientTape() as tape:
                loss = f(tf.ones([4, 8]))
            w.assign_sub(1e-3 * tape.gradient(loss, w))

        step()
        gc.collect()
        before = len(registered())
        for _ in range(1000):
            step()
        gc.collect()
        assert len(registered()) == before


def test_a_rewritten_concrete_function_is_collected_by_itself() -> None:
    with scope("float16"):
        f = tf.function(lambda x: x @ W)
        f(W)
        concrete = weakref.ref(f.get_concrete_function(W))
        (name,) = (name for name in registered() if "tfmp" in name and concrete().name.decode() in name)
    del f
    gc.collect()
    assert concrete() is None
    assert name not in registered()


def test_a_rewritten_function_outlives_the_scope_and_its_python_function() -> None:
    def make() -> Any:
        with scope("float16"):
            f = tf.function(lambda x: x @ W)
            return f.get_concrete_function(W)

    concrete = make()
    gc.collect()
    assert concrete(W).dtype == tf.float32
    gc.collect()
    assert concrete(W).shape == [8, 8]
