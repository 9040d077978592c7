"""The loss-scale wrappers for tf_keras: one for its optimizers, one for its legacy optimizers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from tfmp.optimizers.delegation import InnerProxy, already_wrapped_error, check_minimize
from tfmp.optimizers.guard import Guard, as_written
from tfmp.optimizers.monitor import MonitorRules
from tfmp.optimizers.policies import as_policy, policy_config
from tfmp.optimizers.records import ScaleRecord

#: tf_keras's own wrapper; its two concrete classes, one for each kind of optimizer, have no public name.
_Public: Any = tf_keras.mixed_precision.LossScaleOptimizer
_LegacyOptimizer = tf_keras.optimizers.legacy.Optimizer
_OwnLegacy: Any = next(kind for kind in _Public.__subclasses__() if issubclass(kind, _LegacyOptimizer))
_OwnNew: Any = next(kind for kind in _Public.__subclasses__() if not issubclass(kind, _LegacyOptimizer))


class TfKerasLossScaleRecord(ScaleRecord, tf_keras.metrics.Metric):
    """Carries the scale's state in tf_keras files."""


class TfKerasLossScaleMonitor(MonitorRules, tf_keras.callbacks.Callback):
    """A tf_keras callback that watches the loss scale of the model's optimizer; see `MonitorRules`."""


class _TfKerasProxy(InnerProxy):
    """What both wrappers share: tf_keras's names for the parts of loss scaling."""

    _inner_attribute = "_optimizer"
    _optimizer: Any

    def _wrap(self, inner: Any, loss_scale: Any, kind: type, kind_name: str) -> None:
        if isinstance(inner, _Public):
            raise already_wrapped_error(inner)
        if not isinstance(inner, kind):
            raise TypeError(f"inner_optimizer={inner!r} is a {type(inner).__name__}, not a {kind_name}.")
        # tf_keras refuses to wrap an optimizer with this mark. Our own mark is not True, so that a model can be compiled
        # again with the same optimizer.
        if getattr(inner, "_is_wrapped_by_loss_scale_optimizer", False) is True:
            raise already_wrapped_error(inner)
        policy = as_policy(loss_scale)
        if policy.active:
            check_minimize(inner, kind)
        self._attach(inner, Guard(policy))
        self._optimizer = inner
        self._optimizer._is_wrapped_by_loss_scale_optimizer = "by tfmp"
        self._record()

    def _record(self) -> None:
        self.loss_scale_record = None
        if self._guard.variables is not None:
            for variable in self._guard.variables.all():
                tf_keras.__internal__.backend.track_variable(variable)
            self.loss_scale_record = TfKerasLossScaleRecord(self._guard.variables)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Returns a copy with an inner optimizer and a scale of its own."""
        result = memo[id(self)] = type(self).__new__(type(self))
        for name, value in vars(self).items():
            if name != "loss_scale_record":
                result.__dict__[name] = copy.deepcopy(value, memo)
        result._record()
        return result

    def minimize(self, *args: Any, **kwargs: Any) -> Any:
        """Computes gradients and applies them; arguments and result as in the inner optimizer's `minimize`, which does it all if nothing is scaled."""
        return super().minimize(*args, **kwargs) if self._guard.policy.active else self._optimizer.minimize(*args, **kwargs)

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves."""
        return self._guard.policy.name == "dynamic"

    @property
    def loss_scale(self) -> tf.Tensor:
        """The same as `scale`."""
        return self.scale

    @property
    def dynamic_counter(self) -> tf.Tensor | None:
        """Good steps since the latest skip, int64 scalar; None if the scale does not move."""
        return self._guard.value("good_steps") if self.dynamic else None

    @property
    def initial_scale(self) -> float:
        """The scale of the first step."""
        return self._guard.policy.initial

    @property
    def dynamic_growth_steps(self) -> int | None:
        """Good steps after which the scale grows; None if it does not move."""
        return self._guard.policy.growth_interval if self.dynamic else None

    def get_scaled_loss(self, loss: Any) -> Any:
        """Returns the loss times the scale (float32 for a 16-bit loss); a function of a loss likewise."""
        return self._guard.scale_loss(loss)

    def get_unscaled_gradients(self, grads: Sequence[Any]) -> list[Any]:
        """Returns the gradients divided by the scale, in their own dtypes; sparse and None ones stay so."""
        return self._guard.unscale_ahead(grads, widen=False)

    def _guarded(self, pairs: list[tuple[Any, Any]], take: Any, reduced: bool) -> Any:
        """Applies unscaled (gradient, variable) pairs with `take(pairs)`, or skips the step."""
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        ahead = self._guard.found_ahead(gradients, scaled=False)
        return self._guard.apply(
            gradients,
            lambda gradients: take(list(zip(gradients, variables, strict=True))),
            scaled=False,
            ahead=ahead,
            reduced=reduced,
            names=[variable.name for variable in variables],
        )

    def _inner_config(self) -> dict[str, Any]:
        return {
            "inner_optimizer": tf_keras.optimizers.serialize(self._optimizer),
            "loss_scale": policy_config(self._guard.policy),
        }

    @classmethod
    def _from_inner_config(cls, config: Mapping[str, Any], custom_objects: Any, legacy: bool) -> Any:
        arguments = dict(config)
        if isinstance(arguments["inner_optimizer"], Mapping):
            arguments["inner_optimizer"] = tf_keras.optimizers.deserialize(
                arguments["inner_optimizer"], custom_objects=custom_objects, use_legacy_optimizer=legacy
            )
        return cls(**arguments)


@tf_keras.saving.register_keras_serializable(package="tfmp", name="TfKerasLossScaleOptimizer")
class TfKerasLossScaleOptimizer(_TfKerasProxy, _OwnNew):
    """A tf_keras optimizer under a loss scale that cannot die.

    A drop-in for `tf_keras.mixed_precision.LossScaleOptimizer`, and an instance of it, with the same methods. Unlike
    there, a skipped step does not advance `iterations`. A step with a non-finite gradient on any replica is skipped on all
    of them and changes nothing but the scale. Attributes, checkpoints and files are those of the inner optimizer, with
    the scale's state added.
    """

    @tf.__internal__.tracking.no_automatic_dependency_tracking  # type: ignore[untyped-decorator]
    def __init__(self, inner_optimizer: Any, loss_scale: Any = "dynamic") -> None:
        """Wraps an optimizer.

        Args:
            inner_optimizer: any optimizer of `tf_keras.optimizers` that no loss scale optimizer wraps yet.
            loss_scale: "dynamic", a number, None or a policy record; see `policies.as_policy`.

        Raises:
            TypeError: `inner_optimizer` is not such an optimizer, or `loss_scale` is of a wrong type.
            ValueError: `inner_optimizer` is already wrapped, or has a `minimize` of its own, or the current strategy cannot scale losses.
        """
        self._wrap(inner_optimizer, loss_scale, tf_keras.optimizers.Optimizer, "tf_keras optimizer")

    @staticmethod
    def create_slots(optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Builds the optimizer for the variables of the pairs."""
        with tf.init_scope():
            optimizer.build([variable for _, variable in pairs])

    @as_written
    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], skip_gradients_aggregation: bool = False, **kwargs: Any
    ) -> Any:
        """Applies unscaled gradients, or skips the step if one of any replica is not finite; returns `iterations`.

        Args:
            grads_and_vars: (gradient, variable) pairs; gradients may be sparse or None.
            skip_gradients_aggregation: whether the gradients are already summed over the replicas.
            **kwargs: passed on to the inner optimizer.

        Raises:
            ValueError: all gradients are None, or the call is not in replica context.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            return self.iterations
        self.create_slots(self._optimizer, pairs)

        def take(pairs: list[tuple[Any, Any]]) -> None:
            self._optimizer.apply_gradients(pairs, skip_gradients_aggregation=skip_gradients_aggregation, **kwargs)

        reduced = skip_gradients_aggregation or not kwargs.get("experimental_aggregate_gradients", True)
        self._guarded(pairs, take, reduced)
        return self.iterations

    def aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Returns the pairs with the gradients summed over the replicas, as the inner optimizer does it."""
        return self._optimizer.aggregate_gradients(grads_and_vars)

    @property
    def variables(self) -> Any:
        """The inner optimizer's variables, in their order, then those of the scale's state; may also be called."""
        inner = self._optimizer.variables
        own = [] if self._guard.variables is None else self._guard.variables.all()
        return type(inner)([*inner, *own])

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Assigns values to `variables`, in order; the state of the scale may be left out."""
        inner = len(self._optimizer.variables)
        self._optimizer.set_weights(weights[:inner])
        for variable, weight in zip(self.variables[inner:], weights[inner:], strict=False):
            variable.assign(weight)

    def save_own_variables(self, store: Any) -> None:
        """Writes the inner optimizer's variables, so that the unwrapped optimizer can read the file too."""
        self._optimizer.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the inner optimizer's variables."""
        self._optimizer.load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        """Returns inner optimizer and policy as JSON values."""
        return self._inner_config()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> TfKerasLossScaleOptimizer:
        """Returns the wrapper that `get_config` described."""
        return cls._from_inner_config(config, custom_objects, legacy=False)


@tf_keras.saving.register_keras_serializable(package="tfmp", name="TfKerasLegacyLossScaleOptimizer")
class TfKerasLegacyLossScaleOptimizer(_TfKerasProxy, _OwnLegacy):
    """A legacy tf_keras optimizer under a loss scale that cannot die; see `TfKerasLossScaleOptimizer`.

    Works in graph mode too. In an `.h5` model file the state of the scale follows the inner optimizer's weights, so that
    such a file (unlike a checkpoint) does not fit the unwrapped optimizer.
    """

    def __init__(self, inner_optimizer: Any, loss_scale: Any = "dynamic") -> None:
        """Wraps a legacy optimizer; arguments and errors as in `TfKerasLossScaleOptimizer`."""
        self._wrap(inner_optimizer, loss_scale, _LegacyOptimizer, "legacy tf_keras optimizer")

    @staticmethod
    def create_slots(optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Creates hyperparameters, `iterations` and slots for the variables that have a gradient."""
        with tf.init_scope():
            optimizer._create_all_weights([variable for gradient, variable in pairs if gradient is not None])

    @as_written
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Applies unscaled gradients, or skips the step if one of any replica is not finite.

        Args:
            grads_and_vars: (gradient, variable) pairs; gradients may be sparse or None.
            name: name of the returned operation.
            experimental_aggregate_gradients: False if the gradients are already summed over the replicas.

        Returns:
            In graph mode an operation to run; else `iterations`.

        Raises:
            ValueError: all gradients are None, or the call is not in replica context.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            return tf.no_op(name)
        self.create_slots(self._optimizer, pairs)

        def take(pairs: list[tuple[Any, Any]]) -> Any:
            return self._optimizer.apply_gradients(
                pairs, experimental_aggregate_gradients=experimental_aggregate_gradients
            )

        taken = self._guarded(pairs, take, reduced=not experimental_aggregate_gradients)
        if not self._guard.policy.active:
            return taken
        return self.iterations if tf.executing_eagerly() else tf.group(taken, name=name)

    def variables(self) -> list[Any]:
        """Returns the inner optimizer's variables, then those of the scale's state."""
        own = [] if self._guard.variables is None else self._guard.variables.all()
        return [*self._optimizer.variables(), *own]

    @property
    def weights(self) -> list[Any]:
        """The same as `variables()`."""
        return self.variables()

    def get_weights(self) -> list[Any]:
        """Returns the values of `variables()` as arrays."""
        return tf_keras.backend.batch_get_value(self.variables())

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Assigns values to `variables()`, in order; the state of the scale may be left out."""
        inner = len(self._optimizer.variables())
        self._optimizer.set_weights(weights[:inner])
        tf_keras.backend.batch_set_value(list(zip(self.variables()[inner:], weights[inner:], strict=False)))

    def get_config(self) -> dict[str, Any]:
        """Returns inner optimizer and policy as JSON values."""
        return self._inner_config()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> TfKerasLegacyLossScaleOptimizer:
        """Returns the wrapper that `get_config` described."""
        return cls._from_inner_config(config, custom_objects, legacy=True)

