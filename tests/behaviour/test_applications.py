"""Architectures of `keras.applications`, made shallow and small: inference and one training step in mixed precision (R100)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.behaviour import on_off
from tests.behaviour.on_off import normal, run

OPTIONS: dict[str, Any] = {"weights": None, "classes": 5, "input_shape": (32, 32, 3)}


def source(module: str) -> Any:
    """Returns the module of Keras in which a family's layers are put together: there its depth can be chosen."""
    return importlib.import_module(f"keras.src.applications.{module}")


def efficientnet(module: str, blocks: list[dict[str, Any]], repeats: str) -> Any:
    """Returns an EfficientNet of either version, made of a few kinds of `blocks`, each once."""
    version = source(module)
    make = version.EfficientNet if module == "efficientnet" else version.EfficientNetV2
    once = [{**block, repeats: 1} for block in blocks]
    return make(0.5, 1.0, 32, dropout_rate=0.0, drop_connect_rate=0.0, blocks_args=once, **OPTIONS)


def mobilenet_v3() -> Any:
    """Returns a MobileNetV3 of three blocks: with and without squeeze and excitation, with ReLU and with hard swish."""
    module = source("mobilenet_v3")

    def stack(x: Any, kernel: int, activation: Any, se_ratio: float) -> Any:
        x = module._inverted_res_block(x, 1, 8, 3, 2, se_ratio, module.relu, 0)
        x = module._inverted_res_block(x, 3, 16, kernel, 2, None, activation, 1)
        return module._inverted_res_block(x, 3, 16, kernel, 1, se_ratio, activation, 2)

    return module.MobileNetV3(stack, 32, dropout_rate=0.0, **OPTIONS)


def resnet(preactivation: bool) -> Any:
    """Returns a ResNet of two small stages."""
    module = source("resnet")
    block = module.stack_residual_blocks_v2 if preactivation else module.stack_residual_blocks_v1
    stack = lambda x: block(block(x, 8, 2, stride1=1, name="one"), 16, 2, name="two")  # noqa: E731
    return module.ResNet(stack, preact=preactivation, use_bias=True, weights=None, classes=5, input_shape=(32, 32, 3))


FAMILIES: dict[str, Callable[[], Any]] = {
    "ResNet": lambda: resnet(preactivation=False),
    "ResNetV2": lambda: resnet(preactivation=True),
    "DenseNet": lambda: source("densenet").DenseNet([1, 1, 1, 1], **OPTIONS),
    "MobileNet": lambda: source("mobilenet").MobileNet(alpha=0.25, dropout=0.0, **OPTIONS),
    "MobileNetV3": mobilenet_v3,
    "EfficientNet": lambda: efficientnet("efficientnet", source("efficientnet").DEFAULT_BLOCKS_ARGS[:2], "repeats"),
    "EfficientNetV2": lambda: efficientnet("efficientnet_v2", source("efficientnet_v2").DEFAULT_BLOCKS_ARGS["efficientnetv2-s"][::4], "num_repeat"),
    "ConvNeXt": lambda: source("convnext").ConvNeXt(depths=[1, 1, 1, 1], projection_dims=[8, 16, 16, 16], drop_path_rate=0.0, **OPTIONS),
    "VGG": lambda: source("vgg16").VGG16(include_top=False, pooling="avg", weights=None, input_shape=(32, 32, 3)),
}


@pytest.mark.parametrize(("dtype", "family"), on_off.in_turn(FAMILIES))
def test_inference_and_a_training_step(dtype: str, family: str) -> None:
    x, y = normal(8, 32, 32, 3), tf.constant([0, 1, 2, 3, 4, 0, 1, 2])

    def program() -> Any:
        model = FAMILIES[family]()
        variables = [variable.value for variable in model.trainable_variables]

        @tf.function
        def step(x: tf.Tensor, y: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                outputs = model(x, training=True)
                loss = tf.reduce_sum(tf.gather(outputs, y, axis=1, batch_dims=1))
            return model(x, training=False), loss, tf.linalg.global_norm(tape.gradient(loss, variables))

        return step(x, y)

    runs = run(program, dtype)
    assert runs.converted > 0
    assert runs.records[0].flop_share > 0.9
    roundoff = on_off.SIXTEEN_BIT[dtype].unit_roundoff
    on_off.assert_alike(runs.off[0], runs.on[0], 2 * on_off.ROUNDINGS * roundoff)
    on_off.assert_alike(runs.off[1:], runs.on[1:], 16 * on_off.ROUNDINGS * roundoff)  # statistics of few pixels enlarge what was rounded before
