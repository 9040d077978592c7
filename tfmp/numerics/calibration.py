"""Running batches in float32 and counting the magnitudes of every tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tfmp.errors import TfmpError
from tfmp.measured.counts import LARGEST_HALF, Counts
from tfmp.measured.naming import aliases
from tfmp.measured.record import OpRange, Ranges
from tfmp.numerics.kinds import kinds, layers
from tfmp.numerics.running import TappedProgram
from tfmp.numerics.sites import Site, find_sites
from tfmp.numerics.tracing import Traced, Tracer

FUNCTION_NAME = re.compile(r"^__(?:inference|forward|backward)_+(?:backward_)?(.*?)_\d+$")
"""How TensorFlow names the functions it traces: what the user called it, between a prefix and a number."""

NUMBER = re.compile(r"_\d+(?=_|$)")


def calibrate(fn_or_model: Any, batches: Iterable[Any], *, loss_scale: float | None = None) -> Ranges:
    """Returns the ranges of every float tensor of a float32 function, gradients included, over some batches.

    Nothing of the user's changes: each run works on new copies of the variables, so that every batch starts from the same weights, and mixed precision,
    whether it is on or not, has no part in it. XLA is left out: functions with `jit_compile=True` are run without it. Ops in loops, branches and inner
    functions are counted wherever they run; functions that `tf.data` or `tf.py_function` run are not looked into.

    Args:
      fn_or_model: a compiled Keras model (its training step is run), another Keras model (its forward pass), or a function: a `tf.function`, a concrete
        function, or a Python function of tensors, which is traced. A function that takes gradients, such as a step of a training loop, has them counted.
      batches: for a model (x, y) or (x, y, sample_weight); for a function a tuple of positional arguments, a dict of keyword arguments, or the only
        argument. A few batches are enough: what matters is the range.
      loss_scale: what training will multiply the loss by, which decides which gradients will be at risk. By default the proposed scale for a model, whose
        optimizer tfmp wraps, and 1 for a function: what it does to its loss itself is seen.

    Raises:
      TfmpError: `fn_or_model` is neither a function nor a model, or there are no batches.
    """
    tracer = Tracer(fn_or_model)
    programs: dict[str, _Counter] = {}
    for batch in batches:
        traced = tracer(batch)
        counter = programs.get(traced.name)
        if counter is None:
            counter = programs[traced.name] = _Counter(traced)
        counter.run(traced)
    if not programs:
        raise TfmpError("calibrate was given no batches; it takes an iterable of at least one.")
    scales = tracer.loss_scale, loss_scale if loss_scale is not None or tracer.is_model else 1.0
    return sum((counter.ranges(*scales) for counter in programs.values()), Ranges())


class _Counter:
    """Counts over the batches of one traced function."""

    def __init__(self, traced: Traced) -> None:
        self._sites = find_sites(traced.program())
        self._found: dict[Site, dict[int, Counts]] = {}
        self._batches = 0
        self._tapped = TappedProgram(self._sites, traced.atomic, self._listen, self._sites.sites)

    def _listen(self, site: Site, values: Sequence[np.ndarray]) -> None:
        found = self._found.setdefault(site, {})
        for port, value in zip(site.ports, values, strict=True):
            found[port] = found.get(port, Counts()) + count(value)

    def run(self, traced: Traced) -> None:
        """Counts one batch."""
        self._tapped.run(traced)
        self._batches += 1

    def ranges(self, loss_scale: float, training_scale: float | None) -> Ranges:
        """Returns what has been counted."""
        kind, layer = kinds(self._sites), layers(self._sites)
        names = {number: aliases(self._sites.body(number).names) for number in self._sites.live}
        ops = tuple(_record(site, kind(site), layer(site), names[site.instance][site.number], found) for site, found in self._found.items())
        return Ranges(ops, self._batches, loss_scale, training_scale)


def _record(site: Site, kind: str, layer: str, alias: str, found: dict[int, Counts]) -> OpRange:
    inputs = tuple(f"{node}:{port}" for node, port in site.inputs)
    return OpRange(site.place, site.node, site.op, plain_name(site.function), layer, kind, inputs, found, site.is_call, alias)


def plain_name(function: str) -> str:
    """Returns the name of a function without what TensorFlow puts around it: "train_step" for "__inference_train_step_1234", and "while_body_grad" for
    "while_body_24_grad_94".
    """
    match = FUNCTION_NAME.match(function)
    return match.group(1) if match else NUMBER.sub("", function)


def count(values: np.ndarray) -> Counts:
    """Returns the exact counts of the magnitudes in a float array of any shape and type."""
    values = values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)  # NumPy's own functions do not know bfloat16
    magnitudes = np.abs(values.reshape(-1))
    nans, infs, zeros = (int(np.count_nonzero(test)) for test in (np.isnan(magnitudes), np.isinf(magnitudes), magnitudes == 0))
    if nans or infs or zeros:
        magnitudes = magnitudes[np.isfinite(magnitudes) & (magnitudes != 0)]
    if not magnitudes.size:
        return Counts(values.size, zeros, infs, nans)
    exponents = np.frexp(magnitudes)[1] - 1
    lowest = int(exponents.min())
    found = np.bincount(exponents - lowest)
    return Counts(
        values.size,
        zeros,
        infs,
        nans,
        int(np.count_nonzero(magnitudes > LARGEST_HALF)),
        float(magnitudes.min()),
        float(magnitudes.max()),
        float(magnitudes.max()),
        tuple((lowest + int(e), int(found[e])) for e in np.flatnonzero(found)),
    )
