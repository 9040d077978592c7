"""The border to TensorFlow's Sessions and to the C graph that they run: a part of the border, as `tf_api` is.

What is taken is the same, name for name, in TensorFlow 2.18 to 2.21.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session as _c
from tensorflow.python.client.session import BaseSession

from tfmp.tf_api import GraphDef

Tensor = tuple[str, int]
"""Name of an operation and number of its output."""

Output: TypeAlias = Any
"""TensorFlow's handle of a tensor in a C graph (`TF_Output`)."""

__all__ = [
    "BaseSession", "NativeGraph", "Output", "Tensor", "device_types", "extend", "functions_of", "library_of", "name_of", "native_callable", "new_session",
    "replace_session", "run", "run_in_part", "set_up_partial_run", "tensor_of", "unchanging",
]  # fmt: skip


class NativeGraph:
    """A C graph that grows by GraphDefs, without a Python object for each node.

    Attributes:
      handle: what a C session is made for.
    """

    def __init__(self) -> None:
        """Makes an empty graph."""
        self.handle = tf.Graph()
        self._operations: dict[str, Any] = {}
        self._prefixes: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Returns whether the graph has an operation called `name`."""
        return name in self._operations

    def is_scope(self, name: str) -> bool:
        """Returns whether an operation is called `name/...`: TensorFlow adds no GraphDef with a node called `name` then."""
        return name in self._prefixes

    def __len__(self) -> int:
        """Returns the number of operations."""
        return len(self._operations)

    def operation(self, name: str) -> Any:
        """Returns TensorFlow's handle of the operation called `name`."""
        return self._operations[name]

    def output(self, tensor: Tensor) -> Output:
        """Returns TensorFlow's handle of a tensor."""
        result = _c.TF_Output()
        result.oper, result.index = self._operations[tensor[0]], tensor[1]
        return result

    def add(self, graph_def: GraphDef, inputs: Mapping[Tensor, Tensor], controls: Mapping[str, str]) -> None:
        """Adds the nodes and functions of `graph_def`, under their own names, or none of them.

        Args:
          graph_def: nodes that may read tensors which are not among them.
          inputs: each such tensor, as the nodes write it, to the tensor of this graph that is meant.
          controls: each operation that nodes have control inputs from and that is not among them, likewise.

        Raises:
          OpError: TensorFlow refuses a node; the graph is as it was.
        """
        options = _c.TF_NewImportGraphDefOptions()
        buffer = _c.TF_NewBufferFromString(graph_def.SerializeToString())
        try:
            _c.TF_ImportGraphDefOptionsSetPrefix(options, "")
            _c.TF_ImportGraphDefOptionsSetUniquifyNames(options, False)
            _c.TF_ImportGraphDefOptionsSetValidateColocationConstraints(options, False)
            for (name, port), tensor in inputs.items():
                _c.TF_ImportGraphDefOptionsAddInputMapping(options, name, port, self.output(tensor))
            for name, operation in controls.items():
                _c.TF_ImportGraphDefOptionsRemapControlDependency(options, name, self._operations[operation])
            for node in graph_def.node:
                _c.TF_ImportGraphDefOptionsAddReturnOperation(options, node.name)
            results = _c.TF_GraphImportGraphDefWithResults(self.handle, buffer, options)
            try:
                operations = _c.TF_ImportGraphDefResultsReturnOperations(results)
                self._operations.update(zip((node.name for node in graph_def.node), operations, strict=True))
                self._prefixes.update(scope for node in graph_def.node for scope in itertools.accumulate(node.name.split("/")[:-1], "{}/{}".format))
            finally:
                _c.TF_DeleteImportGraphDefResults(results)
        finally:
            _c.TF_DeleteBuffer(buffer)
            _c.TF_DeleteImportGraphDefOptions(options)


def tensor_of(output: Output) -> Tensor:
    """Returns name and number of the tensor that a handle stands for."""
    return _c.TF_OperationName(output.oper), output.index


def name_of(operation: Any) -> str:
    """Returns the name of the operation that a handle stands for."""
    return _c.TF_OperationName(operation)


@contextlib.contextmanager
def unchanging(graph: tf.Graph) -> Iterator[None]:
    """Keeps other threads from adding to `graph`, as `Session.run` does while it reads it."""
    with graph._session_run_lock():
        yield


def functions_of(graph: tf.Graph) -> Sequence[Any]:
    """Returns the functions of `graph`: `AtomicFunction`s, and what TensorFlow 1 made for its `Defun`s and for imported ones."""
    return tuple(graph._functions.values())


def library_of(graph: tf.Graph) -> Any:
    """Returns the function library of `graph`; raises ValueError if it is too large for a proto."""
    return graph.as_graph_def().library


def new_session(session: BaseSession, graph: NativeGraph | None = None) -> Any:
    """Returns a new C session with the target and the configuration of `session`, for `graph`, or if there is none for the session's own graph."""
    options = _c.TF_NewSessionOptions(target=session._target, config=session._config)
    try:
        return _c.TF_NewSessionRef(session._graph if graph is None else graph.handle, options)
    finally:
        _c.TF_DeleteSessionOptions(options)


def try_out(session: BaseSession, graph_def: GraphDef) -> None:
    """Raises `OpError` if the devices of `session` cannot run some node of `graph_def`; it takes a session of its own, which is gone afterwards."""
    graph = NativeGraph()
    graph.add(graph_def, {}, {})
    native = new_session(session, graph)
    try:
        extend(native)
    finally:
        _c.TF_CloseSession(native)
        _c.TF_DeleteSession(native)


def replace_session(session: BaseSession, native: Any) -> None:
    """Lets `session`, which must not have run yet, run the C session `native` from now on."""
    old, session._session = session._session, native
    _c.TF_CloseSession(old)
    _c.TF_DeleteSession(old)


def device_types(session: BaseSession) -> frozenset[str]:
    """Returns the types ("CPU", "GPU", ...) of the devices that `session` may use."""
    return frozenset(device.device_type for device in session.list_devices())


def native_callable(session: BaseSession, options: Any, feeds: Sequence[Tensor], fetches: Sequence[Tensor], targets: Sequence[str]) -> Any:
    """Returns TensorFlow's callable for a CallableOptions proto with other feeds, fetches and targets.

    The last of `fetches` and of `feeds` are the sources and the ends of the connections.
    """
    new = type(options)()
    new.CopyFrom(options)
    fetched, fed = ([f"{name}:{port}" for name, port in tensors] for tensors in (fetches, feeds))
    new.feed[:], new.fetch[:], new.target[:] = fed[: len(options.feed)], fetched[: len(options.fetch)], targets
    for connection, source, end in zip(new.tensor_connection, fetched[len(options.fetch) :], fed[len(options.feed) :], strict=True):
        connection.from_tensor, connection.to_tensor = source, end
    return BaseSession._Callable(session, new)


def extend(native: Any) -> None:
    """Lets a C session see what was added to its graph."""
    _c.ExtendSession(native)


def run(native: Any, options: Any, feeds: Mapping[Output, Any], fetches: Sequence[Output], targets: Sequence[Any], metadata: Any) -> list[Any]:
    """Runs one step of a C session and returns what was fetched, as NumPy arrays; arguments as `BaseSession._call_tf_sessionrun` takes them."""
    return _c.TF_SessionRun_wrapper(native, options, feeds, fetches, targets, metadata)


def set_up_partial_run(native: Any, feeds: Sequence[Output], fetches: Sequence[Output], targets: Sequence[Any]) -> str:
    """Begins a run in parts and returns its handle."""
    return _c.TF_SessionPRunSetup_wrapper(native, feeds, fetches, targets)


def run_in_part(native: Any, handle: str, feeds: Mapping[Output, Any], fetches: Sequence[Output]) -> list[Any]:
    """Runs one part of a run that `set_up_partial_run` has begun."""
    return _c.TF_SessionPRun_wrapper(native, handle, feeds, fetches)
