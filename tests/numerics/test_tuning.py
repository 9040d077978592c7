"""The search for what to keep in float32: the planted set, in few evaluations, and none of them twice."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings

import tfmp
from tfmp.numerics import Tuned, tune
from tfmp.numerics.tuning import smallest

many = settings(max_examples=300, deadline=None, database=None, derandomize=True)
RULES = tuple(f"layer:l{number}" for number in range(12))


@st.composite
def planted(draw: st.DrawFn) -> tuple[int, frozenset[int]]:
    """A number of candidates and the set that is needed of them."""
    count = draw(st.integers(2, 600))
    return count, frozenset(draw(st.sets(st.integers(0, count - 1), max_size=min(count, 40))))


@given(case=planted())
@example(case=(2, frozenset({0})))
@example(case=(2, frozenset({0, 1})))
@example(case=(5, frozenset({4})))
@example(case=(600, frozenset({599})))
@many
def test_the_planted_set_is_found_in_few_evaluations(case: tuple[int, frozenset[int]]) -> None:
    count, needed = case
    asked: list[frozenset[int]] = []

    def passes(kept: frozenset[int]) -> bool:
        asked.append(kept)
        return needed <= kept

    assert smallest(count, passes) == needed
    assert len(asked) == len(set(asked))
    assert len(asked) <= (2 * len(needed) * math.log2(count) if needed else 3)


@given(count=st.integers(1, 40), answers=st.randoms(use_true_random=False))
@many
def test_whatever_the_answers_the_result_was_accepted(count: int, answers: Any) -> None:
    accepted = {frozenset(range(count))}

    def passes(kept: frozenset[int]) -> bool:
        if answers.random() < 0.5:
            accepted.add(kept)
            return True
        return False

    assert smallest(count, passes) in accepted


class Metric:
    """A metric that is 0.9, or 0.5 unless everything in `needed` is kept; counts how often it is asked."""

    def __init__(self, *needed: str) -> None:
        self.needed, self.asked = set(needed), 0

    def __call__(self, kept: tuple[str, ...]) -> float:
        self.asked += 1
        return 0.9 if self.needed <= set(kept) else 0.5


def search(metric: Callable[[Any], float], **options: Any) -> Tuned:
    return tune(lambda rules: rules, metric, 0.01, RULES, **{"quiet": True, **options})


@pytest.mark.parametrize("needed", [(), RULES[3:4], RULES[:2], (RULES[0], RULES[5], RULES[11]), RULES])
def test_tune_finds_what_is_needed(needed: tuple[str, ...]) -> None:
    metric = Metric(*needed)
    found = search(metric, reference=0.9)
    assert found.keep == needed and found.metric == 0.9
    assert len(found.trials) == metric.asked <= max(3, 2 * len(needed) * math.log2(len(RULES)))
    assert str(found) == f"keep {', '.join(needed) or 'nothing'} in float32: metric 0.9, reference 0.9, {metric.asked} evaluations"


def test_the_reference_is_everything_in_float32() -> None:
    metric = Metric(RULES[3])
    found = search(metric)
    assert (found.reference, found.keep, metric.asked) == (0.9, (RULES[3],), len(found.trials) + 1)


@pytest.mark.parametrize(
    ("better", "metric", "accepted"),
    [("closer", 0.95, False), ("higher", 0.95, True), ("lower", 0.95, False), ("higher", 0.85, False), ("lower", 0.85, True), ("closer", math.nan, False)],
)
def test_what_better_means(better: str, metric: float, accepted: bool) -> None:
    found = search(lambda kept: 0.9 if kept else metric, reference=0.9, better=better)
    assert (found.trials[0].keep, found.trials[0].accepted) == ((), accepted)


def test_a_search_that_was_broken_off_goes_on(tmp_path: pathlib.Path) -> None:
    state, metric = tmp_path / "state.json", Metric(RULES[2], RULES[7])
    whole = search(Metric(RULES[2], RULES[7]))

    def breaking(kept: tuple[str, ...]) -> float:
        if metric.asked == 4:
            raise KeyboardInterrupt
        return metric(kept)

    with pytest.raises(KeyboardInterrupt):
        search(breaking, state=state)
    assert len(json.loads(state.read_text())["evaluations"]) == metric.asked == 4
    found = search(metric, state=state)
    assert found == whole
    assert metric.asked == len(whole.trials) + 1
    assert search(metric, state=state) == whole and metric.asked == len(whole.trials) + 1
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_state_file_of_something_else_is_refused(tmp_path: pathlib.Path) -> None:
    state = tmp_path / "state.json"
    search(Metric(), state=state)
    with pytest.raises(tfmp.TfmpError, match="is of another search"):
        tune(lambda rules: rules, Metric(), 0.01, ["layer:other"], state=state, quiet=True)
    state.write_text("no JSON")
    with pytest.raises(tfmp.TfmpError, match="cannot be read .*; delete it to begin anew"):
        search(Metric(), state=state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": -1.0}, "tolerance is -1.0; it is how far the metric may be from the reference, 0 or more."),
        ({"tolerance": math.nan}, "tolerance is nan; it is how far the metric may be from the reference, 0 or more."),
        ({"better": "bigger"}, "better is 'bigger'; valid values are 'closer', 'higher', 'lower'."),
        ({"candidates": []}, "candidates are []; at least one rule is needed, and each only once."),
        ({"candidates": ["op:Exp", "op:Exp"]}, "candidates are ['op:Exp', 'op:Exp']; at least one rule is needed, and each only once."),
        ({"candidates": None}, "convert(()) returned tuple, not a Keras model with layers; say which rules to choose from: candidates=[...]."),
        ({"evaluate": lambda kept: math.nan}, "the metric to compare with is NaN; evaluate must return a number for float32."),
        ({"reference": 0.99}, "not even everything kept in float32 is good enough: 0.9, reference 0.99."),
    ],
)
def test_what_cannot_be_searched_is_named(options: dict[str, Any], message: str) -> None:
    arguments = {"convert": lambda rules: rules, "evaluate": Metric(), "tolerance": 0.01, "candidates": RULES, "quiet": True}
    with pytest.raises(tfmp.TfmpError) as error:
        tune(**{**arguments, **options})
    assert str(error.value) == message


def test_every_trial_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = search(Metric(RULES[3]), quiet=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tfmp tune: reference 0.9 (everything kept in float32)"
    assert lines[1] == "tfmp tune: 1: 0 of 12 kept in float32: metric 0.5, not good enough"
    assert lines[-1] == f"tfmp tune: {len(found.trials)}: 1 of 12 kept in float32 (layer:l3): metric 0.9, good enough"
    assert len(lines) == len(found.trials) + 1


@pytest.mark.filterwarnings("ignore:tfmp. mixed precision is on, but nothing was converted")
def test_the_layers_of_a_model_that_overflow_are_found() -> None:
    x = np.ones((4, 8), "float32")
    weights = {"one": 0.1, "two": 2e4, "three": 1e-5, "four": 0.1}  # the second computes what the third cannot read in float16

    def convert(rules: tuple[str, ...]) -> Any:
        layers = [keras.layers.Dense(8, name=name, kernel_initializer=keras.initializers.Constant(value)) for name, value in weights.items()]
        model = keras.Sequential([keras.layers.Input((8,)), *layers])
        model.kept = rules
        return model

    def evaluate(model: Any) -> float:
        with tfmp.mixed_precision(dtype="float16", device="CPU", ignore_performance=True, strict=True, keep_float32=model.kept):
            return float(tf.reduce_mean(tf.function(lambda x: model(x))(x)))

    found = tune(convert, evaluate, 0.05, quiet=True)
    assert found.keep == ("layer:two", "layer:three")
    assert found.metric == pytest.approx(8.192, rel=0.01)
