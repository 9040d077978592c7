"""By variable alone: neither program knows of tfmp."""

from __future__ import annotations

import tensorflow as tf
import watch

x_train, y_train, x_test, y_test = watch.digits()


def keras_model() -> None:
    """Keras 3, compile and fit."""
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.models.Sequential(
        [
            tf.keras.layers.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(optimizer="adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    with watch.functions_run() as ran:
        model.fit(x_train, y_train, epochs=5, verbose=0)
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    watch.tell("keras", accuracy=accuracy, ran=ran, weights=sorted({weight.dtype for weight in model.weights}))


def graph() -> None:
    """A graph, a Session, a tf.compat.v1 optimizer."""
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(1)
        x = tf.compat.v1.placeholder(tf.float32, [None, 8, 8, 1])
        y = tf.compat.v1.placeholder(tf.int32, [None])
        w1 = tf.compat.v1.get_variable("w1", [64, 64])
        b1 = tf.compat.v1.get_variable("b1", [64], initializer=tf.compat.v1.zeros_initializer())
        w2 = tf.compat.v1.get_variable("w2", [64, 10])
        logits = tf.matmul(tf.nn.relu(tf.matmul(tf.reshape(x, [-1, 64]), w1) + b1), w2)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y), tf.float32))
        train = tf.compat.v1.train.AdamOptimizer(0.003).minimize(loss)
        with tf.compat.v1.Session() as sess:
            sess.run(tf.compat.v1.global_variables_initializer())
            for step in range(200):
                at = step * 50 % 1500
                sess.run(train, {x: x_train[at : at + 50], y: y_train[at : at + 50]})
            metadata = tf.compat.v1.RunMetadata()
            options = tf.compat.v1.RunOptions(output_partition_graphs=True)
            sess.run(train, {x: x_train[:50], y: y_train[:50]}, options=options, run_metadata=metadata)
            watch.tell("graph", accuracy=sess.run(accuracy, {x: x_test, y: y_test}), ran=watch.types(metadata.partition_graphs))


keras_model()
graph()
