"""The command `tfmp`: a table of subcommands."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence

import tfmp
from tfmp import launch
from tfmp.errors import TfmpError
from tfmp.files import command

Arguments = argparse.Namespace

WRONG_USAGE = 2
"""Exit code of a command that could not start on what it was given; argparse's own, and CPython's for a script it cannot open."""

BROKEN = 1
"""Exit code of a command that worked and has bad news, as diff's is."""


@dataclasses.dataclass(frozen=True)
class Command:
    """One subcommand.

    Attributes:
      name: the word on the command line.
      summary: one line for `tfmp --help`; also the first line of the subcommand's own help.
      add_arguments: declares the arguments on the subcommand's parser.
      run: carries it out and returns the exit code.
    """

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Arguments], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Carries out `argv` (default: the process's own arguments) and returns the exit code.

    Raises:
      SystemExit: the usage is wrong (code 2), help or the version was asked for (code 0), or the program under `tfmp run` ended so.
    """
    parser = make_parser()
    arguments = parser.parse_args(argv)
    command: Command | None = arguments.command
    if command is None:
        parser.error(f"a command is needed: {', '.join(row.name for row in COMMANDS)}")
    return command.run(arguments)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line; `.command` of its result is a row of `COMMANDS`, or None if none was given."""
    parser = argparse.ArgumentParser(prog="tfmp", description="Automatic mixed precision for TensorFlow and Keras.")
    parser.add_argument("--version", action="version", version=f"tfmp {tfmp.__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="command")
    for row in COMMANDS:
        subparser = commands.add_parser(row.name, help=row.summary, description=row.summary)
        row.add_arguments(subparser)
        subparser.set_defaults(command=row)
    return parser


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tfmp run [-h] (script | -m module) [argument ...]"
    parser.add_argument("-m", action="store_true", dest="is_module", help="the program is a module, as for python -m")
    parser.add_argument("program", help="a Python file, or a folder or zip file with a __main__.py; after -m, the name of a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="argument", help="handed to the program as it is")


def _run(arguments: Arguments) -> int:
    launch.switch_on(os.environ)  # noqa: TID251  # handed on, to be set for the program
    run = launch.run_module if arguments.is_module else launch.run_script
    try:
        run(arguments.program, arguments.arguments)
    except launch.CannotOpenError as error:
        sys.stderr.write(f"tfmp run: {error}\n")
        return WRONG_USAGE
    return 0


def _add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"Exit code: 0, {BROKEN} if something became infinite or NaN in mixed precision only, {WRONG_USAGE} if nothing could be compared."
    parser.add_argument("saved_model", help="folder of the SavedModel")
    parser.add_argument("--data", required=True, metavar="FILE", help="an .npz file with an array for each input of the signature, by name; or .npy for one")
    parser.add_argument("--signature", default="serving_default", help="default: serving_default")
    parser.add_argument("--dtype", default="float16", help="float16 (default) or bfloat16")
    parser.add_argument("--level", default="default", help="how to colour; default: default")
    parser.add_argument("--ranges", default="", metavar="FILE", help="measured ranges, from tfmp.numerics.calibrate")
    parser.add_argument("--rows", type=int, default=None, help="number of tensors to show; default: all that are wrong, and some more")


def _compare(arguments: Arguments) -> int:
    from tfmp.numerics.saved import compare_saved_model

    settings = {"dtype": arguments.dtype, "level": arguments.level, "ranges": arguments.ranges}
    try:
        found = compare_saved_model(arguments.saved_model, arguments.data, signature=arguments.signature, **settings)
    except TfmpError as error:
        sys.stderr.write(f"tfmp compare: {error}\n")
        return WRONG_USAGE
    sys.stdout.write(f"{found.table(arguments.rows)}\n")
    return BROKEN if found.broken else 0


def _convert(arguments: Arguments) -> int:
    launch.switch_off(os.environ)  # noqa: TID251  # files are converted here, and nothing that runs meanwhile
    return command.convert(arguments)


def _explain(arguments: Arguments) -> int:
    launch.switch_off(os.environ)  # noqa: TID251  # as above
    return command.explain(arguments)


COMMANDS: tuple[Command, ...] = (
    Command(
        "run",
        "Run a Python program in mixed precision, as TF_ENABLE_AUTO_MIXED_PRECISION=1 does where start-up files are processed.",
        _add_run_arguments,
        _run,
    ),
    Command(
        "compare",
        "Run a SavedModel in float32 and in mixed precision and show where they part, tensor by tensor.",
        _add_compare_arguments,
        _compare,
    ),
    Command(
        "convert",
        "Write a 16-bit inference twin of a SavedModel or frozen graph, which plain TensorFlow loads.",
        command.add_convert_arguments,
        _convert,
    ),
    Command(
        "explain",
        "Tell what tfmp convert would make of a SavedModel or frozen graph, what not, and why, without writing anything.",
        command.add_explain_arguments,
        _explain,
    ),
)
