"""The loss-scale wrapper for Keras 3 optimizers (TensorFlow backend)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfmp.optimizers import gradients as gradient_rules
from tfmp.optimizers.delegation import InnerProxy, already_wrapped_error
from tfmp.optimizers.guard import Guard, as_written
from tfmp.optimizers.monitor import MonitorRules
from tfmp.optimizers.policies import as_policy, policy_config
from tfmp.optimizers.records import ScaleRecord

#: Public attributes of Keras's optimizer base class that belong to the wrapper, not to the inner optimizer.
_OWN = frozenset({"name", "built", "inner_optimizer", "initial_scale", "dynamic_growth_steps"})


class LossScaleRecord(ScaleRecord, keras.metrics.Metric):
    """Carries the scale's state in Keras 3 files."""


class ScaleVariable(keras.Variable):
    """A variable of the scale's state as Keras wants the variables of an optimizer: with a `path`, and with the number as an attribute `value`."""

    def __init__(self, variable: tf.Variable) -> None:
        """Shows a TensorFlow variable, which stays the place where the number is."""
        self._shown = variable
        with tf.init_scope():
            super().__init__(variable.read_value(), dtype=variable.dtype.name, trainable=False, name=variable.path.rpartition("/")[2])
        self._path = variable.path

    def _initialize(self, value: Any) -> None:
        self._value = self._shown


class LossScaleMonitor(MonitorRules, keras.callbacks.Callback):
    """A Keras 3 callback that watches the loss scale of the model's optimizer; see `MonitorRules`."""


@keras.saving.register_keras_serializable(package="tfmp", name="LossScaleOptimizer")
class LossScaleOptimizer(InnerProxy, keras.optimizers.LossScaleOptimizer):
    """A Keras 3 optimizer under a loss scale that cannot die.

    A drop-in for `keras.optimizers.LossScaleOptimizer`, and an instance of it. `compile` and `fit` need nothing else;
    a custom loop multiplies its loss with `scale_loss` and gives the scaled gradients to `apply_gradients`.

    A step with a non-finite gradient on any replica is skipped on all of them: weights, slots, moving averages,
    accumulated gradients, weight decay and `iterations` stay as they are, and the scale falls by `backoff_factor`, never
    below `minimum`. Everything the inner optimizer does (clipping, weight decay, averaging, accumulation) it does to
    unscaled gradients, float32 if they were 16-bit. Its attributes are read and set through the wrapper.

    What the forward pass changes by itself, such as the moving statistics of batch normalisation, is not undone by skipping the step.

    To TensorFlow checkpoints and to Keras files the wrapper looks like the inner optimizer with a loss scale added, so
    they can be exchanged with the unwrapped optimizer both ways.
    """

    _inner_attribute = "inner_optimizer"
    takes_scaled = True
    casts_gradients = True

    # The attributes of the wrapper are not tracked for checkpoints, which see the inner optimizer through the proxy.
    _self_setattr_tracking = False

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        loss_scale: Any = "dynamic",
        name: str | None = None,
    ) -> None:
        """Wraps an optimizer.

        Args:
            inner_optimizer: any Keras 3 optimizer that no loss scale optimizer wraps yet. Its `loss_scale_factor` is
                set to None, since it would scale a second time.
            loss_scale: "dynamic", a number, None or a policy record; see `policies.as_policy`.
            name: name of the wrapper.

        Raises:
            TypeError: `inner_optimizer` is not a Keras 3 optimizer, or `loss_scale` is of a wrong type.
            ValueError: `inner_optimizer` is already wrapped, or the current strategy cannot scale losses.
        """
        _check_inner(inner_optimizer)
        policy = as_policy(loss_scale)
        self._attach(inner_optimizer, Guard(policy))
        keras.optimizers.LossScaleOptimizer.__init__(
            self, inner_optimizer, initial_scale=policy.initial, dynamic_growth_steps=policy.growth_interval, name=name
        )
        # Keras's constructor gave the wrapper hyperparameters of its own (clipnorm=None, use_ema=False, ...), which would
        # hide the inner optimizer's.
        for attribute in set(vars(self)) & set(dir(inner_optimizer)) - _OWN:
            if not attribute.startswith("_"):
                del self.__dict__[attribute]
        self.loss_scale_record = None
        self._scale_variables: list[ScaleVariable] = []
        if self._guard.variables is not None:
            self.loss_scale_record = LossScaleRecord(self._guard.variables)
            self._scale_variables = [ScaleVariable(variable) for variable in self._guard.variables.all()]

    @staticmethod
    def create_slots(optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Builds the optimizer for the variables of the pairs, if it is not built yet."""
        if not optimizer.built:
            with tf.init_scope(), keras.name_scope(optimizer.name, caller=optimizer):
                optimizer.build([variable for _, variable in pairs])

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the variables of the inner optimizer for these trainable variables."""
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(variables)
        self.built = True

    @property
    def variables(self) -> list[Any]:
        """The inner optimizer's variables, in their order, then those of the scale's state."""
        return [*self.inner_optimizer.variables, *self._scale_variables]

    @property
    def loss_scale_factor(self) -> None:
        """None: the wrapper scales, so the inner optimizer must not."""
        return None

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: float | None) -> None:
        if value is not None:
            raise ValueError(
                f"loss_scale_factor={value} would scale the gradients a second time. Wrap the optimizer with "
                f"loss_scale={value} instead."
            )

    def scale_loss(self, loss: Any) -> Any:
        """Returns the loss times the scale (float32 for a 16-bit loss); a function of a loss likewise."""
        return self._guard.scale_loss(loss)

    def get_scaled_loss(self, loss: Any) -> Any:
        """The same as `scale_loss`, under the name it has in tf_keras."""
        return self.scale_loss(loss)

    def get_unscaled_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns the gradients unscaled, to be clipped or looked at before `apply_gradients` gets them.

        Within the same step, `apply_gradients` recognises them, and what was made from them, and does not unscale again. Scaled gradients it
        unscales itself, whether or not they were looked at here.
        """
        return self._guard.unscale_ahead(gradients, widen=True)

    @as_written
    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Applies (gradient, variable) pairs like `apply`, but with the inner optimizer's `apply_gradients`; returns `iterations`."""
        pairs = list(grads_and_vars)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        self._apply(gradients, variables, lambda gradients: self.inner_optimizer.apply_gradients(list(zip(gradients, variables, strict=True))))
        return self.iterations

    @as_written
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Takes one step, or skips it if a gradient of any replica is not finite.

        Args:
            grads: gradients of the scaled loss; None and sparse ones are allowed. An empty list does nothing.
            trainable_variables: their variables; may be left out once the optimizer is built.

        Raises:
            ValueError: all gradients are None, or the call is not in replica context.
        """
        variables = list(self.inner_optimizer._trainable_variables if trainable_variables is None else trainable_variables)
        self._apply(list(grads), variables, lambda gradients: self.inner_optimizer.apply(gradients, trainable_variables))

    def _apply(self, gradients: list[Any], variables: list[Any], take: Callable[[Sequence[Any]], Any]) -> None:
        if not gradients:
            return
        if not self.built:
            self.create_slots(self.inner_optimizer, list(zip(gradients, variables, strict=True)))
            self.built = True
        if self._guard.policy.active:
            self._apply_scaled(gradients, variables, take)
        else:
            take(gradients)

    def _apply_scaled(self, gradients: list[Any], variables: list[Any], take: Callable[[Sequence[Any]], Any]) -> None:
        ahead = self._guard.found_ahead(gradients, scaled=True)
        overwritten = [getattr(variable, "overwrite_with_gradient", False) for variable in variables]

        def take_unscaled(gradients: Sequence[Any]) -> None:
            if ahead is None:
                unscaled = gradient_rules.unscale(gradients, self.scale, widen=True)
                gradients = [old if keep else new for old, new, keep in zip(gradients, unscaled, overwritten, strict=True)]
            take(gradients)

        names = [getattr(variable, "path", variable.name) for variable in variables]
        self._guard.apply(gradients, take_unscaled, scaled=ahead is None, ahead=ahead, names=names)

    def stateless_apply(self, *args: Any, **kwargs: Any) -> None:
        """Not there with TensorFlow, as for every Keras optimizer on that backend.

        Raises:
            ValueError: always.
        """
        raise ValueError("stateless_apply does not exist with the TensorFlow backend; use apply or apply_gradients.")

    @property
    def dynamic_scale(self) -> tf.Tensor:
        """The same as `scale`, under Keras's name."""
        return self.scale

    @property
    def step_counter(self) -> tf.Tensor:
        """Good steps since the latest skip, under Keras's name; int64 scalar."""
        return self._guard.value("good_steps")

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Assigns values to `variables`, in order; the state of the scale may be left out."""
        inner = len(self.inner_optimizer.variables)
        self.inner_optimizer.set_weights(weights[:inner])
        for variable, weight in zip(self.variables[inner:], weights[inner:], strict=False):
            variable.assign(weight)

    def save_own_variables(self, store: Any) -> None:
        """Writes the inner optimizer's variables, so that the unwrapped optimizer can read the file too."""
        self.inner_optimizer.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the inner optimizer's variables."""
        self.inner_optimizer.load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        """Returns name, inner optimizer and policy as JSON values."""
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "loss_scale": policy_config(self._guard.policy),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> LossScaleOptimizer:
        """Returns the wrapper that `get_config` described."""
        arguments = dict(config)
        arguments["inner_optimizer"] = keras.saving.deserialize_keras_object(
            arguments["inner_optimizer"], custom_objects=custom_objects
        )
        return cls(**arguments)


def _check_inner(optimizer: Any) -> None:
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"tfmp needs Keras's TensorFlow backend, but the backend is {keras.backend.backend()!r}.")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"inner_optimizer={optimizer!r} is a {type(optimizer).__name__}, not a Keras 3 optimizer; tfmp.enable_mixed_precision_graph_rewrite wraps those "
            "of every family."
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise already_wrapped_error(optimizer)

