"""Ten planted faults: the op at fault is named first, and with measured ranges every one of them trains as in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tfmp
from tests.numerics.faults import FAULTS, Fault
from tfmp import numerics

ON: dict[str, Any] = {"dtype": "float16", "device": "CPU", "ignore_performance": True, "strict": True}

each = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


def is_at_fault(found: Any, fault: Fault) -> bool:
    return found is not None and found.op == fault.op and fault.node in found.node


def train(fault: Fault, **settings: Any) -> np.ndarray:
    """Returns the losses of training in float32, or with settings in mixed precision."""
    step, _ = fault.step()
    scope = tfmp.mixed_precision(**ON, **fault.settings, **settings) if settings else tfmp.mixed_precision(enabled=False)
    with scope:
        return np.array([float(step(*batch)) for batch in fault.batches()])


@each
def test_find_nonfinite_names_the_op_first(fault: Fault) -> None:
    step, variables = fault.step()
    before = [variable.numpy() for variable in variables]
    found = numerics.find_nonfinite(step, fault.batches(1)[0], **fault.settings)
    assert is_at_fault(found, fault), found
    assert found is not None and not found.also_in_float32
    assert found.output.mixed.infs + found.output.mixed.nans > 0
    assert found.output.full is not None and found.output.full.infs + found.output.full.nans == 0
    assert all(np.array_equal(one, variable.numpy()) for one, variable in zip(before, variables, strict=True))


@each
def test_compare_names_the_op_first(fault: Fault) -> None:
    step, _ = fault.step()
    comparison = numerics.compare(step, fault.batches(1)[0], **fault.settings)
    assert comparison[0].broken and is_at_fault(comparison[0], fault), comparison
    assert fault.op in comparison.table(1)


@each
def test_with_ranges_it_trains(fault: Fault) -> None:
    step, _ = fault.step()
    ranges = numerics.calibrate(step, fault.batches(1))
    full, with_ranges, without = train(fault), train(fault, ranges=ranges), train(fault, level="default")
    assert full[-1] < full[0]
    np.testing.assert_allclose(with_ranges, full, rtol=2e-3)
    assert not np.allclose(without, full, rtol=1e-2)


def test_what_fits_is_still_in_float16() -> None:
    fault = FAULTS[0]
    step, _ = fault.step()
    batch = fault.batches(1)
    ranges = numerics.calibrate(step, batch)
    comparison = numerics.compare(step, batch[0], ranges=ranges, **fault.settings)
    assert not comparison.broken
    assert {row.dtype for row in comparison if row.op == "MatMul"} >= {"float16"}
    assert {row.dtype for row in comparison if row.op == "Exp"} == {"float32"}
