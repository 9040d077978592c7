"""Every optimizer of every family gives the same weights wrapped and unwrapped, over 50 steps.

Scaling by a power of two is exact in floating point as long as nothing leaves the range of the format, so the weights must be the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.optimizers.families import KERAS3, LEGACY, TF_KERAS, V1, Family, make_function, train_step
from tfmp.optimizers.policies import DynamicLossScale
from tfmp.optimizers.wrap import wrap

STEPS = 50
RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(8, 4)).astype("float32")
TARGETS = RANDOM.normal(size=(8, 3)).astype("float32")

#: Arguments of optimizers that have no defaults, or whose defaults do nothing in 50 steps; all others get a learning rate of 0.01.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"momentum": 0.5},
    "Adam": {"amsgrad": True, "weight_decay": 0.01},
    "MomentumOptimizer": {"momentum": 0.9, "use_nesterov": True},
}


def optimizers(namespace: Any, base: type) -> dict[str, Callable[[], Any]]:
    """Makers of the public optimizers of a namespace by name, without base classes and wrappers."""
    makers = {}
    for name in dir(namespace):
        kind = getattr(namespace, name)
        abstract = name in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer", "SyncReplicasOptimizer", "AdagradDAOptimizer")
        if isinstance(kind, type) and issubclass(kind, base) and not abstract:
            arguments = dict(ARGUMENTS.get(name, {}))
            if namespace in (tf_keras.optimizers.legacy, tf.compat.v1.train):
                arguments.pop("weight_decay", None)
            makers[name] = lambda kind=kind, arguments=arguments: kind(learning_rate=0.01, **arguments)
    return makers


NAMESPACES = (
    (KERAS3, keras.optimizers, keras.optimizers.Optimizer),
    (TF_KERAS, tf_keras.optimizers, tf_keras.optimizers.Optimizer),
    (LEGACY, tf_keras.optimizers.legacy, tf_keras.optimizers.legacy.Optimizer),
    (V1, tf.compat.v1.train, tf.compat.v1.train.Optimizer),
)
CASES = [(family, name, make) for family, namespace, base in NAMESPACES for name, make in optimizers(namespace, base).items()]
every = pytest.mark.parametrize(("family", "name", "make"), CASES, ids=[f"{family.name}-{name}" for family, name, _ in CASES])


def trained(family: Family, optimizer: Any, mode: str, steps: int = STEPS) -> np.ndarray:
    """All weights after the steps: a matrix, a bias and an embedding with sparse gradients."""
    tf.random.set_seed(0)
    start = np.random.default_rng(1)
    shapes = {"kernel": (4, 3), "bias": (3,), "table": (6, 4)}
    make = keras.Variable if family is KERAS3 else tf.Variable
    variables = [make(start.normal(size=shape).astype("float32"), name=name) for name, shape in shapes.items()]
    kernel, bias, table = [variable.value for variable in variables] if family is KERAS3 else variables

    def loss() -> tf.Tensor:
        hidden = tf.constant(INPUTS) + tf.nn.embedding_lookup(table, tf.constant([0, 1, 1, 3, 0, 5, 5, 5]))
        return tf.reduce_mean((tf.tanh(hidden @ kernel + bias) - tf.constant(TARGETS)) ** 2)

    if family is KERAS3:
        optimizer.build(variables)
    step = make_function(lambda: train_step(family, optimizer, loss, variables), mode)
    for _ in range(steps):
        step()
    return np.concatenate([variable.numpy().ravel() for variable in variables])


@every
def test_fifty_steps_give_the_same_bits(family: Family, name: str, make: Callable[[], Any]) -> None:
    try:
        plain = trained(family, make(), "function")
    except AttributeError as error:
        assert name == "Muon"
        pytest.skip(f"the Muon of this version of Keras does not run on TensorFlow at all: {error}")
    policy = DynamicLossScale(growth_interval=20)  # the scale moves twice on the way
    optimizer = wrap(make(), policy)
    wrapped = trained(family, optimizer, "function")
    np.testing.assert_array_equal(wrapped, plain)
    assert float(optimizer.scale) == 2.0**17
    assert np.isfinite(plain).all()
    assert (plain != trained(family, make(), "function", steps=0)).mean() > 0.7  # two rows of the table are never looked up


@pytest.mark.parametrize("family", [KERAS3, TF_KERAS, LEGACY, V1], ids=lambda family: family.name)
def test_compiled_steps_agree_to_the_last_bits(family: Family) -> None:
    """XLA fuses the unscaling into the update and may round once less: at most a few units in the last place over all steps."""
    plain, wrapped = trained(family, family.adam(0.01), "jit"), trained(family, wrap(family.adam(0.01)), "jit")
    np.testing.assert_allclose(wrapped, plain, rtol=STEPS * np.finfo(np.float32).eps, atol=STEPS * np.finfo(np.float32).eps)


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="this version of Keras has no MultiOptimizer")
def test_an_optimizer_of_several_optimizers_can_be_wrapped() -> None:
    results = []
    for wrapping in (lambda optimizer: optimizer, wrap):
        parts = {"kernel": keras.optimizers.Adam(0.01), "bias": keras.optimizers.SGD(0.1)}
        weights = {name: keras.Variable(np.ones(3, "float32"), name=name) for name in parts}
        chosen = {id(weights[name]): part for name, part in parts.items()}
        optimizer = wrapping(keras.optimizers.MultiOptimizer(lambda variable, chosen=chosen: chosen[id(variable)]))
        for _ in range(5):
            gradients = [tf.constant([1.0, 2.0, 3.0]), tf.constant([1.0, 0.0, -1.0])]
            optimizer.apply([optimizer.scale_loss(gradient) for gradient in gradients], list(weights.values()))
        results.append(np.concatenate([weight.numpy() for weight in weights.values()]))
    np.testing.assert_array_equal(results[0], results[1])
    assert not hasattr(optimizer, "learning_rate")
