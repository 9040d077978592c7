"""What the tests of this folder share: both 16-bit types, interpreted and compiled, and an environment in which any fallback raises."""

from __future__ import annotations

import os
import warnings

import pytest

import tfmp
from tests.behaviour.on_off import DTYPES, scope
from tests.warnings_of_others import let_pass


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets pass what TensorFlow and Keras warn of about themselves."""
    let_pass(items, __file__)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    """Each 16-bit type."""
    return request.param


@pytest.fixture(params=[False, True], ids=["interpreted", "compiled"])
def jit(request: pytest.FixtureRequest) -> bool:
    """A value for `jit_compile`: without and with XLA."""
    return request.param


@pytest.fixture(scope="session", autouse=True)
def _switched_on_before() -> None:
    """Switches tfmp on once, so that no test here gets the warning about what other folders' tests have traced before."""
    import tensorflow as tf

    with warnings.catch_warnings(), scope("float16"):
        warnings.simplefilter("ignore", tfmp.MixedPrecisionWarning)
        tf.function(lambda: 0).get_concrete_function()


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets any fallback to float32 raise, and keeps settings of the shell that runs the tests away from them."""
    for name in list(os.environ):
        if name.startswith(("TF_AUTO_MIXED_PRECISION_", "TF_ENABLE_AUTO_MIXED_PRECISION", "TFMP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TFMP_STRICT", "1")
