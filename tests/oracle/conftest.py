"""What the tests of this folder share: skipping with a reason where there is no oracle, and the count of agreeing graphs."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from tests.oracle.tf_pass import PASSES, unavailable_reason


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all tests here with `oracle`."""
    here = pathlib.Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.oracle)


@pytest.fixture(params=sorted(PASSES))
def dtype(request: pytest.FixtureRequest) -> str:
    """Each 16-bit type that the oracle knows; a test that wants one of them parametrizes `dtype` indirectly."""
    if reason := unavailable_reason(request.param):
        pytest.skip(reason)
    return request.param


Count = Callable[[str, bool, int], None]
"""Counts one graph: label, whether it agrees, how many type attributes were compared."""

_PROPERTY = "agreement with TensorFlow's pass"


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Count:
    """Counts a graph for the lines that the session ends with; travels with the test's report, so that it also comes from other processes."""
    return lambda label, agrees, attributes: record_property(_PROPERTY, (label, int(agrees), attributes))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints one line per label: N of N graphs agree; M type attributes compared."""
    counted: dict[str, list[tuple[int, int]]] = {}
    for report in (*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())):
        for name, value in report.user_properties if report.when == "call" else ():
            if name == _PROPERTY:
                label, agrees, attributes = value
                counted.setdefault(label, []).append((agrees, attributes))
    for label, graphs in sorted(counted.items()):
        agreeing, attributes = map(sum, zip(*graphs, strict=True))
        terminalreporter.write_line(f"{label}: {agreeing} of {len(graphs)} graphs agree; {attributes} type attributes compared")
