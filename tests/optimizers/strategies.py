"""Trains on several logical CPUs with MirroredStrategy, as written and in float16, and prints what happened, as JSON: `python strategies.py REPLICAS`.

A process of its own, since logical devices cannot be changed once TensorFlow runs. The judging is in test_agreement.py.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import tfmp
from tests.optimizers.cluster import free_ports
from tests.optimizers.families import FAMILIES, KERAS3, KERASES, TF_KERAS, V1, Family, gradients_for, set_scale
from tfmp.optimizers.policies import DynamicLossScale
from tfmp.optimizers.scaler import LossScaler
from tfmp.optimizers.wrap import wrap

REPLICAS = int(sys.argv[1])
OVERFLOWS = 300


@dataclass(frozen=True)
class Mode:
    """As written, or rewritten to float16, where a scale of 2^15 would overflow by itself."""

    name: str
    initial: float
    maximum: float
    periods: int

    @property
    def policy(self) -> DynamicLossScale:
        """The loss scale of most loops."""
        return DynamicLossScale(initial=self.initial)


FLOAT32 = Mode("float32", 2.0**15, 2.0**24, periods=10_000)
FLOAT16 = Mode("float16", 2.0**10, 2.0**13, periods=10_000)
SCALES = (1, 2**10, 2**15)
CLIPNORM = 2.0**-9


class Loop:
    """A custom loop: a matrix, an embedding with sparse gradients, and a variable without gradient, on all replicas."""

    def __init__(self, strategy: Any, make: Callable[[], Any], family: Family | None = None, eager: bool = False, policy: Any = "dynamic") -> None:
        self.strategy, self.family = strategy, family
        with strategy.scope():
            self.variables = self._make_variables()
            self.optimizer = make()
            if family is None:
                self.scaler = LossScaler(policy)
        self.step = self._step if eager else tf.function(self._step)

    def _make_variables(self) -> list[tf.Variable]:
        return [tf.Variable(tf.fill([3, 2], 0.5)), tf.Variable(tf.ones([5, 3])), tf.Variable(1.0)]

    def _loss(self, inputs: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.embedding_lookup(self.variables[1], tf.constant([1, 2])) * inputs
        return tf.reduce_mean((hidden @ self.variables[0] - 1.0) ** 2)

    def _replica_step(self, inputs: tf.Tensor) -> None:
        if self.family is None:
            with tf.GradientTape() as tape:
                scaled = self.scaler.scale_loss(self._loss(inputs))
            self.scaler.apply(self.optimizer, tape.gradient(scaled, self.variables), self.variables)
        else:
            self.optimizer.apply_gradients(list(zip(self._gradients(self.family, inputs), self.variables, strict=True)))

    def _gradients(self, family: Family, inputs: tf.Tensor) -> list[Any]:
        return gradients_for(family, self.optimizer, lambda: self._loss(inputs), self.variables)

    def _step(self, inputs: Any) -> None:
        self.strategy.run(self._replica_step, args=(inputs,))

    def batch(self, bad: int | None = None, value: float = np.inf) -> Any:
        """Inputs that differ between the replicas, one of them perhaps bad."""

        def make(context: Any) -> tf.Tensor:
            replica = context.replica_id_in_sync_group
            return tf.fill([2, 3], value if replica == bad else 1.0 + replica)

        return self.strategy.experimental_distribute_values_from_function(make)

    def weights(self) -> list[Any]:
        return [variable.numpy().tolist() for variable in self.variables]

    def in_step(self) -> bool:
        """Whether all copies of all variables, the state of the scale included, are equal."""
        state = (self.scaler if self.family is None else self.optimizer)._guard.variables.all()
        return all(len({copy.numpy().tobytes() for copy in variable.values}) == 1 for variable in [*self.variables, *state])

    def state(self) -> list[Any]:
        return list(vars((self.scaler if self.family is None else self.optimizer).loss_scale_state()).values())


def each_replica_in_turn(loop: Loop) -> dict[str, Any]:
    """A good step, then an overflow on each replica alone, Inf and NaN in turn, then a good step."""
    loop.step(loop.batch())
    before, record = loop.weights(), []
    for bad in range(REPLICAS):
        loop.step(loop.batch(bad, np.inf if bad % 2 else np.nan))
        record.append({"same weights": loop.weights() == before, "state": loop.state(), "in step": loop.in_step()})
    loop.step(loop.batch())
    return {"skips": record, "moves again": loop.weights() != before, "in step": loop.in_step(), "state": loop.state()}


class SmallLoop(Loop):
    """One weight, so that very many steps take little time; its gradient is 1 to 4, so that in float16 a scale of 2^16 is too large, and one of 2^13 is not."""

    def _make_variables(self) -> list[tf.Variable]:
        return [tf.Variable([[0.5]])]

    def _loss(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(inputs[:, :1] @ self.variables[0])


def many(loop: Loop, periods: int) -> dict[str, Any]:
    """Growth periods of one step, overflows on the last replica, one good step, in a loop inside of one function."""

    @tf.function
    def run(inputs: Any, count: tf.Tensor) -> None:
        for _ in tf.range(count):
            loop._step(inputs)

    run(loop.batch(), tf.constant(periods))
    grown, before = loop.state(), loop.weights()
    run(loop.batch(REPLICAS - 1), tf.constant(OVERFLOWS))
    fallen, same = loop.state(), loop.weights() == before
    run(loop.batch(), tf.constant(1))
    record = {"grown": grown, "fallen": fallen, "same weights": same, "recovered": loop.state()}
    return {**record, "moves again": loop.weights() != before, "in step": loop.in_step()}


def fit(strategy: Any, family: Family, mode: Mode) -> dict[str, Any]:
    """`fit` with one bad row, which falls to a replica that is not the first."""
    x = np.random.default_rng(0).normal(size=(12 * REPLICAS, 3)).astype("float32")
    x[4 * REPLICAS + 3] = np.inf
    with strategy.scope():
        layers = family.keras.layers
        model = family.keras.Sequential([layers.Input((3,)), layers.Dense(4, activation="relu"), layers.Dense(2)])
        optimizer = wrap(family.adam(0.01), mode.policy)
        model.compile(optimizer, "mse")
    model.fit(x, x[:, :2], batch_size=4 * REPLICAS, epochs=2, verbose=0, shuffle=False)
    copies = [len({copy.numpy().tobytes() for copy in getattr(weight, "value", weight).values}) for weight in model.weights] if family is KERAS3 else [1]
    return {"state": list(vars(optimizer.loss_scale_state()).values()), "iterations": int(optimizer.iterations.numpy()), "copies": max(copies)}


class ClippedLoop(Loop):
    """Clips by norm, in the optimizer or, for v1, by hand. Its gradients neither overflow in float16 at a scale of 2^15 nor lose bits at a scale of 1."""

    def _loss(self, inputs: tf.Tensor) -> tf.Tensor:
        return super()._loss(inputs) / 256.0

    def _gradients(self, family: Family, inputs: tf.Tensor) -> list[Any]:
        gradients = super()._gradients(family, inputs)
        return [None if one is None else tf.clip_by_norm(one, CLIPNORM) for one in gradients] if family is V1 else gradients


def clipped(strategy: Any, family: Family) -> dict[str, Any]:
    """Weights after two steps with clipping, and how far the first step went, unwrapped and at three scales."""
    arguments = {} if family is V1 else {"clipnorm": CLIPNORM}
    plain = ClippedLoop(strategy, lambda: family.sgd(1.0, **arguments), family)
    if family is KERAS3:  # unwrapped, it cannot make its variables inside a function under a strategy
        with strategy.scope():
            plain.optimizer.build(plain.variables)
    loop = ClippedLoop(strategy, lambda: wrap(family.sgd(1.0, **arguments)), family)
    start, results = [variable.numpy() for variable in loop.variables], []
    for one, scale in [(plain, None), *((loop, scale) for scale in SCALES)]:
        if scale is not None:
            set_scale(one.optimizer, scale)
            for variable, value in zip(one.variables, start, strict=True):
                variable.assign(value)
        one.step(one.batch())
        length = float(np.linalg.norm(one.variables[0].numpy() - start[0]))
        one.step(one.batch())
        results.append({"weights": one.weights(), "first step": length})
    return {"plain": results[0], "wrapped": results[1:], "skipped": int(loop.optimizer.skipped_steps)}


def sum_overflows(strategy: Any, family: Family) -> dict[str, Any]:
    """Gradients that are finite on each replica and infinite in their sum."""
    loop = Loop(strategy, lambda: wrap(family.sgd(1e-30), 1), family)
    weight = loop.variables[0]

    def replica_step() -> None:
        loss = lambda: tf.reduce_sum(weight) * 2.5e38  # noqa: E731
        gradients = gradients_for(family, loop.optimizer, loss, [weight])
        loop.optimizer.apply_gradients([(gradients[0], weight)])

    tf.function(lambda: strategy.run(replica_step))()
    return {"state": loop.state(), "finite": bool(np.isfinite(weight.numpy()).all())}


def reduced_by_hand(strategy: Any, family: Family) -> dict[str, Any]:
    """The loop sums the scaled gradients itself, in float16, and applies them without a second sum."""
    with strategy.scope():
        variable, optimizer = tf.Variable([1.0, 1.0]), wrap(family.sgd(0.5), DynamicLossScale(initial=2.0**13))

    def replica_step(factor: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.get_scaled_loss(tf.reduce_sum(variable) * factor)
        (gradient,) = tape.gradient(loss, [variable])
        total = tf.distribute.get_replica_context().all_reduce("SUM", tf.cast(gradient, tf.float16))
        (unscaled,) = optimizer.get_unscaled_gradients([tf.cast(total, tf.float32)])
        keyword = "skip_gradients_aggregation" if family is TF_KERAS else "experimental_aggregate_gradients"
        optimizer.apply_gradients([(unscaled, variable)], **{keyword: family is TF_KERAS})

    step = tf.function(lambda factor: strategy.run(replica_step, args=(factor,)))
    step(tf.constant(0.5))
    once = variable.numpy().tolist()
    step(tf.constant(6.0))  # 6 * 2^13 is finite in float16, the sum over two replicas is not
    return {"once": once, "after overflow": variable.numpy().tolist(), "skipped": int(optimizer.skipped_steps), "scale": float(optimizer.scale)}


def checkpoints(strategy: Any, family: Family) -> dict[str, Any]:
    """A checkpoint made under the strategy read without it, and the reverse."""
    under = Loop(strategy, lambda: wrap(family.adam(0.1)), family)
    under.step(under.batch(0))
    under.step(under.batch())
    alone = Loop(tf.distribute.get_strategy(), lambda: wrap(family.adam(0.1)), family)
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(optimizer=under.optimizer, variables=under.variables).write(f"{folder}/under")
        tf.train.Checkpoint(optimizer=alone.optimizer, variables=alone.variables).read(path).expect_partial()
        restored = {"state": alone.state() == under.state(), "weights": alone.weights() == under.weights()}
        alone.step(tf.fill([2, 3], np.nan))
        path = tf.train.Checkpoint(optimizer=alone.optimizer, variables=alone.variables).write(f"{folder}/alone")
        tf.train.Checkpoint(optimizer=under.optimizer, variables=under.variables).read(path).expect_partial()
    return {"into one": restored, "back": under.state() == alone.state(), "in step": under.in_step(), "skipped": under.state()[3]}


def wrapper_outside_of_scope(strategy: Any) -> dict[str, Any]:
    """The inner optimizer is made in the strategy's scope, the wrapper, and with it the scale, outside."""
    loop = Loop(strategy, lambda: keras.optimizers.SGD(0.1), KERAS3)
    loop.optimizer = wrap(loop.optimizer)
    for bad in (None, REPLICAS - 1, None):
        loop.step(loop.batch(bad))
    return {"state": loop.state()}


def error_of(function: Callable[[], Any]) -> str:
    try:
        function()
    except ValueError as error:
        return str(error)
    return ""


def compiled(strategy: Any, family: Family) -> str:
    """The error of a compiled step on several CPUs."""
    loop = Loop(strategy, lambda: wrap(family.sgd(0.1)), family)
    return error_of(lambda: tf.function(loop._step, jit_compile=True)(loop.batch()))


def single_device(family: Family, strategy: Any, mode: Mode) -> dict[str, Any]:
    """The same as `many`, compiled, under a strategy of one device."""
    policy = DynamicLossScale(initial=mode.initial, growth_interval=1, maximum=mode.maximum)
    loop = SmallLoop(strategy, lambda: wrap(family.sgd(1e-5), policy), family)

    @tf.function(jit_compile=True)
    def run(inputs: Any, count: tf.Tensor) -> None:
        for _ in tf.range(count):
            loop._step(inputs)

    run(loop.batch(), tf.constant(10_000))
    grown, before = loop.state(), loop.weights()
    run(loop.batch(0), tf.constant(OVERFLOWS))
    return {"grown": grown, "fallen": loop.state(), "same weights": loop.weights() == before}


def parameter_servers() -> dict[str, Any]:
    """The refusal under ParameterServerStrategy, with a cluster of one server and one worker in this process; and 20 steps of `fit` with mixed precision on,
    whose steps are converted and whose optimizer, which cannot be wrapped there, is left as it is with a warning.
    """
    servers = {"ps": 1, "worker": 1}
    ports = {job: [f"localhost:{port}" for port in free_ports(count)] for job, count in servers.items()}
    for job in servers:
        keep.append(tf.distribute.Server(ports, job_name=job, task_index=0, start=True))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(ports), rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        unscaled = wrap(keras.optimizers.SGD(0.1), None)
        assert float(unscaled.scale) == 1.0
        refusal = error_of(lambda: wrap(keras.optimizers.SGD(0.1)))
    before = len(tfmp.report())
    with warnings.catch_warnings(record=True) as caught, tfmp.mixed_precision(dtype="float16", ignore_performance=True):
        warnings.simplefilter("always")
        with strategy.scope():
            model = tf_keras.Sequential([tf_keras.layers.Input((3,)), tf_keras.layers.Dense(2)])
            model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensor_slices((np.ones((8, 3), "float32"), np.zeros((8, 2), "float32"))).repeat().batch(4)
        losses = model.fit(data, steps_per_epoch=10, epochs=2, verbose=0).history["loss"]
    said = [str(one.message) for one in caught if "trains without a loss scale" in str(one.message)]
    converted = sum(record.converted for record in tfmp.report()[before:])
    return {"refusal": refusal, "steps": int(model.optimizer.iterations.numpy()), "losses": losses, "said": said, "converted": converted}


keep: list[Any] = []


def central_storage(strategy: Any) -> str:
    with strategy.scope():
        return error_of(lambda: wrap(tf_keras.optimizers.SGD(0.1)))


def main() -> None:
    """Prints all records by name, those of float32 and those of float16."""
    warnings.simplefilter("ignore")
    tf.get_logger().setLevel("ERROR")
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * REPLICAS)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(REPLICAS)])
    records: dict[str, Any] = {"float32": together(strategy, FLOAT32)}
    with tfmp.mixed_precision(dtype="float16", ignore_performance=True, loss_scaling=False):
        records["float16"] = together(strategy, FLOAT16) | (single_devices(FLOAT16) if REPLICAS == 2 else {})
    records["converted"] = sum(record.converted for record in tfmp.report())
    if REPLICAS == 2:
        records["float32"] |= borders(strategy)
    print(json.dumps(records), flush=True)


def together(strategy: Any, mode: Mode) -> dict[str, Any]:
    """Every family in a custom loop and in `fit`, the scale at its bounds, and clipping."""
    records: dict[str, Any] = {}
    for family in FAMILIES:
        clip = {} if family is V1 else {"clipnorm": 1.0}

        def adam(family: Family = family, clip: Any = clip) -> Any:
            return wrap(family.adam(0.1, **clip), mode.policy)

        def sgd(family: Family = family) -> Any:
            return wrap(family.sgd(1e-5), DynamicLossScale(initial=mode.initial, growth_interval=1, maximum=mode.maximum))

        records[f"turn-{family.name}-function"] = each_replica_in_turn(Loop(strategy, adam, family))
        if REPLICAS == 2 and mode is FLOAT32:
            records[f"turn-{family.name}-eager"] = each_replica_in_turn(Loop(strategy, adam, family, eager=True))
        records[f"many-{family.name}"] = many(SmallLoop(strategy, sgd, family), mode.periods)
        records[f"clipped-{family.name}"] = clipped(strategy, family)
    records["turn-scaler-function"] = each_replica_in_turn(Loop(strategy, lambda: keras.optimizers.Adam(0.1), policy=mode.policy))
    for family in KERASES:
        records[f"fit-{family.name}"] = fit(strategy, family, mode)
    return records


def single_devices(mode: Mode) -> dict[str, Any]:
    """Compiled loops under the strategies of one device."""
    strategies = {"OneDevice": tf.distribute.OneDeviceStrategy("CPU:0"), "Mirrored": tf.distribute.MirroredStrategy(["CPU:0"])}
    families = {"OneDevice": [KERAS3], "Mirrored": FAMILIES}
    return {f"single-{name}": [single_device(family, one, mode) for family in families[name]] for name, one in strategies.items()}


def borders(strategy: Any) -> dict[str, Any]:
    """What borders on loss scaling: sums, checkpoints, compilation, other strategies."""
    records: dict[str, Any] = {}
    for family in FAMILIES:
        records[f"sum-{family.name}"] = sum_overflows(strategy, family)
        records[f"checkpoints-{family.name}"] = checkpoints(strategy, family)
        records[f"compiled-{family.name}"] = compiled(strategy, family)
    for family in (TF_KERAS, KERASES[2]):
        records[f"reduced-{family.name}"] = reduced_by_hand(strategy, family)
    records |= single_devices(FLOAT32)
    records["outside"] = wrapper_outside_of_scope(strategy)
    records["refused-CentralStorageStrategy"] = central_storage(tf.distribute.experimental.CentralStorageStrategy(["CPU:0"], "CPU:0"))
    records["parameter servers"] = parameter_servers()
    records["refused-ParameterServerStrategyV2"] = records["parameter servers"]["refusal"]
    return records


if __name__ == "__main__":
    main()
