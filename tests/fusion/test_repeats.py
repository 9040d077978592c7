"""A normalisation that is spelled like one before is found without being worked out; what differs in anything that counts is worked out itself."""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings

from tests.fusion.test_properties import MEANS, RESULTS, ROOTS, VARIANCES, choices
from tfmp import tf_api
from tfmp.fusion import norms as module
from tfmp.fusion import repeats
from tfmp.fusion.found import Norm, Norms
from tfmp.fusion.norms import norms
from tfmp.fusion.repeats import Memory, Repeats
from tfmp.fusion.spelling import INPUTS, READERS, Implied, Notes
from tfmp.fusion.surroundings import Surroundings, numbered
from tfmp.graph.body import Body
from tfmp.graph.readers import Readers
from tfmp.program.program import from_function
from tfmp.program.shapes import Sizes

WIDTH = 16


@dataclasses.dataclass(frozen=True)
class Layer:
    """A normalisation of rows by tf.nn, and what may set it apart from others."""

    epsilon: float = 1e-3
    width: int = WIDTH
    read_outside: bool = False
    root_first: bool = False
    scaled: bool = True

    def __call__(self, x: tf.Tensor, scale: tf.Variable, offset: tf.Variable, beside: list[tf.Tensor]) -> tf.Tensor:
        x = x[:, : self.width]
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        if self.root_first:
            root = tf.math.rsqrt(variance + self.epsilon)
            centred = x - mean
        else:
            centred = x - mean
            root = tf.math.rsqrt(variance + self.epsilon)
        if self.read_outside:
            beside.append(tf.tanh(root))
        y = centred * root
        return tf.pad(tf.sin(y * scale[: self.width] + offset[: self.width] if self.scaled else y), [[0, 0], [0, 2 * WIDTH - self.width]])


class Traced:
    """A step through layers, with gradients."""

    def __init__(self, layers: Sequence[Callable[..., tf.Tensor]], shape: Sequence[int | None] = (4, 2 * WIDTH), width: int = 2 * WIDTH) -> None:
        self.parameters = [(tf.Variable(tf.ones([width])), tf.Variable(tf.zeros([width]))) for _ in layers]

        @tf.function(autograph=False)
        def step(x: tf.Tensor) -> Any:
            beside: list[tf.Tensor] = []
            variables = [variable for pair in self.parameters for variable in pair]
            with tf.GradientTape() as tape:
                for layer, (scale, offset) in zip(layers, self.parameters, strict=True):
                    x = layer(x, scale, offset, beside)
                total = tf.add_n([tf.reduce_sum(one * one) for one in (x, *beside)])
            return tf.identity_n([one for one in tape.gradient(total, variables) if one is not None])  # read at another place each, as where Keras clips them

        self.function = step.get_concrete_function(tf.TensorSpec(shape))
        name = self.function.inference_fn.name
        name = name.decode() if isinstance(name, bytes) else name
        self.body = from_function(name, tf_api.function_definition).bodies[name]
        self.graphs = tf_api.python_graphs([self.function.inference_fn]).get

    def surroundings(self, body: Body | None = None) -> Surroundings:
        body = body or self.body
        return Surroundings(body, Sizes.of_body(body, self.graphs), body.readers)

    def norms(self, monkeypatch: pytest.MonkeyPatch, variants: int = repeats.VARIANTS, memory: Memory[Norms] | None = None) -> tuple[list[Norm], int]:
        """Returns what is found if so many spellings are remembered, of those in `memory` to begin with, and how often that was worked out."""
        calls, real = [], module._found
        with monkeypatch.context() as patch:
            patch.setattr(module, "_memories", [memory or Memory()])
            patch.setattr(repeats, "VARIANTS", variants)
            patch.setattr(module, "_found", lambda *arguments: calls.append(1) or real(*arguments))
            around = self.surroundings()
            return list(norms(self.body, around.sizes, around.readers, frozenset())), len(calls)


def test_alike_layers_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced([Layer()] * 9)
    found, worked_out = traced.norms(monkeypatch)
    assert len(found) == 9 and all(norm.gradient for norm in found) and worked_out <= 3  # the first and the last have other neighbours
    assert (found, 9) == traced.norms(monkeypatch, variants=0)


def test_another_function_is_known_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    memory: Memory[Norms] = Memory()
    first, second, other = Traced([Layer()] * 3), Traced([Layer()] * 4), Traced([Layer(epsilon=1e-2)] * 3)
    assert first.norms(monkeypatch, memory=memory)[1] > 0
    assert second.norms(monkeypatch, memory=memory) == (second.norms(monkeypatch)[0], 0)
    assert other.norms(monkeypatch, memory=memory) == other.norms(monkeypatch)


def test_a_full_memory_is_given_up_and_whoever_uses_it_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first: Memory[Norms] = Memory()
    traced = Traced([Layer()] * 3)
    traced.norms(monkeypatch, memory=first)
    known, numbers = dict(first.known), dict(first.numbers)
    monkeypatch.setattr(module, "_memories", [first])
    assert module.memory() is first and known and numbers
    monkeypatch.setattr(repeats, "MOST", 0)
    assert module.memory() is not first and not module.memory().known
    assert (first.known, first.numbers) == (known, numbers)


def test_threads_never_give_two_things_one_number() -> None:
    numbers, before = numbered(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=lambda own=own: [numbers[own % 3, place] for place in range(5000)]) for own in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(numbers) == len(set(numbers.values())) == 15_000


def test_memory_holds_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    memory: Memory[Norms] = Memory()
    traced = Traced([Layer()] * 3)
    traced.norms(monkeypatch, memory=memory)
    body = weakref.ref(traced.body)
    del traced
    gc.collect()
    assert memory.known and body() is None


DIFFERENT = {
    "another epsilon": Layer(epsilon=1e-2),
    "another width": Layer(width=WIDTH + 1),
    "too short a row": Layer(width=WIDTH - 1),
    "a reader more": Layer(read_outside=True),
    "another order": Layer(root_first=True),
    "no parameters": Layer(scaled=False),
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_one_that_differs_is_found_as_what_it_is(difference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = [Layer()] * 4, DIFFERENT[difference]
    traced = Traced([*plain, other, *plain])
    found, worked_out = traced.norms(monkeypatch)
    assert found == traced.norms(monkeypatch, variants=0)[0]
    assert worked_out > Traced(plain + plain).norms(monkeypatch)[1] or difference == "too short a row"
    assert len(found) == (8 if difference == "too short a row" else 9)
    if difference == "another epsilon":
        assert sorted({norm.epsilon for norm in found}) == pytest.approx([1e-3, 1e-2])


class Region:
    """The third of five alike layers, and what was noted of it."""

    def __init__(self) -> None:
        self.traced = Traced([Layer()] * 5)
        around = self.traced.surroundings()
        real = list(norms(self.traced.body, around.sizes, around.readers, frozenset()))
        self.first, self.second = real[1].data, real[2].data
        notes = Notes(around)
        assert module._found(notes.surroundings, self.second, (1,)) == (real[2],)
        self.others = Implied(notes).others(self.second[0])
        self.kinds, self.shapes = list(notes.kinds), list(notes.sizes.asked)
        self.inputs = [node for way, node in notes.ways if way == INPUTS]
        self.readers = [node for way, node in notes.ways if way == READERS]

    def is_repeat(self, around: Surroundings) -> bool:
        """Whether the third is found as what the second is, without being worked out."""
        calls = []
        every: Repeats[Norms] = Repeats(around, Memory())
        for data in (self.first, self.second):
            every.find(data, None, lambda seen, data=data: calls.append(data) or module._found(seen, data, (1,)))
        return calls == [self.first]


@pytest.fixture(scope="module")
def region() -> Region:
    return Region()


def test_it_is_a_repeat_as_it_stands(region: Region) -> None:
    assert region.is_repeat(region.traced.surroundings())


def test_no_kind_that_was_looked_at_may_differ(region: Region) -> None:
    """Another op, another type, another constant: other kinds all."""
    kinds = region.traced.body.kinds.table
    for node in region.kinds:
        kind = kinds[region.traced.body.kind_of[node]]
        others = [number for number, one in enumerate(kinds) if one.op == kind.op] if kind.op == "Const" else [0, len(kinds) - 1]
        for other in others:
            body = copy.copy(region.traced.body)
            if region.traced.surroundings().likeness[body.kind_of.index(other)] != region.traced.surroundings().likeness[node]:
                body.kind_of = [*body.kind_of[:node], other, *body.kind_of[node + 1 :]]
                around = region.traced.surroundings()
                assert not region.is_repeat(Surroundings(body, around.sizes, around.readers)), body.names[node]


def test_no_input_may_differ(region: Region) -> None:
    for node in region.inputs:
        body = copy.copy(region.traced.body)
        changed = [*body.inputs[node][:-1], region.second]
        if body.inputs[node] != changed:
            body.inputs = [*body.inputs[:node], changed, *body.inputs[node + 1 :]]
            around = region.traced.surroundings()
            assert not region.is_repeat(Surroundings(body, around.sizes, around.readers)), body.names[node]


def test_what_nodes_are_like(region: Region) -> None:
    """Constants are alike if their values are, in whatever order their attributes are written."""
    body, likeness = region.traced.body, region.traced.surroundings().likeness
    values = {node: tf_api.read_tensor(body.protos[node].attr["value"].tensor) for node, op in enumerate(body.ops) if op == "Const"}
    for first, value in values.items():
        for second, other in values.items():
            assert (likeness[first] == likeness[second]) == (value.dtype == other.dtype and value.shape == other.shape and bool(np.all(value == other)))
    for first in range(0, len(body), 7):
        for second in range(len(body)):
            if "Const" not in (body.ops[first], body.ops[second]):
                assert (likeness[first] == likeness[second]) == all(column[first] == column[second] for column in (body.ops, body.types, body.layouts))


def listed(rows: Sequence[Sequence[Sequence[tuple[int, int]]]]) -> Readers:
    """Returns the readers that `rows` lists."""
    tensors = list(itertools.chain.from_iterable(rows))
    inputs = list(itertools.chain.from_iterable(tensors))
    starts, first = (list(itertools.accumulate(map(len, one), initial=0)) for one in (tensors, rows))
    return Readers([node for node, _ in inputs], [port for _, port in inputs], starts, first)


def test_no_reader_may_be_more_or_less(region: Region) -> None:
    for node in region.readers:
        for change in (lambda edges: [*edges, (0, 0)], lambda edges: edges[:-1], lambda edges: edges[::-1] if edges[1:] else [region.second]):
            around = region.traced.surroundings()
            rows = list(around.readers)
            rows[node] = [change(rows[node][0]), *rows[node][1:]]
            assert not region.is_repeat(dataclasses.replace(around, readers=listed(rows))), region.traced.body.names[node]


def test_no_shape_that_was_looked_at_may_differ(region: Region) -> None:
    """But for those that follow from others: these are not looked at again."""
    following = [edge for edge in region.shapes if edge not in region.others]
    assert len(following) > len(region.others) > 3 and region.second in region.others
    for edge in region.shapes:
        around = region.traced.surroundings()
        around.body.shapes.clear()
        around.body.shapes[edge[0]] = [(7, 7, 7)]
        try:
            assert region.is_repeat(around) == (edge in following), region.traced.body.names[edge[0]]
        finally:
            around.body.shapes.clear()


def test_shapes_that_follow_are_those_that_tensorflow_knows(region: Region) -> None:
    """Each op once that tells the shape of its result, and each that does not, since what it hangs on is not looked at."""
    around, rules = region.traced.surroundings(), {}
    notes = Notes(around)
    for node, layout in enumerate(around.body.layouts):
        if layout.outputs and around.body.protos[node] is not None:
            notes.sizes.shape((node, 0))
            notes.kinds[node] = notes.ways[INPUTS, node] = None
    implied = Implied(notes)
    for edge, shape in notes.sizes.asked.items():
        found = implied._following(edge)
        assert found is None or found == shape, around.body.names[edge[0]]
        rules.setdefault(around.body.ops[edge[0]], set()).add(found is not None)
    told = {op for op, known in rules.items() if True in known}
    assert told >= {"Mul", "Sub", "AddV2", "Rsqrt", "RsqrtGrad", "Neg", "Tile", "StopGradient", "RealDiv", "AddN", "Reshape"}, rules
    assert {"Mean", "Sum", "PadV2"} & {op for op, known in rules.items() if True not in known}, rules


def test_nodes_come_in_the_same_order(region: Region) -> None:
    """Which of two nodes is looked at first hangs on their numbers."""
    (spelling,) = _remembered(region)
    around = region.traced.surroundings()
    assert spelling.nodes_at(region.second[0], around) is not None
    turned = dataclasses.replace(spelling, order=[*spelling.order[1:], spelling.order[0]])
    assert turned.nodes_at(region.second[0], around) is None


def _remembered(region: Region) -> Any:
    every: Repeats[Norms] = Repeats(region.traced.surroundings(), Memory())
    every.find(region.first, None, lambda seen: module._found(seen, region.first, (1,)))
    return next(iter(every._known.values()))


spelled = st.tuples(st.sampled_from(["mean"] * 5 + list(MEANS)), *map(choices, (VARIANCES, ROOTS, RESULTS)))


def test_programs_of_all_spellings_are_found_with_and_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"found": 0, "repeated": 0, "worked out": 0}

    @given(two=st.tuples(spelled, spelled), where=st.lists(st.booleans(), min_size=3, max_size=5), known=st.booleans())
    @settings(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(two: tuple[tuple[str, str, str, str], tuple[str, str, str, str]], where: list[bool], known: bool) -> None:
        def layer(spelling: tuple[str, str, str, str]) -> Callable[..., tf.Tensor]:
            mean_of, variance_of, root_of, result_of = spelling

            def forward(x: tf.Tensor, scale: tf.Variable, offset: tf.Variable, beside: list[tf.Tensor]) -> tf.Tensor:
                mean = MEANS[mean_of](x, (2,), float(WIDTH))
                root = ROOTS[root_of](VARIANCES[variance_of](x, mean, (2,), float(WIDTH)))
                return tf.sin(RESULTS[result_of](x, mean, root, scale, offset))

            return forward

        traced = Traced([layer(two[one]) for one in where], (4 if known else None, 5, WIDTH), WIDTH)
        found, worked_out = traced.norms(monkeypatch)
        wanted, every = traced.norms(monkeypatch, variants=0)
        assert found == wanted
        seen["found"] += len(found)
        seen["repeated"] += every - worked_out
        seen["worked out"] += worked_out

    check()
    assert min(seen.values()) > 20, seen
