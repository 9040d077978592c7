"""Counts of gradients against NumPy's, and that watching a program changes nothing in it."""

from __future__ import annotations

import pathlib
from typing import Any

import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis.extra.numpy import array_shapes, arrays

from tests.optimizers.families import KERASES, Family
from tfmp import engine
from tfmp.optimizers.gradient_watch import GradientCounts, GradientWatch, by_layer, count_gradients, put_watch, watch_of
from tfmp.optimizers.wrap import wrap

SMALLEST, NORMAL, LARGEST = 2.0**-24, 2.0**-14, 65504.0
EDGES = [
    v for x in (SMALLEST, NORMAL, LARGEST) for v in (np.nextafter(np.float32(x), np.float32(0)), np.float32(x), np.nextafter(np.float32(x), np.float32(np.inf)))
]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, *EDGES, *(-edge for edge in EDGES)]


def by_numpy(values: np.ndarray[Any, Any], scale: float = 1.0) -> GradientCounts:
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(values.astype(np.float64)) * scale
        return GradientCounts(
            values.size,
            int((size == 0).sum()),
            int(((size > 0) & (size < SMALLEST)).sum()),
            int(((size > 0) & (size < NORMAL)).sum()),
            int((~(size <= LARGEST)).sum()),
        )


def counted(*gradients: Any, scale: float = 1.0) -> list[GradientCounts]:
    return [GradientCounts(*row) for row in count_gradients(gradients, scale).numpy().tolist()]


@given(
    st.lists(st.one_of(st.sampled_from(SPECIAL), st.floats(width=32)), max_size=30).map(lambda values: np.array(values, np.float32)),
    st.sampled_from([0, 5, 15]),
)
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
def test_counts_agree_with_numpy(values: np.ndarray[Any, Any], exponent: int) -> None:
    assert counted(tf.constant(values), scale=2.0**exponent) == [by_numpy(values, 2.0**exponent)]


@given(arrays(np.float16, array_shapes(max_dims=3, max_side=4), elements=st.floats(width=16)))
@settings(max_examples=30, deadline=None, database=None, derandomize=True)
def test_counts_of_float16_agree_with_numpy(values: np.ndarray[Any, Any]) -> None:
    assert counted(tf.constant(values)) == [by_numpy(values)]


def test_every_edge_is_on_its_side() -> None:
    # 2^-24, 2^-14 and 65504 themselves are what float16 has; their neighbours outwards are not.
    assert counted(tf.constant(EDGES)) == [GradientCounts(9, 0, 1, 4, 1)]
    assert counted(tf.constant(SPECIAL)) == [GradientCounts(24, 2, 3, 9, 5)]


def test_sparse_and_missing_gradients() -> None:
    sparse = tf.IndexedSlices(tf.constant([[0.0, 1e-9], [1.0, np.inf]]), tf.constant([0, 3]), tf.constant([5, 2]))
    assert counted(sparse, None, tf.zeros([0])) == [GradientCounts(4, 1, 1, 1, 1), GradientCounts(), GradientCounts()]


def test_layers_add_up() -> None:
    rows = [[10, 1, 2, 3, 0], [5, 0, 0, 0, 1], [7, 7, 0, 0, 0]]
    assert by_layer(["net/a/kernel", "net/a/bias", "net/b/kernel:0"], rows) == {
        "net/a": GradientCounts(15, 1, 2, 3, 1),
        "net/b": GradientCounts(7, 7, 0, 0, 0),
    }
    assert by_layer(["alone:0"], [[1, 0, 0, 0, 0]]) == {"alone": GradientCounts(1)}
    assert (GradientCounts(8, 2).share("zeros"), GradientCounts().share("zeros")) == (0.25, 0.0)


def step(watched: bool) -> Any:
    weights = [tf.Variable(tf.ones([8, 8]), name="net/a/kernel"), tf.Variable(tf.ones([8, 8]), name="net/b/kernel")]
    watch = GradientWatch(lambda: 1.0) if watched else None

    @tf.function
    def run(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            y = tf.nn.relu(x @ weights[0]) @ weights[1]
            loss = tf.reduce_sum(y)
        pairs = list(zip(tape.gradient(loss, weights), weights, strict=True))
        if watch is not None:
            watch.look(pairs)
        for gradient, weight in pairs:
            weight.assign_sub(0.1 * gradient)

    concrete = run.get_concrete_function(tf.TensorSpec([4, 8]))
    return engine.convert_function(concrete)


def test_watching_changes_no_colour() -> None:
    def colours(conversion: Any) -> dict[str, bool]:
        return {f"{one.node} {one.attribute}": one.converted for one in conversion.decisions()}

    without, within = step(watched=False), step(watched=True)
    assert without.converted > 0
    assert colours(without).items() <= colours(within).items()
    # What is cast for counting is cast in the branch that counts.
    roots = [next(iter(conversion.bodies.values())).plan for conversion in (without, within)]
    assert roots[0].run_time_casts == roots[1].run_time_casts == without.casts


@pytest.mark.parametrize("family", KERASES, ids=lambda family: family.name)
@pytest.mark.parametrize("compiled", [False, True], ids=["", "xla"])
def test_a_watch_on_an_optimizer_counts_only_when_it_is_on(family: Family, compiled: bool) -> None:
    variable = tf.Variable([1.0, 1.0, 1.0, 1.0], name="net/a/kernel")
    optimizer = family.sgd(0.0)
    watch = GradientWatch(lambda: 1.0)
    put_watch(optimizer, watch)
    assert watch_of(optimizer) is watch and watch_of(family.sgd(0.0)) is None

    @tf.function(jit_compile=compiled)
    def apply(gradient: tf.Tensor) -> None:
        optimizer.apply_gradients([(gradient, variable)])

    apply(tf.constant([0.0, 1e-9, 1e-5, 1.0]))
    assert watch.take() == {"net/a": GradientCounts()}
    watch.switch(True)
    for _ in range(2):
        apply(tf.constant([0.0, 1e-9, 1e-5, np.inf]))
    watch.switch(False)
    apply(tf.constant([0.0, 0.0, 0.0, 0.0]))
    assert watch.take() == {"net/a": GradientCounts(8, 2, 2, 4, 2)}
    assert watch.take() == {"net/a": GradientCounts()}


def test_a_watch_on_a_wrapped_optimizer_leaves_its_state_and_files_alone(tmp_path: pathlib.Path) -> None:
    states = []
    for watched in (False, True):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer = wrap(keras.optimizers.Adam(0.1, name="adam"))
        model.compile(optimizer, "mse")
        if watched:
            put_watch(optimizer, GradientWatch(lambda: 1.0, paths=[variable.path for variable in model.trainable_variables]))
        model.fit(np.ones((4, 2)), np.ones(4), verbose=0)
        checkpoint = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / str(watched)))
        names = [name for name, _ in tf.train.list_variables(checkpoint)]
        states.append((optimizer.get_config()["inner_optimizer"], [variable.shape for variable in optimizer.variables], names))
    assert states[0] == states[1]
