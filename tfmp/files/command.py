"""`tfmp convert` and `tfmp explain` on the command line. Only what is needed for help is imported before a command runs."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from tfmp.dtypes import SIXTEEN_BIT
from tfmp.errors import CheckError, FileError, GraphError, RewriteError, SettingsError, TargetError, TfmpError
from tfmp.files.check import check_data
from tfmp.files.options import AUTO, DEVICES, IO_FORMATS, make_options
from tfmp.files.places import check_target, find
from tfmp.settings import LEVELS

DONE, NOTHING, WRONG_INPUT, NOT_WRITTEN, CHECK_FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 130

EXIT_CODES = {
    DONE: "done",
    NOTHING: "nothing in IN can be in 16 bit; nothing was written",
    WRONG_INPUT: "wrong usage, or IN is missing, damaged, or nothing that can be converted",
    NOT_WRITTEN: "OUT is there already, or cannot be written; what was there is as it was",
    CHECK_FAILED: "OUT was written, but --check found that it does not run, or gives NaN or infinity where IN does not",
    INTERRUPTED: "interrupted; OUT is as it was",
}
"""Exit code to its meaning."""

CODES: dict[type[TfmpError], int] = {
    FileError: WRONG_INPUT, GraphError: WRONG_INPUT, SettingsError: WRONG_INPUT, RewriteError: WRONG_INPUT, TargetError: NOT_WRITTEN, CheckError: CHECK_FAILED,
}  # fmt: skip


def add_convert_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `tfmp convert`."""
    _add_shared_arguments(parser)
    parser.add_argument("target", metavar="OUT", help="where to write: a folder for a SavedModel, a file for a frozen graph (.pbtxt: in text form)")
    parser.add_argument(
        "--check", metavar="DATA", help="run IN and OUT on DATA, an .npz file with an array for each input, or the word random, and compare"
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it is there, and of the same kind")


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `tfmp explain`."""
    _add_shared_arguments(parser)


def _add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "exit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    devices = ", ".join(DEVICES)
    add = parser.add_argument
    add("source", metavar="IN", help="a folder with a SavedModel of TensorFlow 1 or 2, or a frozen graph (.pb, .pbtxt)")
    add("--device", default="gpu", metavar="NAME", help=f"where OUT will run: {devices} (default: gpu); it need not be there now")
    add("--dtype", default=AUTO, metavar="TYPE", help=f"{', '.join(SIXTEEN_BIT)}, or auto (default): float16 for GPUs, bfloat16 for CPUs")
    add("--level", default="default", metavar="LEVEL", help=f"how to colour: {', '.join(LEVELS)}")
    add("--io-dtype", metavar="TYPE", help=f"type of inputs and outputs that were float32: {', '.join(IO_FORMATS)} (default: they stay)")
    add("--keep-weights", action="store_true", help="keep weights stored in float32, for further training")
    add("--keep-float32", metavar="RULE", action="append", help="keep in float32 what RULE covers: op:GLOB, name:GLOB, variable:GLOB, ...; may be repeated")
    add("--ranges", metavar="FILE", help="measured ranges (tfmp.numerics.calibrate): what does not fit into 16 bit stays in float32")
    add("--output", metavar="NAME", action="append", dest="outputs", help="an output of a frozen graph; may be repeated (default: what nothing reads)")
    add("--import", metavar="MODULE", action="append", dest="modules", help="import MODULE first, for the ops that it registers; may be repeated")
    add("--details", action="store_true", help="print every program, op type and weight")
    add("--report", metavar="FILE", help="also save layers, reasons, casts, memory and advice: .html (with the graph), .json, .md, .txt or .overlay.json")


def convert(arguments: argparse.Namespace) -> int:
    """Carries out `tfmp convert` and returns the exit code."""

    def look() -> None:
        check_target(find(arguments.source), arguments.target, arguments.force)
        if arguments.check is not None:
            check_data(arguments.check)

    return _run("convert", arguments, look, lambda home, options: home.convert(arguments.source, arguments.target, **options))


def explain(arguments: argparse.Namespace) -> int:
    """Carries out `tfmp explain` and returns the exit code."""
    return _run("explain", arguments, lambda: find(arguments.source), lambda home, options: home.explain(arguments.source, **options))


NOT_OPTIONS = ("command", "source", "target", "details", "report")

REPORT_FORMS = (".html", ".overlay.json", ".json", ".md", ".txt")
"""Ends of names of `tfmp.reports.account.FORMS`, which is not imported before TensorFlow is needed."""


def _run(name: str, arguments: argparse.Namespace, look: Callable[[], object], carry_out: Callable[[Any, dict[str, Any]], Any]) -> int:
    """Looks for what is quickly found to be wrong before TensorFlow is imported, then carries out the command, prints the report and returns the exit code."""
    options = {key: value for key, value in vars(arguments).items() if key not in NOT_OPTIONS}
    try:
        make_options(**{key: value for key, value in options.items() if key not in ("check", "force")})
        look()
        _check_report(arguments.report)
        with _muted():
            home = importlib.import_module("tfmp.files.convert")
        with _progress() as progress:
            report = carry_out(home, {**options, "progress": progress})
    except TfmpError as error:
        return _complain(name, str(error), next(code for kind, code in CODES.items() if isinstance(error, kind)))
    except KeyboardInterrupt:
        return _complain(name, EXIT_CODES[INTERRUPTED], INTERRUPTED)
    from rich.console import Console

    report.render(Console(), details=arguments.details)
    if arguments.report is not None:
        try:
            report.account.save(arguments.report)
        except OSError as error:
            return _complain(name, f"report {arguments.report!r} cannot be written: {error.strerror}.", NOT_WRITTEN)
    if not report.converted:
        return _complain(name, f"nothing in {report.source} can be in 16 bit; `tfmp explain --details` says why.", NOTHING)
    return DONE if report.agrees else _complain(name, EXIT_CODES[CHECK_FAILED], CHECK_FAILED)


def _check_report(path: str | None) -> None:
    if path is None:
        return
    if not path.endswith(REPORT_FORMS):
        raise SettingsError(f"report is {path!r}; its name must end with one of {', '.join(REPORT_FORMS)}.")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise TargetError(f"report {path!r} cannot be written: there is no folder {folder!r}.")


def _complain(name: str, message: str, code: int) -> int:
    """Writes one line to standard error."""
    sys.stderr.write(f"tfmp {name}: {' '.join(message.split())}\n")
    return code


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Holds back what TensorFlow writes to standard error while it is imported; if that fails, it is written after all."""
    with tempfile.TemporaryFile() as held:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(saved, held.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar on standard error for as long as something goes on, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        yield tell
