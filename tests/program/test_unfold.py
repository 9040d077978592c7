"""Programs unfolded: an instance for every call, within bounds."""

from __future__ import annotations

import tensorflow as tf

from tfmp import tf_api
from tfmp.program.program import Program, from_function
from tfmp.program.unfold import GROWTH, SLACK, unfold

X = tf.ones([2, 2])


def program_of(function: object) -> Program:
    concrete = tf.function(function).get_concrete_function(X)
    return from_function(concrete.inference_fn.name.decode(), tf_api.function_definition)


def test_every_call_has_an_instance_of_its_own() -> None:
    inner = tf.function(lambda x: x @ x)
    program = program_of(lambda x: inner(inner(x)) + inner(x))
    instances = unfold(program)
    assert len(program.bodies) == 2 and len(instances) == 4
    assert sorted(callee.instance for callees in instances[0].calls.values() for callee in callees) == [1, 2, 3]


def test_sharing_gives_every_function_one_instance() -> None:
    inner = tf.function(lambda x: x @ x)
    instances = unfold(program_of(lambda x: inner(inner(x))), share=True)
    assert [callee.instance for callees in instances[0].calls.values() for callee in callees] == [1, 1]


def test_calls_that_double_at_every_level_stay_within_the_bound() -> None:
    def level(depth: int) -> object:
        if not depth:
            return tf.function(lambda x: x @ x)
        inner = level(depth - 1)
        return tf.function(lambda x: inner(x) + inner(x))

    program = program_of(level(16))
    size = sum(len(program.bodies[instance.function]) for instance in unfold(program))
    assert size <= GROWTH * program.size + SLACK + program.size  # what is met for the first time is added even when the bound is used up


def test_recursion_leads_back() -> None:
    definition = tf_api.FunctionDef()
    definition.signature.name = "again"
    definition.signature.input_arg.add(name="x", type=1)
    definition.signature.output_arg.add(name="y", type=1)
    node = definition.node_def.add(name="call", op="PartitionedCall", input=["x"])
    node.attr["Tin"].list.type.append(1)
    node.attr["Tout"].list.type.append(1)
    node.attr["f"].func.name = "again"
    definition.ret["y"] = "call:output:0"
    (instance,) = unfold(from_function("again", {"again": definition}.__getitem__))
    assert [callee.instance for callees in instance.calls.values() for callee in callees] == [0]
