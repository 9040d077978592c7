"""Programs that no tracer writes: recursion, symbolic gradients, v1 loops, optionals and handles that travel.

Written as text and run by a v1 session; but for recursion, which no TensorFlow runtime runs (it inlines until the stack is full), so that NumPy does it here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests import graph_text
from tests.behaviour.on_off import ROUNDINGS, assert_alike, normal, run
from tests.programs.written import called_by
from tfmp import tf_api
from tfmp.dtypes import SIXTEEN_BIT

X, W = normal(4, 8).numpy(), normal(8, 8, seed=12, scale=0.5).numpy()

RECURSION = """
x = Placeholder() shape=[4, 8] dtype=float
w = Placeholder() shape=[8, 8] dtype=float
n = Const() value=3 dtype=int32
call = PartitionedCall(x, w, n) Tin=[float, float, int32] Tout=[float] f=down
result = Identity(call)

function down(x: float, w: float, n: int32) -> (y: float)
  zero = Const() value=0 dtype=int32
  more = Greater(n, zero:output:0) T=int32
  choice = If(more:z:0, x, w, n) Tcond=bool Tin=[float, float, int32] Tout=[float] then_branch=again else_branch=stop
  return y = choice:output:0

function again(x: float, w: float, n: int32) -> (y: float)
  one = Const() value=1 dtype=int32
  less = Sub(n, one:output:0) T=int32
  product = MatMul(x, w)
  floor = Relu(product:product:0)
  deeper = PartitionedCall(floor:activations:0, w, less:z:0) Tin=[float, float, int32] Tout=[float] f=down
  return y = deeper:output:0

function stop(x: float, w: float, n: int32) -> (y: float)
  product = MatMul(x, w)
  return y = product:product:0
"""

MUTUAL_RECURSION = RECURSION.replace("f=down\n  return", "f=up\n  return") + """
function up(x: float, w: float, n: int32) -> (y: float)
  small = Tanh(x)
  again = PartitionedCall(small:y:0, w, n) Tin=[float, float, int32] Tout=[float] f=down
  return y = again:output:0
"""

OPTIONAL = """
x = Placeholder() shape=[4, 8] dtype=float
w = Placeholder() shape=[8, 8] dtype=float
wrap = PartitionedCall(x, w) Tin=[float, float] Tout=[variant] f=wrap
unwrap = PartitionedCall(wrap, w) Tin=[variant, float] Tout=[float] f=unwrap
result = Identity(unwrap)

function wrap(x: float, w: float) -> (o: variant)
  product = MatMul(x, w)
  box = OptionalFromValue(product:product:0) Toutput_types=[float]
  return o = box:optional:0

function unwrap(o: variant, w: float) -> (y: float)
  value = OptionalGetValue(o) output_types=[float] output_shapes=[[4, 8]]
  product = MatMul(value:components:0, w)
  return y = product:product:0
"""

LIST_ROUND_A_LOOP = """
x = Placeholder() shape=[4, 8] dtype=float
w = Placeholder() shape=[8, 8] dtype=float
shape = Const() value=[4, 8] dtype=int32
most = Const() value=-1 dtype=int32
empty = EmptyTensorList(shape, most) element_dtype=float shape_type=int32
zero = Const() value=0 dtype=int32
loop = StatelessWhile(zero, x, w, empty) T=[int32, float, float, variant] cond=more body=push
all = PartitionedCall(loop:3, w) Tin=[variant, float] Tout=[float] f=total
result = Identity(all)

function more(i: int32, x: float, w: float, l: variant) -> (c: bool)
  limit = Const() value=3 dtype=int32
  less = Less(i, limit:output:0) T=int32
  return c = less:z:0

function push(i: int32, x: float, w: float, l: variant) -> (i_out: int32, x_out: float, w_out: float, l_out: variant)
  one = Const() value=1 dtype=int32
  next = AddV2(i, one:output:0) T=int32
  product = MatMul(x, w)
  pushed = TensorListPushBack(l, product:product:0) element_dtype=float
  return i_out = next:z:0
  return x_out = product:product:0
  return w_out = w
  return l_out = pushed:output_handle:0

function total(l: variant, w: float) -> (y: float)
  shape = Const() value=[4, 8] dtype=int32
  stack = TensorListStack(l, shape:output:0) element_dtype=float num_elements=-1
  rows = Const() value=[-1, 8] dtype=int32
  flat = Reshape(stack:tensor:0, rows:output:0)
  product = MatMul(flat:output:0, w)
  return y = product:product:0
"""

SYMBOLIC_GRADIENT = """
x = Placeholder() shape=[4, 8] dtype=float
w = Placeholder() shape=[8, 8] dtype=float
y = MatMul(x, w)
ones = OnesLike(y)
gradient = SymbolicGradient(y, w, ones) Tin=[float, float, float] Tout=[float, float] f=layer
after = MatMul(gradient, w) transpose_b=true
result = Identity(after)

function layer(x: float, w: float) -> (y: float)
  product = MatMul(x, w)
  return y = product:product:0
"""


def evaluate(graph: tf_api.GraphDef) -> np.ndarray:
    """Returns "result" for X and W, without TensorFlow's graph optimizers."""
    options = tf.compat.v1.ConfigProto()
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default(), tf.compat.v1.Session(config=options) as session:
        tf.import_graph_def(graph, name="")
        return session.run("result:0", {"x:0": X, "w:0": W})


def check(text: str, dtype: str, run: Callable[[tf_api.GraphDef], np.ndarray] = evaluate) -> tfmp.Conversion:
    """Asserts that the program runs as in float32 within rounding, that converting it again changes nothing, and that its matmuls are in 16 bit."""
    graph = graph_text.parse(text)
    conversion = tfmp.convert_graph_def(graph, feeds=["x", "w"], dtype=dtype, device="CPU")
    assert_alike(run(graph), run(conversion.graph_def), ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff)
    assert not tfmp.convert_graph_def(conversion.graph_def, feeds=["x", "w"], dtype=dtype, device="CPU").changed
    return conversion


def types(conversion: tfmp.Conversion, op: str, attr: str = "T") -> dict[str, str]:
    """Returns "function/node" to its type for the nodes of op type `op` in the converted graph and the functions that it still reaches."""
    graph = conversion.graph_def
    library = {function.signature.name: list(function.node_def) for function in graph.library.function}
    found, reached, todo = {}, {""}, [("", list(graph.node))]
    for where, nodes in todo:
        found.update({f"{where}/{node.name}": _type_name(node.attr[attr]) for node in nodes if node.op == op})
        new = {name for node in nodes for name in called_by(node)} - reached
        reached |= new
        todo += [(name, library[name]) for name in sorted(new)]
    return found


def _type_name(value: tf_api.AttrValue) -> str:
    return ",".join(tf.dtypes.as_dtype(number).name for number in ([value.type] if value.type else value.list.type))


OPS = {
    "Const": lambda node: np.asarray(tf_api.read_tensor(node.attr["value"].tensor)),
    "Identity": lambda node, x: x,
    "Cast": lambda node, x: x.astype(tf.dtypes.as_dtype(node.attr["DstT"].type).as_numpy_dtype),
    "Greater": lambda node, a, b: a > b,
    "Sub": lambda node, a, b: a - b,
    "MatMul": lambda node, a, b: (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype),
    "Relu": lambda node, x: np.maximum(x, np.zeros((), x.dtype)),
    "Tanh": lambda node, x: np.tanh(x.astype(np.float64)).astype(x.dtype),
}
"""The ops of the recursive programs; each asks, as TensorFlow does, that its arguments have one type."""


def interpret(graph: tf_api.GraphDef, nodes: Any, values: dict[str, np.ndarray], wanted: str) -> np.ndarray:
    """Returns the value of `wanted`, a tensor as `nodes` write it; `values` holds the arguments and collects what is computed."""
    name = wanted.partition(":")[0]
    if name not in values:
        node = nodes[name]
        inputs = [interpret(graph, nodes, values, text) for text in node.input]
        called = {"PartitionedCall": "f", "If": "then_branch" if node.op == "If" and inputs[0] else "else_branch"}.get(node.op)
        if called is None:
            assert len({value.dtype for value in inputs}) <= 1, f"{name} reads several types"
            values[name] = OPS[node.op](node, *inputs)
        else:
            values[name] = call(graph, node.attr[called].func.name, inputs[node.op == "If" :])
    return values[name]


def call(graph: tf_api.GraphDef, function: str, arguments: list[np.ndarray]) -> np.ndarray:
    """Returns the only result of `function`, whose arguments must have the types that it declares."""
    definition = graph_text.functions(graph)[function]
    declared = definition.signature.input_arg
    assert [tf.dtypes.as_dtype(arg.type).as_numpy_dtype for arg in declared] == [value.dtype for value in arguments]
    values = {arg.name: value for arg, value in zip(declared, arguments, strict=True)}
    return interpret(graph, graph_text.nodes(graph, function), values, next(iter(definition.ret.values())))


def run_by_numpy(graph: tf_api.GraphDef) -> np.ndarray:
    """Returns "result" for X and W."""
    return interpret(graph, graph_text.nodes(graph), {"x": X, "w": W}, "result")


@pytest.mark.parametrize("text", [RECURSION, MUTUAL_RECURSION], ids=["recursion", "mutual_recursion"])
def test_recursion_ends_and_is_one_colour_at_every_depth(text: str, dtype: str) -> None:
    conversion = check(text, dtype, run_by_numpy)
    assert set(types(conversion, "MatMul").values()) == {dtype}
    assert set(types(conversion, "If", "Tin").values()) == {f"{dtype},{dtype},int32"}
    assert conversion.casts == 3  # x and w on the way in, the result on the way out; none at any depth


def test_an_optional_holds_16_bit_from_one_function_to_another(dtype: str) -> None:
    conversion = check(OPTIONAL, dtype)
    assert set(types(conversion, "OptionalGetValue", "output_types").values()) == {dtype}
    assert conversion.casts == 3


def test_an_optional_of_two_values_is_left_alone(dtype: str) -> None:
    two = OPTIONAL.replace("OptionalFromValue(product:product:0) Toutput_types=[float]", "OptionalFromValue(product:product:0, x) Toutput_types=[float, float]")
    two = two.replace("output_types=[float] output_shapes=[[4, 8]]", "output_types=[float, float] output_shapes=[[4, 8], [4, 8]]")
    assert two.count("[float, float]") == OPTIONAL.count("[float, float]") + 2
    conversion = check(two, dtype)
    assert set(types(conversion, "OptionalGetValue", "output_types").values()) == {"float32,float32"}
    assert set(types(conversion, "MatMul").values()) == {dtype}


def test_the_optional_of_a_data_set_keeps_its_type(dtype: str) -> None:
    """What an iterator puts into an optional is float32, whatever the loop that takes it out wants."""

    def program() -> Any:
        iterator = iter(tf.data.Dataset.from_tensors(X).repeat(3))
        w = tf.constant(W)

        @tf.function
        def total() -> tf.Tensor:
            result = tf.zeros([4, 8])
            for _ in range(3):
                result += iterator.get_next_as_optional().get_value() @ w
            return result @ w

        return total()

    run(program, dtype).check()


def test_a_list_is_16_bit_wherever_its_handle_travels(dtype: str) -> None:
    conversion = check(LIST_ROUND_A_LOOP, dtype)
    for op in ("EmptyTensorList", "TensorListPushBack", "TensorListStack"):
        assert set(types(conversion, op, "element_dtype").values()) == {dtype}
    assert conversion.casts == 3


def test_a_function_that_is_differentiated_by_name_stays_as_it_is(dtype: str) -> None:
    conversion = check(SYMBOLIC_GRADIENT, dtype)
    assert types(conversion, "MatMul") == {"/y": dtype, "/after": dtype, "layer/product": "float32"}
    assert types(conversion, "SymbolicGradient", "Tin") == {"/gradient": "float32,float32,float32"}


def v1_loop(with_gradient: bool) -> Any:
    """Returns the graph of a loop of Enter, Merge, Switch, NextIteration and Exit, as control flow v1 makes it."""
    tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            x, w = (tf.compat.v1.placeholder(tf.float32, value.shape, name=name) for value, name in ((X, "x"), (W, "w")))
            y = tf.compat.v1.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(y @ w) @ w), (0, x))[1]
            result = tf.compat.v1.gradients(tf.reduce_mean(y**2), w)[0] if with_gradient else y
            tf.identity(result, name="result")
        return graph.as_graph_def()
    finally:
        tf.compat.v1.enable_control_flow_v2()


@pytest.mark.parametrize("with_gradient", [False, True], ids=["forward", "gradient"])
def test_v1_loops_are_16_bit_on_every_edge(with_gradient: bool, dtype: str) -> None:
    graph = v1_loop(with_gradient)
    conversion = tfmp.convert_graph_def(graph, feeds=["x", "w"], fetches=["result"], dtype=dtype, device="CPU")
    assert {"Enter", "Merge", "Switch", "NextIteration", "Exit"} <= {node.op for node in graph.node}
    assert_alike(evaluate(graph), evaluate(conversion.graph_def), ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff)
    assert set(types(conversion, "MatMul").values()) == {dtype}
    for op in ("Merge", "NextIteration", "Exit"):
        found = {name: dtype for name, dtype in types(conversion, op).items() if "grad" not in name and dtype != "int32"}
        assert set(found.values()) == {dtype}
    if not with_gradient:
        assert conversion.casts == 3
