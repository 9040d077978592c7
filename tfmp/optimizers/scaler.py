"""Loss scaling without an optimizer wrapper: for hand-written loops, several losses, several optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfmp.optimizers.ahead import Unscaled
from tfmp.optimizers.delegation import already_wrapped_error
from tfmp.optimizers.gradients import cast_like
from tfmp.optimizers.guard import Guard, as_written
from tfmp.optimizers.policies import as_policy
from tfmp.optimizers.readings import Readings
from tfmp.optimizers.wrap import family_of, is_wrapped, note_scaled


class LossScaler(tf.Module, Readings):
    """One loss scale, taken apart: scale a loss, unscale its gradients, step if they are finite, update the scale.

    With one optimizer, `apply` does the last three::

        with tf.GradientTape() as tape:
            loss = scaler.scale_loss(loss_of(model(x), y))
        scaler.apply(optimizer, tape.gradient(loss, variables), variables)

    With more, or to look at the gradients in between::

        unscaled = scaler.unscale(tape.gradient(loss, variables))
        clipped, _ = tf.clip_by_global_norm(unscaled.gradients, 1.0)
        scaler.step(optimizer, zip(clipped, variables), unscaled)
        scaler.update(unscaled)                         # or update(unscaled_1, unscaled_2), once a step

    A scaler works in functions (`jit_compile=True` too), eagerly, in v1 graphs and on the replicas of a strategy. One scale
    for each loss takes one scaler for each loss. `tf.train.Checkpoint(scaler=scaler)` saves it.
    """

    def __init__(self, loss_scale: Any = "dynamic") -> None:
        """Creates the state in the current distribution strategy's scope.

        Args:
            loss_scale: "dynamic", a number, None or a policy record; see `policies.as_policy`.

        Raises:
            TypeError, ValueError: `loss_scale` is none of these or out of range, or the strategy cannot scale losses.
        """
        super().__init__(name="loss_scaler")
        self._guard = Guard(as_policy(loss_scale))
        self.loss_scale = self._guard.variables

    def scale_loss(self, loss: Any) -> Any:
        """Returns the loss times the scale; a 16-bit loss comes back in float32."""
        return self._guard.scale_loss(loss)

    def unscale(self, gradients: Sequence[Any]) -> Unscaled:
        """Returns the gradients divided by the scale, and which of them are finite.

        16-bit gradients come back in float32, other dtypes stay; sparse gradients stay sparse, None stays None.
        """
        return self._guard.unscale(gradients, widen=True)

    @as_written
    def step(self, optimizer: Any, grads_and_vars: Iterable[tuple[Any, Any]], unscaled: Unscaled) -> tf.Tensor:
        """Applies the pairs if all gradients of `unscaled`, and those of the pairs, are finite on all replicas.

        Args:
            optimizer: an optimizer of any family that does not scale the loss itself.
            grads_and_vars: unscaled (gradient, variable) pairs, clipped or combined as you like.
            unscaled: what `unscale` returned for the gradients they come from.

        Returns:
            bool scalar: whether the step was taken. In a Session, run it.

        Raises:
            TypeError: `optimizer` is not an optimizer.
            ValueError: it scales the loss itself.
        """
        gradients, take = _taker(optimizer, grads_and_vars)
        return self._guard.step(gradients, take, unscaled)

    def update(self, *unscaled: Unscaled) -> tf.Tensor:
        """Moves the scale, once for all gradients of this step; returns whether all were finite, bool scalar."""
        return self._guard.update(unscaled)

    @as_written
    def apply(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> tf.Tensor:
        """Unscales the gradients of a scaled loss, applies them if all are finite on all replicas, and moves the scale.

        Returns:
            bool scalar: whether the step was taken. In a Session, run it.

        Raises:
            TypeError: `optimizer` is not an optimizer.
            ValueError: it scales the loss itself, or all gradients are None.
        """
        unscaled = self._guard.unscale(gradients, widen=True)
        gradients, take = _taker(optimizer, zip(unscaled.gradients, variables, strict=True))
        names = [variable.name for variable in variables]
        return self._guard.apply(gradients, take, scaled=False, ahead=unscaled, names=names)


def _taker(optimizer: Any, grads_and_vars: Iterable[tuple[Any, Any]]) -> tuple[list[Any], Any]:
    """Returns the gradients, and a function that applies gradients to the variables of the pairs."""
    if is_wrapped(optimizer):
        raise already_wrapped_error(optimizer)
    wrapper = family_of(optimizer).wrapper_class()
    note_scaled(optimizer)
    pairs = list(grads_and_vars)
    wrapper.create_slots(optimizer, pairs)
    variables = [variable for _, variable in pairs]

    def take(gradients: Sequence[Any]) -> Any:
        if not wrapper.casts_gradients:
            gradients = [cast_like(gradient, variable) for gradient, variable in zip(gradients, variables, strict=True)]
        return optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    return [gradient for gradient, _ in pairs], take
