"""TensorFlow 1 by one line: the optimizer wrapped, minimize, a Session."""

from __future__ import annotations

import tensorflow.compat.v1 as tf
import watch

import tfmp

tf.disable_v2_behavior()
x_train, y_train, x_test, y_test = watch.digits()
tf.set_random_seed(1)

x = tf.placeholder(tf.float32, [None, 8, 8, 1], name="x")
y = tf.placeholder(tf.int64, [None], name="y")
kernel = tf.get_variable("kernel", [3, 3, 1, 16])
hidden = tf.nn.relu(tf.nn.conv2d(x, kernel, strides=[1, 1, 1, 1], padding="VALID"))
flat = tf.reshape(tf.nn.max_pool(hidden, [1, 2, 2, 1], [1, 2, 2, 1], "VALID"), [-1, 3 * 3 * 16])
logits = tf.nn.xw_plus_b(flat, tf.get_variable("weights", [144, 10]), tf.get_variable("biases", [10], initializer=tf.zeros_initializer()))
loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))

opt = tf.train.AdamOptimizer(0.01)
opt = tfmp.enable_mixed_precision_graph_rewrite(opt)
train_op = opt.minimize(loss, global_step=tf.train.get_or_create_global_step())

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(150):
        at = step * 50 % 1500
        sess.run(train_op, feed_dict={x: x_train[at : at + 50], y: y_train[at : at + 50]})
    metadata = tf.RunMetadata()
    sess.run(train_op, {x: x_train[:50], y: y_train[:50]}, options=tf.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    facts = dict(zip(("accuracy", "scale", "skipped"), sess.run([accuracy, opt.scale, opt.skipped_steps], {x: x_test, y: y_test}), strict=True))
    names = [variable.name for variable in tf.trainable_variables()]
    watch.tell("graph", ran=watch.types(metadata.partition_graphs), names=names, **facts)
