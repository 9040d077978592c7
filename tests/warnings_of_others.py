"""Warnings in which TensorFlow and Keras speak of themselves, for folders whose tests let them pass; everything else stays an error."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

import pytest

OTHERS_WARNINGS = (
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",  # TensorFlow's tensors under NumPy 2
    "ignore:non-integer arguments to randrange:DeprecationWarning",  # tf_keras's random seeds under Python 3.10 and 3.11
)


def let_pass(items: Iterable[pytest.Item], conftest: str, *more: str) -> None:
    """Lets `OTHERS_WARNINGS` and the filters `more` pass in those of `items` that lie in the folder of the file `conftest`."""
    here = pathlib.Path(conftest).parent
    for item in items:
        if item.path.is_relative_to(here):
            for warning in (*OTHERS_WARNINGS, *more):
                item.add_marker(pytest.mark.filterwarnings(warning))
