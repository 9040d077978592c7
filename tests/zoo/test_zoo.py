"""Every graph of the zoo is a graph that TensorFlow takes, and the zoo has what it promises."""

from __future__ import annotations

import pytest

from tests.zoo import MODULES, ZOO, GraphCase
from tests.zoo.random_graphs import random_graph
from tests.zoo.running import evaluate

CASES = [pytest.param(case, id=case.name) for case in ZOO.values()]

# The 41 cases of auto_mixed_precision_test.cc, the suites AutoMixedPrecision{Cpu,SimulateGpu,Mkl}Test by their middle word.
CPP_TESTS = (
    "NoOp", "AlreadyFp16", "Simple", "NoInferOp", "BidirectionalClearChain", "PreserveFetches", "PreserveCPUNodes",
    "PreserveIdentityAfterVariable", "FusedBatchNorm", "RepeatedAndListTypeAttrs", "ExistingCast", "RecurrentEdgeColorMismatch",
    "TensorListSetGet", "TensorListPushPop", "TensorListFromTensor", "TensorListPushBackBatchAndConcatLists", "TensorListThroughFunction",
    "BatchMatMul", "EluOp", "ErfOp", "ErfcOp", "InvOp", "LogOp", "Log1pOp", "LogSoftmaxOp", "ReciprocalOp", "SigmoidOp", "SoftmaxOp",
    "SoftplusOp", "SqrtOp", "TanhOp", "Cpu.Simple", "Cpu.MixedFanout", "SimulateGpu.Simple_NoGpu", "SimulateGpu.Simple_SimulatedGpu",
    "SimulateGpu.Simple_SimulatedGpu_CpuScope", "Mkl.AlreadyBf16", "Mkl.Simple", "Mkl.TensorListSetGet", "Mkl.InferFollowUpStreamAllow",
    "Mkl.InferFollowUpStreamDeny",
)  # fmt: skip
PYTHON_TESTS = (
    "conv_bn", "conv3d", "conv3d_bn", "conv_bn_dropout", "conv_pool", "simple_loop", "loop_with_vars_intertwined", "multi_paths",
    "multi_paths_2", "recurrent_lstm", "noninlined_funcdef", "ingraph_train_loop",
    *(f"propagation_through_simple_loop_{number}" for number in range(1, 9)),
)  # fmt: skip

MODELS = ("mlp", "conv_bn", "resnet50", "mobilenet_v2", "lstm", "gru", "transformer", "bert")


def test_names_are_unique() -> None:
    assert sum(len(module.CASES) for module in MODULES) == len(ZOO)


@pytest.mark.parametrize("test", CPP_TESTS + PYTHON_TESTS)
def test_each_of_tensorflows_cases_has_a_graph(test: str) -> None:
    assert any(test in case.covers for case in ZOO.values())


def test_all_of_tensorflows_cases_are_listed() -> None:
    assert len(set(CPP_TESTS)) == 41


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("step", ["training", "inference"])
def test_each_model_has_both_steps(model: str, step: str) -> None:
    assert f"keras/{model}/{step}" in ZOO
    assert step in ZOO[f"keras/{model}/{step}"].tags


def test_no_case_covers_a_test_that_does_not_exist() -> None:
    assert set().union(*(case.covers for case in ZOO.values())) == set(CPP_TESTS + PYTHON_TESTS)


@pytest.mark.parametrize("case", CASES)
def test_graph_imports_and_has_its_fetches(case: GraphCase) -> None:
    import tensorflow as tf

    graph_def, fetches = case.build()
    names = [node.name for node in graph_def.node]
    assert len(set(names)) == len(names)
    assert fetches
    assert set(fetches) <= set(names)
    assert "device" in case.tags or not any(node.device for node in graph_def.node)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    assert {operation.name for operation in graph.get_operations()} == set(names)


RUNNABLE = [case for case in ZOO.values() if not case.lower and case.tags.isdisjoint(("keras", "settings", "variables"))]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in RUNNABLE])
def test_graph_runs(case: GraphCase) -> None:
    graph_def, fetches = case.build()
    assert len(evaluate(graph_def, fetches)) == len(fetches)


@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_seed_gives_the_same_graph(seed: int) -> None:
    assert random_graph(seed, 40)[0] == random_graph(seed, 40)[0]
    assert random_graph(seed, 40)[0] != random_graph(seed + 1, 40)[0]


def test_build_returns_a_copy() -> None:
    case = ZOO["chain/simple"]
    graph_def, _ = case.build()
    del graph_def.node[:]
    assert len(case.build()[0].node) == 12
