"""Keras by one line: the optimizer wrapped, compile, fit."""

from __future__ import annotations

import tensorflow as tf
import watch

import tfmp

x_train, y_train, x_test, y_test = watch.digits()
tf.keras.utils.set_random_seed(1)

opt = tf.keras.optimizers.Adam()
opt = tfmp.enable_mixed_precision_graph_rewrite(opt)

model = tf.keras.models.Sequential()
model.add(tf.keras.layers.Input((8, 8, 1)))
model.add(tf.keras.layers.Conv2D(16, 3, activation="relu"))
model.add(tf.keras.layers.Flatten())
model.add(tf.keras.layers.Dense(64, activation="relu"))
model.add(tf.keras.layers.Dense(10, activation="softmax"))
model.compile(optimizer=opt, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
with watch.functions_run() as ran:
    history = model.fit(x_train, y_train, epochs=5, verbose=0)
_, accuracy = model.evaluate(x_test, y_test, verbose=0)
watch.tell(
    "keras",
    keras=type(model).__module__.partition(".")[0],
    accuracy=accuracy,
    ran=ran,
    losses=history.history["loss"],
    scale=opt.scale.numpy(),
    skipped=int(opt.skipped_steps),
)
