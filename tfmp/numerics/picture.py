"""The picture of "Mixed Precision Training" (Micikevicius et al. 2018, figures 2 and 3): how large activations and their gradients are, and what float16
makes of that.
"""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING, Any

from tfmp.errors import TfmpError
from tfmp.measured.counts import SMALLEST_HALF, SMALLEST_NORMAL_HALF, Counts
from tfmp.measured.record import ACTIVATION, ACTIVATION_GRADIENT, HANDS_ON, Ranges
from tfmp.measured.risk import proposed_loss_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST_EXPONENT = 15
"""Exponent of 65504, the largest float16."""

LEAST_SHARE = 1e-7
"""Where the axis of shares (0 to 1) begins: one value in ten million."""

ZEROS_APART = 3
"""Columns between the smallest magnitude that is drawn and the column of zeros."""


@dataclasses.dataclass(frozen=True)
class Zone:
    """One part of the axis of magnitudes: what float16 makes of what lies there, from 2^`start` to 2^`stop`."""

    start: float
    stop: float
    meaning: str
    colour: str


ZONES = (
    Zone(-math.inf, SMALLEST_HALF, "zero in float16", "#d62728"),
    Zone(SMALLEST_HALF, SMALLEST_NORMAL_HALF, "rough in float16\n(subnormal)", "#ff7f0e"),
    Zone(SMALLEST_NORMAL_HALF, LARGEST_EXPONENT + 1, "full precision in float16", "#2ca02c"),
    Zone(LARGEST_EXPONENT + 1, math.inf, "infinite", "#d62728"),
)


def plot(ranges: Ranges, path: str | os.PathLike[str] | None = None, *, loss_scale: float | None = None) -> Figure:
    """Returns the histogram of the magnitudes of activations and of activation gradients as a matplotlib figure, and saves it if a path is given.

    Each column is a power of two, its height the share of all values, zeros included, on a logarithmic axis; zeros have a column of their own on the
    left. What float16 makes of each magnitude is shaded. The gradients are drawn as they are, and as an outline times the loss scale.

    Args:
      ranges: what `calibrate` returned.
      path: where to save the picture; the ending (.png, .svg, .pdf) says as what.
      loss_scale: the scale to draw; by default the proposed one.

    Raises:
      TfmpError: `ranges` is of no batch, or matplotlib is not installed.
    """
    if not ranges.batches:
        raise TfmpError("there is nothing to draw: the ranges are of no batch.")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TfmpError("the picture needs matplotlib: pip install 'tfmp[plot]'.") from error
    scale = proposed_loss_scale(ranges) if loss_scale is None else loss_scale
    activations = ranges.counts([ACTIVATION], without=HANDS_ON)
    gradients = ranges.counts([ACTIVATION_GRADIENT], without=HANDS_ON)
    shift = round(math.log2(scale))
    recorded = round(math.log2(ranges.loss_scale))
    low, high = _limits(activations, gradients, shift - recorded)
    figure = Figure(figsize=(10, 7), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    _panel(upper, f"Activations, {ranges.batches} batches", activations, low, high)
    _panel(lower, "Gradients of activations", gradients, low, high, -recorded)
    if gradients.nonzero:
        _columns(lower, gradients, low, shift - recorded, edgecolor="black", linewidth=1.4, label=f"times the loss scale {scale:g}")
        lower.legend(loc="upper right", bbox_to_anchor=(0.99, 0.88), framealpha=0.9)
    lower.set_xlabel("magnitude, as a power of two")
    ticks = [exponent for exponent in range(-160, 129, 4 if high - low < 60 else 8) if low <= exponent <= high]
    lower.set_xticks([low - ZEROS_APART, *ticks], ["0", *(f"$2^{{{exponent}}}$" for exponent in ticks)])
    if path is not None:
        figure.savefig(os.fspath(path), dpi=120)
    return figure


def _limits(activations: Counts, gradients: Counts, shift: int) -> tuple[int, int]:
    """The first and last exponent to draw: all float16 has, and all that was seen."""
    exponents = [e for e, _ in activations.exponents] + [e + moved for e, _ in gradients.exponents for moved in (0, shift)]
    return min([SMALLEST_HALF - 6, *exponents]), max([LARGEST_EXPONENT + 4, *exponents]) + 1


def _panel(axes: Axes, title: str, counts: Counts, low: int, high: int, shift: int = 0) -> None:
    lost, rough = (counts.share_below(exponent - shift) for exponent in (SMALLEST_HALF, SMALLEST_NORMAL_HALF))
    zero = counts.zeros / counts.elements if counts.elements else 0.0
    summary = f"{zero:.1%} zero; of the others {lost:.2%} below $2^{{-24}}$, {rough:.2%} below $2^{{-14}}$" if counts.elements else "none were recorded"
    axes.set_title(f"{title}: {summary}", loc="left", fontsize=11)
    for zone in ZONES:
        start, stop = max(zone.start, low), min(zone.stop, high)
        axes.axvspan(start, stop, color=zone.colour, alpha=0.10, linewidth=0)
        axes.text((start + stop) / 2, 0.97, zone.meaning, transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=8, color=zone.colour)
    _columns(axes, counts, low, shift, fill=True, color="#1f77b4", alpha=0.75)
    if counts.zeros:
        axes.bar(low - ZEROS_APART, zero, width=1.0, color="#7f7f7f")
    axes.set_yscale("log")
    axes.set_ylim(LEAST_SHARE, 30)
    axes.set_xlim(low - ZEROS_APART - 1.5, high)
    axes.set_ylabel("share of values")
    axes.set_yticks([10.0**power for power in range(-6, 1, 2)], ["0.0001%", "0.01%", "1%", "100%"])
    axes.spines[["top", "right"]].set_visible(False)


def _columns(axes: Axes, counts: Counts, low: int, shift: int, **style: Any) -> None:
    """Draws the histogram as one outline; what is smaller than 2^`low` is left out."""
    shares = {e + shift: count / counts.elements for e, count in counts.exponents if e + shift >= low}
    if shares:
        exponents = range(min(shares), max(shares) + 1)
        axes.stairs([shares.get(e, 0.0) for e in exponents], [*exponents, exponents.stop], baseline=LEAST_SHARE, **style)
