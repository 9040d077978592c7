"""TensorFlow 1 programs: each builds a graph, runs it in Sessions, and returns what it has fetched."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

_rng = np.random.default_rng(3)
X, Y = _rng.normal(size=(16, 8)).astype("float32"), _rng.normal(size=(16, 2)).astype("float32")
IMAGES = _rng.normal(size=(4, 8, 8, 3)).astype("float32")
SEQUENCES = _rng.normal(size=(4, 5, 6)).astype("float32")


@contextlib.contextmanager
def session(**settings: Any) -> Iterator[v1.Session]:
    """Yields a Session of a graph of its own, which is being built."""
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(7)
        with v1.Session(graph=graph, **settings) as made:
            yield made


@contextlib.contextmanager
def control_flow(new: bool) -> Iterator[None]:
    """Builds loops and branches as functions, or as Enter, Switch and Merge."""
    before = v1.control_flow_v2_enabled()
    v1.enable_control_flow_v2() if new else v1.disable_control_flow_v2()
    try:
        yield
    finally:
        v1.enable_control_flow_v2() if before else v1.disable_control_flow_v2()


def weight(name: str, *shape: int, resource: bool = True) -> Any:
    """Returns a variable with the same values every time."""
    values = np.random.default_rng(len(name)).normal(scale=0.4, size=shape).astype("float32")
    return v1.get_variable(name, initializer=values, use_resource=resource)


def network(resource: bool = True) -> tuple[Any, Any, Any, Any]:
    """Returns placeholders for data and labels, a hidden layer and the loss of a network of two layers."""
    x, y = v1.placeholder(tf.float32, [None, 8], "x"), v1.placeholder(tf.float32, [None, 2], "y")
    hidden = tf.nn.relu(tf.nn.bias_add(x @ weight("first", 8, 16, resource=resource), weight("bias", 16, resource=resource)), "hidden")
    output = tf.matmul(hidden, weight("second", 16, 2, resource=resource), name="output")
    return x, y, hidden, tf.reduce_mean((output - y) ** 2, name="loss")


def training(resource: bool, optimizer: Any) -> list[Any]:
    """Trains, fetching the loss and the global step, and returns the weights, too."""
    with session() as sess:
        x, y, _, loss = network(resource)
        step = v1.train.get_or_create_global_step()
        train = optimizer.minimize(loss, global_step=step)
        sess.run(v1.global_variables_initializer())
        return [[sess.run([loss, train], {x: X, y: Y})[0], sess.run(step)] for _ in range(5)] + sess.run(v1.trainable_variables())


def any_tensor_fetched_and_fed() -> list[Any]:
    """Every tensor of a training graph fetched by name, some by themselves, and some intermediate ones fed."""
    with session() as sess:
        x, y, hidden, loss = network()
        gradients = tf.gradients(loss, [*v1.trainable_variables(), hidden])
        sess.run(v1.global_variables_initializer())
        feeds = {"x:0": X, y: Y}
        tensors = [t for op in sess.graph.get_operations() for t in op.outputs if t.dtype.base_dtype == tf.float32 and "Initializer" not in op.name]
        together = sess.run([t.name for t in tensors], feeds)
        alone = [sess.run(t, feeds) for t in tensors[::4]]
        fed = [sess.run([loss, gradients], {**feeds, t: value * 2}) for t, value in zip(tensors[::3], together[::3], strict=True)]
        return [together, alone, fed, sess.run({"all": gradients, "none": [], "pair": (loss, loss)}, feeds)]


def growing() -> list[Any]:
    """A graph that grows between runs: layers, then a loss, then a training step, then a summary, in steps that need what was there."""
    with session() as sess:
        x = v1.placeholder(tf.float32, [None, 8])
        first = weight("first", 8, 8)
        sess.run(first.initializer)
        results = [sess.run(first)]
        layer = tf.nn.relu(x @ first)
        results.append(sess.run(layer, {x: X}))
        for number in range(3):
            other = weight(f"w{number}" + "x" * number, 8, 8)
            sess.run(other.initializer)
            with tf.control_dependencies([layer]):
                layer = tf.nn.relu(tf.identity(layer) @ other + tf.reduce_mean(layer))
            results.append(sess.run([layer, tf.shape(layer)], {x: X}))
        loss = tf.reduce_mean(layer**2)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        results += [sess.run([loss, train], {x: X})[0] for _ in range(3)]
        results.append(sess.run(v1.summary.scalar("loss", loss), {x: X}) != b"")
        return results + sess.run(v1.global_variables())


def loop(new: bool) -> list[Any]:
    """A while loop of products with its gradient, whose weight is a variable."""
    with control_flow(new), session() as sess:
        x, w = v1.placeholder(tf.float32, [4, 8]), weight("w", 8, 8)
        _, result, total = tf.while_loop(
            lambda i, _x, _t: i < 4, lambda i, x, t: (i + 1, tf.tanh(x @ w), t + tf.reduce_sum(x)), [0, x, 0.0], parallel_iterations=2
        )
        gradients = tf.gradients(tf.reduce_mean(result**2), [w, x])
        sess.run(v1.global_variables_initializer())
        return sess.run([result, total, gradients], {x: X[:4]})


def branch(new: bool) -> list[Any]:
    """A conditional with its gradient, both ways."""
    with control_flow(new), session() as sess:
        x, w, left = v1.placeholder(tf.float32, [4, 8]), weight("w", 8, 8), v1.placeholder(tf.bool, [])
        result = tf.cond(left, lambda: tf.nn.relu(x @ w) @ w, lambda: x + 1.0)
        gradients = tf.gradients(tf.reduce_sum(result * result), [w, x])
        sess.run(v1.global_variables_initializer())
        return [sess.run([result, gradients], {x: X[:4], left: way}) for way in (True, False)]


def recurrent(new: bool) -> list[Any]:
    """A loop over a TensorArray, as `dynamic_rnn` writes it, and its gradient."""
    with control_flow(new), session() as sess:
        x, w, u = v1.placeholder(tf.float32, [4, 5, 6]), weight("w", 6, 8), weight("uu", 8, 8)
        steps = tf.TensorArray(tf.float32, 5).unstack(tf.transpose(x, [1, 0, 2]))
        outputs = tf.TensorArray(tf.float32, 5)
        _, _, outputs = tf.while_loop(
            lambda t, _s, _o: t < 5,
            lambda t, s, o: (t + 1, new_state := tf.tanh(steps.read(t) @ w + s @ u), o.write(t, new_state)),
            [0, tf.zeros([4, 8]), outputs],
        )
        result = outputs.stack()
        gradients = tf.gradients(tf.reduce_mean(result**2), [w, u])
        sess.run(v1.global_variables_initializer())
        return sess.run([result, gradients], {x: SEQUENCES})


def stateful(resource: bool) -> list[Any]:
    """Random numbers, counters and assignments in an order that control dependencies set: each happens once a run, whatever is fetched."""
    with session() as sess:
        x, w = v1.placeholder(tf.float32, [None, 8]), weight("w", 8, 8, resource=resource)
        count = v1.get_variable("count", [], initializer=v1.zeros_initializer(), use_resource=resource)
        average = v1.get_variable("average", [8], initializer=v1.zeros_initializer(), use_resource=resource)
        product = x @ w
        dropped = tf.nn.dropout(product, rate=0.5, seed=5)
        with tf.control_dependencies([v1.assign_add(count, 1.0), v1.assign(average, 0.9 * average + 0.1 * tf.reduce_mean(product, 0))]):
            result = dropped @ w
            with tf.control_dependencies([result]):
                later = tf.identity(count)
        sess.run(v1.global_variables_initializer())
        fetches = [[result, dropped, later], [result, later], [dropped], [result, dropped, later]]
        return [sess.run(one, {x: X}) for one in fetches] + sess.run([count, average])


def queues() -> list[Any]:
    """Input through a queue runner, a second queue between producer and consumer."""
    with session() as sess:
        (row,) = v1.train.slice_input_producer([tf.constant(X)], shuffle=False)
        (batch,) = (v1.train.batch([row], batch_size=4),)
        queue = v1.FIFOQueue(10, [tf.float32], [[4, 8]])
        w = weight("w", 8, 8)
        enqueue, dequeue = queue.enqueue(tf.nn.relu(batch @ w)), queue.dequeue() @ w
        sess.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        coordinator = v1.train.Coordinator()
        threads = v1.train.start_queue_runners(sess, coordinator)
        results = []
        for _ in range(3):
            sess.run(enqueue)
            results.append(sess.run(dequeue))
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=10)
        return results


def monitored() -> list[Any]:
    """MonitoredTrainingSession with hooks, checkpoints and summaries, resumed by a second one."""
    results: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            with tf.Graph().as_default():
                x, y, hidden, loss = network(resource=False)
                step = v1.train.get_or_create_global_step()
                train = v1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
                v1.summary.histogram("hidden", hidden)
                hooks = [v1.train.StopAtStepHook(num_steps=4), v1.train.NanTensorHook(loss)]
                with v1.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks, save_summaries_steps=2, log_step_count_steps=None) as sess:
                    while not sess.should_stop():
                        results.append(sess.run([loss, train], {x: X, y: Y})[0])
        reader = v1.train.NewCheckpointReader(v1.train.latest_checkpoint(folder))
        results.append({name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()})
    return results


def saver() -> list[Any]:
    """Weights saved by one Session and restored by another, with the graph from the MetaGraph."""
    with tempfile.TemporaryDirectory() as folder:
        with session() as sess:
            x, y, _, loss = network()
            train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
            sess.run(v1.global_variables_initializer())
            results = [sess.run([loss, train], {x: X, y: Y})[0] for _ in range(2)]
            path = v1.train.Saver().save(sess, f"{folder}/model")
        with session() as sess:
            v1.train.import_meta_graph(f"{path}.meta").restore(sess, path)
            feeds = {"x:0": X, "y:0": Y}
            return [*results, *[sess.run(["loss:0", "Momentum"], feeds)[0] for _ in range(2)], sess.run(v1.global_variables())]


def frozen() -> list[Any]:
    """A graph frozen with its weights, imported under a name from a file, and fed and fetched by name."""
    with tempfile.TemporaryDirectory() as folder:
        with session() as sess:
            network(resource=False)
            sess.run(v1.global_variables_initializer())
            graph = v1.graph_util.convert_variables_to_constants(sess, sess.graph_def, ["output"])
            pathlib.Path(folder, "graph.pb").write_bytes(graph.SerializeToString())
        with session() as sess:
            read = v1.GraphDef.FromString(pathlib.Path(folder, "graph.pb").read_bytes())
            (output,) = tf.import_graph_def(read, return_elements=["output:0"], name="old")
            return [sess.run("old/output:0", {"old/x:0": X}), sess.run([output, "old/hidden:0"], {"old/x:0": X})]


def layers() -> list[Any]:
    """`tf.compat.v1.layers`, which tf_keras has now, with batch normalisation and its update operations."""
    from tf_keras.api._v1.keras.__internal__.legacy import layers as legacy

    with session() as sess:
        x, on = v1.placeholder(tf.float32, [None, 8, 8, 3]), v1.placeholder(tf.bool, [])
        y = legacy.conv2d(x, 4, 3, activation=tf.nn.relu, kernel_initializer=v1.glorot_uniform_initializer(seed=3), name="conv")
        y = legacy.max_pooling2d(legacy.batch_normalization(y, training=on, fused=True), 2, 2)
        y = legacy.dropout(legacy.dense(legacy.flatten(y), 2, kernel_initializer=v1.constant_initializer(0.05)), training=False)
        loss = tf.reduce_mean(y**2)
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train = v1.train.RMSPropOptimizer(0.001).minimize(loss)
        sess.run(v1.global_variables_initializer())
        results = [sess.run([loss, train], {x: IMAGES, on: True})[0] for _ in range(3)]
        return [*results, sess.run([y, loss], {x: IMAGES, on: False}), sess.run(v1.global_variables())]


def callables() -> list[Any]:
    """`make_callable` with and without feeds, and a run in two parts."""
    with session() as sess:
        x, y, hidden, loss = network()
        constant = tf.constant(X) @ weight("alone", 8, 8)
        sess.run(v1.global_variables_initializer())
        fed, plain, both = sess.make_callable([loss, hidden], [x, y]), sess.make_callable(constant), sess.make_callable([constant, constant.op])
        handle = sess.partial_run_setup([hidden, loss], [x, y])
        parts = [sess.partial_run(handle, hidden, {x: X}), sess.partial_run(handle, loss, {y: Y})]
        again = sess.partial_run_setup([loss], [hidden, y])
        return [fed(X, Y), plain(), both()[0], *parts, sess.partial_run(again, loss, {hidden: parts[0], y: Y})]


def datasets() -> list[Any]:
    """An initialisable iterator, whose functions stay as they are, and a function that is called in the graph."""
    with session() as sess:
        w = weight("w", 8, 8)
        data = tf.data.Dataset.from_tensor_slices(X).map(lambda row: row[None] @ tf.ones([8, 8])).batch(4)
        iterator = v1.data.make_initializable_iterator(data)
        function = tf.function(lambda x: tf.nn.relu(x @ w))
        result = function(iterator.get_next()[:, 0]) @ w
        gradients = tf.gradients(result, w.handle)
        sess.run([v1.global_variables_initializer(), iterator.initializer])
        return [sess.run(result), sess.run([result, gradients])]


def embedding(resource: bool) -> list[Any]:
    """Sparse gradients, fetched as IndexedSlices, and applied."""
    with session() as sess:
        table, w = weight("table", 10, 8, resource=resource), weight("w", 8, 2, resource=resource)
        loss = tf.reduce_mean((tf.nn.embedding_lookup(table, [1, 3, 3]) @ w) ** 2)
        (gradient,) = tf.gradients(loss, [table])
        train = v1.train.AdagradOptimizer(0.1).minimize(loss)
        sess.run(v1.global_variables_initializer())
        return [sess.run([gradient, loss, train])[:2] for _ in range(3)] + sess.run([table, w])


def handles() -> list[Any]:
    """A tensor that stays in the Session, handed from run to run."""
    with session() as sess:
        x, w = v1.placeholder(tf.float32, [None, 8]), weight("w", 8, 8)
        sess.run(w.initializer)
        handle = sess.run(v1.get_session_handle(tf.nn.relu(x @ w)), {x: X})
        place, value = v1.get_session_tensor(handle.handle, tf.float32)
        return [handle.eval(), sess.run(value @ w, {place: handle.handle})]


PROGRAMS: dict[str, Callable[[], Any]] = {
    "training with resource variables": lambda: training(True, v1.train.AdamOptimizer(0.01)),
    "training with reference variables": lambda: training(False, v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True)),
    "any tensor fetched and fed": any_tensor_fetched_and_fed,
    "growing": growing,
    "while v1": lambda: loop(False),
    "while v2": lambda: loop(True),
    "cond v1": lambda: branch(False),
    "cond v2": lambda: branch(True),
    "recurrent v1": lambda: recurrent(False),
    "recurrent v2": lambda: recurrent(True),
    "stateful with resource variables": lambda: stateful(True),
    "stateful with reference variables": lambda: stateful(False),
    "queues": queues,
    "monitored": monitored,
    "saver": saver,
    "frozen": frozen,
    "layers": layers,
    "callables": callables,
    "datasets": datasets,
    "embedding with resource variables": lambda: embedding(True),
    "embedding with reference variables": lambda: embedding(False),
    "handles": handles,
}
