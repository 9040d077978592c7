"""How near to float64 one training step stays: loss and gradients with TensorFlow's pass, Keras's policy and tfmp, from the same weights and inputs.

    python benchmarks/numerics.py [--models mlp lenet] [--dtype float16]

The graphs are those that `quality.py` measures, at sizes that a CPU can run: forward and gradients, coloured for a GPU. They run on the kernels of a CPU, with
16-bit products and sums accumulated in float32 and then rounded, as a GPU does it. The loss is scaled by the largest of some powers of two at which no
gradient of any variant overflows, as a dynamic loss scale would have it, and the gradients are unscaled in float32. Dropout is off, since random numbers of
another type are other numbers. A ReLU or a maximum that falls the other way changes a gradient more than all rounding does, hence several draws of the input.

Columns:
  loss       relative error of the loss against float64
             (the worst draw)
  1 - cosine of all gradients, as one vector, against float64 (geometric mean over the draws)
  worst      largest 1 - cosine of one variable's gradient, of variables that have at least a thousandth of the whole norm (a bias before a batch
             normalisation has a gradient of rounding errors alone)
  finite     whether every gradient is finite
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import kernels

from benchmarks import bound, quality, steps
from benchmarks.costs import FLOPS, REDUCTIONS
from benchmarks.executed import _as_it_is
from benchmarks.flat import Flat
from benchmarks.flips import SIXTEEN
from benchmarks.steps import Model, Step

SCALES = tuple(2.0**power for power in range(15, -7, -6))
"""Loss scales, tried one after the other until no gradient of any variant overflows: what a dynamic loss scale does, which starts with the first."""

ACCUMULATE = FLOPS.keys() | REDUCTIONS | {"AvgPool", "AvgPool3D", "BiasAddGrad", "LogSoftmax", "Softmax"}
"""Ops that add up many numbers: a GPU's 16-bit kernels do that in float32, a CPU's in 16 bit."""

LOSS_TOLERANCE = 1e-3
NOISE = 1.1
"""How many times the better rival's error counts as as good as it: so much the order of summation alone changes."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One model: how it is made, its input's shape and dtype, its labels' shape (by default one for each example), which Keras makes it,
    the policy of the reference (float32 where TensorFlow has no float64 kernel: MaxPool3D), and how many draws of input and labels.
    """

    make: Callable[[Any], Any]
    x: steps.Spec
    y: tuple[int, ...] | None = None
    keras_name: str = "keras"
    reference: str = "float64"
    draws: int = 16


def adversaries(keras: Any) -> Any:
    """Returns a DCGAN of 16x16 images as one model: noise to what the discriminator says of made images, and of tiled noise, which stands for real ones."""
    layers = keras.layers
    noise = keras.Input([48])
    x = layers.ReLU()(layers.BatchNormalization()(layers.Reshape([4, 4, 32])(layers.Dense(4 * 4 * 32, use_bias=False)(noise))))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2DTranspose(16, 4, 2, "same", use_bias=False)(x)))
    made = layers.Conv2DTranspose(3, 4, 2, "same", activation="tanh")(x)
    judged = keras.Sequential([keras.Input([16, 16, 3]), layers.Conv2D(16, 4, 2, "same"), layers.LeakyReLU(0.2), layers.Flatten(), layers.Dense(2)])
    real = layers.UpSampling2D(4)(layers.Reshape([4, 4, 3])(noise))
    return keras.Model(noise, judged(made) - 0.5 * judged(real))


CASES: dict[str, Case] = {
    "mlp": Case(steps.mlp, ((32, 784), "float32")),
    "lenet": Case(steps.lenet, steps.IMAGES(8, 28, 1)),
    "separable": Case(steps.separable, steps.IMAGES(4, 32)),
    "conv3d": Case(steps.conv3d, ((4, 16, 16, 16, 1), "float32"), reference="float32", draws=4),
    "encoder": Case(steps.encoder, ((4, 64, 128), "float32")),
    "lstm": Case(steps.recurrent("LSTM"), ((8, 32, 64), "float32"), draws=4),
    "gru": Case(steps.recurrent("GRU"), ((8, 32, 64), "float32"), draws=4),
    "dcgan": Case(adversaries, ((8, 48), "float32"), draws=128),
    "unet": Case(steps.unet((16, 32, 64), 32), steps.IMAGES(2, 32), (2, 32, 32), draws=8),
    "resnet50": Case(steps.application("ResNet50", 64), steps.IMAGES(8, 64), draws=2),
    "resnet50_tf_keras": Case(steps.application("ResNet50", 64), steps.IMAGES(8, 64), keras_name="tf_keras", draws=2),
    "mobilenet_v2": Case(steps.application("MobileNetV2", 64), steps.IMAGES(8, 64), draws=2),
    "efficientnet_b0": Case(steps.application("EfficientNetB0", 64), steps.IMAGES(8, 64), draws=2),
    "vit": Case(steps.vit(4, 128, 32, 8), steps.IMAGES(4, 32), draws=4),
    "bert": Case(steps.bert(4, 128, 32), ((4, 32), "int32"), draws=4),
    "gpt2": Case(steps.gpt2(4, 128, 32), ((2, 32), "int32"), (2, 32), draws=4),
}


def inputs(case: Case, draw: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the input and the labels of `case`, the same for each number `draw`. Token 0, which a mask hides, comes last in half of the rows."""
    random = np.random.default_rng(draw)
    labels = random.integers(0, 2, case.y or case.x[0][:1], dtype=np.int32)
    if case.x[1] != "int32":
        return random.normal(0.0, 1.0, case.x[0]).astype(np.float32), labels
    tokens = random.integers(1, steps.TOKENS, case.x[0], dtype=np.int32)
    tokens[::2, -case.x[0][1] // 4 :] = 0
    return tokens, labels


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function of input and labels to the loss and the gradients, and the values of the variables and tensors that it captures."""

    step: Step
    values: Sequence[np.ndarray]


def trace(case: Case, policy: str, weights: Sequence[np.ndarray] | None) -> tuple[Traced, list[np.ndarray]]:
    """Returns `case` traced under `policy`, and its weights; with `weights`, it has those."""
    keras = importlib.import_module(case.keras_name)
    model = steps._with_policy(keras, policy, lambda: case.make(keras))
    for layer in model._flatten_layers():
        if hasattr(layer, "rate"):
            layer.rate = 0
    if weights is not None:
        model.set_weights(weights)
    variables = model.trainable_variables
    wide = tf.float64 if policy == "float64" else tf.float32

    @tf.function(autograph=False)
    def step(x: Any, y: Any, scale: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.cast(model(x, training=True), wide)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
            scaled = loss * tf.cast(scale, wide)
        watched = [getattr(variable, "value", variable) if case.keras_name == "keras" else variable for variable in variables]
        return loss, *(tf.convert_to_tensor(gradient) / tf.cast(scale, wide) for gradient in tape.gradient(scaled, watched))

    x = (case.x[0], "float64") if policy == "float64" and case.x[1] == "float32" else case.x
    specs = tf.TensorSpec(*x, name="x"), tf.TensorSpec(case.y or case.x[0][:1], tf.int32, name="y"), tf.TensorSpec([], name="scale")
    concrete = step.get_concrete_function(*specs)
    captured = tuple(concrete.captured_inputs)
    held = {id(variable.handle): variable.numpy() for variable in concrete.variables}
    values = [held[id(one)] if id(one) in held else one.numpy() for one in captured]
    return Traced(Step((concrete,), (captured,), (), (step, model)), values), model.get_weights()


def run(flat: Flat, traced: Traced, arguments: Sequence[Sequence[Any]]) -> list[list[np.ndarray]]:
    """Returns loss and gradients, in float64, for each of `arguments`; the flat graph runs on this CPU, untouched by any graph optimizer."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(config=_as_it_is()) as session:
        tf.import_graph_def(for_this_cpu(flat.graph), name="")
        names = {operation.name for operation in graph.get_operations()}
        assigned, fed, held = [], {}, {}
        for number, value in enumerate(traced.values, 3):
            if f"variable_{number}" in names:
                new = tf.compat.v1.placeholder(value.dtype, value.shape)
                assigned.append(tf.raw_ops.AssignVariableOp(resource=graph.get_tensor_by_name(f"variable_{number}:0"), value=new))
                fed[new] = value
            elif f"argument_{number}" in names:
                held[f"argument_{number}:0"] = value
        results: list[list[np.ndarray]] = []
        for one in arguments:
            session.run(assigned, fed)
            feeds = {f"argument_{number}:0": value for number, value in enumerate(one)} | held
            found = session.run([f"{name}:0" for name in flat.fetches if name != "effects"], feeds)
            results.append([np.asarray(value, np.float64) for value in found])
    return results


def for_this_cpu(graph: Any) -> Any:
    """Returns `graph` with 16-bit ops that accumulate, and those without a 16-bit kernel on a CPU (MaxPool3D), in float32 between casts."""
    result = type(graph)(library=graph.library, versions=graph.versions)
    for node in graph.node:
        copy = result.node.add()
        copy.CopyFrom(node)
        narrow = {name: value.type for name, value in node.attr.items() if value.type in SIXTEEN}
        if narrow and (node.op in ACCUMULATE or not _has_kernel(node)):
            if len(bound.arguments(node, True)) != 1:
                raise ValueError(f"{node.op} {node.name!r} has no 16-bit kernel on a CPU and several outputs")
            copy.name += "/wide"
            for name in narrow:
                copy.attr[name].type = types_pb2.DT_FLOAT
            for number, (text, vertex) in enumerate(zip(node.input, bound.arguments(node, False), strict=False)):
                if vertex and vertex[1] in narrow:
                    copy.input[number] = _add_cast(result, f"{node.name}/up{number}", text, narrow[vertex[1]], types_pb2.DT_FLOAT)
            _add_cast(result, node.name, copy.name, types_pb2.DT_FLOAT, next(iter(narrow.values())))
    return result


def _has_kernel(node: Any) -> bool:
    found = [one for one in kernels.get_registered_kernels_for_op(node.op).kernel if one.device_type in ("CPU", "DEFAULT")]
    return any(all(node.attr[limit.name].type in limit.allowed_values.list.type for limit in one.constraint) for one in found)


def _add_cast(graph: Any, name: str, text: str, before: int, after: int) -> str:
    node = graph.node.add(name=name, op="Cast", input=[text])
    node.attr["SrcT"].type, node.attr["DstT"].type = before, after
    return name


@dataclasses.dataclass(frozen=True)
class Errors:
    """Of one variant, against float64: largest relative error of the loss; 1 - cosine of all gradients and of the worst variable, geometric means over draws;
    and whether all is finite.
    """

    loss: float
    gradients: float
    worst: float
    finite: bool


def errors(found: Sequence[Sequence[np.ndarray]], exact: Sequence[Sequence[np.ndarray]]) -> Errors:
    """Returns the errors of losses and gradients `found`, one list for each draw."""
    pairs = list(zip(found, exact, strict=True))
    losses = [abs(float(own[0] - reference[0])) / abs(float(reference[0])) for own, reference in pairs]
    whole, worst = zip(*(_of_gradients(own[1:], reference[1:]) for own, reference in pairs), strict=True)
    return Errors(max(losses), _mean(whole), _mean(worst), _finite(found))


def _of_gradients(found: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> tuple[float, float]:
    pairs = [(own.ravel(), reference.ravel()) for own, reference in zip(found, exact, strict=True)]
    own, reference = (np.concatenate(side) for side in zip(*pairs, strict=True))
    large = [pair for pair in pairs if np.linalg.norm(pair[1]) >= 1e-3 * np.linalg.norm(reference)]
    return apart(own, reference), max(apart(*pair) for pair in large)


def _mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(np.maximum(values, 1e-30)))))


def apart(first: np.ndarray, second: np.ndarray) -> float:
    """Returns 1 - cosine of two vectors; 1 if one of them is zero or not finite. Half the squared distance of the unit vectors, which does not cancel."""
    norms = np.linalg.norm(first), np.linalg.norm(second)
    if not all(np.isfinite(norms)) or not all(norms):
        return 1.0
    return float(((first / norms[0] - second / norms[1]) ** 2).sum() / 2)


def measure(case: Case, dtype: str) -> Mapping[str, Errors]:
    """Returns variant to its errors over several draws of input and labels."""
    given = [inputs(case, draw) for draw in range(case.draws)]
    plain, weights = trace(case, "float32", None)
    exact_step, _ = trace(case, case.reference, weights)
    wide = [(x.astype(case.reference) if x.dtype == np.float32 else x, y, 1.0) for x, y in given]
    exact = run(quality.parts(exact_step.step)[0], exact_step, wide)
    model = Model(lambda policy: plain.step)
    mixed, _ = trace(case, f"mixed_{dtype}", weights)
    flats = {
        "float32": (quality.parts(plain.step)[0], plain),
        "tensorflow": (_whole(quality.tensorflow(plain.step, model, dtype)), plain),
        "policy": (quality.parts(mixed.step)[0], mixed),
        "tfmp": (_whole(quality.converted(plain.step, dtype)), plain),
    }
    for scale in SCALES:
        first, *rest = [(*pair, scale) for pair in given]
        found = {variant: run(*one, [first]) for variant, one in flats.items()}
        if all(_finite(draws) for draws in found.values()):
            found = {variant: draws + run(*flats[variant], rest) for variant, draws in found.items()}
            if all(_finite(draws) for draws in found.values()):
                break
    return {variant: errors(draws, exact[: len(draws)]) for variant, draws in found.items()}


def _finite(found: Sequence[Sequence[np.ndarray]]) -> bool:
    return all(np.isfinite(one).all() for draw in found for one in draw)


def _whole(variant: quality.Variant) -> Flat:
    return Flat(variant.program.graph, variant.program.fetches)


def verdict(found: Mapping[str, Errors]) -> str:
    """Returns what tfmp misses: a loss within `LOSS_TOLERANCE`, finite gradients as near to float64 as the better rival's."""
    ours, best = found["tfmp"], min(found[rival].gradients for rival in ("tensorflow", "policy"))
    if found["float32"].loss > LOSS_TOLERANCE:
        return "float32 and the reference differ: they do not compute the same"
    missed = [
        *([f"loss is off by {ours.loss:.1e}"] if ours.loss > LOSS_TOLERANCE else []),
        *(["gradients are not finite"] if not ours.finite else []),
        *([f"gradients are {ours.gradients / best:.2f} times as far off as the better rival's"] if ours.gradients > NOISE * best else []),
    ]
    return "missed: " + "; ".join(missed) if missed else "as near to float64 as the better rival"


def main() -> None:
    """Prints the table, model by model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=lambda words: words.split(","), default=list(CASES), help=f"separated by commas, of {', '.join(CASES)}")
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    options = parser.parse_args()
    print(f"{'':<14}{'loss':>10}{'1 - cosine':>12}{'worst':>10}  finite")
    for name in options.models:
        found = measure(CASES[name], options.dtype)
        print(name)
        for variant, one in found.items():
            print(f"  {variant:<12}{one.loss:10.1e}{one.gradients:12.1e}{one.worst:10.1e}  {'yes' if one.finite else 'NO'}")
        print(f"  {verdict(found)}", flush=True)


if __name__ == "__main__":
    main()
