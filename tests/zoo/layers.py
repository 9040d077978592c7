"""Small networks from plain TensorFlow ops with gradients, after the cases of TensorFlow's python test of the pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tests.zoo.case import Built, GraphCase, case, close_loop, constant, from_function, functional, in_graph, square


def _training(loss: Callable[..., Any], *variables: Sequence[int]) -> Built:
    """Returns one step of gradient descent on `loss(x, *weights)`, written with resource variables of the shapes given."""
    import tensorflow as tf

    weights = [tf.Variable(tf.fill(shape, 0.125), name=f"weight{index}") for index, shape in enumerate(variables)]

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(x, *(weight.read_value() for weight in weights))
        for weight, gradient in zip(weights, tape.gradient(value, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return value

    return from_function(step, tf.TensorSpec(_input_shape(len(variables[0])), tf.float32, name="x"))


def _input_shape(filter_rank: int) -> list[int]:
    return {2: [4, 8], 4: [2, 8, 8, 4], 5: [2, 4, 4, 4, 4]}[filter_rank]


def _batch_norm(x: Any) -> Any:
    import tensorflow as tf

    channels = tf.ones([x.shape[-1]])
    return tf.compat.v1.nn.fused_batch_norm(x, channels, channels, data_format="NDHWC" if len(x.shape) == 5 else "NHWC")[0]


def _conv_bn(x: Any, first: Any, second: Any) -> Any:
    import tensorflow as tf

    y = tf.nn.relu(_batch_norm(tf.nn.conv2d(x, first, 1, "SAME")))
    return tf.reduce_mean(_batch_norm(tf.nn.conv2d(y, second, 2, "SAME")))


def _conv3d(x: Any, first: Any, second: Any) -> Any:
    import tensorflow as tf

    y = tf.nn.relu(tf.nn.conv3d(x, first, [1] * 5, "SAME"))
    return tf.reduce_sum(tf.nn.conv3d(y, second, [1] * 5, "SAME"))


def _conv3d_bn(x: Any, first: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_sum(tf.nn.relu(_batch_norm(tf.nn.conv3d(x, first, [1] * 5, "SAME"))))


def _conv_bn_dropout(x: Any, first: Any, second: Any) -> Any:
    import tensorflow as tf

    y = tf.nn.dropout(tf.nn.relu(_batch_norm(tf.nn.conv2d(x, first, 1, "SAME"))), 0.5, seed=1)
    y = tf.nn.dropout(_batch_norm(tf.nn.conv2d(y, second, 1, "SAME")), 0.5, seed=2)
    return tf.reduce_mean(tf.nn.sigmoid(y))


def _depthwise(x: Any, first: Any, second: Any) -> Any:
    import tensorflow as tf

    y = tf.nn.relu6(tf.nn.depthwise_conv2d(x, first, [1] * 4, "SAME"))
    return tf.reduce_mean(tf.nn.conv2d(y, second, 1, "SAME") ** 2.0)


def _conv_pool() -> list[Any]:
    import tensorflow as tf

    x, filters = constant("x", 2, 8, 8, 4), constant("filters", 3, 3, 4, 4)
    bias = constant("bias", 4)
    first = tf.nn.relu(tf.nn.conv2d(x, filters, 1, "SAME", name="conv0"), name="relu0")
    pooled = tf.nn.max_pool2d(first, 2, 2, "SAME", name="pool")
    second = tf.nn.bias_add(tf.nn.conv2d(pooled, constant("filters1", 3, 3, 4, 4), 1, "SAME", name="conv1"), bias, name="b")
    return [tf.nn.avg_pool2d(tf.nn.relu(second, name="relu1"), 2, 2, "SAME", name="mean_pool")]


def _multi_paths() -> list[Any]:
    import tensorflow as tf

    x, filters = constant("x", 2, 8, 8, 6), constant("filters", 3, 3, 2, 4)
    one, two, three = tf.split(x, 3, axis=3, name="split")
    one = tf.nn.relu(tf.nn.conv2d(one, filters, 1, "SAME", name="conv0"), name="relu0")
    two = tf.nn.relu(tf.nn.conv2d(two, filters, 1, "SAME", name="conv1"), name="relu1")
    three = tf.exp(tf.nn.conv2d(three, filters, 1, "SAME", name="conv2"), name="exp")
    return [tf.nn.conv2d(tf.concat([one, two, three], 3, name="join"), constant("last", 3, 3, 12, 4), 1, "SAME", name="conv3")]


def _multi_paths_2() -> list[Any]:
    import tensorflow as tf

    x = constant("x", 8, 8)
    one, two = square(x, "matmul0"), square(x, "matmul1")
    three = tf.exp(x, name="exp")
    product = tf.nn.relu(tf.add(one, two, name="add"), name="relu")
    return [square(tf.multiply(product, three, name="mul"), "matmul2")]


def _lstm_cell(x: Any, hidden: Any, cell: Any, kernel: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    gates = tf.matmul(tf.concat([x, hidden], 1), kernel)
    entry, candidate, forget, output = tf.split(gates, 4, axis=1)
    cell = tf.sigmoid(forget + 1.0) * cell + tf.sigmoid(entry) * tf.tanh(candidate)
    return tf.sigmoid(output) * tf.tanh(cell), cell


def _recurrent_lstm(x: Any, kernel: Any) -> Any:
    """The loss of an LSTM that reads `x` (batch 4, features 8) at each of 3 steps and writes a tensor list."""
    import tensorflow as tf

    def body(step: Any, hidden: Any, cell: Any, outputs: Any) -> tuple[Any, ...]:
        hidden, cell = _lstm_cell(x, hidden, cell, kernel)
        return step + 1, hidden, cell, outputs.write(step, hidden)

    zeros = tf.zeros([4, 8])
    outputs = tf.TensorArray(tf.float32, size=3, element_shape=[4, 8])
    *_, outputs = tf.while_loop(lambda step, *_: step < 3, body, (0, zeros, zeros, outputs))
    return tf.reduce_mean(tf.matmul(tf.reshape(outputs.stack(), [12, 8]), kernel[:8]) ** 2.0)


def _intertwined(x: Any, first: Any, second: Any) -> Any:
    """The loss of a loop in which two variables take each other's place."""
    import tensorflow as tf

    def body(step: Any, left: Any, right: Any) -> tuple[Any, ...]:
        return step + 1, tf.nn.relu(tf.matmul(right, first)), tf.matmul(left, second)

    _, left, right = tf.while_loop(lambda step, *_: step < 3, body, (0, x, tf.nn.relu(x)))
    return tf.reduce_mean(left) + tf.reduce_sum(tf.exp(right))


def _simple_loop(x: Any, kernel: Any) -> Any:
    import tensorflow as tf

    _, end = tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, tf.nn.relu(tf.matmul(v, kernel))), (0, x))
    return tf.reduce_mean(end)


def _not_inlined() -> Built:
    import tensorflow as tf

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def dense(x: Any) -> Any:
        return tf.nn.relu(tf.matmul(x, x, name="inner_w"), name="inner_c")

    @tf.function(autograph=False)
    def outer(x: Any) -> Any:
        return tf.matmul(dense(tf.matmul(x, x, name="before_w")), x, name="after_w")

    return from_function(outer, tf.TensorSpec([4, 4], tf.float32, name="x"))


def _in_graph_training() -> list[Any]:
    """A v1 loop that reads and assigns a reference variable in its body: training inside the graph."""
    import tensorflow as tf

    x = constant("x", 4, 8)
    weight = tf.raw_ops.VariableV2(shape=[8, 8], dtype=tf.float32, name="weight")
    raw = tf.raw_ops

    def outside(tensor: Any, name: str) -> Any:
        return raw.Enter(data=tensor, frame_name="loop", is_constant=True, name=name)

    enter = raw.Enter(data=tf.constant(0), frame_name="loop", name="enter_count")
    merged = raw.Merge(inputs=[enter, enter], name="merge_count").output
    runs_on = raw.LoopCond(input=raw.Less(x=merged, y=outside(tf.constant(3), "enter_limit")), name="loop_cond")
    switch = raw.Switch(data=merged, pred=runs_on, name="switch_count")
    reference = raw.RefEnter(data=weight, frame_name="loop", is_constant=True, name="enter_weight")
    with tf.control_dependencies([switch.output_true]):
        value = raw.Identity(input=reference, name="read")
        batch = outside(x, "enter_x")
        error = tf.nn.relu(tf.matmul(batch, value, name="forward"), name="relu") - batch
        gradient = tf.matmul(batch, error, transpose_a=True, name="backward")
    update = raw.AssignSub(ref=reference, value=gradient, name="assign")
    with tf.control_dependencies([update]):
        following = switch.output_true + outside(tf.constant(1), "enter_step")
    raw.NextIteration(data=following, name="next_count")
    return [raw.Exit(data=switch.output_false, name="exit_count")]


def _closed_in_graph_training() -> Built:
    graph_def, fetches = in_graph(_in_graph_training)
    close_loop(graph_def, "merge_count", "next_count")
    return graph_def, fetches


def _step(loss: Callable[..., Any], *shapes: Sequence[int]) -> Callable[[], Built]:
    return functools.partial(_training, loss, *shapes)


_LOOP_TAGS = "python training loop function variables"
_FILTER, _FILTER3 = (3, 3, 4, 4), (3, 3, 3, 4, 4)

CASES: tuple[GraphCase, ...] = (
    case("layers/conv_bn", _step(_conv_bn, _FILTER, _FILTER), "python training variables", covers="conv_bn"),
    case("layers/conv3d", _step(_conv3d, _FILTER3, _FILTER3), "python training variables", covers="conv3d"),
    case("layers/conv3d_bn", _step(_conv3d_bn, _FILTER3), "python training variables", covers="conv3d_bn"),
    case("layers/conv_bn_dropout", _step(_conv_bn_dropout, _FILTER, _FILTER), "python training variables", covers="conv_bn_dropout"),
    case("layers/depthwise", _step(_depthwise, (3, 3, 4, 1), _FILTER), "python training variables"),
    case("layers/conv_pool", functools.partial(in_graph, _conv_pool), "python inference",
         half="conv0 relu0 pool conv1 b relu1", following="b relu1", casts=5,
         covers="conv_pool", note="AvgPool, an infer op, has a Relu and no allow op before it"),
    case("layers/multi_paths", functools.partial(in_graph, _multi_paths), "python inference",
         half="split conv0 relu0 conv1 relu1 conv2 join conv3", covers="multi_paths"),
    case("layers/multi_paths_2", functools.partial(in_graph, _multi_paths_2), "python inference",
         half="matmul0 matmul1 matmul2 add relu", following="add relu", covers="multi_paths_2"),
    *functional("layers/recurrent_lstm", _step(_recurrent_lstm, (16, 32)), _LOOP_TAGS, covers="recurrent_lstm"),
    *functional("layers/loop_with_vars_intertwined", _step(_intertwined, (8, 8), (8, 8)), _LOOP_TAGS, covers="loop_with_vars_intertwined"),
    *functional("layers/simple_loop", _step(_simple_loop, (8, 8)), _LOOP_TAGS, covers="simple_loop"),
    case("layers/noninlined_funcdef", _not_inlined, "python function", half="before_w after_w Identity",
         covers="noninlined_funcdef"),
    case("layers/noninlined_funcdef/lowered", _not_inlined, "python function", lower=True, covers="noninlined_funcdef"),
    case("layers/ingraph_train_loop", _closed_in_graph_training, "python training loop variables",
         covers="ingraph_train_loop"),
)  # fmt: skip
