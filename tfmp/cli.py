"""The command `tfmp`: a table of subcommands."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence

import tfmp
from tfmp import launch

Arguments = argparse.Namespace

WRONG_USAGE = 2
"""Exit code of a command that could not start on what it was given; argparse's own, and CPython's for a script it cannot open."""


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


COMMANDS: tuple[Command, ...] = (
    Command(
        "run",
        "Run a Python program in mixed precision, as TF_ENABLE_AUTO_MIXED_PRECISION=1 does where start-up files are processed.",
        _add_run_arguments,
        _run,
    ),
)
