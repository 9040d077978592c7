"""What holds for the wrappers of all families alike, run eagerly, as a function and compiled."""

from __future__ import annotations

import copy
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.families import FAMILIES, KERAS3, KERASES, LEGACY, MODES, TF_KERAS, V1, Family, gradients_for, make_function, set_scale, train_step
from tfmp.optimizers.loss_scale import ScaleState, initial_state, next_state
from tfmp.optimizers.policies import DynamicLossScale, FixedLossScale
from tfmp.optimizers.wrap import wrap

families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
kerases = pytest.mark.parametrize("family", KERASES, ids=lambda family: family.name)
modes = pytest.mark.parametrize("mode", MODES)


class Problem:
    """A linear model whose gradients are infinite or NaN exactly when `spoil` is."""

    def __init__(self) -> None:
        self.variables = [tf.Variable([[1.0, -2.0], [0.5, 4.0]]), tf.Variable([0.25, -0.75])]
        self.spoil = tf.Variable(0.0)

    def loss(self) -> tf.Tensor:
        kernel, bias = self.variables
        output = tf.constant([[1.0, 2.0], [3.0, -1.0]]) @ kernel + bias
        return tf.reduce_mean(output**2) + self.spoil * tf.reduce_sum(kernel)

    def weights(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self.variables]


def trainer(family: Family, optimizer: Any, problem: Problem, mode: str) -> Callable[[], None]:
    return make_function(lambda: train_step(family, optimizer, problem.loss, problem.variables), mode)


def steps_in_graph(family: Family, optimizer: Any, problem: Problem, jit: bool) -> Callable[[int], None]:
    """Many steps by one call: the loop is in the graph, or in the compiled program."""

    @tf.function(jit_compile=jit)
    def run(count: tf.Tensor) -> None:
        for _ in tf.range(count):
            train_step(family, optimizer, problem.loss, problem.variables)

    return lambda count: run(tf.constant(count))


@families
@modes
def test_three_hundred_overflows_change_nothing_but_the_scale(family: Family, mode: str) -> None:  # R65
    problem, optimizer = Problem(), wrap(family.adam(0.1), DynamicLossScale(growth_interval=2))
    step = trainer(family, optimizer, problem, mode)
    step()
    before = problem.weights() + [np.array(variable) for variable in inner_variables(family, optimizer)]
    problem.spoil.assign(np.inf)
    for _ in range(300):
        step()
    after = problem.weights() + [np.array(variable) for variable in inner_variables(family, optimizer)]
    np.testing.assert_equal(after, before)
    state = optimizer.loss_scale_state()
    assert (state.scale, state.skipped_steps, state.consecutive_skips(), state.last_skip_step) == (1.0, 300, 300, 301)
    assert bool(optimizer.last_step_skipped)
    problem.spoil.assign(0.0)
    step()
    assert not bool(optimizer.last_step_skipped)
    assert any((now != then).any() for now, then in zip(problem.weights(), before, strict=False))
    step()
    assert float(optimizer.scale) == 2.0


def inner_variables(family: Family, optimizer: Any) -> list[Any]:
    inner = optimizer.inner_optimizer
    return list(inner.variables() if family in (LEGACY, V1) else inner.variables)


@families
@pytest.mark.parametrize("jit", [False, True], ids=["loop", "compiled loop"])
def test_ten_thousand_growth_periods_stop_at_the_maximum(family: Family, jit: bool) -> None:  # R68
    problem, optimizer = Problem(), wrap(family.sgd(1e-3), DynamicLossScale(growth_interval=1))
    run = steps_in_graph(family, optimizer, problem, jit)
    run(8)
    assert float(optimizer.scale) == 2.0**23
    run(9_992)
    assert float(optimizer.scale) == 2.0**24
    assert optimizer.loss_scale_state().steps == 10_000
    assert np.isfinite(problem.weights()[0]).all()
    problem.spoil.assign(np.nan)
    run(1)
    assert float(optimizer.scale) == 2.0**23


@families
@modes
def test_a_pattern_of_overflows_is_followed_step_by_step(family: Family, mode: str) -> None:  # R77, R79
    policy = DynamicLossScale(initial=64, growth_interval=2, minimum=4, hysteresis=2)
    problem, optimizer, expected = Problem(), wrap(family.adam(0.1), policy), initial_state(policy)
    step, iterations = trainer(family, optimizer, problem, mode), 0
    for spoil in [0, 0, np.inf, np.nan, 0, -np.inf, np.inf, 0, 0, 0]:
        problem.spoil.assign(spoil)
        before = problem.weights()
        step()
        expected = next_state(policy, expected, spoil == 0, bad_gradient=0)
        iterations += spoil == 0
        assert optimizer.loss_scale_state() == expected
        assert bool(optimizer.last_step_skipped) == (spoil != 0)
        assert all((now == then).all() for now, then in zip(problem.weights(), before, strict=True)) == (spoil != 0)
        if family is not V1:
            assert int(optimizer.iterations) == int(optimizer.inner_optimizer.iterations) == iterations


@families
def test_a_step_tells_in_the_same_function_whether_it_was_skipped(family: Family) -> None:  # R79, R91
    problem, optimizer = Problem(), wrap(family.adam(0.1))

    @tf.function
    def step() -> tuple[tf.Tensor, ...]:
        train_step(family, optimizer, problem.loss, problem.variables)
        return optimizer.last_step_skipped, optimizer.skipped_steps, optimizer.scale

    assert [float(one) for one in step()] == [0, 0, 2**15]
    problem.spoil.assign(np.inf)
    assert [float(one) for one in step()] == [1, 1, 2**14]


CLIPPINGS = {"clipnorm": 0.5, "global_clipnorm": 0.5, "clipvalue": 0.25}


@pytest.mark.parametrize("clipping", CLIPPINGS)
@kerases
@pytest.mark.parametrize("mode", ["function", "jit"])
def test_clipping_acts_on_unscaled_gradients(family: Family, mode: str, clipping: str) -> None:  # R73
    plain, problem = Problem(), Problem()
    unwrapped = trainer(family, family.sgd(0.1, **{clipping: CLIPPINGS[clipping]}), plain, mode)
    unwrapped()
    unwrapped()
    start, optimizer = problem.weights(), wrap(family.sgd(0.1, **{clipping: CLIPPINGS[clipping]}))
    step = trainer(family, optimizer, problem, mode)
    for scale in (1, 2**10, 2**15):
        set_scale(optimizer, scale)
        for variable, value in zip(problem.variables, start, strict=True):
            variable.assign(value)
        step()
        step()
        np.testing.assert_equal(problem.weights(), plain.weights())


@pytest.mark.parametrize("clip", [lambda g: tf.clip_by_norm(g, 0.5), lambda g: tf.clip_by_value(g, -0.25, 0.25)], ids=["norm", "value"])
@families
def test_gradients_clipped_by_hand_are_unscaled_ones(family: Family, clip: Callable[[Any], Any]) -> None:  # R73
    results = []
    for scale in (1, 2**10, 2**15):
        problem, optimizer = Problem(), wrap(family.sgd(0.1), scale)
        gradients = scaled_then_unscaled(family, optimizer, problem)
        optimizer.apply_gradients([(clip(gradient), variable) for gradient, variable in zip(gradients, problem.variables, strict=True)])
        results.append(np.concatenate(problem.weights(), axis=None))
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


def scaled_then_unscaled(family: Family, optimizer: Any, problem: Problem) -> list[Any]:
    """The idiom that all families have: `get_scaled_loss` and `get_unscaled_gradients`."""
    with tf.GradientTape() as tape:
        loss = optimizer.get_scaled_loss(problem.loss())
    return optimizer.get_unscaled_gradients(tape.gradient(loss, problem.variables))


@families
def test_gradients_a_user_sees_are_those_of_the_unscaled_loss(family: Family) -> None:  # R74
    problem = Problem()
    with tf.GradientTape() as tape:
        loss = problem.loss()
    expected = tape.gradient(loss, problem.variables)
    for scale in (1, 2**10, 2**15):
        seen = scaled_then_unscaled(family, wrap(family.sgd(0.1), scale), problem)
        assert float(tf.linalg.global_norm(seen)) == float(tf.linalg.global_norm(expected))
    problem.spoil.assign(np.inf)
    assert not np.isfinite(tf.linalg.global_norm(scaled_then_unscaled(family, wrap(family.sgd(0.1)), problem)))


@families
def test_clipping_by_hand_cannot_hide_an_overflow(family: Family) -> None:
    problem, optimizer = Problem(), wrap(family.sgd(0.1))
    problem.spoil.assign(np.inf)
    before = problem.weights()
    clipped = [tf.clip_by_value(gradient, -1.0, 1.0) for gradient in scaled_then_unscaled(family, optimizer, problem)]
    assert np.isfinite(tf.linalg.global_norm(clipped))
    optimizer.apply_gradients(list(zip(clipped, problem.variables, strict=True)))
    np.testing.assert_equal(problem.weights(), before)
    assert int(optimizer.skipped_steps) == 1


@families
def test_an_overflow_that_only_the_user_made_is_found(family: Family) -> None:
    problem, optimizer = Problem(), wrap(family.sgd(0.1))
    before = problem.weights()
    noisy = [gradient / 0.0 for gradient in scaled_then_unscaled(family, optimizer, problem)]
    optimizer.apply_gradients(list(zip(noisy, problem.variables, strict=True)))
    np.testing.assert_equal(problem.weights(), before)
    assert int(optimizer.skipped_steps) == 1


@families
@modes
def test_variables_without_gradient_are_left_alone(family: Family, mode: str) -> None:  # R70
    problem, optimizer, unused = Problem(), wrap(family.adam(0.1)), tf.Variable(3.0)
    variables = [unused, *problem.variables]
    step = make_function(lambda: train_step(family, optimizer, problem.loss, variables), mode)
    before = problem.weights()
    step()
    assert float(unused) == 3.0
    assert (problem.weights()[0] != before[0]).any()
    problem.spoil.assign(np.nan)
    step()
    assert int(optimizer.skipped_steps) == 1
    assert int(optimizer.loss_scale_state().last_bad_gradient) == 1  # counted with the one that is None
    assert optimizer.last_bad_variable == problem.variables[0].name


@families
def test_no_gradient_at_all_is_an_error_that_changes_nothing(family: Family) -> None:  # R71
    problem, optimizer = Problem(), wrap(family.sgd(0.1))
    optimizer.scale_loss(1.0) if family is KERAS3 else optimizer.get_scaled_loss(1.0)
    before = optimizer.loss_scale_state()
    with pytest.raises(ValueError, match="No gradients provided for any variable: all of .* have the gradient None. The loss scale is unchanged."):
        optimizer.apply_gradients([(None, variable) for variable in problem.variables])
    assert optimizer.loss_scale_state() == before


@kerases
def test_an_empty_list_of_gradients_does_nothing(family: Family) -> None:  # R71
    optimizer = wrap(family.sgd(0.1))
    before = optimizer.loss_scale_state()
    optimizer.apply_gradients([])
    assert optimizer.loss_scale_state() == before


@families
@modes
def test_an_embedding_of_a_million_rows_is_trained_sparsely(family: Family, mode: str) -> None:  # R72
    rows = 1_000_000
    table, spoil = tf.Variable(tf.ones([rows, 8])), tf.Variable(0.0)
    optimizer, kinds, largest = wrap(family.sgd(0.5)), [], []

    def loss() -> tf.Tensor:
        picked = tf.nn.embedding_lookup(table, tf.constant([1, 7, 7, 999_999]))
        return tf.reduce_sum(picked) + spoil * tf.reduce_sum(picked[2])

    def step() -> None:
        gradients = gradients_for(family, optimizer, loss, [table])
        kinds.extend(type(gradient) for gradient in gradients)
        optimizer.apply_gradients([(gradients[0], table)])
        if not tf.executing_eagerly():
            graph = tf.compat.v1.get_default_graph()
            outputs = [output for operation in graph.get_operations() for output in operation.outputs]
            largest.append(max((output.shape.num_elements() or 0) for output in outputs if output.dtype != tf.resource))

    run = make_function(step, mode)
    run()
    assert kinds == [tf.IndexedSlices] * len(kinds)
    assert all(size < rows for size in largest)
    expected = np.ones(rows)
    np.subtract.at(expected, [1, 7, 7, 999_999], 0.5)
    np.testing.assert_array_equal(table.numpy()[:, 0], expected)
    spoil.assign(np.inf)
    run()
    np.testing.assert_array_equal(table.numpy()[:, 0], expected)
    assert int(optimizer.skipped_steps) == 1


@families
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@modes
def test_variables_of_other_dtypes_are_trained(family: Family, dtype: str, mode: str) -> None:
    variable, spoil = tf.Variable(tf.constant([1.0, 2.0], dtype)), tf.Variable(0.0)
    optimizer = wrap(family.sgd(0.25), DynamicLossScale(initial=256))

    def loss() -> tf.Tensor:
        return tf.reduce_sum(variable * variable) + tf.cast(spoil, dtype) * variable[0]

    step = make_function(lambda: train_step(family, optimizer, loss, [variable]), mode)
    step()
    assert variable.numpy().astype(np.float64).tolist() == [0.5, 1.0]
    spoil.assign(np.inf)
    step()
    assert variable.numpy().astype(np.float64).tolist() == [0.5, 1.0]
    assert optimizer.loss_scale_state() == ScaleState(128.0, 0, 0, 1, 1, 2, 0)


@families
@pytest.mark.parametrize("exponent", [15, 16, 20])
def test_a_float16_loss_can_have_any_scale(family: Family, exponent: int) -> None:  # R88
    variable = tf.Variable([1.0, 2.0])
    optimizer = wrap(family.sgd(0.25), DynamicLossScale(initial=2.0**exponent))

    def loss() -> tf.Tensor:
        return tf.cast(tf.reduce_sum(variable * variable), tf.float16)

    for _ in range(exponent - 14):  # float16 itself holds no gradient of 2^16 or more: the scale falls below
        train_step(family, optimizer, loss, [variable])
    assert variable.numpy().tolist() == [0.5, 1.0]
    assert float(optimizer.scale) == 2.0**15


@families
@modes
def test_no_scaling_passes_everything_through(family: Family, mode: str) -> None:  # R85
    results, operations = [], []
    for optimizer in (family.adam(0.1), wrap(family.adam(0.1), None)):
        problem = Problem()
        run = trainer(family, optimizer, problem, mode)
        for _ in range(3):
            run()
        results.append(np.concatenate(problem.weights(), axis=None))
        problem.spoil.assign(np.inf)
        run()
        assert not np.isfinite(problem.weights()[0]).all()
        if mode != "eager":
            operations.append(sorted(one.type for one in run.get_concrete_function().graph.get_operations()))
    np.testing.assert_array_equal(results[0], results[1])
    assert float(optimizer.scale) == 1.0
    assert mode == "eager" or operations[0] == operations[1]


@families
@modes
def test_a_fixed_scale_stays_and_skips(family: Family, mode: str) -> None:
    problem, optimizer = Problem(), wrap(family.sgd(0.1), 1024)
    step = trainer(family, optimizer, problem, mode)
    step()
    before = problem.weights()
    problem.spoil.assign(np.inf)
    step()
    np.testing.assert_equal(problem.weights(), before)
    assert optimizer.loss_scale_state() == ScaleState(1024.0, 0, 0, 1, 1, 2, 0)


@families
@modes
def test_a_fixed_scale_can_be_told_to_never_skip(family: Family, mode: str) -> None:
    problem, optimizer = Problem(), wrap(family.sgd(0.1), FixedLossScale(1024, skip_nonfinite=False))
    step = trainer(family, optimizer, problem, mode)
    problem.spoil.assign(np.inf)
    step()
    assert not np.isfinite(problem.weights()[0]).any()
    assert int(optimizer.skipped_steps) == 0


@families
def test_gradients_of_a_loss_that_was_never_scaled_are_warned_about_once(family: Family, caplog: pytest.LogCaptureFixture) -> None:  # R86
    problem, optimizer = Problem(), wrap(family.sgd(0.1))
    with tf.GradientTape() as tape:
        loss = problem.loss()
    pairs = list(zip(tape.gradient(loss, problem.variables), problem.variables, strict=True))
    with caplog.at_level("WARNING", logger="absl"):
        optimizer.apply_gradients(pairs)
        optimizer.apply_gradients(pairs)
    messages = [record.getMessage() for record in caplog.records if "not scaled" in record.getMessage()]
    assert len(messages) == 1
    assert "get_scaled_loss" in messages[0]


@families
def test_a_scale_of_a_half_is_allowed_and_found_to_overflow(family: Family) -> None:
    """Below a scale of 1, dividing can make a finite gradient infinite: the test looks at the unscaled one."""
    variable = tf.Variable([1e38, 1.0])
    optimizer = wrap(family.sgd(1e-3), DynamicLossScale(initial=0.125, minimum=0.0625))
    train_step(family, optimizer, lambda: tf.reduce_sum(variable * tf.constant([3e38, 1.0])) * 4.0, [variable])
    assert int(optimizer.skipped_steps) == 1


@families
@modes
@pytest.mark.parametrize("dead", [0.0, 1e-40, np.nan, np.inf])
def test_a_dead_scale_from_a_foreign_checkpoint_harms_no_weight_and_comes_back_to_life(family: Family, mode: str, dead: float) -> None:
    problem, optimizer = Problem(), wrap(family.sgd(0.1), DynamicLossScale(maximum=64, initial=64))
    step, before = trainer(family, optimizer, problem, mode), problem.weights()
    set_scale(optimizer, dead)
    step()
    np.testing.assert_equal(problem.weights(), before)
    assert float(optimizer.scale) in (1.0, 64.0)
    step()
    assert all((now != then).all() for now, then in zip(problem.weights(), before, strict=True))
    assert optimizer.loss_scale_state().skipped_steps == 1


@families
def test_a_fixed_scale_is_not_moved_by_a_checkpoint(family: Family, tmp_path: pathlib.Path) -> None:
    path = tf.train.Checkpoint(optimizer=wrap(family.sgd(0.1), 64)).write(str(tmp_path / "64"))
    optimizer = wrap(family.sgd(0.1), 128)
    tf.train.Checkpoint(optimizer=optimizer).read(path).expect_partial()
    assert float(optimizer.scale) == optimizer.loss_scale_state().scale == 128.0


@families
def test_the_bad_variable_is_named_whichever_list_of_variables_it_was_in(family: Family) -> None:
    """Two functions for two lists of variables, as in a GAN with one optimizer; the second one was traced last."""
    variables = [tf.Variable([1.0], name=name) for name in ("generator", "critic", "rare")]
    optimizer, spoil = wrap(family.sgd(0.1)), tf.Variable(0.0)
    if family in (KERAS3, TF_KERAS):
        optimizer.build(variables)

    def function_for(part: slice) -> Callable[[], None]:
        loss = lambda: tf.add_n([tf.reduce_sum(variable) for variable in variables[part]]) + spoil * variables[part][-1][0]  # noqa: E731
        return make_function(lambda: train_step(family, optimizer, loss, variables[part]), "function")

    first, second = function_for(slice(0, 1)), function_for(slice(1, 3))
    first()
    second()
    spoil.assign(np.inf)
    for step, name in ((first, "generator:0"), (second, "rare:0"), (first, "generator:0")):
        step()
        assert optimizer.last_bad_variable == name


@families
def test_a_loop_of_ones_own_can_ask_whether_it_is_stuck(family: Family, caplog: pytest.LogCaptureFixture) -> None:
    problem, optimizer = Problem(), wrap(family.sgd(0.1), DynamicLossScale(initial=4))
    step, answers = trainer(family, optimizer, problem, "function"), []
    with caplog.at_level("WARNING", logger="absl"):
        for spoil in [np.inf] * 5 + [0.0] + [np.nan] * 5:
            problem.spoil.assign(spoil)
            step()
            answers.append(optimizer.check_loss_scale(patience=4, loss=2.5))
    assert answers == [False] * 3 + [True] * 2 + [False] * 4 + [True] * 2
    messages = [record.getMessage() for record in caplog.records if "Training is stuck" in record.getMessage()]
    assert len(messages) == 2
    assert f"First bad gradient: {problem.variables[0].name}. Last loss: 2.5. 9 of 10 steps were skipped so far." in messages[1]
    with pytest.raises(RuntimeError, match="Training is stuck: the last 5 steps were skipped"):
        optimizer.check_loss_scale("raise", patience=4)
    with pytest.raises(ValueError, match="at_floor='stop' must be one of 'warn', 'raise', 'ignore'."):
        optimizer.check_loss_scale("stop")


COPIES = {
    "copy": (copy.deepcopy, (KERAS3, LEGACY, V1)),  # tf_keras's optimizers themselves cannot be copied, nor can its legacy ones be pickled
    "pickle": (lambda optimizer: pickle.loads(pickle.dumps(optimizer)), (KERAS3, V1)),
}


@pytest.mark.parametrize(("way", "family"), [pytest.param(way, one, id=f"{way}-{one.name}") for way, (_, able) in COPIES.items() for one in able])
def test_a_copy_has_the_scale_and_goes_its_own_way(way: str, family: Family) -> None:
    optimizer = wrap(family.adam(0.1), DynamicLossScale(initial=64))
    set_scale(optimizer, 32.0)
    twin, state = COPIES[way][0](optimizer), optimizer.loss_scale_state()
    assert (twin.loss_scale_state(), twin.loss_scale_policy) == (state, optimizer.loss_scale_policy)
    assert twin.inner_optimizer is not optimizer.inner_optimizer
    set_scale(optimizer, 16.0)
    assert twin.loss_scale_state() == state
    if family is not V1:
        assert float(twin.loss_scale_record.result()) == 32.0


@families
def test_the_classic_names_and_readings_are_there(family: Family) -> None:
    optimizer = wrap(family.sgd(0.1), DynamicLossScale(initial=8))
    assert float(optimizer.get_scaled_loss(tf.constant(2.0))) == 16.0
    assert float(optimizer.get_scaled_loss(lambda: tf.constant(2.0))()) == 16.0
    assert optimizer.get_unscaled_gradients([tf.constant(16.0), None])[0] == 2.0
    assert [int(one) for one in (optimizer.skipped_steps, optimizer.consecutive_skips, optimizer.last_skip_step)] == [0, 0, 0]
    assert optimizer.last_bad_variable == ""
    assert optimizer.loss_scale_policy == DynamicLossScale(initial=8)
    if family in (TF_KERAS, LEGACY):
        assert (optimizer.dynamic, float(optimizer.loss_scale), optimizer.initial_scale, optimizer.dynamic_growth_steps) == (True, 8, 8, 2000)
        assert int(optimizer.dynamic_counter) == 0
    if family is KERAS3:
        assert (float(optimizer.dynamic_scale), optimizer.initial_scale, optimizer.dynamic_growth_steps) == (8, 8, 2000)
        assert int(optimizer.step_counter) == 0


def own_kind(family: Family, method: str) -> Any:
    """An SGD of the family whose `method` takes the mean off every gradient."""

    def centred(pairs: Any) -> list[Any]:
        return [(gradient - tf.reduce_mean(gradient), variable) for gradient, variable in pairs]

    def override(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        inherited = getattr(super(kind, self), method)
        return inherited(centred(first), *args, **kwargs) if method == "apply_gradients" else centred(inherited(first, *args, **kwargs))

    kind: Any = type("Centred", (family.sgd,), {method: override})
    return kind


OVERRIDES = [(family, "apply_gradients") for family in FAMILIES] + [(TF_KERAS, "compute_gradients"), (LEGACY, "_compute_gradients"), (V1, "compute_gradients")]


@pytest.mark.parametrize(("family", "method"), OVERRIDES, ids=str)
def test_what_a_users_optimizer_overrides_is_called(family: Family, method: str) -> None:
    weight, results = tf.Variable([[1.0, 2.0, 5.0]]), []
    for wrapping in (lambda optimizer: optimizer, wrap):
        optimizer = wrapping(own_kind(family, method)(0.1))
        weight.assign([[1.0, 2.0, 5.0]])
        if hasattr(optimizer, "minimize"):
            optimizer.minimize(lambda: tf.reduce_sum(weight**2), var_list=[weight])
        else:
            train_step(family, optimizer, lambda: tf.reduce_sum(weight**2), [weight])
        results.append(weight.numpy().tolist())
    assert results[0] == results[1]
    assert abs(sum(results[0][0]) - 8.0) < 1e-5  # gradients without their mean leave the sum of the weights alone


@pytest.mark.parametrize("family", [TF_KERAS, LEGACY, V1], ids=lambda family: family.name)
def test_a_minimize_of_its_own_is_refused_unless_nothing_is_scaled(family: Family) -> None:
    class First(family.sgd):  # type: ignore[misc, name-defined]
        def minimize(self, loss: Any, var_list: Any, *args: Any, **kwargs: Any) -> Any:
            return super().minimize(loss, var_list=var_list[:1], *args, **kwargs)  # noqa: B026

    with pytest.raises(ValueError, match=r"First has a `minimize` of its own, which a loss scale cannot get in between: .* or use loss_scale=None."):
        wrap(First(0.1))
    weights, optimizer = [tf.Variable(1.0), tf.Variable(1.0)], wrap(First(0.1), None)
    optimizer.minimize(lambda: weights[0] ** 2 + weights[1] ** 2, var_list=weights)
    assert [float(weight) for weight in weights] == [pytest.approx(0.8), 1.0]
