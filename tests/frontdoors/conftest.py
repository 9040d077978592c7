"""The fixtures of the behaviour tests, for the front doors: both 16-bit types, interpreted and compiled, and an environment in which any fallback raises."""

from __future__ import annotations

import pytest

from tests.behaviour.conftest import _strict, _switched_on_before, dtype, jit  # noqa: F401  (fixtures)
from tests.warnings_of_others import let_pass


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets pass what TensorFlow and Keras warn of about themselves."""
    let_pass(items, __file__)
