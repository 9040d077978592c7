"""All replicas take the same decision: a step is taken everywhere or skipped everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

#: Strategies whose replicas run in step and keep the state mirrored, so that one decision can hold for all.
_IN_STEP = (tf.distribute.OneDeviceStrategy, tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
_IN_STEP_V1 = (
    tf.compat.v1.distribute.OneDeviceStrategy,
    tf.compat.v1.distribute.MirroredStrategy,
    tf.compat.v1.distribute.experimental.MultiWorkerMirroredStrategy,
)


def check_strategy() -> None:
    """Refuses the current distribution strategy unless its replicas run in step.

    Raises:
        ValueError: under a parameter server, central storage, TPU or unknown strategy.
    """
    if not tf.distribute.has_strategy():
        return
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, _IN_STEP + _IN_STEP_V1):
        return
    name = type(strategy).__name__
    if "TPU" in name:
        reason = "A TPU computes in bfloat16, which has float32's exponent range and needs no loss scale."
    else:
        reason = "Its replicas do not step together on mirrored variables, so they cannot agree on skipping a step or on one scale."
    raise ValueError(
        f"Loss scaling does not work under {name}. {reason} Use MirroredStrategy or MultiWorkerMirroredStrategy, "
        "or bfloat16 with loss_scale=None."
    )


def replica_count() -> int:
    """Returns over how many replicas gradients are summed in the current context; 1 without a strategy."""
    return tf.distribute.get_strategy().num_replicas_in_sync if tf.distribute.has_strategy() else 1


def step_together(
    gradients: Sequence[Any],
    finite: tf.Tensor,
    take: Callable[[Sequence[Any]], Any],
    settle: Callable[[bool, tf.Tensor], Sequence[Any]],
) -> tf.Tensor:
    """Takes the step if no gradient of any replica is non-finite, and settles the state accordingly.

    Args:
        gradients: what `take` gets.
        finite: bool, shape [any], what must hold on this replica.
        take: applies the gradients; called in replica context on every replica, or not at all.
        settle: called with whether the step was taken and with `finite` of all replicas together, in cross-replica
            context where the strategy has one; returns the assignments it made.

    Returns:
        bool scalar, the same on all replicas: whether the step was taken. In a Session, running it runs the step.

    Raises:
        ValueError: called outside of a replica context, under a strategy whose replicas do not run in step, or in a function compiled by XLA
            for several CPU devices.
    """
    if tf.distribute.in_cross_replica_context():
        raise ValueError(
            "Gradients must be applied in replica context: call the training step through strategy.run(step, ...)."
        )
    if not tf.distribute.has_strategy():
        return _branch(finite, lambda: take(gradients), settle)
    check_strategy()
    replica = tf.distribute.get_replica_context()
    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        if replica_count() > 1:
            finite = replica.all_reduce("SUM", _count_failures(finite)) == 0
        return _branch(finite, lambda: take(gradients), settle)
    if replica_count() > 1:
        _check_not_compiled()

    # The optimizers merge-call too, which TensorFlow forbids inside a cond of a replica. So the replicas merge first,
    # the cond stands in cross-replica context, and its branch goes back to the replicas.
    def decide(strategy: Any, gradients: Sequence[Any], failures: Any) -> tf.Tensor:
        def take_on_every_replica() -> Sequence[Any]:
            effects = strategy.extended.call_for_each_replica(take, args=(gradients,))
            return strategy.experimental_local_results(effects)

        return _branch(strategy.reduce("SUM", failures, axis=None) == 0, take_on_every_replica, settle)

    return replica.merge_call(decide, args=(gradients, _count_failures(finite)))


def _branch(
    finite: tf.Tensor, take: Callable[[], Any], settle: Callable[[bool, tf.Tensor], Sequence[Any]]
) -> tf.Tensor:
    def good() -> tf.Tensor:
        effects = take()
        return _after([effects, settle(True, finite)], True)

    def skip() -> tf.Tensor:
        return _after(settle(False, finite), False)

    return tf.cond(tf.reduce_all(finite), good, skip)


def _count_failures(finite: tf.Tensor) -> tf.Tensor:
    """Returns 0.0 and 1.0 for true and false: float32, because collectives sum it on every device."""
    return tf.cast(tf.logical_not(finite), tf.float32)


def _after(effects: Any, value: bool) -> tf.Tensor:
    """Returns `value` as a tensor that exists only after the effects: the two branches must return the same kind."""
    if tf.executing_eagerly():
        return tf.constant(value)
    waited_for = [effect for effect in tf.nest.flatten(effects) if effect is not None]
    with tf.control_dependencies(waited_for):
        return tf.identity(tf.constant(value))


def _check_not_compiled() -> None:
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                raise ValueError(_NOT_COMPILED.format(strategy=type(tf.distribute.get_strategy()).__name__))
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)


_NOT_COMPILED = (
    "jit_compile=True inside {strategy} works on GPUs only: TensorFlow compiles a function for one device, and its "
    "variables lie on several. Drop jit_compile=True, or the strategy, or the CPU devices."
)
