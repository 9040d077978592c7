from __future__ import annotations

import pathlib

import pytest

from tests.startup.environments import Environment, copy_package, make_environment, write_stand_ins


@pytest.fixture(scope="session")
def stand_in_environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with tfmp, whose `arrived` prints, and stand-ins for TensorFlow and Keras. Shared: tests do not write to it."""
    environment = make_environment(tmp_path_factory.mktemp("stand_ins") / "venv")
    copy_package(environment.site_packages)
    write_stand_ins(environment.site_packages)
    return environment


@pytest.fixture
def own_environment(tmp_path: pathlib.Path) -> Environment:
    """As `stand_in_environment`, for one test to change."""
    environment = make_environment(tmp_path / "venv")
    copy_package(environment.site_packages)
    write_stand_ins(environment.site_packages)
    return environment
