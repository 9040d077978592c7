"""Trains in v1 graphs with Sessions and prints what happened, as JSON: `python v1_graph.py eager_off` or `v2_off`.

A process of its own, since eager execution cannot be switched back on.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from tfmp.optimizers.policies import DynamicLossScale
from tfmp.optimizers.wrap import wrap

v1 = tf.compat.v1
GOOD = np.ones((2, 3), "float32")
BAD = np.where(np.arange(6).reshape(2, 3) == 4, np.float32(np.inf), GOOD)


def words() -> dict[str, Any]:
    """The classic example, word for word but for the module of the one line: an Adam optimizer with `minimize`."""
    opt = tf.compat.v1.train.AdamOptimizer(0.001)
    opt = wrap(opt)
    w = v1.get_variable("words", [3, 1])
    loss = tf.reduce_mean((tf.constant(GOOD) @ w) ** 2)
    train_op = opt.minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        before = session.run(w).tolist()
        session.run(train_op)
        return {"moved": session.run(w).tolist() != before, "collection": [one.name for one in v1.get_collection("train_op")] == [train_op.name]}


def skipping() -> dict[str, Any]:
    """compute, clip, apply, with a sparse gradient and a global step: good, bad, good, bad, bad."""
    x, unused = v1.placeholder(tf.float32, [2, 3]), v1.get_variable("unused", [])
    w = v1.get_variable("w", [3, 2], initializer=v1.zeros_initializer())
    table = v1.get_variable("table", [5, 3], initializer=v1.ones_initializer())
    loss = tf.reduce_mean(((x + tf.nn.embedding_lookup(table, [1, 2])) @ w - 1) ** 2)
    step = v1.train.get_or_create_global_step()
    optimizer = wrap(v1.train.AdamOptimizer(0.1), DynamicLossScale(growth_interval=2))
    pairs = optimizer.compute_gradients(loss, [w, table, unused])
    kinds = [type(gradient).__name__ if gradient is not None else None for gradient, _ in pairs]
    clipped = [(tf.clip_by_value(gradient, -1, 1) if isinstance(gradient, tf.Tensor) else gradient, one) for gradient, one in pairs]
    train = optimizer.apply_gradients(clipped, step)
    record = []
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for data in (GOOD, BAD, GOOD, BAD, BAD):
            before = session.run([w, table])
            session.run(train, {x: data})
            after = session.run([w, table])
            same = all((one == other).all() for one, other in zip(before, after, strict=True))
            counts = [optimizer.skipped_steps, optimizer.consecutive_skips, optimizer.last_skip_step]
            numbers = session.run([optimizer.scale, *counts, step, optimizer.last_step_skipped])
            record.append([same, *[number.item() for number in numbers]])
        names = [one.name for one in optimizer.variables()]
    return {"kinds": kinds, "record": record, "names": names}


def two_graphs() -> list[float]:
    """One optimizer used in two graphs has a scale in each."""
    optimizer, scales = wrap(v1.train.GradientDescentOptimizer(0.1)), []
    for overflows in (1, 3):
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", [2], initializer=v1.ones_initializer())
            train = optimizer.minimize(tf.reduce_sum(w) * np.inf)
            session.run(v1.global_variables_initializer())
            for _ in range(overflows):
                session.run(train)
            scales.append(session.run(optimizer.scale).item())
    return scales


def by_hand() -> dict[str, Any]:
    """`tf.gradients` with the two helpers."""
    w = v1.get_variable("by_hand", [2], initializer=v1.ones_initializer())
    optimizer = wrap(v1.train.GradientDescentOptimizer(0.5), 1024)
    scaled = optimizer.get_scaled_loss(tf.reduce_sum(w * w) * 0.5)
    gradients = tf.gradients(scaled, [w])
    unscaled = optimizer.get_unscaled_gradients(gradients)
    train = optimizer.apply_gradients([(unscaled[0], w)])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        seen = session.run([gradients[0], unscaled[0]])
        session.run(train)
        return {"seen": [one.tolist() for one in seen], "after": session.run(w).tolist()}


def sync_replicas() -> list[str]:
    """The errors of SyncReplicasOptimizer over a wrapped optimizer and under a wrapper."""
    errors = []
    for over in (True, False):
        with tf.Graph().as_default():
            w = v1.get_variable("w", [2], initializer=v1.ones_initializer())
            inner = v1.train.GradientDescentOptimizer(0.5)
            try:
                optimizer = v1.train.SyncReplicasOptimizer(wrap(inner) if over else inner, replicas_to_aggregate=1)
                (optimizer if over else wrap(optimizer)).minimize(tf.reduce_sum(w), global_step=v1.train.get_or_create_global_step())
            except ValueError as error:
                errors.append(str(error))
    return errors


def keras_fit(make: Any) -> dict[str, Any]:
    """`fit` of tf_keras in graph mode, one batch of four being bad."""
    import tf_keras

    tf_keras.backend.clear_session()
    model = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(3,))])
    before = "keras.optimizers" in sys.modules
    optimizer = make(tf_keras)
    pulled_in = before != ("keras.optimizers" in sys.modules)
    model.compile(optimizer, "mse")
    x = np.ones((16, 3), "float32")
    x[5] = np.inf
    model.fit(x, np.zeros((16, 2)), batch_size=4, epochs=1, verbose=0, shuffle=False)
    state = tf_keras.backend.batch_get_value([optimizer.scale, optimizer.skipped_steps, optimizer.last_skip_step])
    finite = all(np.isfinite(weight).all() for weight in model.get_weights())
    names = [one.name for one in optimizer.variables()]
    return {"state": [number.item() for number in state], "finite": finite, "variables": names, "pulls in Keras 3": pulled_in}


def resumed() -> list[float]:
    """The scale through `tf.train.Checkpoint` in a Session."""
    values = []
    with tempfile.TemporaryDirectory() as folder:
        for action in ("save", "restore"):
            with tf.Graph().as_default(), v1.Session() as session:
                w = v1.get_variable("w", [2], initializer=v1.ones_initializer(), use_resource=True)
                optimizer = wrap(v1.train.AdamOptimizer(0.1))
                train = optimizer.minimize(tf.reduce_sum(w) * np.inf)
                checkpoint = v1.train.Checkpoint(optimizer=optimizer, w=w)
                session.run(v1.global_variables_initializer())
                if action == "save":
                    session.run(train)
                    path = checkpoint.save(f"{folder}/checkpoint", session=session)
                else:
                    checkpoint.restore(path).run_restore_ops(session)
                values.append(session.run(optimizer.scale).item())
    return values


def main(mode: str) -> None:
    """Prints all records by name."""
    v1.logging.set_verbosity(v1.logging.ERROR)
    v1.disable_eager_execution() if mode == "eager_off" else v1.disable_v2_behavior()
    records = {"words": words(), "two graphs": two_graphs(), "by hand": by_hand(), "resumed": resumed()}
    with tf.Graph().as_default():
        records["skipping"] = skipping()
    records["sync"] = sync_replicas()
    records["fit v1"] = keras_fit(lambda keras: wrap(v1.train.AdamOptimizer(0.1)))
    records["fit legacy"] = keras_fit(lambda keras: wrap(keras.optimizers.legacy.Adam(0.1)))
    print(json.dumps(records))


if __name__ == "__main__":
    main(sys.argv[1])
