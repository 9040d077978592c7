"""Several normalisations of one tensor, or of tensors that are made of it: each has kernels of its own, forward and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings

from tests.fusion.running import FusedFunction, agree, with_gradients
from tests.fusion.test_needed import agree as agree_about_needs
from tests.fusion.test_needed import told  # noqa: F401
from tests.fusion.test_norms import BACKWARD, FORWARD, random
from tfmp.graph.edit import OURS

SHAPES = {"channels": (6, 5, 4), "rows": (5, 16)}
AXES = {"channels": (0, 1, 2), "rows": (-1,)}

Norm = Callable[[tf.Tensor], tf.Tensor]


class Norms:
    """Normalisations of channels or rows, to be used in one function.

    Attributes:
      variables: of all.
    """

    def __init__(self, where: str) -> None:
        self._axes, self._channels = AXES[where], SHAPES[where][-1]
        self.variables: list[tf.Variable] = []
        self.first, self.second, self.third = self._scaled(1e-3), self._scaled(1e-2), self._scaled(1e-1)

    def _scaled(self, epsilon: float) -> Norm:
        scale, offset = (tf.Variable(random(self._channels, seed=len(self.variables) + place)) for place in (1, 2))
        self.variables += [scale, offset]
        return lambda x: tf.nn.batch_normalization(x, *self.moments(x), offset, scale, epsilon)

    def bare(self, x: tf.Tensor) -> tf.Tensor:
        mean, variance = self.moments(x)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3)

    def moments(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.nn.moments(x, self._axes, keepdims=True)  # type: ignore[no-any-return]


PROGRAMS: dict[str, Callable[[Norms, tf.Tensor], tf.Tensor]] = {
    "parallel": lambda norms, x: x + tf.sin(norms.first(x)) + tf.tanh(norms.second(x)),
    "no shortcut": lambda norms, x: tf.sin(norms.first(x)) + tf.tanh(norms.second(x)),
    "three": lambda norms, x: tf.sin(norms.first(x)) + tf.tanh(norms.second(x)) + tf.cos(norms.third(x)),
    "one layer twice": lambda norms, x: tf.sin(norms.first(x)) + tf.tanh(norms.first(x)),
    "added at once": lambda norms, x: x + norms.first(x) + norms.second(x),
    "moved": lambda norms, x: tf.sin(norms.first(x)) + tf.tanh(norms.second(x + 1.0)),
    "moved before": lambda norms, x: tf.tanh(norms.second(x + 1.0)) + tf.sin(norms.first(x)),
    "doubled": lambda norms, x: tf.sin(norms.first(x)) + tf.tanh(norms.second(2.0 * x)),
    "doubled before": lambda norms, x: tf.tanh(norms.second(2.0 * x)) + tf.sin(norms.first(x)),
    "doubled, added at once": lambda norms, x: norms.first(x) + norms.second(2.0 * x),
    "shaped like another one": lambda norms, x: tf.reshape(tf.sin(norms.first(x)), tf.shape(y := norms.second(2.0 * x))) + tf.tanh(y),
}

BARE: dict[str, Callable[[Norms, tf.Tensor], tf.Tensor]] = {
    "equal": lambda norms, x: x + tf.sin(norms.bare(x)) + tf.tanh(norms.bare(x)),
    "equal, added at once": lambda norms, x: norms.bare(x) + norms.bare(x),
    "moved": lambda norms, x: tf.sin(norms.bare(x)) + tf.tanh(norms.bare(x + 1.0)),
    "moved before": lambda norms, x: tf.sin(norms.bare(x + 1.0)) + tf.tanh(norms.bare(x)),
    "doubled": lambda norms, x: tf.sin(norms.bare(x)) + tf.tanh(norms.bare(2.0 * x)),
}


def fused(forward: Callable[[Norms, tf.Tensor], tf.Tensor], where: str, batch: int | None = 3, **options: Any) -> FusedFunction:
    norms, spec = Norms(where), tf.TensorSpec([batch, *SHAPES[where]])
    return FusedFunction(with_gradients(lambda x: forward(norms, x), norms.variables), spec, spec, **options)


def computes_the_same(function: FusedFunction, where: str, **options: Any) -> None:
    arguments = random(3, *SHAPES[where]), random(3, *SHAPES[where], seed=5)
    agree(function(*arguments, **options), function.before(*arguments), 1e-4)


def kernels(function: FusedFunction) -> tuple[int, int]:
    return function.live_ops[FORWARD], function.live_ops[BACKWARD]


@pytest.mark.parametrize("batch", [3, None], ids=["batch known", "batch unknown"])
@pytest.mark.parametrize("where", SHAPES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_has_kernels_of_its_own(program: str, where: str, batch: int | None, told: Any) -> None:  # noqa: F811
    function = fused(PROGRAMS[program], where, batch)
    count = (3 if program == "three" else 2) * (2 if where == "rows" else 1)
    assert kernels(function) == (count, count)
    assert not {"Rsqrt", "SquaredDifference", "RsqrtGrad"} & function.live_ops.keys()
    assert len({*function.body.replaced.values()}) == (3 if program == "three" else 2)
    agree_about_needs(told, function)
    computes_the_same(function, where)


@pytest.mark.parametrize("where", SHAPES)
@pytest.mark.parametrize("program", BARE)
def test_those_that_are_equal_have_a_gradient_each(program: str, where: str, told: Any) -> None:  # noqa: F811
    function = fused(BARE[program], where)
    assert kernels(function) == (2, 2) and not function.live_ops["Rsqrt"]
    agree_about_needs(told, function)
    computes_the_same(function, where)


@pytest.mark.parametrize("where", SHAPES)
def test_each_is_told_of_where_there_are_no_gradients(where: str) -> None:
    norms, spec = Norms(where), tf.TensorSpec([None, *SHAPES[where]])
    for program in ("parallel", "doubled"):
        function = FusedFunction(lambda x, forward=PROGRAMS[program]: forward(norms, x), spec)
        assert function.live_ops[FORWARD] == (4 if where == "rows" else 2)
        assert len({*function.body.replaced.values()}) == 2
        agree(function(random(3, *SHAPES[where])), function.before(random(3, *SHAPES[where])))


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_gradient_is_that_of_one_normalisation(stopped: bool, beside: bool) -> None:
    """Two normalisations are equal, of data that are not the same; the statistics of the one come first, and the result of the other."""

    def forward(norms: Norms, x: tf.Tensor) -> tf.Tensor:
        moved = x + 1.0
        mean, variance = norms.moments(moved)
        other = norms.bare(x)
        first = tf.stop_gradient(other) if stopped else tf.tanh(other)
        second = tf.sin((moved - mean) * tf.math.rsqrt(variance + 1e-3))
        return first + second + tf.cos(moved) if beside else first + tf.cos(moved) + second

    function = fused(forward, "rows")
    assert kernels(function) == (2, 1 if stopped else 2)
    computes_the_same(function, "rows")


@pytest.mark.parametrize("where", SHAPES)
@pytest.mark.parametrize("program", ["parallel", "moved", "doubled"])
def test_xla_computes_the_same(program: str, where: str) -> None:
    computes_the_same(fused(PROGRAMS[program], where), where, compiled=True)


def test_one_tensor_by_channel_and_by_row() -> None:
    channels, rows = Norms("channels"), Norms("rows")
    channels._channels = 16
    first = channels._scaled(1e-3)
    spec = tf.TensorSpec([None, 6, 5, 16])
    variables = [*channels.variables[-2:], *rows.variables[:2]]
    function = FusedFunction(with_gradients(lambda x: tf.sin(first(x)) + tf.tanh(rows.first(x)), variables), spec, spec)
    assert kernels(function) == (3, 3)
    arguments = random(3, 6, 5, 16), random(3, 6, 5, 16, seed=5)
    agree(function(*arguments), function.before(*arguments), 1e-4)


def test_a_normalisation_beside_its_own_data() -> None:
    """The gradient for the result is one of the summands of that for the data."""
    function = fused(lambda norms, x: x + norms.first(x), "rows")
    assert kernels(function) == (2, 2) and not function.live_ops["Rsqrt"]
    computes_the_same(function, "rows")


def test_a_normalisation_of_data_and_another_ones_result() -> None:
    function = fused(lambda norms, x: tf.sin(norms.second(x + norms.first(x))), "rows")
    assert kernels(function) == (4, 4) and not function.live_ops["Rsqrt"]
    computes_the_same(function, "rows")


@pytest.mark.parametrize("batch", [3, None], ids=["batch known", "batch unknown"])
def test_a_normalisation_that_is_added_to_something_else(batch: int | None) -> None:
    """As in a residual block: the gradient comes back through sums over axes that cannot be told from the data alone."""
    filters = tf.constant(random(1, 1, 4, 4))
    function = fused(lambda norms, x: tf.nn.relu(norms.first(x) + tf.nn.conv2d(x, filters, 1, "SAME")), "channels", batch)
    assert kernels(function) == (1, 1)
    computes_the_same(function, "channels")


def test_one_normalised_tensor_with_two_scales_is_one_normalisation() -> None:
    def forward(norms: Norms, x: tf.Tensor) -> tf.Tensor:
        y, (scale, offset, other, more) = norms.bare(x), norms.variables[:4]
        return tf.sin(y * scale + offset) + tf.tanh(y * other + more)

    function = fused(forward, "rows")
    assert kernels(function) == (1, 1) and not function.live_ops["Rsqrt"]
    computes_the_same(function, "rows")


@pytest.mark.parametrize("where", SHAPES)
def test_statistics_that_two_share(where: str, told: Any) -> None:  # noqa: F811
    """They are computed once, and read by two normalisations and by something else: one kernel hands them out."""

    def forward(norms: Norms, x: tf.Tensor) -> tf.Tensor:
        mean, variance = norms.moments(x)
        scale, offset = norms.variables[:2]
        one, other = (tf.nn.batch_normalization(x, mean, variance, offset, scale, epsilon) for epsilon in (1e-3, 1e-1))
        return tf.sin(one) * tf.tanh(other) + tf.sin(mean) * variance

    norms, spec = Norms(where), tf.TensorSpec([None, *SHAPES[where]])
    function = FusedFunction(lambda x: forward(norms, x), spec)
    assert function.live_ops[FORWARD] == (4 if where == "rows" else 2)
    assert not {"Mean", "Rsqrt", "SquaredDifference"} & function.live_ops.keys()
    written = [name.removesuffix(OURS).rpartition("/")[2] for name in function.body.names if name.endswith(OURS)]
    assert [written.count(name) for name in ("mean", "variance", "uncorrected")] == [1, 1, 1]
    agree_about_needs(told, function)
    agree(function(random(3, *SHAPES[where])), function.before(random(3, *SHAPES[where])))
    computes_the_same(fused(forward, where), where)


def test_a_statistic_beside_a_normalisation_that_nothing_reads(told: Any) -> None:  # noqa: F811
    norms = Norms("channels")

    def forward(x: tf.Tensor) -> Any:
        mean, variance = norms.moments(x)
        results = [tf.nn.batch_normalization(x, mean, variance, None, None, epsilon) for epsilon in (1e-3, 1e-1)]
        return tf.sin(mean), tf.cos(results[0])

    function = FusedFunction(forward, tf.TensorSpec([3, *SHAPES["channels"]]))
    assert function.live_ops[FORWARD] == 1
    agree_about_needs(told, function)


def test_epsilons_too_near_to_be_told_apart_by_what_is_computed() -> None:
    """Data that hardly differ tell which of them the kernels have."""

    def forward(x: tf.Tensor) -> Any:
        mean, variance = tf.nn.moments(x, (-1,), keepdims=True)
        other, more = tf.nn.moments(x, (-1,), keepdims=True)
        return tf.sin((x - mean) * tf.math.rsqrt(variance + 1e-12)), tf.tanh((x - other) * tf.math.rsqrt(more + 1e-7))

    function = FusedFunction(forward, tf.TensorSpec([3, 5, 16]))
    assert function.live_ops[FORWARD] == 2
    x = random(3, 5, 16) * np.float32(1e-5)
    x -= x.mean(-1, keepdims=True)
    agree(function(x), function.before(x), 1e-3)


def test_gpus_that_refuse_gradients_of_a_scale_take_the_other_one() -> None:
    function = fused(lambda norms, x: tf.sin(norms.first(x)) + tf.tanh(norms.bare(x)), "rows", frozen_gradients=False)
    assert kernels(function) == (1, 1) and function.live_ops["Rsqrt"] == 1
    computes_the_same(function, "rows")


READ = {
    "x": lambda norms, x: x,
    "moved": lambda norms, x: x - 0.5,
    "halved": lambda norms, x: 0.5 * x,
    "negative": lambda norms, x: -x,
    "summed": lambda norms, x: x + norms.third(x),
}


def test_programs_with_two_normalisations_compute_the_same(told: Any) -> None:  # noqa: F811
    one = st.tuples(st.sampled_from(list(READ)), st.sampled_from(["first", "second", "bare"]), st.sampled_from([tf.sin, tf.tanh, tf.identity]))
    seen = {"both": 0, "shortcut": 0}

    @given(two=st.tuples(one, one), where=st.sampled_from(["rows", "rows", "channels"]), known=st.booleans(), shortcut=st.booleans())
    @settings(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(two: Sequence[tuple[str, str, Any]], where: str, known: bool, shortcut: bool) -> None:
        def forward(norms: Norms, x: tf.Tensor) -> tf.Tensor:
            parts = [then(getattr(norms, which)(READ[data](norms, x))) for data, which, then in two]
            return tf.add_n([*parts, x]) if shortcut else parts[0] * tf.cos(parts[1])

        function = fused(forward, where, 3 if known else None)
        seen["both"] += len({*function.body.replaced.values()}) >= 2
        seen["shortcut"] += shortcut
        agree_about_needs(told, function)
        if where == "rows" or not any(data == "summed" for data, _, _ in two):  # else gradients are but what rounding leaves of sums that cancel
            computes_the_same(function, where)

    check()
    assert min(seen.values()) > 5, seen
