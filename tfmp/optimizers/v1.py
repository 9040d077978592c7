"""The loss-scale wrapper for `tf.compat.v1.train` optimizers: in graphs with Sessions, in functions and eagerly."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfmp.optimizers.delegation import InnerProxy, already_wrapped_error, check_minimize
from tfmp.optimizers.gradients import values_of
from tfmp.optimizers.guard import Guard, as_written
from tfmp.optimizers.policies import LossScalePolicy, as_policy
from tfmp.optimizers.wrap import note_scaled

_Optimizer: Any = tf.compat.v1.train.Optimizer
_Tensorflows: Any = tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer


class V1LossScaleOptimizer(InnerProxy, _Tensorflows):
    """A `tf.compat.v1.train` optimizer under a loss scale that cannot die.

    A drop-in for `tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer`, and an instance of it. `minimize` and
    `compute_gradients` scale the loss and return unscaled gradients, in the variables' dtypes, sparse ones still sparse;
    `apply_gradients` skips the step, `global_step` included, if a gradient of any replica is not finite. An overflow that
    `compute_gradients` saw is not forgotten if the gradients are clipped in between.

    Each graph has a loss scale of its own, created when the optimizer is first used in it. To checkpoints the wrapper looks
    like the inner optimizer with the scale's state added.
    """

    _inner_attribute = "_optimizer"

    def __init__(self, inner_optimizer: tf.compat.v1.train.Optimizer, loss_scale: Any = "dynamic") -> None:
        """Wraps an optimizer.

        Args:
            inner_optimizer: any `tf.compat.v1.train.Optimizer` that no loss scale optimizer wraps yet, except
                `SyncReplicasOptimizer`.
            loss_scale: "dynamic", a number, None or a policy record; see `policies.as_policy`.

        Raises:
            TypeError: `inner_optimizer` is not such an optimizer, or `loss_scale` is of a wrong type.
            ValueError: `inner_optimizer` is already wrapped, gathers gradients in queues (`SyncReplicasOptimizer`), or has a `minimize` of
                its own, or the current strategy cannot scale losses.
        """
        _check_inner(inner_optimizer)
        policy = as_policy(loss_scale)
        if policy.active:
            check_minimize(inner_optimizer, _Optimizer)
        self.__dict__["_trackable"] = inner_optimizer
        _Optimizer.__init__(self, use_locking=inner_optimizer._use_locking, name=inner_optimizer.get_name())
        self._optimizer = inner_optimizer
        note_scaled(inner_optimizer)
        self._policy = policy
        self._guards: weakref.WeakKeyDictionary[Any, Guard] = weakref.WeakKeyDictionary()
        self._eager_guard: Guard | None = None
        _ = self._guard

    @staticmethod
    def create_slots(optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Creates the slots outside of the conditional step, so that they have the names they have without it."""
        if not tf.distribute.has_strategy():
            with tf.init_scope():
                optimizer._create_slots([variable for gradient, variable in pairs if gradient is not None])

    @property
    def _guard(self) -> Guard:  # type: ignore[override]  # an attribute where there is only one graph
        """The loss scale of the outermost graph that is being built, or of eager execution."""
        with tf.init_scope():
            if tf.executing_eagerly():
                self._eager_guard = self._eager_guard or Guard(self._policy)
                return self._eager_guard
            graph = tf.compat.v1.get_default_graph()
            if graph not in self._guards:
                self._guards[graph] = Guard(self._policy)
            return self._guards[graph]

    @property
    def inner_optimizer(self) -> tf.compat.v1.train.Optimizer:
        """The wrapped optimizer."""
        return self._optimizer

    @property
    def loss_scale_policy(self) -> LossScalePolicy:
        """How the scale moves."""
        return self._policy

    def get_scaled_loss(self, loss: Any) -> Any:
        """Returns the loss times the scale (float32 for a 16-bit loss), for use with `tf.gradients` or a gradient tape."""
        return self._guard.scale_loss(loss)

    def get_unscaled_gradients(self, grads: Sequence[Any]) -> list[Any]:
        """Returns the gradients divided by the scale, in their own dtypes; sparse and None ones stay so."""
        return self._guard.unscale_ahead(grads, widen=False)

    def minimize(self, *args: Any, **kwargs: Any) -> Any:
        """Computes gradients and applies them; arguments and result as in the inner optimizer's `minimize`, which does it all if nothing is scaled."""
        return super().minimize(*args, **kwargs) if self._policy.active else self._optimizer.minimize(*args, **kwargs)

    @as_written
    def compute_gradients(self, loss: Any, var_list: Any = None, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Returns unscaled (gradient, variable) pairs of a loss; arguments as in `tf.compat.v1.train.Optimizer`."""
        pairs = self._optimizer.compute_gradients(self.get_scaled_loss(loss), var_list, *args, **kwargs)
        gradients = self.get_unscaled_gradients([gradient for gradient, _ in pairs])
        return list(zip(gradients, [variable for _, variable in pairs], strict=True))

    @as_written
    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Any:
        """Applies unscaled gradients, or skips the step if one of any replica is not finite.

        Args:
            grads_and_vars: (gradient, variable) pairs; gradients may be sparse or None.
            global_step: variable to increment if the step is taken.
            name: name of the returned operation.

        Returns:
            An operation that takes or skips the step; executing eagerly, None.

        Raises:
            ValueError: there is no pair, all gradients are None or come from a `SyncReplicasOptimizer`, or the call is not in replica context.
        """
        pairs = tuple(grads_and_vars)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        guard = self._guard
        ahead = guard.found_ahead(gradients, scaled=False)
        if not guard.policy.active:
            return self._optimizer.apply_gradients(pairs, global_step, name)

        def take(gradients: Sequence[Any]) -> Any:
            return self._optimizer.apply_gradients(list(zip(gradients, variables, strict=True)), global_step)

        if not tf.executing_eagerly():
            _check_not_gathered(gradients)
        self.create_slots(self._optimizer, pairs)
        names = [variable.name for variable in variables]
        with _train_op_collection() as collection:
            taken = guard.apply(gradients, take, scaled=False, ahead=ahead, names=names)
            if tf.executing_eagerly():
                return None
            collection.append(tf.group(taken, name=name or self.get_name()))
            return collection[-1]

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a pickle keeps: all but the scales of graphs, which stay behind with their graphs."""
        return {name: value for name, value in vars(self).items() if name != "_guards"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes up what `__getstate__` returned."""
        self.__dict__.update(state, _guards=weakref.WeakKeyDictionary())

    def variables(self) -> list[Any]:
        """Returns the inner optimizer's variables, then those of the scale's state in this graph."""
        state = self._guard.variables
        return [*self._optimizer.variables(), *([] if state is None else state.all())]

    def get_slot(self, var: Any, name: str) -> Any:
        """Returns a slot of the inner optimizer, None if it has none of that name for the variable."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Returns the names of the inner optimizer's slots."""
        return self._optimizer.get_slot_names()

    def _restore_slot_variable(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._restore_slot_variable(*args, **kwargs)

    def _create_or_restore_slot_variable(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._create_or_restore_slot_variable(*args, **kwargs)


@contextlib.contextmanager
def _train_op_collection() -> Iterator[list[Any]]:
    """Yields the operations to put into the graph's collection of training operations instead of what was added inside.

    The inner optimizer adds an operation of the conditional branch, which nobody can run.
    """
    collection = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    operations = list(collection)
    try:
        yield operations
    finally:
        collection[:] = operations


def _check_inner(optimizer: Any) -> None:
    if isinstance(optimizer, _Tensorflows):
        raise already_wrapped_error(optimizer)
    if not isinstance(optimizer, _Optimizer):
        raise TypeError(
            f"inner_optimizer={optimizer!r} is a {type(optimizer).__name__}, not a tf.compat.v1.train.Optimizer."
        )
    if isinstance(optimizer, tf.compat.v1.train.SyncReplicasOptimizer):
        raise ValueError(_SYNC_REPLICAS)


def _check_not_gathered(gradients: Sequence[Any]) -> None:
    """Refuses gradients that SyncReplicasOptimizer hands on: it counts steps by `global_step`, which a skipped step does not advance."""
    for gradient in gradients:
        if gradient is not None and "AccumulatorTakeGradient" in values_of(gradient).op.type:
            raise ValueError(_SYNC_REPLICAS)


_SYNC_REPLICAS = (
    "SyncReplicasOptimizer and loss scaling do not work together, in either order: it gathers gradients in queues and would wait forever after the "
    "first step that is skipped. Use tf.distribute.MultiWorkerMirroredStrategy, or loss_scale=None."
)
