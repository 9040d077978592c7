"""Training steps of the models that `quality.py` measures: built by Keras 3, tf_keras or by hand, traced, and never run there.

Every step is forward, loss, gradients, and an update with Adam inside the name scope `UPDATE`; its batch is static. Nothing in a model names a float type,
so that a Keras policy applies. "-like" models have the layers and widths of their namesakes and a smaller vocabulary, so that they fit in memory.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfmp.hooks.tf_function import saved_tensors

UPDATE = "weight_update"
"""Name scope of everything that the optimizer does."""

CLASSES = 10
TOKENS = 8192

Spec = tuple[tuple[int, ...], str]


@dataclasses.dataclass(frozen=True)
class Model:
    """One row.

    Attributes:
      trace: takes a Keras policy; returns the step, traced under it, with new weights that are the same every time.
      policy: whether a Keras policy changes anything in it.
      jit: whether the step is compiled by XLA.
      small: whether one step takes a CPU less than about a second.
    """

    trace: Callable[[str], Step]
    policy: bool = True
    jit: bool = False
    small: bool = False


@dataclasses.dataclass(frozen=True)
class Step:
    """A traced training step: one function, or a forward and a backward function.

    Attributes:
      functions: what runs, in order.
      captured: what each of them gets after its own arguments: resources and tensors; for a backward function, ().
      links: of a backward function: (result of the forward function, argument of the backward one).
      owner: keeps everything alive.
    """

    functions: tuple[Any, ...]
    captured: tuple[tuple[Any, ...], ...]
    links: tuple[tuple[int, int], ...]
    owner: Any


def _with_policy(keras: Any, policy: str, make: Callable[[], Any]) -> Any:
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    settings = keras.config if hasattr(keras, "config") else keras.mixed_precision
    get, set_ = (settings.dtype_policy, settings.set_dtype_policy) if hasattr(keras, "config") else (settings.global_policy, settings.set_global_policy)
    previous = get()
    set_(policy)
    try:
        return make()
    finally:
        set_(previous)


def classifier(make_model: Callable[[Any], Any], x: Spec, y: Spec | None = None, keras_name: str = "keras", jit: bool = False) -> Callable[[str], Step]:
    """Returns what traces the training of a model with integer labels.

    Args:
      make_model: takes the module "keras" or "tf_keras"; returns a model whose last axis are logits.
      x: shape with the batch, and dtype, of the input.
      y: of the labels; by default one for each example.
      keras_name: "keras" or "tf_keras".
      jit: whether XLA compiles the step.
    """

    def trace(policy: str) -> Step:
        keras = importlib.import_module(keras_name)
        model, optimizer = _with_policy(keras, policy, lambda: (make_model(keras), keras.optimizers.Adam(1e-3)))
        variables = model.trainable_variables
        optimizer.build(variables)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.function(autograph=False, jit_compile=jit)
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss(y, tf.cast(model(x, training=True), tf.float32))
            gradients = tape.gradient(value, variables)
            with tf.name_scope(UPDATE):
                optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
            return value

        labels = y or (x[0][:1], "int32")
        concrete = step.get_concrete_function(*(tf.TensorSpec(*spec, name=name) for name, spec in (("x", x), ("y", labels))))
        return Step((concrete,), (tuple(concrete.captured_inputs),), (), (step, model, optimizer))

    return trace


def _sequential(*make_layers: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda keras: keras.Sequential([make(keras.layers) for make in make_layers])


def mlp(keras: Any) -> Any:
    """Returns 784-512-512-10 with dropout."""
    layers = keras.layers
    dense = [layers.Dense(512, "relu"), layers.Dropout(0.25), layers.Dense(512, "gelu"), layers.Dropout(0.25), layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input([784]), *dense])


def lenet(keras: Any) -> Any:
    """Returns two convolutions, each with batch normalisation and pooling, and two dense layers."""
    layers = keras.layers
    conv = [part for width in (32, 64) for part in (layers.Conv2D(width, 5, padding="same"), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D())]
    return keras.Sequential([keras.Input([28, 28, 1]), *conv, layers.Flatten(), layers.Dense(128, "relu"), layers.Dense(CLASSES)])


def separable(keras: Any) -> Any:
    """Returns depthwise-separable blocks, as in MobileNet."""
    layers = keras.layers
    parts: list[Any] = [layers.Conv2D(32, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(6.0)]
    for width, stride in ((64, 1), (128, 2), (128, 1), (256, 2)):
        parts += [layers.DepthwiseConv2D(3, stride, padding="same"), layers.BatchNormalization(), layers.ReLU(6.0)]
        parts += [layers.Conv2D(width, 1), layers.BatchNormalization(), layers.ReLU(6.0)]
    return keras.Sequential([keras.Input([32, 32, 3]), *parts, layers.GlobalAveragePooling2D(), layers.Dense(CLASSES)])


def conv3d(keras: Any) -> Any:
    """Returns two convolutions over volumes with pooling."""
    layers = keras.layers
    conv = [part for width in (16, 32) for part in (layers.Conv3D(width, 3, padding="same", activation="relu"), layers.MaxPooling3D())]
    return keras.Sequential([keras.Input([16, 16, 16, 1]), *conv, layers.Flatten(), layers.Dense(64, "relu"), layers.Dense(CLASSES)])


def application(name: str, size: int, **settings: Any) -> Callable[[Any], Any]:
    """Returns what makes a model of `keras.applications` for square images, with random weights and 1,000 logits."""

    def make(keras: Any) -> Any:
        kind = getattr(keras.applications, name)
        return kind(weights=None, input_shape=(size, size, 3), classes=1000, classifier_activation=None, **settings)

    return make


def recurrent(layer: str) -> Callable[[Any], Any]:
    """Returns two recurrent layers of 256 over 64 features and a dense one."""

    def make(keras: Any) -> Any:
        kind = getattr(keras.layers, layer)
        return keras.Sequential([keras.Input([32, 64]), kind(256, return_sequences=True), kind(256), keras.layers.Dense(CLASSES)])

    return make


def block(keras: Any, x: Any, width: int, heads: int, mask: Any = None, causal: bool = False, first: bool = False, dropout: float = 0.1) -> Any:
    """Returns `x` after one transformer block; `first`: normalisation comes before attention and before the dense layers (GPT-2, ViT), else after."""
    layers = keras.layers
    norm = lambda tensor: layers.LayerNormalization(epsilon=1e-6)(tensor)  # noqa: E731
    inner = norm(x) if first else x
    attended = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(inner, inner, attention_mask=mask, use_causal_mask=causal)
    x = x + layers.Dropout(dropout)(attended)
    x = x if first else norm(x)
    hidden = layers.Dense(width)(layers.Dense(4 * width, "gelu")(norm(x) if first else x))
    x = x + layers.Dropout(dropout)(hidden)
    return x if first else norm(x)


def encoder(keras: Any) -> Any:
    """Returns one encoder block over 64 vectors of 128."""
    entry = keras.Input([64, 128])
    pooled = keras.layers.GlobalAveragePooling1D()(block(keras, entry, 128, 4))
    return keras.Model(entry, keras.layers.Dense(CLASSES)(pooled))


def positions(keras: Any) -> Any:
    """Returns a layer that adds a learned vector to each position."""

    class Positions(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=shape[1:], initializer="uniform", name="table")

        def call(self, x: Any) -> Any:
            return x + self.table

    return Positions()


def _embedded(keras: Any, tokens: Any, width: int) -> Any:
    return positions(keras)(keras.layers.Embedding(TOKENS, width)(tokens))


def bert(blocks: int, width: int, length: int) -> Callable[[Any], Any]:
    """Returns what makes an encoder with a padding mask and a pooler on the first token."""

    def make(keras: Any) -> Any:
        layers = keras.layers
        tokens = keras.Input([length], dtype="int32")
        x = layers.Dropout(0.1)(layers.LayerNormalization(epsilon=1e-12)(_embedded(keras, tokens, width)))
        mask = keras.ops.expand_dims(keras.ops.not_equal(tokens, 0), 1)
        for _ in range(blocks):
            x = block(keras, x, width, width // 64, mask)
        pooled = layers.Dense(width, "tanh")(x[:, 0])
        return keras.Model(tokens, layers.Dense(2)(pooled))

    return make


def gpt2(blocks: int, width: int, length: int) -> Callable[[Any], Any]:
    """Returns what makes a decoder with a causal mask and logits for every position."""

    def make(keras: Any) -> Any:
        layers = keras.layers
        tokens = keras.Input([length], dtype="int32")
        x = layers.Dropout(0.1)(_embedded(keras, tokens, width))
        for _ in range(blocks):
            x = block(keras, x, width, width // 64, causal=True, first=True)
        return keras.Model(tokens, layers.Dense(TOKENS, use_bias=False)(layers.LayerNormalization()(x)))

    return make


def vit(blocks: int, width: int, size: int, patch: int) -> Callable[[Any], Any]:
    """Returns what makes a vision transformer with mean pooling."""

    def make(keras: Any) -> Any:
        layers = keras.layers
        entry = keras.Input([size, size, 3])
        count = (size // patch) ** 2
        x = layers.Reshape([count, width])(layers.Conv2D(width, patch, patch)(entry))
        x = positions(keras)(x)
        for _ in range(blocks):
            x = block(keras, x, width, width // 64, first=True)
        pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
        return keras.Model(entry, layers.Dense(1000)(pooled))

    return make


def unet(widths: Sequence[int], size: int) -> Callable[[Any], Any]:
    """Returns what makes a U-Net with batch normalisation, skip connections and logits of two classes for every pixel."""

    def make(keras: Any) -> Any:
        layers = keras.layers

        def twice(x: Any, width: int) -> Any:
            for _ in range(2):
                x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same", use_bias=False)(x)))
            return x

        entry = x = keras.Input([size, size, 3])
        skipped = []
        for width in widths[:-1]:
            x = twice(x, width)
            skipped.append(x)
            x = layers.MaxPooling2D()(x)
        x = twice(x, widths[-1])
        for width, skip in zip(widths[-2::-1], reversed(skipped), strict=True):
            x = layers.Conv2DTranspose(width, 2, 2)(x)
            x = twice(layers.Concatenate()([skip, x]), width)
        return keras.Model(entry, layers.Conv2D(2, 1)(x))

    return make


def dcgan(batch: int, noise: int = 100) -> Callable[[str], Step]:
    """Returns what traces one step of a DCGAN on 32x32 images: both networks, two tapes, two Adams, binary cross-entropy on logits."""

    def generator(keras: Any) -> Any:
        layers = keras.layers
        parts = [layers.Dense(4 * 4 * 256, use_bias=False), layers.BatchNormalization(), layers.ReLU(), layers.Reshape([4, 4, 256])]
        for width in (128, 64):
            parts += [layers.Conv2DTranspose(width, 4, 2, "same", use_bias=False), layers.BatchNormalization(), layers.ReLU()]
        return keras.Sequential([keras.Input([noise]), *parts, layers.Conv2DTranspose(3, 4, 2, "same", activation="tanh")])

    def discriminator(keras: Any) -> Any:
        layers = keras.layers
        parts: list[Any] = []
        for width in (64, 128, 256):
            parts += [layers.Conv2D(width, 4, 2, "same"), layers.LeakyReLU(0.2), layers.Dropout(0.3)]
        return keras.Sequential([keras.Input([32, 32, 3]), *parts, layers.Flatten(), layers.Dense(1)])

    def trace(policy: str) -> Step:
        keras = importlib.import_module("keras")
        make = lambda: (generator(keras), discriminator(keras), keras.optimizers.Adam(2e-4), keras.optimizers.Adam(2e-4))  # noqa: E731
        maker, judge, maker_rule, judge_rule = _with_policy(keras, policy, make)
        maker_rule.build(maker.trainable_variables)
        judge_rule.build(judge.trainable_variables)

        def loss(logits: Any, real: bool) -> Any:
            logits = tf.cast(logits, tf.float32)
            return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits((tf.ones_like if real else tf.zeros_like)(logits), logits))

        @tf.function(autograph=False, jit_compile=False)
        def step(images: Any, z: Any) -> Any:
            with tf.GradientTape() as maker_tape, tf.GradientTape() as judge_tape:
                made = maker(z, training=True)
                of_real, of_made = judge(images, training=True), judge(made, training=True)
                maker_loss, judge_loss = loss(of_made, True), loss(of_real, True) + loss(of_made, False)
            pairs = [(maker_tape, maker_loss, maker, maker_rule), (judge_tape, judge_loss, judge, judge_rule)]
            found = [tape.gradient(value, model.trainable_variables) for tape, value, model, _ in pairs]
            with tf.name_scope(UPDATE):
                for gradients, (_, _, model, rule) in zip(found, pairs, strict=True):
                    rule.apply_gradients(list(zip(gradients, model.trainable_variables, strict=True)))
            return maker_loss, judge_loss

        concrete = step.get_concrete_function(tf.TensorSpec([batch, 32, 32, 3], name="images"), tf.TensorSpec([batch, noise], name="z"))
        return Step((concrete,), (tuple(concrete.captured_inputs),), (), (step, maker, judge, maker_rule, judge_rule))

    return trace


def by_hand(widths: Sequence[int], forward: Callable[[Sequence[Any], Any], Any], x: Spec) -> Callable[[str], Step]:
    """Returns what traces the training of dense layers of `widths` that `forward` (layers and input to logits) puts together with TensorFlow's own means."""

    def trace(policy: str) -> Step:
        keras = importlib.import_module("keras")
        layers, optimizer = _with_policy(keras, policy, lambda: ([keras.layers.Dense(width) for width in widths], keras.optimizers.Adam(1e-3)))
        forward(layers, tf.zeros(*x))  # builds the weights
        variables = [weight for layer in layers for weight in layer.trainable_weights]
        optimizer.build(variables)

        @tf.function(autograph=False)
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                logits = tf.cast(forward(layers, x), tf.float32)
                value = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
            gradients = tape.gradient(value, [variable.value for variable in variables])
            with tf.name_scope(UPDATE):
                optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
            return value

        concrete = step.get_concrete_function(tf.TensorSpec(*x, name="x"), tf.TensorSpec(x[0][:1], tf.int32, name="y"))
        return Step((concrete,), (tuple(concrete.captured_inputs),), (), (step, layers, optimizer))

    return trace


def nested(layers: Sequence[Any], x: Any) -> Any:
    """Returns logits by way of functions that call functions."""
    first, second, third, out = layers
    layer = tf.function(lambda x: tf.nn.relu(second(x)), autograph=False)
    block = tf.function(lambda x: layer(third(x)) + x, autograph=False)
    return out(block(block(first(x))))


def branches(layers: Sequence[Any], x: Any) -> Any:
    """Returns logits by way of a branch that a sum decides."""
    first, second, out = layers
    hidden = first(x)
    return out(tf.cond(tf.reduce_sum(x) > -1.0, lambda: tf.nn.relu(second(hidden)), lambda: tf.tanh(hidden)))


def outside(make_model: Callable[[Any], Any], x: Spec) -> Callable[[str], Step]:
    """Returns what traces a forward function and the backward function that an eager tape makes of it; no update."""

    def trace(policy: str) -> Step:
        keras = importlib.import_module("keras")
        model = _with_policy(keras, policy, lambda: make_model(keras))
        function = tf.function(lambda x: tf.cast(model(x, training=True), tf.float32), autograph=False)
        concrete = function.get_concrete_function(tf.TensorSpec(*x, name="x"))
        with tf.GradientTape():
            function(tf.zeros(*x))
        (functions,) = concrete._first_order_tape_functions.values()
        forward, graph, backward, *_ = functions._forward_and_backward_functions(None, None)
        links = saved_tensors(graph, functions._num_inference_outputs, backward)
        captured = (tuple(concrete.captured_inputs), ())
        return Step((forward, backward.inference_fn), captured, tuple(links), (function, concrete, backward, model))

    return trace


IMAGES = lambda batch, size, channels=3: ((batch, size, size, channels), "float32")  # noqa: E731

MODELS: dict[str, Model] = {
    "mlp": Model(classifier(mlp, ((64, 784), "float32")), small=True),
    "lenet": Model(classifier(lenet, IMAGES(32, 28, 1)), small=True),
    "separable": Model(classifier(separable, IMAGES(16, 32)), small=True),
    "conv3d": Model(classifier(conv3d, ((8, 16, 16, 16, 1), "float32")), small=True),
    "encoder": Model(classifier(encoder, ((8, 64, 128), "float32")), small=True),
    "lstm": Model(classifier(recurrent("LSTM"), ((32, 32, 64), "float32")), small=True),
    "gru": Model(classifier(recurrent("GRU"), ((32, 32, 64), "float32")), small=True),
    "dcgan": Model(dcgan(32), small=True),
    "unet": Model(classifier(unet((32, 64, 128, 256), 128), IMAGES(4, 128), ((4, 128, 128), "int32"))),
    "jit": Model(classifier(lenet, IMAGES(32, 28, 1), jit=True), jit=True, small=True),
    "nested": Model(by_hand((256, 256, 256, CLASSES), nested, ((64, 128), "float32")), small=True),
    "conditional": Model(by_hand((256, 256, CLASSES), branches, ((64, 128), "float32")), small=True),
    "outside": Model(outside(mlp, ((64, 784), "float32")), small=True),
    "resnet50": Model(classifier(application("ResNet50", 224), IMAGES(32, 224))),
    "resnet50_tf_keras": Model(classifier(application("ResNet50", 224), IMAGES(32, 224), keras_name="tf_keras")),
    "mobilenet_v2": Model(classifier(application("MobileNetV2", 224), IMAGES(32, 224))),
    "efficientnet_b0": Model(classifier(application("EfficientNetB0", 224), IMAGES(32, 224))),
    "vit": Model(classifier(vit(12, 384, 224, 16), IMAGES(16, 224))),
    "bert": Model(classifier(bert(12, 768, 128), ((16, 128), "int32"))),
    "gpt2": Model(classifier(gpt2(12, 768, 256), ((4, 256), "int32"), ((4, 256), "int32"))),
}
