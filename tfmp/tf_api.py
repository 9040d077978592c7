"""The border to TensorFlow: this module, `tf_callbacks`, `tf_marks` and `tf_sessions` are the only ones that import TensorFlow's private modules.

What is taken is the same, name for name, in TensorFlow 2.18 to 2.21. A TensorFlow version that moves something is handled here and nowhere else.
Importing this module imports TensorFlow; nothing that runs before TensorFlow does may import it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from google.protobuf.message import Message
from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2, op_def_pb2, tensor_pb2
from tensorflow.python import pywrap_tfe as _pywrap_tfe
from tensorflow.python.client import pywrap_tf_session as _pywrap_tf_session
from tensorflow.python.eager import context as _context
from tensorflow.python.eager.polymorphic_function import atomic_function as _atomic_function
from tensorflow.python.eager.polymorphic_function import function_type_utils as _function_type_utils
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.framework import c_api_util as _c_api_util
from tensorflow.python.framework import config as _config
from tensorflow.python.framework import func_graph as _func_graph
from tensorflow.python.framework import function_def_to_graph as _function_def_to_graph
from tensorflow.python.framework import kernels as _kernels
from tensorflow.python.framework import op_def_registry as _op_def_registry
from tensorflow.python.framework import tensor_util as _tensor_util
from tensorflow.python.ops import control_flow_v2_func_graphs as _control_flow
from tensorflow.python.ops import script_ops as _script_ops
from tensorflow.python.util import pywrap_xla_ops as _pywrap_xla_ops

from tfmp.dtypes import DT_FLOAT
from tfmp.errors import GraphError

VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])
"""Major and minor version of the running TensorFlow."""

AttrValue: TypeAlias = attr_value_pb2.AttrValue
FunctionDef: TypeAlias = function_pb2.FunctionDef
GraphDef: TypeAlias = graph_pb2.GraphDef
NodeDef: TypeAlias = node_def_pb2.NodeDef
OpDef: TypeAlias = op_def_pb2.OpDef
TensorProto: TypeAlias = tensor_pb2.TensorProto
AtomicFunction: TypeAlias = _atomic_function.AtomicFunction
OpError: TypeAlias = tf.errors.OpError
VARIANT = tf.variant
"""The type of tensor lists and optionals."""

__all__ = [
    "VARIANT", "callback_token", "copy_of_variable", "flat_arguments",
    "VERSION", "AtomicFunction", "AttrValue", "ConcreteFunction", "FunctionDef", "GraphDef", "Message", "NodeDef", "OpDef", "OpError", "TensorProto",
    "add_function", "as_type", "enclosing_graphs", "executing_eagerly", "function_definition", "has_function", "imported", "imported_function",
    "imported_nodes", "input_shapes", "is_branch", "kernels_of", "make_tensor", "new_atomic_function", "op_def", "ops_are_deterministic",
    "output_shapes", "python_graphs", "read_tensor", "register_xla_kernels", "replica_id", "rounded", "serialised_function", "to_sixteen", "variable_names",
]  # fmt: skip


def op_def(op: str) -> OpDef | None:
    """Returns the registered definition of `op`, custom ops included, or None if there is none."""
    return _op_def_registry.get(op)


def kernels_of(op: str) -> Sequence[Any]:
    """Returns the `KernelDef`s that this process has registered for `op`, GPU kernels included where the build has them."""
    return _kernels.get_registered_kernels_for_op(op).kernel


@functools.cache
def register_xla_kernels() -> None:
    """Makes `kernels_of` list the XLA_CPU_JIT and XLA_GPU_JIT kernels, which TensorFlow otherwise registers at the first XLA compilation."""
    _pywrap_xla_ops.get_cpu_kernel_names()


def ops_are_deterministic() -> bool:
    """Returns whether ops are to compute the same, to the bit, at every run (`tf.config.experimental.enable_op_determinism`)."""
    return bool(_config.is_op_determinism_enabled())


def executing_eagerly() -> bool:
    """Returns whether a function called now would run now, rather than become a call node of a graph being built."""
    return bool(_context.context().executing_eagerly())


def enclosing_graphs() -> list[Any]:
    """Returns the graph that is being built and the functions' graphs around it, innermost first."""
    graphs = [tf.compat.v1.get_default_graph()]
    while isinstance(outer := getattr(graphs[-1], "outer_graph", None), _func_graph.FuncGraph):
        graphs.append(outer)
    return graphs


def is_branch(graph: Any) -> bool:
    """Returns whether a graph is a branch of a conditional, or the condition or body of a loop, which may read the tensors of the graph around it."""
    return isinstance(graph, _control_flow.ControlFlowFuncGraph)


def replica_id() -> int:
    """Returns the number of the replica whose step is being run or traced; to be called in replica context."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def has_function(name: str) -> bool:
    """Returns whether the eager context knows a function called `name`."""
    return bool(_context.context().has_function(name))


def serialised_function(name: str) -> bytes:
    """Returns the definition that the eager context holds for the function `name`, serialised; raises `OpError` if there is none."""
    with _c_api_util.tf_buffer() as buffer:
        _pywrap_tfe.TFE_ContextGetFunctionDef(_context.context()._handle, name, buffer)
        return bytes(_pywrap_tf_session.TF_GetBuffer(buffer))


def function_definition(name: str) -> FunctionDef:
    """Returns what `serialised_function` does as a message, which takes three times as long."""
    return FunctionDef.FromString(serialised_function(name))


def imported(graph_def: GraphDef) -> tf.Graph:
    """Returns a graph with the nodes of `graph_def`, whose tensors have the shapes that TensorFlow infers; raises `ValueError` if it cannot be imported."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
    return graph


def add_function(definition: Any) -> None:
    """Registers `definition`, a FunctionDef or what serialises to one, with the eager context under its own name."""
    _context.context().add_function_def(definition)


def new_atomic_function(name: str, definition: Any, like: AtomicFunction, children: Sequence[AtomicFunction]) -> AtomicFunction:
    """Registers `definition`, as `add_function` does, and returns the handle that removes it again when the last reference goes.

    `name` is its name. The new function has the type and the call options of `like`, and keeps `children` (what it calls) and `like`'s graph alive.
    """
    add_function(definition)
    return AtomicFunction(name, _context.context(), like.function_type, list(children), like.call_options, cached_graph=like._cached_graph)


def variable_names(graph: Any, more: Sequence[Any] = ()) -> dict[int, str]:
    """Returns the names of the variables that a function captures, by argument number.

    Args:
      graph: the function's `FuncGraph`; an argument's name hangs on how the variable is first used, so that the variables themselves are asked.
      more: further graphs that know variables which `graph` captures.
    """
    names = {id(v.handle): v.name.partition(":")[0] for one in (graph, *more) for v in (ref() for ref in one._weak_variables) if hasattr(v, "handle")}
    numbers = {id(tensor): number for number, tensor in enumerate(graph.inputs)}
    return {numbers[id(inner)]: names[id(outer)] for outer, inner in graph.captures if id(outer) in names and id(inner) in numbers}


def callback_token(callback: Callable[..., Sequence[Any]]) -> str:
    """Returns the value of a PyFunc node's attribute `token` that makes the node call `callback` with NumPy arrays; it returns one array for each output.

    TensorFlow keeps no reference to `callback`: the caller must, as long as the node may run.
    """
    return _script_ops._py_funcs.insert(callback)


def flat_arguments(function: ConcreteFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Returns the tensors that calling `function` with `args` and `kwargs` hands to its definition, captured ones last; raises TypeError if they do not fit."""
    bound = _function_type_utils.canonicalize_function_inputs(args, kwargs, function.function_type)
    return [*function.function_type.unpack_inputs(bound), *function.captured_inputs]


def copy_of_variable(handle: Any) -> Any:
    """Returns a new variable, on the same device and with the same value, if the resource tensor `handle` is that of an initialised variable; else None."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1 or not tf.raw_ops.VarIsInitializedOp(resource=handle):
        return None
    dtype = tf.dtypes.as_dtype(data.shape_and_type[0].dtype)
    with tf.device(handle.device):
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        return tf.Variable(value, trainable=False, shape=tf.TensorShape(data.shape_and_type[0].shape))


def as_type(tensor: Any, dtype_number: int) -> Any:
    """Returns `tensor`, cast if it is of a 16-bit float type and the `DataType` with that number is float32."""
    if dtype_number == DT_FLOAT and tensor.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(tensor, tf.float32)
    return tensor


def read_tensor(proto: TensorProto) -> Any:
    """Returns the value of a constant as a NumPy array; raises `GraphError` if type, shape and content do not fit each other."""
    try:
        return _tensor_util.MakeNdarray(proto)
    except (ValueError, TypeError) as error:
        raise GraphError(f"a constant cannot be read: {error}.") from None


def rounded(value: Any, dtype_number: int) -> Any:
    """Returns the float32 array `value` rounded to the `DataType` with that number and back."""
    with np.errstate(over="ignore"):
        return value.astype(tf.dtypes.as_dtype(dtype_number).as_numpy_dtype).astype(np.float32)


def to_sixteen(value: Any, dtype_number: int) -> Any:
    """Returns `value` as an array of the 16-bit `DataType` with that number; what is too large for it becomes infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(tf.dtypes.as_dtype(dtype_number).as_numpy_dtype)


def make_tensor(value: Any, dtype_number: int) -> TensorProto:
    """Returns `value`, rounded to the `DataType` with that number, as a tensor proto."""
    kind = tf.dtypes.as_dtype(dtype_number)
    with np.errstate(over="ignore"):  # a user may force what reads it into 16 bit all the same
        proto = _tensor_util.make_tensor_proto(value, dtype=kind)
        if proto.half_val and np.size(value) > 1:  # one varint a number, of three bytes mostly
            proto.ClearField("half_val")
            proto.tensor_content = np.asarray(value).astype(kind.as_numpy_dtype).tobytes()
    return proto


def output_shapes(graph: Any, node: str) -> list[tuple[int | None, ...] | None]:
    """Returns the static shapes of the outputs of `node` in the Python graph `graph`; none if it has no such node.

    (A node that has the name of an argument is called otherwise in a FunctionDef, so that this graph does not know it.)
    """
    try:
        operation = graph._get_operation_by_name(node)
    except KeyError:
        return []
    return [_dimensions(tensor) for tensor in operation.outputs]


def output_shapes_of(graph: Any, nodes: Sequence[str]) -> list[list[tuple[int | None, ...] | None]]:
    """Returns `output_shapes` of each of `nodes`, in less time."""
    try:
        operations = list(map(graph._get_operation_by_name, nodes))
    except KeyError:
        return [output_shapes(graph, node) for node in nodes]
    return [[_dimensions(tensor) for tensor in operation.outputs] for operation in operations]


def input_shapes(graph: Any, index: int) -> list[tuple[int | None, ...] | None]:
    """Returns the static shape of argument number `index` of the Python function graph `graph`, in a list; none if it has no such argument."""
    inputs = getattr(graph, "inputs", ())
    return [_dimensions(inputs[index])] if index < len(inputs) else []


def _dimensions(tensor: Any) -> tuple[int | None, ...] | None:
    """Returns the shape of a tensor, without the `TensorShape` that asking for it would make first where tracing has not: there are very many."""
    if tensor._shape_val is not None:
        return tensor._shape_val._dims
    sizes, is_unknown = tensor._shape
    return None if is_unknown else tuple(sizes)


def python_graphs(functions: Iterable[AtomicFunction]) -> dict[str, Any]:
    """Returns name to Python graph of `functions` and of everything they keep alive, where there is one."""
    graphs: dict[str, Any] = {}
    todo, seen = list(functions), set()
    while todo:
        function = todo.pop()
        name = function.name.decode() if isinstance(function.name, bytes) else function.name
        if name not in seen:
            seen.add(name)
            todo += getattr(function, "children", ())
            if getattr(function, "_cached_graph", None) is not None:
                graphs[name] = function._cached_graph
    return graphs


def imported_nodes(graph: GraphDef) -> Any:
    """Returns a Python graph with the nodes of `graph`, or None if TensorFlow's importer refuses it.

    The library is left out, since the importer would look into what is called, for ever if a function calls itself: shapes of results of calls are unknown.
    """
    try:
        with tf.Graph().as_default() as made:
            tf.graph_util.import_graph_def(GraphDef(node=graph.node, versions=graph.versions), name="")
    except (ValueError, TypeError, OpError):
        return None
    return made


def imported_function(definition: FunctionDef, outer: Any) -> Any:
    """Returns a Python function graph made of `definition`, whose callees the graph `outer` knows, or None if TensorFlow's importer refuses it."""
    try:
        with outer.as_default():
            return _function_def_to_graph.function_def_to_graph(FunctionDef.FromString(definition.SerializeToString()))  # which writes into what it is given
    except (ValueError, TypeError, KeyError, OpError):
        return None
