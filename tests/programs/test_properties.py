"""What must hold for every program: it verifies, runs, agrees, needs no second conversion, and casts no more often than body by body."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from tensorflow.python.eager import context

import tfmp
from tests.programs.random_programs import SIZE, RandomProgram, Statement, X, build, expected, programs
from tests.programs.written import Written, called_by
from tfmp import engine, tf_api
from tfmp.dtypes import SIXTEEN_BIT
from tfmp.program.program import Program, from_function
from tfmp.settings import make_settings

Definitions = Callable[[str], tf_api.FunctionDef]

RUNS = hypothesis.settings(max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(hypothesis.HealthCheck))


def trace(program: RandomProgram, with_gradient: bool) -> tuple[Any, Any]:
    """Returns what owns the weight, and the traced float32 function."""
    with tfmp.mixed_precision(enabled=False):
        machine, root = build(program, with_gradient)
        return machine, root.get_concrete_function(tf.TensorSpec([SIZE, SIZE]))


def run(written: Written, concrete: Any) -> list[np.ndarray]:
    """Returns what the converted root gives for X."""
    for name, version in written.versions.items():
        if not tf_api.has_function(name):
            tf_api.add_function(version.after)
    root = next(iter(written.versions)).encode()
    return [one.numpy() for one in context.context().call_function(root, [tf.constant(X), *concrete.captured_inputs], len(concrete.outputs))]


def executed_casts(root: str, definitions: Definitions, added: Callable[[str], set[str]]) -> int:
    """Returns how many added casts one run of `root` executes; `added` has the names of the new casts of a function.

    The program's own construction tells how many trips its loops make: their names say so. Which branch of a conditional runs is known to nobody before it
    does, so that both count. What no result or side effect needs does not run.
    """

    @functools.cache
    def count(function: str) -> int:
        casts, nodes = added(function), live_nodes(definitions(function))
        return sum(node.name in casts for node in nodes) + sum(times * count(called) for node in nodes for called, times in _times(node))

    return count(root)


def _times(node: tf_api.NodeDef) -> list[tuple[str, int]]:
    """Returns the functions that a node calls, with how often it does."""
    if node.op in ("While", "StatelessWhile"):
        trips = max(1, int(re.findall(r"loop_t(\d)x", node.name)[-1]))  # a loop that makes none would forbid to cast its weights before it
        return [(node.attr["body"].func.name, trips), (node.attr["cond"].func.name, trips + 1)]
    return [(name, 1) for name in called_by(node)]


def live_nodes(definition: tf_api.FunctionDef) -> list[tf_api.NodeDef]:
    """Returns the nodes that a result or a control result needs."""
    nodes = {node.name: node for node in definition.node_def}
    todo = [text.partition(":")[0] for text in (*definition.ret.values(), *definition.control_ret.values())]
    needed: dict[str, tf_api.NodeDef] = {}
    while todo:
        name = todo.pop()
        if name in nodes and name not in needed:
            needed[name] = nodes[name]
            todo += [text.removeprefix("^").partition(":")[0] for text in nodes[name].input]
    return list(needed.values())


def casts_together(written: Written) -> int:
    """Returns the executed casts of a program that was converted as a whole."""
    names = {name: {cast.name for cast in version.casts} for name, version in written.versions.items()}
    return executed_casts(next(iter(written.versions)), lambda name: written.versions[name].after, names.__getitem__)


def casts_body_by_body(concrete: Any, dtype: str) -> int:
    """Returns the executed casts if every function of the program is converted alone, float32 at all its borders."""
    settings = make_settings(dtype=dtype, device="CPU")
    whole = from_function(concrete.name.decode() if isinstance(concrete.name, bytes) else concrete.name, tf_api.function_definition)
    alone = {}
    for name, body in whole.bodies.items():
        program = Program(name, {name: body}, {name: whole.definitions[name]}, frozenset(), frozenset({name}))
        alone[name] = Written(engine.convert(program, settings, {})).versions
    roots = {name: next(iter(versions.values())) for name, versions in alone.items()}
    return executed_casts(whole.root, lambda name: roots[name].after, lambda name: {cast.name for cast in roots[name].casts})


@RUNS
@hypothesis.given(programs(), st.booleans(), st.sampled_from(sorted(SIXTEEN_BIT)))
def test_a_converted_program_runs_and_agrees(program: RandomProgram, with_gradient: bool, dtype: str) -> None:
    machine, concrete = trace(program, with_gradient)
    written = Written(tfmp.convert_function(concrete, dtype=dtype))
    wanted = expected(program, SIXTEEN_BIT[dtype])
    value, *gradients = run(written, concrete)
    assert value.dtype == np.float32
    assert np.linalg.norm(value - wanted.value) <= wanted.error
    assert all(gradient.dtype == np.float32 and np.isfinite(gradient).all() for gradient in gradients)
    assert machine.weight.dtype == tf.float32


@RUNS
@hypothesis.given(programs(), st.booleans())
def test_signatures_stay_and_a_second_conversion_changes_nothing(program: RandomProgram, with_gradient: bool) -> None:
    _, concrete = trace(program, with_gradient)
    written = Written(tfmp.convert_function(concrete, dtype="float16"))
    root, version = next(iter(written.versions.items()))
    for field in ("input_arg", "output_arg"):
        old, new = (getattr(one.signature, field) for one in (version.before, version.after))
        assert [(arg.name, arg.type) for arg in old] == [(arg.name, arg.type) for arg in new]
    again = engine.convert_named(root, lambda name: written.versions[name].after, make_settings(dtype="float16", device="CPU"))
    assert not again.changed, str(Written(again).text())


@RUNS
@hypothesis.given(programs())
def test_no_more_is_cast_than_body_by_body(program: RandomProgram) -> None:
    """Without lists and gradients: to have what waits in 16 bit, casts are paid."""
    hypothesis.assume("kind='list'" not in repr(program))
    _, concrete = trace(program, with_gradient=False)
    assert casts_together(Written(tfmp.convert_function(concrete, dtype="float16"))) <= casts_body_by_body(concrete, "float16")


def test_casts_are_counted_by_trips_and_branches() -> None:
    """By hand: a product in a loop of three trips whose result goes through an exponential; each step casts in, casts out, and so does each body alone."""
    body, branch = (Statement("matmul", reads=(1, 0)), Statement("exp")), (Statement("matmul", reads=(0, 0)), Statement("exp"))
    loop = Statement("loop", reads=(1, 0), number=3, blocks=(body,))
    program = RandomProgram((), (loop, Statement("branch", number=1, blocks=(branch, (Statement("exp"),)))))
    _, concrete = trace(program, with_gradient=False)
    alone = casts_body_by_body(concrete, "float16")
    assert alone == 3 * 3 + 3  # the input, the weight and the result of the product, in every step and in the branch that is taken
    together = casts_together(Written(tfmp.convert_function(concrete, dtype="float16")))
    assert together == alone - 2  # the weight of the loop once


def test_a_wrong_value_would_be_noticed() -> None:
    wanted = expected(RandomProgram((), (Statement("matmul"), Statement("tanh"), Statement("matmul"))), SIXTEEN_BIT["float16"])
    assert 0 < wanted.error < 0.1 * np.linalg.norm(wanted.value)


def test_an_assignment_changes_what_is_expected() -> None:
    plain, assigned = (RandomProgram((), (Statement(kind), Statement("matmul"))) for kind in ("transpose", "assign"))
    values = [expected(one, SIXTEEN_BIT["float16"]).value for one in (plain, assigned)]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(values[0], values[1])
