"""What mixed precision saves on small models, as `benchmarks/quality.py` counts it: what the README says of large ones must not creep up unseen."""

from __future__ import annotations

import pytest

from benchmarks import quality
from tests.oracle.tf_pass import unavailable_reason

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason() or "there")

MOST = {"lenet": 0.25, "encoder": 0.52, "separable": 0.22, "conv3d": 0.56}
"""Model to the share of float32's traffic, without the weight update, that is left at most."""


@pytest.mark.parametrize("name", MOST)
def test_traffic_is_small_and_nothing_unsafe(name: str) -> None:
    row = quality.measure(name, ["tfmp"], "float16")
    ours, before = row.costs["tfmp"], row.costs["float32"]
    assert ours.without_update <= MOST[name] * before.without_update
    assert ours.without_update <= 1.05 * row.bounds[False]
    assert (ours.coverage, ours.redundant, ours.unsafe, ours.rounded) == (1.0, (), (), ())
    assert ours.saved <= 0.6 * before.saved
