"""The fixtures of the behaviour tests, for programs: both 16-bit types, interpreted and compiled, and an environment in which any fallback raises."""

from __future__ import annotations

import pathlib

import pytest

from tests.behaviour.conftest import OTHERS_WARNINGS, _strict, _switched_on_before, dtype, jit  # noqa: F401  (fixtures)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets pass what TensorFlow and Keras warn of about themselves; everything else stays an error."""
    here = pathlib.Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            for warning in OTHERS_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))
