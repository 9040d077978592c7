"""What came of the conversion of a file, for people."""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
from collections.abc import Iterable, Iterator, Sequence

import rich.console
import rich.table

from tfmp.conversion import Conversion
from tfmp.files.check import Difference
from tfmp.files.programs import Outcome
from tfmp.files.source import Sizes
from tfmp.files.weights import Weight
from tfmp.reports.account import Record, Report, kept_allow_ops, report_on
from tfmp.reports.words import why

WIDTH = 160
"""Characters in a line of `str(report)`."""

SHOWN = 12
"""Rows of a table that are shown unless all are asked for: a Keras model has a function for every layer."""


@dataclasses.dataclass(frozen=True)
class FileReport:
    """What a conversion comes to, or would.

    Attributes:
      source: the file that was read.
      target: the file that was written, or "" if none was.
      kind: "SavedModel" or "frozen graph".
      device: where it is to run: "gpu", "cpu", "xla_gpu" or "xla_cpu".
      dtype: "float16" or "bfloat16".
      programs: what became of the main graph and of every function that users can call.
      weights: which stored tensors are in 16 bit, and why others are not.
      before, after: sizes of the two files.
      differences: what the comparison found, if one was asked for.
      unused_rules: rules of the user that cover nothing in the file.
      notes: what else a user should know.
    """

    source: str
    target: str
    kind: str
    device: str
    dtype: str
    programs: tuple[Outcome, ...]
    weights: tuple[Weight, ...]
    before: Sizes
    after: Sizes
    differences: tuple[Difference, ...] = ()
    unused_rules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def converted(self) -> bool:
        """Whether anything is in 16 bit that was not before."""
        return any(outcome.tally.converted for outcome in self.programs) or any(weight.sixteen for weight in self.weights)

    @property
    def agrees(self) -> bool:
        """Whether nothing that the comparison found speaks against the converted file: every output has the original's shape and is finite where that is."""
        return not any(difference.problem for difference in self.differences)

    @functools.cached_property
    def account(self) -> Report:
        """What `tfmp.report()` says of programs that ran, of those of the file: layers, reasons, casts, memory, advice, and the graph, to print or to save as
        a page or as JSON. Worked out when it is first asked for, which takes as long as the conversion did.
        """
        return Report(_record(outcome, outcome.conversion) for outcome in self.programs if outcome.conversion is not None)

    def render(self, console: rich.console.Console, details: bool = False) -> None:
        """Prints the report, before anything is written with the layers of the program that computes most; with `details`, every program, weight and reason."""
        name = f"{self.source} ({self.kind}) for {self.device} in {self.dtype}"
        console.print(name + (f" -> {self.target}" if self.target else ""), highlight=False, markup=False, soft_wrap=True)
        console.print(_programs(self.programs, details))
        for outcome in self.programs:
            if outcome.failure:
                console.print(f"not converted: {outcome.root.label}: {outcome.failure}", style="yellow", markup=False, highlight=False, soft_wrap=True)
        if details or not self.target:
            console.print(_largest(self.account, None if details else 1))
        if details:
            console.print(_ops(self.programs, self.dtype))
        for line in _kept(self.programs):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if self.weights:
            console.print(_weights(self.weights, self.dtype) if details else _weight_reasons(self.weights, self.dtype))
        console.print(_sizes(self.before, self.after))
        if self.differences:
            console.print(_differences(self.differences))
        unused = [f"rules that cover nothing here: {', '.join(self.unused_rules)}"] if self.unused_rules else []
        for line in (*self.notes, *unused):
            console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)

    def __str__(self) -> str:
        """Returns the report as text."""
        text = io.StringIO()
        self.render(rich.console.Console(file=text, width=WIDTH, color_system=None))
        return text.getvalue().rstrip("\n")


def _programs(programs: Sequence[Outcome], details: bool) -> rich.table.Table:
    table = _table("program", ">nodes in 16 bit", ">of their FLOPs", ">casts")
    rows = sorted((outcome for outcome in programs if not outcome.failure), key=lambda outcome: (not _is_signature(outcome), "." in outcome.root.label))
    shown = rows if details or len(rows) <= SHOWN else [row for row in rows if _is_signature(row)] or rows[:SHOWN]
    for outcome in shown:
        tally = outcome.tally
        share = f"{tally.share:.1%}" if tally.flops else "none"
        table.add_row(outcome.root.label, f"{tally.converted:,} of {tally.total:,}", share, f"{tally.casts:,}")
    rest = [outcome for outcome in rows if outcome not in shown]
    if rest:
        converted = sum(outcome.tally.converted > 0 for outcome in rest)
        table.add_row(f"{len(rest)} other functions", f"{converted:,} of them in part", "", "")
    return table


def _record(outcome: Outcome, conversion: Conversion) -> Record:
    """Under the name by which users reach the program."""
    (record,) = report_on(conversion, graphs=outcome.graphs)
    found = record.details()
    details = found and dataclasses.replace(found, function=outcome.root.label)
    return dataclasses.replace(record, function=outcome.root.label, source=lambda: details)


def _largest(account: Report, number: int | None) -> Report:
    """Returns the programs that compute most by themselves; signatures mostly only call another function."""
    found = [(record, details) for record, details in zip(account, account.details, strict=True) if details is not None and details.converted]
    ordered = sorted(found, key=lambda one: (-one[1].flops, -one[1].total))
    return Report(record for record, _ in ordered[:number])


def _is_signature(outcome: Outcome) -> bool:
    return outcome.root.label.startswith("signatures.") or not outcome.root.function


def _ops(programs: Iterable[Outcome], dtype: str) -> rich.table.Table:
    """Op types that had float32, with the reasons why some stay so."""
    counts: dict[tuple[str, bool], int] = collections.Counter()
    reasons: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for outcome in programs:
        for decision in outcome.conversion.decisions() if outcome.conversion is not None else ():
            if not decision.attribute.startswith("fixed"):
                counts[decision.op, decision.converted] += 1
                if not decision.converted:
                    reasons[decision.op][why(decision, None, False).partition(" (through")[0]] += 1
    table = _table("op", f">in {dtype}", ">in float32", "why in float32")
    ops = sorted({op for op, _ in counts}, key=lambda op: (-counts[op, True] - counts[op, False], op))
    for op in ops:
        listed = "; ".join(f"{reason} ({count})" if len(reasons[op]) > 1 else reason for reason, count in reasons[op].most_common(3))
        table.add_row(op, f"{counts[op, True]:,}", f"{counts[op, False]:,}", listed)
    return table


def _kept(programs: Iterable[Outcome]) -> Iterator[str]:
    """Yields a line for every reason why a matrix multiplication or convolution stays in float32."""
    kept = collections.Counter(decision.reason for outcome in programs if outcome.conversion is not None for decision in kept_allow_ops(outcome.conversion))
    yield from (f"kept in float32: {count} x {reason}" for reason, count in kept.most_common())


def _weights(weights: Iterable[Weight], dtype: str) -> rich.table.Table:
    table = _table("weight", "kind", ">shape", "stored as", "why not in 16 bit")
    for weight in sorted(weights, key=lambda weight: -weight.size):
        shape = " x ".join(map(str, weight.shape)) or "scalar"
        table.add_row(weight.name, weight.kind, shape, dtype if weight.sixteen else "float32", weight.reason)
    return table


def _weight_reasons(weights: Sequence[Weight], dtype: str) -> rich.table.Table:
    table = _table("weights", ">tensors", ">numbers", "why not in 16 bit")
    groups: dict[str, list[Weight]] = collections.defaultdict(list)
    for weight in weights:
        groups["" if weight.sixteen else _general(weight.reason)].append(weight)
    for reason, members in sorted(groups.items(), key=lambda group: (group[0] != "", -sum(weight.size for weight in group[1]))):
        stored = f"stored in {dtype}" if not reason else "stored in float32"
        table.add_row(stored, f"{len(members):,}", f"{sum(weight.size for weight in members):,}", reason)
    return table


def _general(reason: str) -> str:
    """Leaves the name of a node out of a reason."""
    before, quote, after = reason.partition(" node '")
    return f"{before}{after.partition(chr(39))[2]}" if quote else reason


def _sizes(before: Sizes, after: Sizes) -> rich.table.Table:
    table = _table("bytes", ">before", ">after", ">of before")
    for name in ("graphs", "weights", "other", "total"):
        one, other = getattr(before, name), getattr(after, name)
        if one or other:
            table.add_row(name, f"{one:,}", f"{other:,}", f"{other / one:.0%}" if one else "")
    return table


def _differences(differences: Iterable[Difference]) -> rich.table.Table:
    table = _table("compared output", "type", ">worst difference", ">of values up to", ">equal", "")
    for one in differences:
        numbers = ("", "") if one.worst is None else (f"{one.worst:.3g}", f"{one.scale:.3g}")
        table.add_row(f"{one.signature}: {one.output}", one.dtype, *numbers, f"{one.equal:.1%}", one.problem)
    return table


def _table(*columns: str) -> rich.table.Table:
    """Returns a table; a column whose name starts with ">" is aligned to the right."""
    table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    return table
