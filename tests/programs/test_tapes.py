"""Gradients taken outside of the function: every kind of tape over several constructs, and what a forward function saves for its backward function."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

import tfmp
from tests.behaviour.on_off import ROUNDINGS, assert_alike, normal, scope
from tests.programs.constructs import CONSTRUCTS, Construct, program
from tests.programs.constructs.construct import Program, X
from tests.programs.written import Version, Written
from tfmp import engine
from tfmp.dtypes import SIXTEEN_BIT
from tfmp.errors import MixedPrecisionWarning
from tfmp.hooks.tf_function import MixedFunction

NAMES = ("nested_functions", "callee_not_inlined", "custom_gradient", "while_loop", "map_fn", "cond", "recompute_grad")
FUNCTIONS = [one for one in CONSTRUCTS if one.name in NAMES]


def first_order(made: Program) -> Any:
    """Returns the gradients, and again for an output gradient that is not ones."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        y = made.forward(X)
    sources = [X, *made.weights]
    return tape.gradient(y, sources), tape.gradient(y, sources, output_gradients=0.5 * X)


def of_a_loss_after_the_function(made: Program) -> Any:
    """Returns the gradients of eager ops behind two calls of the function."""
    with tf.GradientTape() as tape:
        tape.watch(X)
        loss = tf.reduce_mean(tf.exp(-made.forward(X)) + made.forward(0.5 * X) ** 2)
    return tape.gradient(loss, [X, *made.weights])


def second_order(made: Program) -> Any:
    """Returns the gradients of the norm of a gradient."""
    with tf.GradientTape() as outer:
        outer.watch(X)
        with tf.GradientTape() as inner:
            inner.watch(X)
            loss = tf.reduce_mean(made.forward(X) ** 2)
        norm = tf.reduce_sum(inner.gradient(loss, X) ** 2)
    return outer.gradient(norm, [X, *made.weights])


def jacobian(made: Program) -> Any:
    """Returns the Jacobian of one row of the result, one row at a time."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        y = made.forward(X)[0, :3]
    return tape.jacobian(y, X, experimental_use_pfor=False)


def forward_mode(made: Program) -> Any:
    """Returns a Jacobian-vector product."""
    with tf.autodiff.ForwardAccumulator(X, 0.5 * X) as accumulator:
        y = made.forward(X)
    return y, accumulator.jvp(y)


def forward_over_reverse(made: Program) -> Any:
    """Returns a Hessian-vector product."""
    with tf.autodiff.ForwardAccumulator(X, 0.5 * X) as accumulator, tf.GradientTape() as tape:
        tape.watch(X)
        loss = tf.reduce_mean(made.forward(X) ** 2)
        gradient = tape.gradient(loss, X)
    return accumulator.jvp(gradient)


def plain(made: Program) -> Any:
    """Returns the gradients of a tape that is used once."""
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = made.forward(X)
    return tape.gradient(y, [X, *made.weights])


TAPES: dict[Callable[[Program], Any], tuple[str, ...]] = {
    plain: NAMES,
    first_order: NAMES,
    of_a_loss_after_the_function: NAMES,
    second_order: NAMES[:-1],  # recompute_grad has no second derivative
    jacobian: NAMES,
    forward_mode: NAMES[:-1],
    forward_over_reverse: NAMES[:3],  # nor have loops and branches a forward-mode derivative of their backward functions
}
"""Kind of tape to the constructs for which TensorFlow itself can do it."""


@pytest.mark.parametrize(
    ("tape", "construct"),
    [(tape, one) for tape, names in TAPES.items() for one in FUNCTIONS if one.name in names],
    ids=lambda one: getattr(one, "__name__", None) or str(one),
)
def test_a_tape_outside_sees_the_gradients_of_float32(construct: Construct, tape: Any, dtype: str) -> None:
    with tfmp.mixed_precision(enabled=False):
        expected = tape(program(construct))
    before = len(tfmp.report())
    with scope(dtype):
        actual = tape(program(construct))
    assert sum(record.converted for record in tfmp.report()[before:]) > 0
    assert_alike(expected, actual, 2 * ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff)


@pytest.mark.parametrize("construct", [one for one in FUNCTIONS if not one.loops], ids=str)
def test_a_tape_outside_of_a_compiled_function(construct: Construct, dtype: str) -> None:
    """Without loops: their tensor lists cannot leave a compiled function."""
    with tfmp.mixed_precision(enabled=False):
        expected = first_order(program(construct))
    with scope(dtype):
        actual = first_order(program(construct, jit_compile=True))
    assert_alike(expected, actual, ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff)


def test_jacobians_by_vectorised_loops(dtype: str) -> None:
    """`jacobian` and `batch_jacobian` call the backward function inside a vectorised loop of their own."""

    def run() -> Any:
        w = tf.Variable(normal(8, 3, scale=0.5))
        f = tf.function(lambda x: tf.tanh(x @ w), autograph=False)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(X)
            y = f(X)
        return tape.jacobian(y, w), tape.batch_jacobian(y, X)

    with tfmp.mixed_precision(enabled=False):
        expected = run()
    with scope(dtype):
        assert_alike(expected, run(), ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff)


class Conversions:
    """The conversions that happen while functions run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Listens to the engine."""
        self.found: list[tfmp.Conversion] = []
        convert = engine.convert

        def listening(*args: Any, **kwargs: Any) -> tfmp.Conversion:
            self.found.append(convert(*args, **kwargs))
            return self.found[-1]

        monkeypatch.setattr(engine, "convert", listening)


@pytest.mark.parametrize("construct", FUNCTIONS, ids=str)
def test_what_a_forward_function_saves_is_16_bit(construct: Construct, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions = Conversions(monkeypatch)
    with scope(dtype):
        plain(program(construct))
    forward = next(iter(Written(conversions.found[0]).versions.values()))
    assert forward.after.signature.output_arg[0].type == tf.float32.as_datatype_enum
    assert saved_activations(forward) <= {tf.dtypes.as_dtype(dtype).as_datatype_enum}


@pytest.mark.parametrize("tape", [first_order, second_order], ids=lambda tape: tape.__name__)
@pytest.mark.parametrize("construct", [one for one in FUNCTIONS if one.name in ("nested_functions", "cond")], ids=str)
def test_what_is_saved_for_a_persistent_or_a_nested_tape_is_16_bit_too(construct: Construct, tape: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the tape takes it for results, whose gradients stay float32."""
    conversions = Conversions(monkeypatch)
    with scope(dtype):
        tape(program(construct))
    assert conversions.found[0].roots == 2
    forward = next(iter(Written(conversions.found[0]).versions.values()))
    assert saved_activations(forward) == {tf.dtypes.as_dtype(dtype).as_datatype_enum}


SEQUENCES = normal(4, 6, 5)


def long_short_term_memory() -> Any:
    """Returns a function over an LSTM layer, and its weights."""
    keras.utils.set_random_seed(3)
    layer = keras.layers.LSTM(8)
    layer(SEQUENCES)
    return tf.function(lambda x: layer(x), autograph=False), [weight.value for weight in layer.trainable_weights]


def of_a_loop(made: Any) -> Any:
    """Returns the gradients of an LSTM layer, taken by a tape outside."""
    function, weights = made
    with tf.GradientTape() as tape:
        tape.watch(SEQUENCES)
        loss = tf.reduce_sum(function(SEQUENCES) ** 2)
    return tape.gradient(loss, [SEQUENCES, *weights])


def test_lists_that_an_lstm_saves_are_16_bit(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its activations wait in tensor lists, which leave the forward function as handles."""
    with tfmp.mixed_precision(enabled=False):
        expected = of_a_loop(long_short_term_memory())
    conversions = Conversions(monkeypatch)
    with scope(dtype):
        actual = of_a_loop(long_short_term_memory())
    assert_alike(expected, actual, 2 * ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff)
    (conversion,) = conversions.found
    written = Written(conversion)
    assert written.types("TensorListPushBack", "TensorListPopBack", attr="element_dtype") <= {dtype, "int32", "bool"}
    # In the loops only what is added up over the steps is cast: the gradients of two kernels and of the bias.
    assert sum(len(version.casts) for version in written.versions.values() if "body" in version.name) == 3


def in_a_function(made: Any) -> Any:
    """As `of_a_loop`, but the gradient is taken inside of another function, where the backward function is called in float32."""
    function, weights = made
    with tf.GradientTape() as tape:
        tape.watch(SEQUENCES)
        loss = tf.reduce_sum(function(SEQUENCES) ** 2)
    return tf.function(lambda: tape.gradient(loss, [SEQUENCES, *weights]), autograph=False)()


def test_lists_in_16_bit_are_cast_back_for_a_backward_function_in_a_graph(dtype: str) -> None:
    with tfmp.mixed_precision(enabled=False):
        expected = in_a_function(long_short_term_memory())
    with scope(dtype):
        actual = in_a_function(long_short_term_memory())
    assert_alike(expected, actual, 2 * ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff)


def test_lists_in_16_bit_are_cast_back_for_a_backward_function_that_falls_back(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The converted backward function turns out not to start, when the forward function has run converted already."""
    with tfmp.mixed_precision(enabled=False):
        expected = of_a_loop(long_short_term_memory())
    call = MixedFunction._first_call

    def refusing(self: Any, converted: Any, args: Any) -> Any:
        if self._index == 1:
            converted = types.SimpleNamespace(call_flat=refuse)
        return call(self, converted, args)

    def refuse(*args: Any) -> None:
        raise tf.errors.InvalidArgumentError(None, None, "No registered 'MatMul' OpKernel")

    monkeypatch.setattr(MixedFunction, "_first_call", refusing)
    with scope(dtype, strict=False), pytest.warns(MixedPrecisionWarning, match="__backward_.*' runs unrewritten, in float32: InvalidArgumentError"):
        actual = of_a_loop(long_short_term_memory())
    assert_alike(expected, actual, 2 * ROUNDINGS * SIXTEEN_BIT[dtype].unit_roundoff)


def saved_activations(forward: Version) -> set[int]:
    """Returns the types of what `forward` hands to its backward function, but for its own inputs, weights and constants."""
    nodes = {node.name: node for node in forward.before.node_def}
    computed = [name for name, text in forward.before.ret.items() if origin(nodes, text) not in ("argument", "Const", "ReadVariableOp")]
    types = {old.name: (old.type, new.type) for old, new in zip(forward.before.signature.output_arg, forward.after.signature.output_arg, strict=True)}
    first = forward.before.signature.output_arg[0].name
    return {types[name][1] for name in computed if name != first and types[name][0] == tf.float32.as_datatype_enum}


def origin(nodes: Any, text: str) -> str:
    """Returns the op type of the node that made the tensor `text`, looking through identities; "argument" for an argument."""
    name, _, rest = text.partition(":")
    while name in nodes and nodes[name].op in ("Identity", "IdentityN", "StopGradient"):
        name, _, rest = nodes[name].input[int(rest.rpartition(":")[2])].partition(":")
    return nodes[name].op if name in nodes else "argument"


@pytest.mark.parametrize("batch", [32, 4096])
def test_a_perceptron_saves_half_the_bytes(batch: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 64-128-10 perceptron of the benchmark: input, hidden activations and weights cross to the backward function in 16 bit."""
    conversions = Conversions(monkeypatch)
    w, v = tf.Variable(normal(64, 128, scale=0.1)), tf.Variable(normal(128, 10, seed=12, scale=0.1))
    f = tf.function(lambda x: tf.nn.relu(x @ w) @ v, autograph=False)
    with scope(dtype), tf.GradientTape() as tape:
        loss = tf.reduce_mean(f(normal(batch, 64)) ** 2)
        gradients = tape.gradient(loss, [w, v])
    assert [gradient.dtype for gradient in gradients] == [tf.float32, tf.float32]
    (conversion,) = conversions.found
    assert conversion.roots == 2
    forward = next(iter(Written(conversion).versions.values()))
    assert {arg.type for arg in forward.after.signature.output_arg[1:]} == {tf.dtypes.as_dtype(dtype).as_datatype_enum}
