"""The state of the loss scale in TensorFlow variables, and the rule's arithmetic on tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfmp.optimizers.loss_scale import STATE_FIELDS, Arithmetic, ScaleState, initial_state
from tfmp.optimizers.policies import LossScalePolicy

#: Fields that share one int64 vector, in this order: every variable that a conditional step touches costs it time
#: (measured: 20 microseconds a step with one variable per field), and a good step does not need these.
HISTORY_FIELDS: tuple[str, ...] = STATE_FIELDS[2:]


def _select(condition: Any, yes: Any, no: Any) -> tf.Tensor:
    dtype = next(value.dtype for value in (yes, no) if hasattr(value, "dtype"))
    return tf.where(condition, tf.cast(yes, dtype), tf.cast(no, dtype))


#: The rule on scalar tensors and variables.
TENSORS = Arithmetic(select=_select, minimum=tf.minimum)


class ScaleVariables(tf.Module):
    """A `ScaleState` in three variables.

    Under a distribution strategy the variables are mirrored if created in its scope. They are assigned in
    cross-replica context, or by every replica with the same value, so that all copies stay equal.

    Attributes:
        current_loss_scale: float32 scalar, the scale.
        good_steps: int64 scalar. These two have the names, and in checkpoints the places, that they have in
            TensorFlow's and tf_keras's own dynamic loss scales.
        history: int64, the other fields of the state, in the order of `HISTORY_FIELDS`.
    """

    def __init__(self, policy: LossScalePolicy) -> None:
        """Creates the variables with the policy's initial state, outside of any function being traced."""
        super().__init__(name="loss_scale_state")
        start = initial_state(policy)
        with tf.init_scope():
            self.current_loss_scale = _variable("current_loss_scale", start.scale, tf.float32)
            self.good_steps = _variable("good_steps", start.good_steps, tf.int64)
            self.history = _variable("history", [getattr(start, field) for field in HISTORY_FIELDS], tf.int64)

    def state(self, history: bool = True) -> ScaleState:
        """Returns the state as scalar tensors; without the history its fields are None."""
        fields = tf.unstack(self.history.read_value()) if history else [None] * len(HISTORY_FIELDS)
        return ScaleState(self.current_loss_scale.read_value(), self.good_steps.read_value(), *fields)

    def numbers(self) -> ScaleState:
        """Returns the state in Python numbers; only where TensorFlow executes eagerly."""
        return ScaleState(self.current_loss_scale.numpy().item(), self.good_steps.numpy().item(), *self.history.numpy().tolist())

    def value(self, field: str) -> tf.Tensor:
        """Returns one field of the state as a scalar tensor."""
        if field in HISTORY_FIELDS:
            return self.history[HISTORY_FIELDS.index(field)]
        return tf.convert_to_tensor(self.current_loss_scale if field == "scale" else self.good_steps)

    def all(self) -> list[tf.Variable]:
        """Returns the variables."""
        return [self.current_loss_scale, self.good_steps, self.history]

    def assign(self, after: ScaleState) -> list[Any]:
        """Assigns the state, and the history if `after` has one; returns the assignments."""
        values = [after.scale, tf.cast(after.good_steps, tf.int64)]
        history = [getattr(after, field) for field in HISTORY_FIELDS]
        if history[0] is not None:
            values.append(tf.stack([tf.cast(value, tf.int64) for value in history]))
        # All new values first: a Session keeps no order between a read and an assignment of one variable.
        with tf.control_dependencies([] if tf.executing_eagerly() else values):
            return [variable.assign(value) for variable, value in zip(self.all(), values, strict=False)]

    def save_to(self, store: Any) -> None:
        """Writes the variables as arrays into a mapping, such as the variable store of a Keras file."""
        for name, variable in self._by_name().items():
            store[name] = variable.numpy()

    def load_from(self, store: Any) -> bool:
        """Reads the variables a mapping has, leaves the others alone; returns whether it had any."""
        present = [name for name in self._by_name() if name in store]
        for name in present:
            self._by_name()[name].assign(store[name])
        return bool(present)

    def _by_name(self) -> dict[str, tf.Variable]:
        return dict(zip(("current_loss_scale", "good_steps", "history"), self.all(), strict=True))


def _variable(name: str, value: Any, dtype: tf.DType) -> tf.Variable:
    variable = tf.Variable(value, dtype=dtype, trainable=False, name=f"loss_scale/{name}")
    variable.path = f"loss_scale/{name}"  # what Keras 3 calls the variables of an optimizer in .h5 files
    return variable
