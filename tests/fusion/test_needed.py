"""What nothing will need is told before kernels are written, as it is found in the function once they are; and only what is read is handed out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings

from tests.fusion.running import FusedFunction, with_gradients
from tests.fusion.running import agree as compute_the_same
from tests.fusion.test_norms import SPELLINGS, by_nn, parameters, random, traced
from tests.fusion.test_properties import AXES, MEANS, RESULTS, ROOTS, VARIANCES, choices
from tfmp.fusion import fuse
from tfmp.fusion.needed import Needs
from tfmp.graph.edit import OURS
from tfmp.program.liveness import dead_nodes


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, Needs]]]:
    """The bodies that kernels are put into, with what is told about them."""
    found: list[tuple[Any, Needs]] = []

    class Noted(fuse.Writer):
        def __init__(self, editor: Any, *rest: Any) -> None:
            super().__init__(editor, *rest)
            found.append((editor.body, self.needs))

    monkeypatch.setattr(fuse, "Writer", Noted)
    return found


def agree(told: list[tuple[Any, Needs]], function: FusedFunction) -> None:
    """Asserts that what was told of the one body that kernels were put into is so."""
    ((before, needs),) = told
    told.clear()
    body, said = function.body, function.body.dead
    body.dead = None
    assert said == dead_nodes(body)
    assert [*filter(needs.needless.__contains__, before.proto_nodes)] == [node for node in said if node in before.proto_nodes]
    assert body.replaced.keys() <= set(dead_nodes(body)) - set(dead_nodes(before))


@pytest.mark.parametrize("batch", [3, None], ids=["batch known", "batch unknown"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_is_needed_of_a_spelling(spelling: str, batch: int | None, told: Any) -> None:
    function = traced(spelling, batch)
    agree(told, function)
    assert function.body.replaced


def test_what_is_needed_of_programs_of_all_spellings(told: Any) -> None:
    seen = {"found": 0, "not": 0}
    spelled = st.tuples(st.sampled_from(list(AXES)), st.sampled_from(["mean"] * 5 + list(MEANS)), *map(choices, (VARIANCES, ROOTS, RESULTS)))

    @given(spelling=spelled, known=st.booleans(), wanted=st.sets(st.sampled_from(["y", "x", "scale", "offset"])), waits=st.sampled_from(["", "mean", "y"]))
    @settings(max_examples=80, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(spelling: tuple[str, ...], known: bool, wanted: set[str], waits: str) -> None:
        where, mean_of, variance_of, root_of, result_of = spelling
        axes, shape = AXES[where]
        (scale, offset), state = parameters(shape[-1]), tf.Variable(0.0)

        def step(x: tf.Tensor, gradient: tf.Tensor) -> Any:
            x = tf.nn.leaky_relu(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                mean = MEANS[mean_of](x, axes, 16.0)
                root = ROOTS[root_of](VARIANCES[variance_of](x, mean, axes, 16.0))
                y = RESULTS[result_of](x, mean, root, scale, offset)
                total = tf.reduce_sum(tf.tanh(y) * gradient)
            gradients = tape.gradient(total, {"x": x, "scale": scale, "offset": offset}, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            with tf.control_dependencies([{"mean": mean, "y": y, "": x}[waits]]):
                state.assign_add(1.0)
            return [{"y": y, **gradients}[one] for one in sorted(wanted)]

        spec = tf.TensorSpec(shape if known or where == "channels" else [None, *shape[1:]])
        function = FusedFunction(step, spec, spec)
        seen["found" if function.found else "not"] += 1
        if function.found:
            agree(told, function)
        told.clear()

    check()
    assert min(seen.values()) > 10, seen


def handed_out(function: FusedFunction) -> set[str]:
    """What was written for those who read statistics."""
    ours = [name.removesuffix(OURS).rstrip("_") for name in function.body.names if name.endswith(OURS)]
    return {name.rpartition("/")[2] for name in ours} & {"mean", "variance", "uncorrected"}


@pytest.mark.parametrize("read", ["", "mean", "variance"])
@pytest.mark.parametrize("axes", [(0, 1, 2), (3,)], ids=["channels", "rows"])
def test_statistics_are_handed_out_to_those_who_read_them(axes: tuple[int, ...], read: str) -> None:
    scale, offset = parameters(16)

    def step(x: tf.Tensor) -> Any:
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        y = tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3)
        return y, {"": y, "mean": tf.tanh(mean), "variance": tf.tanh(variance)}[read]

    function = FusedFunction(step, tf.TensorSpec([3, 6, 5, 16]))
    assert handed_out(function) == {"": set(), "mean": {"mean"}, "variance": {"variance", "uncorrected"}}[read]
    compute_the_same(function(random(3, 6, 5, 16)), function.before(random(3, 6, 5, 16)))


def test_a_statistic_that_only_what_is_replaced_reads_is_not_handed_out() -> None:
    forward, variables = by_nn((3,), 16)
    spec = tf.TensorSpec([3, 6, 5, 16])
    assert not handed_out(FusedFunction(with_gradients(forward, variables), spec, spec))
