"""The examples of loss scaling run and do what they say."""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Any

import numpy as np
import pytest

from tests.optimizers.conftest import ROOT, Scripts


@pytest.mark.slow
def test_two_workers_stay_in_step_with_optimizers_of_all_families(run_script: Scripts) -> None:  # R104
    output = run_script("examples/multi_worker.py", "--timeout", "800", "--family", "keras", "tf_keras", "legacy", "v1")
    assert output.count("In step. One step was skipped.") == 4
    assert len(re.findall(r"^ +3 +16384 +1 +(\w+) +16384 +1 +\1$", output, re.MULTILINE)) == 4


@pytest.mark.slow
def test_workers_out_of_step_would_be_reported() -> None:
    example = load_example("multi_worker")
    good = [{"step": step, "scale": 1.0, "skipped": int(step >= 3), "weights": "abc"} for step in range(1, 7)]
    assert example.compare("keras", [good, good]) == 0
    other = [*good[:-1], {**good[-1], "weights": "abd"}]
    assert example.compare("keras", [good, other]) == 1
    assert example.compare("keras", [[{**one, "skipped": 0} for one in good]] * 2) == 1


def load_example(name: str, folder: str = "examples") -> Any:
    """The module of an example, or of a benchmark."""
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


def weights(players: tuple[Any, Any]) -> np.ndarray:
    return np.concatenate([weight.ravel() for player in players for weight in player.network.get_weights()])


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True], ids=["interpreted", "compiled"])
def test_scaling_changes_nothing_in_a_float32_gan_with_gradient_penalty(jit: bool) -> None:
    """The scaled run is the unscaled one: two losses, clipping, and a derivative of a derivative, each scaled and unscaled."""
    example = load_example("gan_gradient_penalty")
    plain, scaled = (weights(example.train("float32", loss_scale, steps=10, jit=jit)) for loss_scale in (None, 2.0**10))
    if jit:
        np.testing.assert_allclose(scaled, plain, rtol=1000 * np.finfo(np.float32).eps, atol=1000 * np.finfo(np.float32).eps)
    else:
        np.testing.assert_array_equal(scaled, plain)


@pytest.mark.slow
def test_a_float16_gan_learns_with_a_scale_for_each_loss(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gan_gradient_penalty.py", "--steps", "250"])
    assert load_example("gan_gradient_penalty").main() == 0
    output = capsys.readouterr().out
    scales = dict(re.findall(r"^(critic|generator): loss scale (\S+),", output, re.MULTILINE))
    assert float(scales["critic"]) < float(scales["generator"]) == 2.0**15
    assert 0.8 < float(re.findall(r"radius of the generated points: (\S+)", output)[0]) < 1.2
    assert len(re.findall(r"converted [1-9]\d* of \d+ nodes to float16, 100.0% of matmul FLOPs", output)) >= 2
