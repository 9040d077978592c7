"""Float32 and mixed precision side by side, tensor by tensor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tfmp import tf_api
from tfmp.numerics.calibration import plain_name
from tfmp.numerics.kinds import kinds, layers
from tfmp.numerics.mixed import Pair, convert
from tfmp.numerics.running import TappedProgram
from tfmp.numerics.sites import Place, Site, by_key
from tfmp.numerics.tables import comparison_table
from tfmp.numerics.tracing import Tracer

THRESHOLD = 64.0
"""Error, in units of roundoff, from which on a tensor counts as diverged: a sixteenth of float16's 11 bits are left, and 2 of bfloat16's 8. Our own choice."""

MEMORY = 2**30
"""Bytes of float32 values that are held at a time."""

Key = tuple[Place, str]


@dataclasses.dataclass
class _Sums:
    """What is summed up over the runs of one tensor."""

    runs: int = 0
    elements: int = 0
    squared_error: float = 0.0
    squared: float = 0.0
    worst: float = 0.0
    largest: float = 0.0
    zeros: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    infs: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    nans: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    broken: int | None = None
    diverged: int | None = None

    def add(self, run: int, exact: np.ndarray, mixed: np.ndarray, limit: float) -> None:
        """Adds one run; `limit` is the relative error from which on it has diverged."""
        for number, values in enumerate((exact, mixed)):
            self.zeros[number] += int(np.count_nonzero(values == 0))
            self.infs[number] += int(np.count_nonzero(np.isinf(values)))
            self.nans[number] += int(np.count_nonzero(np.isnan(values)))
        finite = np.isfinite(exact)
        if self.broken is None and np.any(finite & ~np.isfinite(mixed)):
            self.broken = run
        both = finite & np.isfinite(mixed)
        a, b = exact[both].astype(np.float64), mixed[both].astype(np.float64)
        error, size = float(np.sum((a - b) ** 2)), float(np.sum(a * a))
        if self.diverged is None and error > limit * limit * size:
            self.diverged = run
        self.runs, self.elements = self.runs + 1, self.elements + exact.size
        self.squared_error, self.squared = self.squared_error + error, self.squared + size
        if a.size:
            self.worst, self.largest = max(self.worst, float(np.abs(a - b).max())), max(self.largest, float(np.abs(a).max()))


@dataclasses.dataclass(frozen=True)
class TensorComparison:
    """One tensor in both programs, all runs of its op in one run of the program together.

    Attributes:
      node, op, port: the node, its op type, and which of its outputs.
      layer: names of the Keras layers, or of the name scopes, that it is in, joined by "/"; or "".
      kind: activation, gradient, ... (see `tfmp.measured.record`).
      function: name of the function that the node is in, without TensorFlow's prefix and number.
      place: the calls that lead to that function, each as "node:attribute".
      dtype: its type in the mixed program.
      runs: how often it was computed (in a loop: once a step).
      elements: number of values, all runs together.
      error: root mean square of the differences over that of the float32 values, in units of roundoff of the 16-bit type (2^-11 for float16, 2^-8 for
        bfloat16); over values that are finite in both.
      worst: largest difference over the largest float32 value, in the same units.
      zeros, infs, nans: pairs (float32, mixed) of how many values were that.
      broken: the run (from 1) in which a value that is finite in float32 was first not finite in the mixed program, or 0.
      diverged: the run in which the error first exceeded the threshold, or 0.
      missing: runs of the float32 program that the mixed one did not make, since it took another branch or left a loop earlier.
    """

    node: str
    op: str
    port: int
    layer: str
    kind: str
    function: str
    place: Place
    dtype: str
    runs: int
    elements: int
    error: float
    worst: float
    zeros: tuple[int, int]
    infs: tuple[int, int]
    nans: tuple[int, int]
    broken: int
    diverged: int
    missing: int


class Comparison(Sequence[TensorComparison]):
    """All tensors, those first that broke (became infinite or NaN) in the mixed program, then those that diverged, then the others; each group in the
    order in which it happened. Prints as a table.

    Attributes:
      dtype: the 16-bit type.
      unit: its unit roundoff.
      stopped: the error that stopped the mixed program, as a check for NaNs does, or "". What came after it was not compared.
    """

    def __init__(self, rows: Iterable[TensorComparison], dtype: str, unit: float, stopped: str = "") -> None:
        """Holds `rows`, in that order."""
        self._rows, self.dtype, self.unit, self.stopped = tuple(rows), dtype, unit, stopped

    def _of(self, rows: Iterable[TensorComparison]) -> Comparison:
        return Comparison(rows, self.dtype, self.unit, self.stopped)

    def __getitem__(self, index: Any) -> Any:
        """Returns one row, or a Comparison of several for a slice."""
        return self._of(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        """Returns the number of tensors."""
        return len(self._rows)

    @property
    def broken(self) -> Comparison:
        """Those that became infinite or NaN in the mixed program only."""
        return self._of(row for row in self._rows if row.broken)

    @property
    def diverged(self) -> Comparison:
        """Those whose error exceeds the threshold, or that became infinite or NaN."""
        return self._of(row for row in self._rows if row.broken or row.diverged)

    def table(self, rows: int | None = None) -> str:
        """Returns the first `rows` as a table of text; by default all that broke or diverged, and at least 20. What only hands values on is left out."""
        return comparison_table(self, rows)

    def __repr__(self) -> str:
        """Returns `table()`."""
        return self.table()


def compare(fn_or_model: Any, batch: Any, *, threshold: float = THRESHOLD, memory: int = MEMORY, **settings: Any) -> Comparison:
    """Runs one batch in float32 and in mixed precision and returns how each tensor differs, in loops, branches and inner functions too.

    Both programs start from the same variables (copies: nothing of the user's changes) and draw the same random numbers, and each runs on its own values:
    the error of a tensor is what has come together up to there. A function with `jit_compile=True` is run without XLA.

    Args:
      fn_or_model: a model or a function, as for `calibrate`.
      batch: one batch, as for `calibrate`.
      threshold: error, in units of roundoff, from which on a tensor counts as diverged.
      memory: bytes of float32 values to hold at a time; where there are more, the programs are run as often as it takes.
      **settings: changes to the settings in force where this is called (`tfmp.enable`), or to the defaults: dtype, level, denylist_add, ranges, ...

    Raises:
      TfmpError: `fn_or_model` is neither a function nor a model.
      SettingsError, GraphError, RewriteError: as `tfmp.convert_function`.
      OpError: the float32 program stopped on an error.
    """
    pair = convert(Tracer(fn_or_model)(batch), settings)
    runner = _Runner(pair, threshold * pair.format.unit_roundoff, memory)
    runner.run()
    return Comparison(runner.rows(), pair.format.name, pair.format.unit_roundoff, runner.stopped)


class _Runner:
    """Runs both programs, in as many rounds as memory asks for: a round holds the values of some float32 sites and compares those with the mixed ones."""

    def __init__(self, pair: Pair, limit: float, memory: int) -> None:
        self._pair, self._limit, self._memory = pair, limit, memory
        self._mixed = {key: site for key, site in by_key(pair.mixed).items() if site.node not in pair.incomparable}
        self._order: dict[Key, list[int]] = {}
        self._events = 0
        self._values: dict[Key, list[dict[int, np.ndarray]]] = {}
        self._bytes = 0
        self._sums: dict[tuple[Key, int], _Sums] = {}
        self._done: dict[Key, int] = {}
        self.stopped = ""

    def run(self) -> None:
        """Compares every site that both programs have."""
        todo = [site for site in self._pair.full.sites if site.key in self._mixed]
        self._tap(self._pair.full.sites, self._hold_and_order)
        while todo:
            if not self._values:
                self._tap(todo, self._hold)
            mixed = [self._mixed[key] for key in self._values]
            try:
                TappedProgram(self._pair.mixed, self._pair.traced.atomic, self._compare, mixed).run(self._pair.traced)
            except tf_api.OpError as error:
                self.stopped = str(error).strip()
            todo = [site for site in todo if site.key in self._order and site.key not in self._values]
            self._values, self._bytes = {}, 0

    def _tap(self, sites: Collection[Site], listen: Any) -> None:
        TappedProgram(self._pair.full, self._pair.traced.atomic, listen, sites).run(self._pair.traced)

    def _hold_and_order(self, site: Site, values: Sequence[np.ndarray]) -> None:
        self._order.setdefault(site.key, []).append(self._events)
        self._events += 1
        if site.key in self._mixed:
            self._hold(site, values)

    def _hold(self, site: Site, values: Sequence[np.ndarray]) -> None:
        """Keeps the values if there is room, or nothing else is kept. A site is kept with all its runs or not at all, since room never comes back."""
        if site.key in self._values or not self._values or self._bytes < self._memory:
            self._values.setdefault(site.key, []).append({port: np.array(value) for port, value in zip(site.ports, values, strict=True)})
            self._bytes += sum(value.nbytes for value in values)

    def _compare(self, site: Site, values: Sequence[np.ndarray]) -> None:
        run = self._done[site.key] = self._done.get(site.key, 0) + 1
        exact = self._values[site.key]
        if run <= len(exact):
            for port, mixed in zip(site.ports, values, strict=True):
                full = exact[run - 1].get(port)  # None for what a converted loop carries in addition
                if full is not None and full.shape == mixed.shape:
                    self._sums.setdefault((site.key, port), _Sums()).add(run, full, mixed.astype(full.dtype), self._limit)
            exact[run - 1] = {}

    def rows(self) -> Iterator[TensorComparison]:
        """Yields what was found, in the order of `Comparison`."""
        full, kind, layer = by_key(self._pair.full), kinds(self._pair.full), layers(self._pair.full)

        def moment(item: tuple[tuple[Key, int], _Sums]) -> tuple[int, int]:
            (key, _), sums = item
            first = sums.broken or sums.diverged or 1
            return (0 if sums.broken else 1 if sums.diverged else 2), self._order[key][first - 1]

        for (key, port), sums in sorted(self._sums.items(), key=moment):
            yield self._row(full[key], port, kind(full[key]), layer(full[key]), sums)

    def _row(self, site: Site, port: int, kind: str, layer: str, sums: _Sums) -> TensorComparison:
        unit, mixed = self._pair.format.unit_roundoff, self._mixed[site.key]
        return TensorComparison(
            site.node,
            site.op,
            port,
            layer,
            kind,
            plain_name(site.function),
            site.place,
            mixed.dtypes[mixed.ports.index(port)],
            sums.runs,
            sums.elements,
            _relative(math.sqrt(sums.squared_error), math.sqrt(sums.squared)) / unit,
            _relative(sums.worst, sums.largest) / unit,
            (sums.zeros[0], sums.zeros[1]),
            (sums.infs[0], sums.infs[1]),
            (sums.nans[0], sums.nans[1]),
            sums.broken or 0,
            sums.diverged or 0,
            len(self._order[site.key]) - self._done.get(site.key, 0),
        )


def _relative(error: float, size: float) -> float:
    return error / size if size else math.inf if error else 0.0
