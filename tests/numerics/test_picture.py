"""The picture of a real model's ranges: what is drawn is what was counted."""

from __future__ import annotations

import functools
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

import tfmp
from tfmp import numerics
from tfmp.measured import record


@functools.cache
def digits() -> numerics.Ranges:
    """Returns the ranges of the network of examples/digits.py after one epoch, on real images."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
    try:
        import digits
    finally:
        sys.path.pop(0)
    from sklearn.datasets import load_digits

    model, _, _ = digits.train(1)
    data = load_digits()
    images = (data.images[..., None] / 16).astype("float32")
    return numerics.calibrate(model, [(images[start : start + 64], data.target[start : start + 64]) for start in range(0, 256, 64)])


def test_the_share_of_gradients_that_float16_loses(capsys: pytest.CaptureFixture[str], artefacts: pathlib.Path) -> None:
    gradients = digits().counts([record.ACTIVATION_GRADIENT], without=record.HANDS_ON)
    scale = numerics.proposed_loss_scale(digits())
    with capsys.disabled():
        print(
            f"\ndigits, activation gradients: {gradients.zeros / gradients.elements:.1%} zero; of the others {gradients.share_below(-24):.3%} below 2^-24, "
            f"{gradients.share_below(-14):.2%} below 2^-14; proposed loss scale {scale:g}"
        )
    numerics.plot(digits(), artefacts / "ranges-of-digits.png")  # to be looked at
    shift = int(np.log2(scale))
    assert gradients.share_below(-14) > 0.05 > 0.01 > gradients.share_below(-14 - shift)
    assert gradients.largest * scale < 65504 < gradients.largest * scale * 64
    layers = {one.layer.rpartition("/")[2].partition("_")[0] for one in digits() if one.kind == record.ACTIVATION_GRADIENT}  # "dense" for "dense_7"
    assert {"conv2d", "dense"} <= layers
    assert numerics.at_risk(digits()) == []


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_histograms_are_the_counts(tmp_path: pathlib.Path, ending: str) -> None:
    path = tmp_path / f"ranges.{ending}"
    figure = numerics.plot(digits(), path, loss_scale=256.0)
    assert path.stat().st_size > 10_000
    for axes, kind in zip(figure.axes, (record.ACTIVATION, record.ACTIVATION_GRADIENT), strict=True):
        counts = digits().counts([kind], without=record.HANDS_ON)
        histograms = [patch for patch in axes.patches if hasattr(patch, "get_data")]
        drawn = _histogram(histograms[0])
        shares = {exponent: amount / counts.elements for exponent, amount in counts.exponents}
        assert drawn == pytest.approx({e: shares.get(e, 0.0) for e in range(min(shares), max(shares) + 1)})
        assert f"of the others {counts.share_below(-24):.2%}" in axes.get_title(loc="left")
        if kind == record.ACTIVATION_GRADIENT:
            assert _histogram(histograms[1]) == pytest.approx({e + 8: share for e, share in drawn.items()})


def _histogram(patch: Any) -> dict[int, float]:
    """Exponent to share, from what matplotlib was given to draw."""
    values, edges, _ = patch.get_data()
    return {int(edge): float(value) for edge, value in zip(edges, values, strict=False)}


def test_nothing_is_no_picture() -> None:
    with pytest.raises(tfmp.TfmpError, match="there is nothing to draw"):
        numerics.plot(numerics.Ranges())


def test_a_program_without_gradients_has_an_empty_panel() -> None:
    figure = numerics.plot(numerics.calibrate(lambda x: x * 2.0, [np.float32([1, 2])]))
    assert "none were recorded" in figure.axes[1].get_title(loc="left")
