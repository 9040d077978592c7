"""The benchmark of loss scaling runs and says what it measured; how fast it was is for quiet machines to say."""

from __future__ import annotations

import json
import sys

import pytest

from tests.optimizers.test_examples import load_example


def test_it_compares_three_kinds_of_step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["loss_scale.py", "--seconds", "0", "--size", "small", "--family", "keras", "--jit", "off", "--json"])
    status = load_example("loss_scale", "benchmarks").main()
    (result,) = json.loads(capsys.readouterr().out)
    assert status == (result["tfmp_over_own"][1] > 1)  # a busy machine may say so without reason
    assert (result["family"], result["size"], result["jit"]) == ("keras", "small", False)
    assert all(result[kind] > 0 for kind in ("none", "own", "tfmp"))
    for name in ("tfmp_over_own", "tfmp_over_none"):
        middle, low, high = result[name]
        assert low <= middle <= high


def test_the_interval_of_the_median_is_that_of_the_binomial_distribution() -> None:
    benchmark = load_example("loss_scale", "benchmarks")
    times = [float(number) for number in range(1, 102)]
    middle, low, high = benchmark.ratio(times, [1.0] * 101)
    # Of 101 values, the 41st and the 61st bound the median with 95 %, by the table of the sign test; here the upper end is rounded up.
    assert middle == 51
    assert (low, high) == (41, 62)
