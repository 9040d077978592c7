"""The smallest set of layers or ops to keep in float32 for a user's own metric to be met."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfmp.errors import TfmpError
from tfmp.measured.files import write_all

FORMAT, VERSION = "tfmp tuning", 1

ACCEPTS: dict[str, Callable[[float, float, float], bool]] = {
    "closer": lambda metric, reference, tolerance: abs(metric - reference) <= tolerance,
    "higher": lambda metric, reference, tolerance: metric >= reference - tolerance,
    "lower": lambda metric, reference, tolerance: metric <= reference + tolerance,
}
"""Which metrics are better, to whether one is good enough; a NaN never is."""

ASK_FIRST = 6
"""Number of candidates from which on the first question is whether everything may be in 16 bit: the answer users hope for then costs one evaluation, and
one question more stays within the bound of 2 k log2(n), since 2 + ceil(log2(n)) <= 2 log2(n) for n >= 6."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One evaluation: what was kept in float32, the metric, and whether it was good enough."""

    keep: tuple[str, ...]
    metric: float
    accepted: bool


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What `tune` found.

    Attributes:
      keep: the rules to keep in float32 (`tfmp.enable(keep_float32=...)`); none if everything may be in 16 bit.
      metric: the metric with these.
      reference: the metric to compare with.
      trials: every evaluation of the search, in order; the one of the reference is not among them.
    """

    keep: tuple[str, ...]
    metric: float
    reference: float
    trials: tuple[Trial, ...]

    def __str__(self) -> str:
        """Returns the result in one line."""
        kept = ", ".join(self.keep) or "nothing"
        return f"keep {kept} in float32: metric {self.metric:.6g}, reference {self.reference:.6g}, {len(self.trials)} evaluations"


def tune(
    convert: Callable[[tuple[str, ...]], Any],
    evaluate: Callable[[Any], float],
    tolerance: float,
    candidates: Sequence[str] | None = None,
    *,
    better: str = "closer",
    reference: float | None = None,
    state: str | os.PathLike[str] | None = None,
    quiet: bool = False,
) -> Tuned:
    """Returns the smallest part of `candidates` that has to stay in float32 for the metric to be met.

    It is the smallest if keeping more in float32 never makes an accepted metric unacceptable; otherwise it is one from which nothing that was tried could
    be taken away. In either case the result was itself evaluated and accepted. With n candidates of which k are needed, the search takes at most
    2 k log2(n) evaluations (n > 1, k > 0; if k is 0, at most three): a binary search for each of the k, as in the group testing of Hwang (1972), and a check
    after each.

    Args:
      convert: takes the rules to keep in float32, such as ("layer:dense_1", "name:*/Softmax"), and returns what `evaluate` takes: a model that was built
        and compiled under `tfmp.mixed_precision(keep_float32=rules)`, a converted graph, a path.
      evaluate: returns the metric of that, a number.
      tolerance: how far the metric may be from the reference.
      candidates: the rules to choose from. Without any, one for each layer of the Keras model that `convert(())` returns.
      better: "higher" or "lower": only a metric that is worse than the reference by more than the tolerance is refused; "closer": one on either side is.
      reference: the metric to compare with. Without it, the metric with all candidates kept in float32, which takes one more evaluation.
      state: a file that keeps every evaluation; a search that was broken off goes on from there without repeating any.
      quiet: print nothing. Otherwise every trial is printed to the error stream, and a terminal gets a progress bar.

    Raises:
      TfmpError: a bad argument, a state file of another search, a reference that is NaN, or not even all candidates kept in float32 are good enough.
      Exception: what `convert` and `evaluate` raise; the evaluations up to there are in the state file.
    """
    if better not in ACCEPTS:
        raise TfmpError(f"better is {better!r}; valid values are {', '.join(map(repr, ACCEPTS))}.")
    if not tolerance >= 0:
        raise TfmpError(f"tolerance is {tolerance!r}; it is how far the metric may be from the reference, 0 or more.")
    chosen = _layers(convert(())) if candidates is None else tuple(candidates)
    if not chosen or len(set(chosen)) < len(chosen):
        raise TfmpError(f"candidates are {list(chosen)!r}; at least one rule is needed, and each only once.")
    memory = _Memory(chosen, state)
    with _reporting(quiet, len(chosen)) as report:
        search = _Search(chosen, convert, evaluate, memory, lambda metric, goal: ACCEPTS[better](metric, goal, tolerance), report)
        return search.run(reference)


def _layers(model: Any) -> tuple[str, ...]:
    if not hasattr(model, "_flatten_layers"):
        raise TfmpError(f"convert(()) returned {type(model).__name__}, not a Keras model with layers; say which rules to choose from: candidates=[...].")
    layers = [layer for layer in model._flatten_layers() if layer is not model and not any(True for _ in layer._flatten_layers(include_self=False))]
    return tuple(dict.fromkeys(f"layer:{layer.name}" for layer in layers if type(layer).__name__ != "InputLayer"))


class _Search:
    """One search: what is asked of the user's functions, each question once."""

    def __init__(
        self,
        candidates: tuple[str, ...],
        convert: Callable[[tuple[str, ...]], Any],
        evaluate: Callable[[Any], float],
        memory: _Memory,
        accepts: Callable[[float, float], bool],
        report: Callable[[str], None],
    ) -> None:
        self._candidates, self._convert, self._evaluate = candidates, convert, evaluate
        self._memory, self._accepts, self._report = memory, accepts, report
        self._trials: list[Trial] = []
        self._reference = math.nan

    def run(self, reference: float | None) -> Tuned:
        """Returns the result."""
        everything = frozenset(range(len(self._candidates)))
        self._reference = self._metric(everything)[0] if reference is None else float(reference)
        self._report(f"reference {self._reference:.6g}" + (" (everything kept in float32)" if reference is None else ""))
        if math.isnan(self._reference):
            raise TfmpError("the metric to compare with is NaN; evaluate must return a number for float32.")
        kept = smallest(len(self._candidates), self._passes)
        keep = self._rules(kept)
        if kept == everything and reference is not None and not self._passes(everything):
            raise TfmpError(f"not even everything kept in float32 is good enough: {self._trials[-1].metric:.6g}, reference {self._reference:.6g}.")
        return Tuned(keep, self._metric(kept)[0], self._reference, tuple(self._trials))

    def _rules(self, kept: frozenset[int]) -> tuple[str, ...]:
        return tuple(self._candidates[number] for number in sorted(kept))

    def _metric(self, kept: frozenset[int]) -> tuple[float, bool]:
        """Returns the metric, and whether it was known."""
        keep = self._rules(kept)
        known = self._memory.get(keep)
        if known is None:
            self._memory.add(keep, metric := float(self._evaluate(self._convert(keep))))
            return metric, False
        return known, True

    def _passes(self, kept: frozenset[int]) -> bool:
        metric, known = self._metric(kept)
        trial = Trial(self._rules(kept), metric, self._accepts(metric, self._reference))
        self._trials.append(trial)
        names = ", ".join(trial.keep[:4]) + (", ..." if len(trial.keep) > 4 else "")
        self._report(
            f"{len(self._trials)}: {len(trial.keep)} of {len(self._candidates)} kept in float32{f' ({names})' if names else ''}: metric {metric:.6g}, "
            f"{'good enough' if trial.accepted else 'not good enough'}{', from the state file' if known else ''}"
        )
        return trial.accepted


def smallest(count: int, passes: Callable[[frozenset[int]], bool]) -> frozenset[int]:
    """Returns the smallest set of numbers below `count` that passes, if the full set passes and every superset of one that passes does.

    In every round, what is known to be needed passes together with the first `high` numbers and fails with the first `low`; where they meet, one more
    number is known to be needed.
    """
    needed: frozenset[int] = frozenset()
    low, high = -1, count  # -1: it is not known yet whether nothing at all passes
    if count >= ASK_FIRST:
        if passes(needed):
            return needed
        low = 0
    while True:
        while high - low > 1:
            middle = (low + high + 1) // 2
            if passes(needed | frozenset(range(middle))):
                high = middle
            else:
                low = middle
        if high == 0:
            return needed
        needed |= {high - 1}
        if high == 1 or passes(needed):
            return needed
        low, high = 0, high - 1


class _Memory:
    """The metrics that are known, in memory and, if there is a path, in a file that is written after each."""

    def __init__(self, candidates: tuple[str, ...], path: str | os.PathLike[str] | None) -> None:
        self._candidates, self._path = candidates, None if path is None else pathlib.Path(path)
        self._metrics: dict[tuple[str, ...], float] = {}
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def _read(self, path: pathlib.Path) -> None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            fits = (data["format"], data["version"]) == (FORMAT, VERSION)
            metrics = {tuple(entry["keep"]): float(entry["metric"]) for entry in data["evaluations"]} if fits else {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TfmpError(f"state file {str(path)!r} cannot be read ({type(error).__name__}: {error}); delete it to begin anew.") from error
        if not fits or tuple(data["candidates"]) != self._candidates:
            raise TfmpError(f"state file {str(path)!r} is of another search (format, version or candidates differ); delete it, or give another one.")
        self._metrics = metrics

    def get(self, keep: tuple[str, ...]) -> float | None:
        """Returns the metric of a set of rules, or None."""
        return self._metrics.get(keep)

    def add(self, keep: tuple[str, ...], metric: float) -> None:
        """Remembers a metric."""
        self._metrics[keep] = metric
        if self._path is not None:
            evaluations = [{"keep": list(rules), "metric": found} for rules, found in self._metrics.items()]
            content = {"format": FORMAT, "version": VERSION, "candidates": list(self._candidates), "evaluations": evaluations}
            write_all(self._path, json.dumps(content, indent=1))


@contextlib.contextmanager
def _reporting(quiet: bool, candidates: int) -> Iterator[Callable[[str], None]]:
    """Yields what prints a line, under a progress bar where there is a terminal."""
    if quiet:
        yield lambda line: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(f"tuning {candidates} candidates")

        def report(line: str) -> None:
            progress.console.print(f"tfmp tune: {line}", markup=False)
            progress.update(task, description=f"after {line}"[:100])

        yield report
