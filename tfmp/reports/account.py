"""The account: one record for every program that was converted or kept all its products in float32, kept for the life of the process."""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from tfmp.colouring.reasons import REPLACED, Decision
from tfmp.conversion import Conversion
from tfmp.graph.flat import Shape
from tfmp.graph.wire import node_def
from tfmp.oplists import ALLOW
from tfmp.reports import as_json, markdown, overlay, page, text
from tfmp.reports.describe import describe
from tfmp.reports.flops import flops, multiplying
from tfmp.reports.ledger import LEDGER
from tfmp.reports.records import Details
from tfmp.reports.shapes import Graphs
from tfmp.reports.tables import NOTHING, in_kernels

ShapeLookup = Callable[[str, str], tuple[list[Shape], Shape] | None]
"""(function name, node name) to the shapes of its data inputs and of its first output; None if they cannot be had."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What happened to one program.

    Attributes:
      function: name of the root function.
      dtype: "float16" or "bfloat16".
      device: "GPU" or "CPU".
      converted: number of nodes with a 16-bit type attribute.
      total: number of nodes.
      flop_share: share (0 to 1) of the FLOPs of matrix multiplications and convolutions that run in 16 bit; 1 if there are none.
      casts: number of casts that one run carries out, those in loops as often as the loop goes round (once, where the graph does not tell).
      seconds: wall-clock time of the conversion.
      kept: decisions for allowlist ops that stay in float32.
      unused_overrides: op types moved between lists that the program does not contain.
      unused_rules: rules of the user that cover nothing in the program.
      source: works out the details.
      kernels: number of places (normalisations, sums of products) where fused kernels were put in the place of several nodes.
      replaced: number of those nodes.
    """

    function: str
    dtype: str
    device: str
    converted: int
    total: int
    flop_share: float
    casts: int
    seconds: float
    kept: tuple[Decision, ...] = ()
    unused_overrides: tuple[str, ...] = ()
    unused_rules: tuple[str, ...] = ()
    source: Callable[[], Details | None] | None = dataclasses.field(default=None, repr=False, compare=False)
    kernels: int = 0
    replaced: int = 0

    def details(self) -> Details | None:
        """Works out and returns everything that is known of the program: layers, reasons, casts, memory, advice; None if its function does not exist any
        more. This takes as long as the conversion did.
        """
        return None if self.source is None else self.source()

    def __str__(self) -> str:
        """Returns one line."""
        return (
            f"{self.function or 'main graph'}: converted {self.converted} of {self.total} nodes to {self.dtype}, {self.flop_share:.1%} of matmul FLOPs, "
            f"{self.casts} casts, in {self.seconds * 1000:.0f} ms"
        )


class Report(Sequence[Record]):
    """The records of a process, oldest first, and their printed forms: `print(report)`, `report.show()`, `report.save("report.html")`.

    Layers, reasons, casts and advice (`details`) are worked out when they are first asked for, which takes as long as the conversions did, and can be had
    as long as the functions exist. `repr` needs none of them.
    """

    def __init__(self, records: Iterable[Record], warnings: Iterable[str] = ()) -> None:
        """Holds `records`, and the warnings that tfmp has given."""
        self._records = tuple(records)
        self.warnings = tuple(warnings)

    def __getitem__(self, index: Any) -> Any:
        """Returns one record, or a Report of several for a slice."""
        return Report(self._records[index], self.warnings) if isinstance(index, slice) else self._records[index]

    def __len__(self) -> int:
        """Returns the number of records."""
        return len(self._records)

    def __repr__(self) -> str:
        """Returns the records, one a line, each followed by the allowlist ops that stayed in float32 and why."""
        if not self._records:
            return NOTHING
        return "\n".join(line for record in self._records for line in _lines(record))

    @functools.cached_property
    def details(self) -> tuple[Details | None, ...]:
        """What is known of each program, None where its function does not exist any more."""
        return tuple(record.details() for record in self._records)

    def __str__(self) -> str:
        """Returns the report as plain lines: for each program its figures, its layers with most FLOPs, advice; then what tfmp has warned of."""
        return text.plain(self)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """Yields what rich draws: the same with tables and colours."""
        return text.drawn(self, options.max_width)

    def show(self, file: IO[str] | None = None, layers: int = text.LAYERS) -> None:
        """Prints the report: tables and colours in a terminal where rich is installed (Keras 3 brings it along), else plain lines.

        Args:
          file: where to; standard output if None.
          layers: how many layers of each program to list.
        """
        text.show(self, file, layers)

    def to_json(self, indent: int | None = None) -> str:
        """Returns everything as JSON; the file report.schema.json in tfmp/reports says what is in it, and its "version" grows with every change that
        could break a reader.
        """
        return as_json.to_json(self, indent)

    def to_html(self) -> str:
        """Returns one page that needs nothing else, no network either: figures, advice, a table of layers, and the graph as a picture."""
        return page.page(self)

    def to_markdown(self, layers: int = text.LAYERS) -> str:
        """Returns the same as `str`, in Markdown; with at most `layers` layers of each program."""
        return markdown.markdown(self, layers)

    def to_overlay(self) -> str:
        """Returns which nodes are in 16 bit as colours for Google's Model Explorer: a node data file, to load beside the graph that is looked at there."""
        programs = [details for details in self.details if details is not None]
        functions = (function for details in programs for function in overlay.of_details(details))
        return overlay.overlay(functions, programs[0].dtype if programs else "float16")

    def save(self, path: str | os.PathLike[str]) -> pathlib.Path:
        """Writes the report to a file, in the form that its name ends with, and returns the path.

        Args:
          path: ends with .html for a page to look at, .overlay.json for Model Explorer, .json for programs, .md for Markdown, or .txt for plain lines.

        Raises:
          ValueError: it ends with something else; the message lists what there is.
        """
        target = pathlib.Path(path)
        write = next((write for end, write in FORMS.items() if target.name.endswith(end)), None)
        if write is None:
            raise ValueError(f"a report cannot be saved as {str(path)!r}; the name must end with one of {', '.join(FORMS)}.")
        target.write_text(write(self), encoding="utf-8")
        return target


FORMS: dict[str, Callable[[Report], str]] = {
    ".html": Report.to_html,
    ".overlay.json": Report.to_overlay,
    ".json": Report.to_json,
    ".md": lambda report: report.to_markdown(layers=sys.maxsize),
    ".txt": lambda report: text.plain(report, layers=sys.maxsize) + "\n",
}
"""End of a file's name to what is written into it."""


def _lines(record: Record) -> list[str]:
    kept = collections.Counter(decision.reason for decision in record.kept)
    notes = [f"  {in_kernels(record)}"] if record.kernels else []
    notes += [f"  kept in float32: {count} x {reason}" for reason, count in kept.most_common()]
    if record.unused_overrides:
        notes.append(f"  overrides that met no op here: {', '.join(record.unused_overrides)}")
    if record.unused_rules:
        notes.append(f"  rules that cover nothing here: {', '.join(record.unused_rules)}")
    return [str(record), *notes]


def make_record(conversion: Conversion, shapes: ShapeLookup, source: Callable[[], Details | None] | None = None) -> Record:
    """Returns the record of `conversion`; FLOPs are counted from `shapes`, and `source` works out the details when they are asked for."""
    return Record(
        conversion.root,
        conversion.format.name,
        conversion.settings.device,
        conversion.converted,
        conversion.total,
        flop_share(conversion, shapes),
        conversion.casts_per_run,
        conversion.seconds,
        tuple(kept_allow_ops(conversion)),
        tuple(conversion.unused_overrides()),
        conversion.unused_rules,
        source,
        conversion.kernels,
        conversion.replaced,
    )


def kept_allow_ops(conversion: Conversion) -> Iterable[Decision]:
    """Yields the decision of every float32 allowlist node that stays in float32, with its reason; its fixed types are not counted."""
    for decision in conversion.decisions(conversion.lists.ops(ALLOW), only_float32=True):
        if not (decision.attribute.startswith("fixed") or decision.rule == REPLACED):
            yield decision


def flop_share(conversion: Conversion, shapes: ShapeLookup) -> float:
    """Returns the share (0 to 1) of matrix-multiplication FLOPs that are in 16 bit, loops counted by their steps; 1.0 if nothing is known of any."""
    found = [
        (any(result.colouring.sixteen[vertex] for vertex in result.colouring.graph.vertices(worker)), times, result, node)
        for times, result in zip(conversion.runs, conversion.bodies.values(), strict=True)
        for node, worker in multiplying(result.plan.body)
    ]
    if all(converted for converted, *_ in found):  # mostly; shapes are what takes time here
        return 1.0
    done = {True: 0.0, False: 0.0}
    for converted, times, result, node in found:
        proto = node_def(node)
        if (known := shapes(result.function, proto.name)) is not None:
            done[converted] += times * flops(proto, *known)
    return done[True] / sum(done.values()) if sum(done.values()) else 1.0


def report_on(*conversions: Conversion, graphs: Graphs | None = None) -> Report:
    """Returns a report on conversions that are at hand, whether or not anything runs them.

    Args:
      *conversions: results of `convert_function` or `convert_graph_def`.
      graphs: the Python graphs that their functions were traced into, by name (`shapes.graphs_of`), as far as they are there.
    """
    return Report(_record_of(conversion, describe(conversion, graphs)) for conversion in conversions)


def _record_of(conversion: Conversion, details: Details) -> Record:
    record = make_record(conversion, lambda function, node: None, lambda: details)
    return dataclasses.replace(record, flop_share=details.flop_share)


def report() -> Report:
    """Returns the account of this process: a sequence of `Record`, oldest first, that prints readably. Small functions without a matrix multiplication
    or convolution are not in it.
    """
    return Report(LEDGER.records, LEDGER.warnings)
