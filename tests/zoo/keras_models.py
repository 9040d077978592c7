"""Training and inference steps of real architectures, traced from Keras 3 and tf_keras: the graphs that users have.

Weights are random, inputs are small, nothing is read from disk or network. Each model is traced once per process.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.zoo.case import Built, GraphCase, case, from_function, functional

Spec = tuple[Sequence[int], str]  # shape with the batch, dtype name
CLASSES = 10


def _tensor_spec(spec: Spec, name: str) -> Any:
    import tensorflow as tf

    return tf.TensorSpec(spec[0], tf.dtypes.as_dtype(spec[1]), name=name)


def _apply(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Lets a Keras 3 or tf_keras optimizer apply `gradients`."""
    optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))


def _make(keras_name: str, make_model: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Returns the module "keras" or "tf_keras" and the model that `make_model` makes with it."""
    keras = importlib.import_module(keras_name)
    keras.utils.set_random_seed(1)
    with warnings.catch_warnings():
        # tf_keras 2.18 draws a dropout layer's seed up to 1e9, a float, which Python 3.10 and 3.11 warn of.
        warnings.filterwarnings("ignore", "non-integer arguments to randrange", DeprecationWarning)
        return keras, make_model(keras)


def training(keras_name: str, make_model: Callable[[Any], Any], spec: Spec, optimizer: str = "SGD") -> Built:
    """Returns one training step: forward in training mode, sparse cross-entropy, gradients, optimizer.

    Args:
        keras_name: "keras" (Keras 3) or "tf_keras".
        make_model: takes that module and returns a model with CLASSES logits.
        spec: shape and dtype of the model's input.
        optimizer: class name, of that module; "LossScaled" is Adam in Keras 3's LossScaleOptimizer.
    """
    import tensorflow as tf

    keras, model = _make(keras_name, make_model)
    rule = keras.optimizers.Adam() if optimizer == "LossScaled" else getattr(keras.optimizers, optimizer)(0.01)
    if optimizer == "LossScaled":
        rule = keras.optimizers.LossScaleOptimizer(rule)
    rule.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(autograph=False, jit_compile=False)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
            scaled = rule.scale_loss(value) if optimizer == "LossScaled" else value
        _apply(rule, tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        return value

    labels = _tensor_spec(([spec[0][0]], "int32"), "y")
    return from_function(step, _tensor_spec(spec, "x"), labels)


def inference(keras_name: str, make_model: Callable[[Any], Any], spec: Spec) -> Built:
    """Returns the forward pass in inference mode; arguments as in `training`."""
    import tensorflow as tf

    _, model = _make(keras_name, make_model)
    predict = tf.function(lambda x: model(x, training=False), autograph=False, jit_compile=False)
    return from_function(predict, _tensor_spec(spec, "x"))


def _mlp(keras: Any) -> Any:
    layers = keras.layers
    dense = [layers.Dense(32, "relu"), layers.Dropout(0.25), layers.Dense(32, "gelu"), layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input([16]), *dense])


def _conv_bn(keras: Any) -> Any:
    layers = keras.layers
    block = [layers.Conv2D(8, 3, use_bias=False), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D()]
    head = [layers.Conv2D(8, 3), layers.ReLU(), layers.GlobalAveragePooling2D(), layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input([12, 12, 1]), *block, *head])


def _application(name: str, **settings: Any) -> Callable[[Any], Any]:
    def make(keras: Any) -> Any:
        model = getattr(keras.applications, name)
        return model(weights=None, input_shape=(32, 32, 3), classes=CLASSES, classifier_activation=None, **settings)

    return make


def _recurrent(layer: str) -> Callable[[Any], Any]:
    def make(keras: Any) -> Any:
        recurrent = getattr(keras.layers, layer)
        return keras.Sequential([keras.Input([5, 8]), recurrent(8, return_sequences=True), recurrent(8), _head(keras)])

    return make


def _head(keras: Any) -> Any:
    return keras.layers.Dense(CLASSES, name="head")


def _encoder_block(keras: Any, x: Any, width: int, mask: Any = None) -> Any:
    """Returns `x` after attention and a two-layer network, each with dropout, residual and LayerNormalization."""
    layers = keras.layers
    attended = layers.MultiHeadAttention(2, width // 2, dropout=0.1)(x, x, attention_mask=mask)
    x = layers.LayerNormalization()(x + layers.Dropout(0.1)(attended))
    hidden = layers.Dense(width)(layers.Dense(2 * width, "gelu")(x))
    return layers.LayerNormalization()(x + layers.Dropout(0.1)(hidden))


def _transformer(keras: Any) -> Any:
    entry = keras.Input([6, 16])
    pooled = keras.layers.GlobalAveragePooling1D()(_encoder_block(keras, entry, 16))
    return keras.Model(entry, _head(keras)(pooled))


def _bert(keras: Any) -> Any:
    """Two encoder layers over token and position embeddings, a padding mask, a pooler on the first token."""
    layers = keras.layers
    tokens = keras.Input([6], dtype="int32")
    words = layers.Embedding(50, 16, mask_zero=False)(tokens)
    x = layers.LayerNormalization()(words + _positions(keras)(words))
    mask = layers.Lambda(lambda ids: (ids != 0)[:, None, :], output_shape=(1, 6))(tokens)
    for _ in range(2):
        x = _encoder_block(keras, x, 16, mask)
    pooled = layers.Dense(16, "tanh")(x[:, 0])
    return keras.Model(tokens, _head(keras)(pooled))


def _positions(keras: Any) -> Any:
    class Positions(keras.layers.Layer):  # type: ignore[misc, name-defined]
        """A learned position embedding with the shape of its input, without the batch."""

        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=shape[1:], initializer="uniform", name="table")

        def call(self, x: Any) -> Any:
            return self.table + 0 * x

    return Positions()


CONV_BN: tuple[Callable[[Any], Any], Spec] = (_conv_bn, ([2, 12, 12, 1], "float32"))
_IMAGE: Spec = ([2, 32, 32, 3], "float32")
_MODELS: dict[str, tuple[Callable[[Any], Any], Spec]] = {
    "mlp": (_mlp, ([4, 16], "float32")),
    "conv_bn": CONV_BN,
    "resnet50": (_application("ResNet50"), _IMAGE),
    "mobilenet_v2": (_application("MobileNetV2", alpha=0.35), _IMAGE),
    "lstm": (_recurrent("LSTM"), ([4, 5, 8], "float32")),
    "gru": (_recurrent("GRU"), ([4, 5, 8], "float32")),
    "transformer": (_transformer, ([2, 6, 16], "float32")),
    "bert": (_bert, ([2, 6], "int32")),
}
_LOOPS = ("lstm", "gru")
_LARGE = ("resnet50", "mobilenet_v2")
# Optimizers beside SGD, and tf_keras beside Keras 3, where they make another graph.
_ADAM = ("mlp", "conv_bn", "bert")
_TF_KERAS = ("mlp", "conv_bn", "mobilenet_v2", "lstm", "gru", "transformer")


def _cases() -> Iterator[GraphCase]:
    for name, (model, spec) in _MODELS.items():
        for keras_name in ("keras", "tf_keras")[: 1 + (name in _TF_KERAS)]:
            steps = {
                "inference": functools.partial(inference, keras_name, model, spec),
                "training": functools.partial(training, keras_name, model, spec),
            }
            if name in _ADAM and keras_name == "keras":
                steps["training_adam"] = functools.partial(training, keras_name, model, spec, "Adam")
            for step, builder in steps.items():
                tags = f"keras {keras_name} variables {step.partition('_')[0]}" + " loop function" * (name in _LOOPS) + " large" * (name in _LARGE)
                cases = functional if name in _LOOPS else lambda *all_: (case(*all_),)
                yield from cases(f"{keras_name}/{name}/{step}", builder, tags)


CASES: tuple[GraphCase, ...] = (
    *_cases(),
    *functional(
        "keras/mlp/training_loss_scaled",
        functools.partial(training, "keras", _mlp, _MODELS["mlp"][1], "LossScaled"),
        "keras training branch function variables",
        note="an in-graph loss scale: a branch on all gradients being finite",
    ),
)
