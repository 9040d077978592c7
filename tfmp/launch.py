"""Runs a Python program in this process as the interpreter itself would, with mixed precision switched on.

The rules followed here (what `sys.argv`, `sys.path[0]` and `__main__` hold) are those of CPython's documentation of its command line
("Interface options") and of `pymain_run_python` in its `Modules/main.c`.
"""

from __future__ import annotations

import builtins
import os
import pkgutil
import sys
import types
from collections.abc import Callable, MutableMapping, Sequence
from importlib.machinery import SourceFileLoader
from runpy import _run_module_as_main  # type: ignore[attr-defined]  # private, but what the interpreter itself calls for -m, by this name

from tfmp import startup
from tfmp.errors import TfmpError
from tfmp.settings import LOSS_SCALING_SWITCH, REWRITE_SWITCH, SWITCH


class CannotOpenError(TfmpError):
    """The script to run cannot be read; nothing has been run."""


def switch_on(environ: MutableMapping[str, str]) -> None:
    """Sets `TF_ENABLE_AUTO_MIXED_PRECISION` in `environ` to "1" unless it is set, and puts the watcher on `sys.meta_path`."""
    environ.setdefault(SWITCH, "1")
    startup.install()


def switch_off(environ: MutableMapping[str, str]) -> None:
    """Sets every switch in `environ` to "0", and keeps TensorFlow's own messages away from what a command prints, unless the user wants them."""
    environ.update(dict.fromkeys((SWITCH, REWRITE_SWITCH, LOSS_SCALING_SWITCH), "0"))
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Runs the script, folder or zip file at `path` (the latter two by their `__main__.py`) as `python path arguments...` does.

    Returns when the program has ended. What it raises leaves here as the interpreter would have it: `SystemExit` as it is, anything else
    after being shown by `sys.excepthook` without tfmp's frames. `sys.modules["__main__"]`, `sys.argv` and `sys.path[0]` stay the program's.

    Raises:
      CannotOpenError: the file cannot be read; the message names the full path and the cause.
    """
    full_path = os.path.join(os.getcwd(), path)  # as the interpreter does: joined, not normalised
    if os.path.exists(full_path) and pkgutil.get_importer(full_path) is not None:
        _enter_main([path, *arguments], full_path, even_if_safe=True)
        _show_own_frames(lambda: _run_module_as_main("__main__", alter_argv=False))
        return
    loader = SourceFileLoader("__main__", full_path)
    try:
        source = loader.get_data(full_path)
    except OSError as error:
        raise CannotOpenError(f"can't open file {full_path!r}: {error.strerror}") from error
    main = _enter_main([path, *arguments], os.path.dirname(os.path.realpath(path)))
    main.__dict__.update(__file__=full_path, __loader__=loader, __cached__=None)
    _show_own_frames(lambda: exec(compile(source, full_path, "exec", dont_inherit=True), main.__dict__))


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Runs the module or package `name` as `python -m name arguments...` does; what it raises leaves here as from `run_script`.

    Raises:
      SystemExit: there is no such module, with the interpreter's own message.
    """
    # The interpreter, too, has "-m" there while it searches, and the file's path once it has found it.
    _enter_main(["-m", *arguments], os.getcwd())
    _show_own_frames(lambda: _run_module_as_main(name, alter_argv=True))


def _enter_main(argv: list[str], first_path: str, even_if_safe: bool = False) -> types.ModuleType:
    """Returns a fresh `__main__`, in force, with `sys.argv` set and `first_path` in the place of the one that the command `tfmp` had.

    In safe mode (`-P`, `-I`, PYTHONSAFEPATH) the interpreter puts nothing there, except the path of a folder or archive it runs.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    sys.argv[:] = argv
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):  # before Python 3.11 only -I meant this
        sys.path[0] = first_path
    elif even_if_safe:
        sys.path.insert(0, first_path)
    return main


def _show_own_frames(program: Callable[[], None]) -> None:
    """Runs `program`; an exception is shown here, without the frames of this module, and then ends the process silently."""
    try:
        program()
    except SystemExit:
        raise
    except BaseException as error:  # it is the program's own, whatever it is: shown, and raised again
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename == __file__:
            own = own.tb_next
        sys.excepthook(type(error), error.with_traceback(own), own)
        sys.excepthook = lambda *_: None
        raise
