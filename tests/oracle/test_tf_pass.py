"""The oracle itself: it runs TensorFlow's pass on the graph as given, and finds what TensorFlow's own tests say it finds."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.oracle import client, orders
from tests.oracle.lowering import lower
from tests.oracle.tf_pass import (
    PASSES,
    OracleError,
    cuda_build_available,
    infers_after_allow,
    orders_seen_by_pass,
    run_tensorflow_pass,
)
from tests.zoo import ZOO, GraphCase, tagged
from tests.zoo.running import evaluate

STATED = [pytest.param(case.dtype, case, id=case.name) for case in ZOO.values() if case.half is not None]
FLOAT16 = pytest.mark.parametrize("dtype", ["float16"], indirect=True)


@pytest.mark.parametrize(("dtype", "case"), STATED, indirect=["dtype"])
def test_stated_nodes_turn_and_no_others(dtype: str, case: GraphCase) -> None:
    graph_def, fetches = case.build()
    result = run_tensorflow_pass(graph_def, fetches, dtype, environment=case.environment)
    expected = case.half if infers_after_allow(dtype) else case.half - case.following
    assert {key[0] for key, sixteen in result.colours.items() if sixteen and len(key) == 2} == expected
    if case.casts is not None and expected == case.half:
        assert len(result.casts) == case.casts, sorted(result.casts)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in (*tagged("keras"), *tagged("python"))])
def test_each_model_is_converted_in_part(dtype: str, case: GraphCase) -> None:
    graph_def, fetches = case.build()
    if case.lower:
        graph_def = lower(graph_def, fetches)
    colours = run_tensorflow_pass(graph_def, fetches, dtype).colours
    assert 0 < sum(colours.values()) < len(colours)


@pytest.mark.parametrize("name", ["chain/simple", "list/through_function", "random/09", "keras/lstm/training"])
def test_pass_sees_the_nodes_in_the_order_given(dtype: str, name: str) -> None:
    graph_def, fetches = ZOO[name].build()
    mixed = orders.shuffled(graph_def, seed=3)
    assert mixed.node != graph_def.node
    assert orders_seen_by_pass(mixed, fetches, dtype)[""] == tuple(node.name for node in mixed.node)


@FLOAT16
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in tagged("function") if not case.lower])
def test_pass_sees_functions_in_the_order_of_the_graph_constructor(dtype: str, case: GraphCase) -> None:
    graph_def, fetches = case.build()
    seen = orders_seen_by_pass(graph_def, fetches, dtype)
    functions = [function for function in graph_def.library.function if function.signature.name in seen]
    assert functions
    for function in functions:
        order = seen[function.signature.name]
        assert order[: len(order) - len(function.signature.output_arg)] == orders.function_order(function)


@FLOAT16
def test_colours_depend_on_the_order_where_infer_ops_follow_allow_ops(dtype: str) -> None:
    graph_def, fetches = ZOO["random/22"].build()
    mixed = [orders.shuffled(graph_def, seed) for seed in range(8)]
    results = [run_tensorflow_pass(graph, fetches, dtype).colours for graph in mixed]
    assert any(result != results[0] for result in results) == infers_after_allow(dtype)


@FLOAT16
def test_unkept_order_is_topological(dtype: str) -> None:
    graph_def, fetches = ZOO["random/08"].build()
    mixed = orders.shuffled(graph_def, seed=1)
    colours = run_tensorflow_pass(mixed, fetches, dtype, node_order_is_kept=False).colours
    assert colours == run_tensorflow_pass(orders.topological(mixed), fetches, dtype).colours


@FLOAT16
def test_input_is_not_changed(dtype: str) -> None:
    graph_def, fetches = ZOO["list/through_function"].build()
    before = graph_def.SerializeToString(deterministic=True)
    run_tensorflow_pass(graph_def, fetches, dtype)
    assert graph_def.SerializeToString(deterministic=True) == before


def test_functions_are_coloured_with_their_own_keys(dtype: str) -> None:
    graph_def, fetches = ZOO["layers/noninlined_funcdef"].build()
    (function,) = graph_def.library.function
    colours = run_tensorflow_pass(graph_def, fetches, dtype).colours
    assert colours[(function.signature.name, "inner_w", "T")]
    assert not colours[("PartitionedCall", "Tin[0]")]


@pytest.mark.parametrize("dtype", ["bfloat16"], indirect=True)
def test_without_a_gpu_the_pass_for_gpus_changes_nothing(dtype: str) -> None:
    graph_def, fetches = ZOO["chain/simple"].build()
    answer = client.optimize(graph_def.SerializeToString(), fetches, [PASSES["float16"]], dtype=dtype)
    after = {node.name: node for node in type(graph_def).FromString(answer.graph).node}
    assert after == {node.name: node for node in graph_def.node}


@FLOAT16
def test_result_does_not_run_where_a_list_goes_through_a_functional_loop(dtype: str) -> None:
    graph_def, fetches = ZOO["list/through_while"].build()
    result = run_tensorflow_pass(graph_def, fetches, dtype)
    with pytest.raises(tf.errors.InvalidArgumentError, match="op elements float but list elements half"):
        evaluate(result.graph_def, fetches)


@FLOAT16
def test_environment_holds_for_one_request(dtype: str) -> None:
    case = ZOO["chain/infer_as_deny"]
    graph_def, fetches = case.build()
    denied = run_tensorflow_pass(graph_def, fetches, dtype, environment=case.environment).colours
    plain = run_tensorflow_pass(graph_def, fetches, dtype).colours
    assert (denied[("i3", "T")], plain[("i3", "T")]) == (False, True)


def test_cuda_build_is_told_by_its_kernels() -> None:
    assert cuda_build_available() == (set(client.half_gpu_kernels()) == {"Relu", "MatMul", "Mul", "MaxPool"})


def test_unknown_type_is_an_error() -> None:
    graph_def, fetches = ZOO["chain/simple"].build()
    with pytest.raises(ValueError, match="dtype is 'float8'; the oracle has 'float16', 'bfloat16'"):
        run_tensorflow_pass(graph_def, fetches, "float8")


@FLOAT16
def test_refused_graph_is_an_error(dtype: str) -> None:
    graph_def, fetches = ZOO["chain/simple"].build()
    graph_def.node[0].op = "NoSuchOp"
    with pytest.raises(OracleError, match="TensorFlow failed on .*NoSuchOp"):
        run_tensorflow_pass(graph_def, fetches, dtype)
    assert run_tensorflow_pass(*ZOO["chain/simple"].build(), dtype).casts


def test_dead_worker_is_an_error() -> None:
    worker = client.Worker({})
    worker.ask({"action": "hello"})
    worker._process.kill()
    with pytest.raises(OracleError, match="the TensorFlow process died with -9"):
        worker.ask({"action": "hello"})
    worker.close()
