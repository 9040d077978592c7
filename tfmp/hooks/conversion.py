"""From a float32 function of the eager context to a converted one that is registered beside it."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

from absl import logging

from tfmp import engine, tf_api
from tfmp.conversion import Conversion
from tfmp.graph.flat import Shape
from tfmp.hooks import dumps, hardware, notices
from tfmp.reports.account import Record, make_record
from tfmp.reports.describe import describe
from tfmp.reports.flops import FORMULAS
from tfmp.reports.ledger import LEDGER
from tfmp.reports.records import Details
from tfmp.reports.shapes import Graphs, graphs_of
from tfmp.settings import Settings

_numbers = itertools.count()


def convert_for_running(functions: Sequence[tf_api.AtomicFunction], links: Sequence[tuple[int, int]], settings: Settings) -> list[tf_api.AtomicFunction] | None:
    """Converts a program, registers it, and returns what to call instead of each of `functions`; None if nothing in it was converted.

    Leaves a record in the account, a log line, and where it is due a warning.

    Args:
      functions: the root, or a forward and its backward function.
      links: pairs of (result of the first, argument of the second) that nobody else sees.
      settings: what to convert to; "auto" is decided here.

    Raises:
      GraphError, RewriteError: the program could not be converted; nothing was registered.
    """
    with engine.without_garbage_collection():  # until everything that was made on the way is gone again
        return _convert(functions, links, settings)


def _convert(functions: Sequence[tf_api.AtomicFunction], links: Sequence[tuple[int, int]], settings: Settings) -> list[tf_api.AtomicFunction] | None:
    decision = hardware.decide(settings, hardware.detect())
    if decision.caution:
        notices.hardware_caution(decision.caution)
    if decision.settings is None:
        return None
    conversion = _run(functions, links, decision.settings, prune=True)
    account(conversion, make_record(conversion, Shapes(graphs_of(functions)), _Details(functions, links, decision.settings)))
    if decision.settings.log_path:
        dumps.write(conversion, decision.settings.log_path)
    return register(conversion, functions) if conversion.changed else None


def _run(functions: Sequence[tf_api.AtomicFunction], links: Sequence[tuple[int, int]], settings: Settings, *, prune: bool = False) -> Conversion:
    names, graphs = [function.name for function in functions], tf_api.python_graphs(functions).get
    variables = _variables(functions) if settings.has_rules_of("variable") else None
    if len(names) == 1:
        return engine.convert_named(names[0], tf_api.serialised_function, settings, variables, graphs, prune=prune)
    return engine.convert_pair(names[0], names[1], links, tf_api.serialised_function, settings, variables, graphs, prune=prune)


class _Details:
    """Works out what there is to say of a program by converting it once more, so that nothing has to be kept for a report that nobody may ask for.

    Holds its functions weakly: a report keeps nothing alive.
    """

    def __init__(self, functions: Sequence[tf_api.AtomicFunction], links: Sequence[tuple[int, int]], settings: Settings) -> None:
        self._functions, self._links, self._settings = [weakref.ref(function) for function in functions], tuple(links), settings

    def __call__(self) -> Details | None:
        functions = [function for reference in self._functions if (function := reference()) is not None]
        if len(functions) < len(self._functions):
            return None
        return describe(_run(functions, self._links, self._settings), graphs_of(functions))


def account(conversion: Conversion, record: Record) -> None:
    """Enters a conversion into the report and the log, and says what is to be said of it."""
    notices.check_overrides(conversion)
    notices.check_rules(conversion)
    if record.converted or record.kept:
        LEDGER.add(record)
        logging.info("tfmp: %s", record)
    if record.converted:
        notices.something_converted()
    elif record.kept:
        notices.nothing_converted(record)


def _variables(functions: Sequence[tf_api.AtomicFunction]) -> dict[str, dict[int, str]]:
    """Names of variables by function and argument number, from the Python graphs that the functions were traced into."""
    graphs = {_name(function): graph for function in functions if (graph := getattr(function, "_cached_graph", None)) is not None}
    return {name: tf_api.variable_names(graph, tuple(graphs.values())) for name, graph in graphs.items()}


def _name(function: tf_api.AtomicFunction) -> str:
    return function.name.decode() if isinstance(function.name, bytes) else function.name


def register(conversion: Conversion, functions: Sequence[tf_api.AtomicFunction]) -> list[tf_api.AtomicFunction]:
    """Registers the functions of `conversion` under new names; returns the handles of the roots, each of which owns the others.

    `functions` are the originals of the roots.
    """
    number = next(_numbers)

    def new_name(name: str, version: int) -> str:
        return f"{name}_tfmp_{conversion.format.name}_{number}" + (f"_{version}" if version else "")

    linked = conversion.functions(new_name)
    roots, others = linked[: conversion.roots], linked[conversion.roots :]
    children = [tf_api.new_atomic_function(other.name, other.message, functions[0], ()) for other in others]
    return [
        function
        if root.name == conversion.instances[index].function
        else tf_api.new_atomic_function(root.name, root.message, function, [*function.children, *children])
        for index, (root, function) in enumerate(zip(roots, functions, strict=True))
    ]


class Shapes:
    """Shapes of matrix multiplications and convolutions, from Python graphs."""

    def __init__(self, graphs: Graphs) -> None:
        """Looks into `graphs`, by function."""
        self._graphs = graphs

    def __call__(self, function: str, node: str) -> tuple[list[Shape], Shape] | None:
        """Returns the shapes of a node's inputs and of its first output, as `account.ShapeLookup` does."""
        operation = _find(self._graphs.get(function), node)
        return None if operation is None else ([_shape(tensor) for tensor in operation.inputs], _shape(operation.outputs[0]))


def _find(graph: Any, node: str) -> Any:
    """Returns the operation that became the matrix multiplication or convolution `node`, or None.

    A node that has the name of an argument gets a number in the FunctionDef (`NodeNameMapping` in TensorFlow's `graph_to_functiondef.cc`).
    """
    for name in (node, node.rpartition("_")[0]):
        with contextlib.suppress(KeyError):
            operation = graph and graph.get_operation_by_name(name)
            if operation and operation.type in FORMULAS:
                return operation
    return None


def _shape(tensor: object) -> Shape:
    shape = tensor.shape  # type: ignore[attr-defined]
    return None if shape.rank is None else shape.as_list()
