"""Loss scaling together with the graph rewrite: what holds in float32 holds when the step's matrix products run in float16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.optimizers.families import FAMILIES, KERASES, Family, make_function, set_scale, train_step
from tests.optimizers.test_wrappers import Problem, inner_variables, steps_in_graph
from tfmp.optimizers.policies import DynamicLossScale
from tfmp.optimizers.wrap import wrap

rewritten = pytest.mark.usefixtures("rewriting")
families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
jits = pytest.mark.parametrize("jit", [False, True], ids=["interpreted", "compiled"])


@pytest.fixture
def rewriting() -> Iterator[None]:
    """Converts to float16 what the test traces, and makes sure that something was converted."""
    before = len(tfmp.report())
    with tfmp.mixed_precision(dtype="float16", ignore_performance=True, loss_scaling=False):
        yield
    assert sum(record.converted for record in tfmp.report()[before:]) > 0


class SmallProblem(Problem):
    """Like `Problem`, with gradients below 2, so that a scale of 2^15 keeps them in float16's range."""

    def loss(self) -> tf.Tensor:
        return super().loss() / 16.0


def step_of(family: Family, optimizer: Any, problem: Problem, jit: bool) -> Any:
    return make_function(lambda: train_step(family, optimizer, problem.loss, problem.variables), "jit" if jit else "function")


@rewritten
@families
@jits
def test_three_hundred_overflows_change_nothing_but_the_scale(family: Family, jit: bool) -> None:
    problem, optimizer = SmallProblem(), wrap(family.adam(0.1), DynamicLossScale(growth_interval=2))
    step = step_of(family, optimizer, problem, jit)
    step()
    before = problem.weights() + [np.array(variable) for variable in inner_variables(family, optimizer)]
    problem.spoil.assign(np.inf)
    for _ in range(300):
        step()
    np.testing.assert_equal(problem.weights() + [np.array(variable) for variable in inner_variables(family, optimizer)], before)
    assert vars(optimizer.loss_scale_state()) == dict(vars(optimizer.loss_scale_state()), scale=1.0, skipped_steps=300, skip_run=300)
    problem.spoil.assign(0.0)
    step()
    assert any((now != then).any() for now, then in zip(problem.weights(), before, strict=False))


@rewritten
@families
@jits
def test_ten_thousand_growth_periods_never_pass_the_maximum(family: Family, jit: bool) -> None:
    """A maximum within float16's range holds; without one the step overflows each time the scale has passed that range, and the scale falls and goes on."""
    problem, optimizer = SmallProblem(), wrap(family.sgd(1e-4), DynamicLossScale(growth_interval=1, initial=2.0**10, maximum=2.0**13))
    run = steps_in_graph(family, optimizer, problem, jit)
    run(10_000)
    state = optimizer.loss_scale_state()
    assert (state.scale, state.steps, state.skipped_steps) == (2.0**13, 10_000, 0)
    assert all(np.isfinite(weight).all() for weight in problem.weights())


@rewritten
@families
@jits
def test_a_scale_that_only_float16_bounds_grows_and_falls_in_turn(family: Family, jit: bool) -> None:
    problem, optimizer = SmallProblem(), wrap(family.sgd(1e-4), DynamicLossScale(growth_interval=1))
    run = steps_in_graph(family, optimizer, problem, jit)
    run(1_000)
    state = optimizer.loss_scale_state()
    assert state.steps == 1_000
    assert 2.0**14 <= state.scale <= 2.0**17
    assert 100 < state.skipped_steps < 600
    assert all(np.isfinite(weight).all() for weight in problem.weights())


@rewritten
@families
@jits
def test_a_real_float16_overflow_is_skipped_until_the_scale_fits(family: Family, jit: bool) -> None:
    problem, optimizer = SmallProblem(), wrap(family.sgd(0.1), DynamicLossScale(initial=2.0**24))
    step, before = step_of(family, optimizer, problem, jit), problem.weights()
    for _ in range(12):
        step()
    state = optimizer.loss_scale_state()
    assert 5 <= state.skipped_steps <= 9
    assert state.scale == 2.0 ** (24 - state.skipped_steps)
    assert state.good_steps == 12 - state.skipped_steps
    assert any((now != then).any() for now, then in zip(problem.weights(), before, strict=True))


@rewritten
@pytest.mark.parametrize("clipping", [{"clipnorm": 0.5}, {"global_clipnorm": 0.5}, {"clipvalue": 0.25}], ids=lambda clipping: next(iter(clipping)))
@pytest.mark.parametrize("family", KERASES, ids=lambda family: family.name)
@jits
def test_clipped_updates_are_the_same_at_every_scale(family: Family, jit: bool, clipping: dict[str, float]) -> None:
    """Powers of two change no digit of a float16 number in its normal range."""
    problem, results = SmallProblem(), []
    start, optimizer = problem.weights(), wrap(family.sgd(0.1, **clipping))
    step = step_of(family, optimizer, problem, jit)
    for scale in (1, 2**10, 2**15):
        set_scale(optimizer, scale)
        for variable, value in zip(problem.variables, start, strict=True):
            variable.assign(value)
        step()
        step()
        results.append(np.concatenate(problem.weights(), axis=None))
    assert int(optimizer.skipped_steps) == 0
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


@rewritten
@pytest.mark.parametrize("family", KERASES, ids=lambda family: family.name)
@jits
def test_fit_skips_a_bad_batch_and_learns(family: Family, jit: bool) -> None:
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    y = x @ np.float32([[1, 2], [-1, 0.5], [0.5, 1]])
    spoilt = x.copy()
    spoilt[9] = np.inf
    family.keras.utils.set_random_seed(0)
    layers = family.keras.layers
    model = family.keras.Sequential([layers.Input((3,)), layers.Dense(8, activation="tanh"), layers.Dense(2)])
    optimizer = wrap(family.adam(0.02), DynamicLossScale(initial=2.0**10))
    model.compile(optimizer, "mse", jit_compile=jit)
    before = model.evaluate(x, y, verbose=0)
    model.fit(spoilt, y, batch_size=8, epochs=4, verbose=0, shuffle=False)
    assert int(optimizer.skipped_steps) == 4
    assert int(optimizer.iterations) == 28
    assert model.evaluate(x, y, verbose=0) < before / 2
