"""What the tests of this folder share: skipping with a reason where there is no oracle, and the count of agreeing graphs."""

from __future__ import annotations

import collections
import dataclasses
import pathlib

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


@dataclasses.dataclass
class Tally:
    """How many graphs were compared with TensorFlow's pass, how many agreed, and in how many type attributes."""

    graphs: int = 0
    agreeing: int = 0
    attributes: int = 0

    def count(self, agrees: bool, attributes: int) -> None:
        """Adds one graph."""
        self.graphs += 1
        self.agreeing += agrees
        self.attributes += attributes


_TALLIES = pytest.StashKey[dict[str, Tally]]()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> collections.defaultdict[str, Tally]:
    """Tallies by label, printed at the end of the session."""
    return request.config.stash.setdefault(_TALLIES, collections.defaultdict(Tally))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints one line per label: N of N graphs agree; M type attributes compared."""
    for label, tally in sorted(config.stash.get(_TALLIES, {}).items()):
        line = f"{label}: {tally.agreeing} of {tally.graphs} graphs agree; {tally.attributes} type attributes compared"
        terminalreporter.write_line(line)
