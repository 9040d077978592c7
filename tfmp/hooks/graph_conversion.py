"""Converting what is new in the graph of a Session."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tfmp import engine, tf_api, tf_sessions
from tfmp.dtypes import FLOAT16
from tfmp.hooks import conversion, dumps, hardware, notices
from tfmp.hooks.shadow import Shadow, cut_out
from tfmp.program.calls import CALLING_OPS
from tfmp.program.program import from_graph
from tfmp.reports.account import make_record
from tfmp.reports.describe import describe
from tfmp.reports.records import Details
from tfmp.reports.shapes import Graphs, graphs_of
from tfmp.settings import Settings, Switches
from tfmp.tf_sessions import BaseSession, Tensor

ROOT = "Session graph"
"""How the report calls a main graph."""

APPLY_OPS = ("Apply", "ResourceApply", "SparseApply", "ResourceSparseApply")
"""First words of the ops with which optimizers of TensorFlow 1 take a step (`training_ops.cc`)."""

SCALE = "current_loss_scale"
"""Name of the variable of a loss scale, TensorFlow's own and tfmp's."""


def may_gain(operation: Any) -> bool:
    """Returns whether an operation is on the allowlist or calls functions, in which there may be some that are."""
    return operation.type in notices.FAST_OPS or operation.type in CALLING_OPS


def decided(active: Switches, session: Any) -> Settings | None:
    """Returns the settings for what `session` runs, type and device decided; None if nothing is to be converted."""
    if not active.graph_rewrite:
        return None
    there, settings = hardware.detect(), active.settings
    if "GPU" not in tf_sessions.device_types(session):
        there, settings = dataclasses.replace(there, gpus=()), dataclasses.replace(settings, device="CPU")
    decision = hardware.decide(settings, there)
    if decision.caution:
        notices.hardware_caution(decision.caution)
    return decision.settings


def warn_if_unscaled(active: Switches, settings: Settings, graph: Any) -> None:
    """Tells somebody whose graph trains in float16 that nothing scales the loss, if loss scaling is wanted."""
    if active.loss_scaling and settings.dtype == FLOAT16.name:
        steps = [operation.type for operation in graph.get_operations() if operation.type.startswith(APPLY_OPS)]
        if steps and not any(SCALE in operation.name for operation in graph.get_operations()):
            notices.session_unscaled(steps[0])


def add_converted(shadow: Shadow, operations: Sequence[Any], results: Sequence[Tensor], fed: Sequence[str], settings: Settings, session: BaseSession) -> None:
    """Adds operations to the shadow, converted if that works, and otherwise as they are.

    Args:
      shadow: what gets the operations.
      operations: operations of the user's graph.
      results: tensors of them that are fetched.
      fed: operations whose results are fed, so that their types must stay.
      settings: what to convert to.
      session: the Session that will run them.

    Raises:
      OpError: TensorFlow refuses the operations as they are.
      Exception: what went wrong, where `settings.strict` asks for it.
    """
    with notices.falling_back("graph", settings.strict, what="the graph of a tf.compat.v1.Session"), engine.without_garbage_collection():
        cut = shadow.fragment(operations, results)
        graphs = _graphs(session.graph)
        converted = engine.convert(from_graph(cut.graph), settings, cut.added | set(fed), graphs.get, feedable=True)
        record = make_record(converted, conversion.Shapes(graphs), _Details(session.graph, operations, results, fed, settings))
        conversion.account(converted, dataclasses.replace(record, function=ROOT))
        if settings.log_path:
            dumps.write(converted, settings.log_path)
        if converted.changed:
            shadow.add_converted(operations, cut, converted, _trial(session))
            return
    shadow.add(operations)


def _graphs(graph: Any) -> Graphs:
    """Returns the Python graphs of the functions of a main graph, and under "" that graph itself."""
    return {**graphs_of([function for function in tf_sessions.functions_of(graph) if isinstance(function, tf_api.AtomicFunction)]), "": graph}


class _Details:
    """Works out what there is to say of a conversion by converting once more. Keeps no graph alive."""

    def __init__(self, graph: Any, operations: Sequence[Any], results: Sequence[Tensor], fed: Sequence[str], settings: Settings) -> None:
        self._graph, self._names = weakref.ref(graph), [operation.name for operation in operations]
        self._results, self._fed, self._settings = results, fed, settings

    def __call__(self) -> Details | None:
        graph = self._graph()
        if graph is None:
            return None
        cut = cut_out(graph, [*map(graph.get_operation_by_name, self._names)], self._results)
        graphs = _graphs(graph)
        return describe(engine.convert(from_graph(cut.graph), self._settings, cut.added | set(self._fed), graphs.get, feedable=True), graphs)


def _trial(session: BaseSession) -> Callable[[tf_api.GraphDef], None]:
    """Returns what finds out whether a graph can run. A C session that was given a node for which a device has no kernel is of no use any more, and takes
    its variables with it; where all nodes run on the CPU, the kernels have been looked up already.
    """

    def try_out(graph_def: tf_api.GraphDef) -> None:
        if tf_sessions.device_types(session) != {"CPU"}:
            tf_sessions.try_out(session, graph_def)

    return try_out
