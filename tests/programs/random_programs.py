"""Random programs: functions that call each other, loops, conditionals, tensor lists and a weight that is now and then assigned.

A program is a small tree. One walk over it serves two machines: one builds the `tf.function`, the other computes in float64 with a bound on the error that
16-bit arithmetic may make (running error analysis; Higham, "Accuracy and Stability of Numerical Algorithms", section 3.3). Every tensor is [4, 4], float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tfmp.dtypes import FloatFormat

SIZE, DEPTH, TRIPS = 4, 3, 3
X = np.tanh(np.random.default_rng(5).normal(0.0, 1.0, (SIZE, SIZE))).astype(np.float32)
W = (0.9 * np.linalg.qr(np.random.default_rng(6).normal(0.0, 1.0, (SIZE, SIZE)))[0]).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Statement:
    """One step of a block; its value joins the pool that later steps read.

    Attributes:
      kind: a key of `OPS`, or "assign", "call", "loop", "list", "branch".
      reads: which tensors of the pool it reads, counted from the newest, modulo the pool's size.
      number: how many trips a loop makes, which function is called (modulo how many there are below), or whether a branch is taken.
      blocks: the body of a loop, or both branches of a conditional.
    """

    kind: str
    reads: tuple[int, int] = (0, 1)
    number: int = 0
    blocks: tuple[tuple[Statement, ...], ...] = ()


Block = tuple[Statement, ...]


@dataclasses.dataclass(frozen=True)
class RandomProgram:
    """Functions, of which each may call those before it, and what the root does."""

    functions: tuple[Block, ...]
    main: Block


class Machine(Protocol):
    """What carries a program out; values are whatever it likes."""

    def op(self, kind: str, a: Any, b: Any) -> Any:
        """Returns the value of an op of `OPS`."""

    def assign(self, a: Any) -> Any:
        """Negates the weight; returns `a`."""

    def call(self, number: int, body: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        """Returns what function `number` makes of two values."""

    def loop(self, trips: int, body: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        """Carries (a, b) round as (body(a, b), a); returns the first."""

    def list(self, trips: int, body: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        """Carries `a` round as body(a, b), puts each of them into a tensor list, and returns the sum over the list, scaled."""

    def branch(self, taken: bool, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Returns the value of one of two blocks; which one is decided when the program runs."""


def walk(program: RandomProgram, block: Block, pool: Sequence[Any], machine: Machine, below: int) -> Any:
    """Returns the value of the last statement of `block`; `below` is how many functions it may call."""
    values = list(pool)
    for statement in block:
        a, b = (values[-1 - index % len(values)] for index in statement.reads)
        values.append(_step(program, statement, a, b, values, machine, below))
    return values[-1]


def _step(program: RandomProgram, statement: Statement, a: Any, b: Any, values: list[Any], machine: Machine, below: int) -> Any:
    kind, number = statement.kind, statement.number
    inner = [lambda *more, block=block: walk(program, block, [*values, *more], machine, below) for block in statement.blocks]
    if kind in OPS:
        return machine.op(kind, a, b)
    if kind == "assign":
        return machine.assign(a)
    if kind == "call":
        if not below:
            return a
        called = number % below
        return machine.call(called, lambda c, d: walk(program, program.functions[called], [c, d], machine, called), a, b)
    if kind == "branch":
        return machine.branch(bool(number % 2), *inner)
    return getattr(machine, kind)(number, inner[0], a, b)


@dataclasses.dataclass(frozen=True)
class Op:
    """One elementwise op or product: for tensors, for float64 numbers, and how far each input's error reaches (an upper bound of the slope)."""

    tensors: Callable[[Any, Any, Any], Any]
    numbers: Callable[[Any, Any, Any], Any]
    slopes: Callable[[Any, Any], tuple[Any, Any]]


def _softmax(x: Any) -> Any:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


OPS: dict[str, Op] = {
    "matmul": Op(lambda a, b, w: tf.matmul(a, w), lambda a, b, w: a @ w, lambda a, b: (1.0, 0.0)),
    "relu": Op(lambda a, b, w: tf.nn.relu(a), lambda a, b, w: np.maximum(a, 0.0), lambda a, b: (1.0, 0.0)),
    "tanh": Op(lambda a, b, w: tf.tanh(a), lambda a, b, w: np.tanh(a), lambda a, b: (1.0, 0.0)),
    "mean": Op(lambda a, b, w: (a + b) * 0.5, lambda a, b, w: (a + b) * 0.5, lambda a, b: (0.5, 0.5)),
    "gate": Op(lambda a, b, w: a * tf.sigmoid(b), lambda a, b, w: a / (1.0 + np.exp(-b)), lambda a, b: (1.0, 0.25 * np.abs(a))),
    "exp": Op(lambda a, b, w: tf.exp(-tf.abs(a)), lambda a, b, w: np.exp(-np.abs(a)), lambda a, b: (1.0, 0.0)),
    "softmax": Op(lambda a, b, w: tf.nn.softmax(a), lambda a, b, w: _softmax(a), lambda a, b: (1.0, 0.0)),
    "centre": Op(
        lambda a, b, w: 0.5 * (a - tf.reduce_mean(a, -1, keepdims=True)), lambda a, b, w: 0.5 * (a - a.mean(-1, keepdims=True)), lambda a, b: (1.0, 0.0)
    ),
    "count": Op(lambda a, b, w: a * (tf.cast(tf.shape(b)[0], tf.float32) / SIZE), lambda a, b, w: a, lambda a, b: (1.0, 0.0)),
    "transpose": Op(lambda a, b, w: tf.transpose(a), lambda a, b, w: a.T, lambda a, b: (1.0, 0.0)),
    "float32_product": Op(lambda a, b, w: tf.einsum("ij,jk->ik", a, tf.nn.softmax(b)), lambda a, b, w: a @ _softmax(b), lambda a, b: (1.0, 1.0)),
}
"""Values stay within [-2, 2] or so: the weight is 0.9 times an orthogonal matrix, and every other op shrinks."""


@dataclasses.dataclass(frozen=True)
class Bounded:
    """A float64 value and a bound on the Frobenius norm of its error."""

    value: np.ndarray
    error: float


class Numbers:
    """The machine that computes in float64 and bounds what 16-bit arithmetic may do."""

    ROUNDINGS = SIZE + 4
    """Roundings that one op may make: of its inputs, of its result, of up to four sums or elementary steps inside, and of a product's partial sums."""

    def __init__(self, target: FloatFormat) -> None:
        """Starts with the weight W."""
        self.unit, self.smallest = target.unit_roundoff, target.smallest
        self.weight = W.astype(np.float64)

    def op(self, kind: str, a: Bounded, b: Bounded) -> Bounded:
        row = OPS[kind]
        value = row.numbers(a.value, b.value, self.weight)
        slopes = [float(np.max(slope)) for slope in row.slopes(a.value, b.value)]
        size = sum(slope * float(np.linalg.norm(one.value)) for slope, one in zip(slopes, (a, b), strict=True)) + float(np.linalg.norm(value))
        passed_on = sum(slope * one.error for slope, one in zip(slopes, (a, b), strict=True))
        return Bounded(value, passed_on + self.ROUNDINGS * (self.unit * size + SIZE * self.smallest))

    def assign(self, a: Bounded) -> Bounded:
        self.weight = -self.weight
        return a

    def rounded(self, a: Bounded) -> Bounded:
        """What crosses a border may be rounded, even if nothing is done with it there (a loop without a trip)."""
        return Bounded(a.value, a.error + self.unit * float(np.linalg.norm(a.value)) + SIZE * self.smallest)

    def call(self, number: int, body: Any, a: Bounded, b: Bounded) -> Bounded:
        return body(self.rounded(a), self.rounded(b))

    def loop(self, trips: int, body: Any, a: Bounded, b: Bounded) -> Bounded:
        a, b = self.rounded(a), self.rounded(b)
        for _ in range(trips):
            a, b = body(a, b), a
        return a

    def list(self, trips: int, body: Any, a: Bounded, b: Bounded) -> Bounded:
        items, a, b = [], self.rounded(a), self.rounded(b)
        for _ in range(trips):
            a = body(a, b)
            items.append(a)
        value = sum((item.value for item in items), np.zeros((SIZE, SIZE))) / TRIPS
        return Bounded(value, sum(self.rounded(item).error for item in items))

    def branch(self, taken: bool, then: Any, otherwise: Any) -> Bounded:
        return self.rounded(then() if taken else otherwise())


class Tensors:
    """The machine that builds a graph; loops tell in their names how often they run."""

    def __init__(self) -> None:
        """Makes the weight."""
        self.weight = tf.Variable(W)
        self._functions: dict[int, Any] = {}

    def op(self, kind: str, a: Any, b: Any) -> Any:
        return OPS[kind].tensors(a, b, self.weight)

    def assign(self, a: Any) -> Any:
        self.weight.assign(-self.weight)
        return tf.identity(a)

    def call(self, number: int, body: Any, a: Any, b: Any) -> Any:
        if number not in self._functions:
            self._functions[number] = tf.function(body, autograph=False, experimental_attributes={"_noinline": True} if number % 2 else None)
        return self._functions[number](a, b)

    def loop(self, trips: int, body: Any, a: Any, b: Any) -> Any:
        step = lambda i, a, b: (i + 1, body(a, b), a)  # noqa: E731
        return tf.while_loop(lambda i, a, b: i < trips, step, (0, a, b), name=f"loop_t{trips}x", maximum_iterations=trips)[1]

    def list(self, trips: int, body: Any, a: Any, b: Any) -> Any:
        array = tf.TensorArray(tf.float32, trips, element_shape=[SIZE, SIZE])

        def step(i: Any, a: Any, array: Any) -> Any:
            a = body(a, b)
            return i + 1, a, array.write(i, a)

        array = tf.while_loop(lambda i, *_: i < trips, step, (0, a, array), name=f"loop_t{trips}x", maximum_iterations=trips)[2]
        return tf.reduce_sum(array.stack(), 0) / TRIPS

    def branch(self, taken: bool, then: Any, otherwise: Any) -> Any:
        limit = -1e4 if taken else 1e4
        return tf.cond(tf.reduce_sum(self.weight) > limit, then, otherwise)


def build(program: RandomProgram, with_gradient: bool) -> tuple[Tensors, Any]:
    """Returns the machine, which owns the weight, and an untraced function of one tensor: the value, and its gradient if that is wanted."""
    machine = Tensors()

    @tf.function(autograph=False)
    def root(x: tf.Tensor) -> Any:
        if not with_gradient:
            return walk(program, program.main, [x, -x], machine, len(program.functions))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = walk(program, program.main, [x, -x], machine, len(program.functions))
        return y, tape.gradient(y, x, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return machine, root


def expected(program: RandomProgram, target: FloatFormat) -> Bounded:
    """Returns the value of `program` for X and the bound on its error in 16 bit."""
    machine = Numbers(target)
    pool = [machine.rounded(Bounded(sign * X.astype(np.float64), 0.0)) for sign in (1, -1)]
    return walk(program, program.main, pool, machine, len(program.functions))


def _statements(depth: int, trips: st.SearchStrategy[int], ops: Sequence[str]) -> st.SearchStrategy[Statement]:
    reads = st.tuples(st.integers(0, 3), st.integers(0, 3))
    kinds = (*["matmul"] * 5, *ops, *["call"] * 3, "assign")  # products are frequent, as in real programs
    flat = st.builds(Statement, st.sampled_from(kinds), reads, st.integers(0, 5))
    if not depth:
        return flat
    block = _blocks(depth - 1, trips, ops)
    nested = st.one_of(
        st.builds(Statement, st.sampled_from(["loop", "list"]), reads, trips, st.tuples(block)),
        st.builds(Statement, st.just("branch"), reads, st.integers(0, 1), st.tuples(block, block)),
    )
    return st.one_of(flat, flat, nested)


def _blocks(depth: int, trips: st.SearchStrategy[int], ops: Sequence[str]) -> st.SearchStrategy[Block]:
    return st.lists(_statements(depth, trips, ops), min_size=1, max_size=4).map(tuple)


def programs(least_trips: int = 0, ops: Sequence[str] = tuple(sorted(OPS))) -> st.SearchStrategy[RandomProgram]:
    """Returns the strategy: up to two functions, nested to depth 3, loops of `least_trips` to 3 trips, ops out of `ops`."""
    trips = st.integers(least_trips, TRIPS)
    return st.builds(RandomProgram, st.lists(_blocks(1, trips, ops), max_size=2).map(tuple), _blocks(DEPTH, trips, ops))
