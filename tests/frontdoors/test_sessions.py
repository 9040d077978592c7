"""TensorFlow 1 graphs in Sessions: what is fetched keeps its name, type and value, and products run in 16 bit."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmp
from tests.behaviour.on_off import DTYPES, in_turn, run, scope
from tests.frontdoors.programs import PROGRAMS, X, Y, network, session, v1, weight
from tfmp.errors import GraphError, MixedPrecisionWarning
from tfmp.hooks import graph_conversion, sessions, shadow, shadow_session

OFF = tfmp.mixed_precision(enabled=False)


@pytest.mark.parametrize(("dtype", "program"), in_turn(PROGRAMS))
@pytest.mark.filterwarnings("ignore:.tf.layers:UserWarning", "ignore:.layer.apply:UserWarning")
def test_a_program_gives_the_same_results(dtype: str, program: str) -> None:
    run(PROGRAMS[program], dtype).check(roundings=32)


def types_run(sess: Any, fetches: Any, feeds: Any = None) -> dict[str, set[str]]:
    """Returns op to the types in which its nodes are in the graphs that TensorFlow runs for `fetches`, after its own optimisers."""
    metadata = v1.RunMetadata()
    sess.run(fetches, feeds, options=v1.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    found: dict[str, set[str]] = {}
    for graph in metadata.partition_graphs:
        for node in [*graph.node, *(node for function in graph.library.function for node in function.node_def)]:
            if "T" in node.attr:
                found.setdefault(node.op, set()).add(tf.dtypes.as_dtype(node.attr["T"].type).name)
    return found


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_products_run_in_16_bit_and_weights_and_updates_in_float32(dtype: str, resource: bool) -> None:
    with scope(dtype), session() as sess:
        x, y, _, loss = network(resource)
        train = v1.train.AdamOptimizer(0.01).minimize(loss)
        initialise = v1.global_variables_initializer()
        before = sess.graph.as_graph_def()
        sess.run(initialise)
        types = types_run(sess, train, {x: X, y: Y})
        weights = sess.run(v1.global_variables())
        assert sess.graph.as_graph_def() == before
    assert types["ResourceApplyAdam" if resource else "ApplyAdam"] == {"float32"}
    products = set().union(*(found for op, found in types.items() if "MatMul" in op))
    assert products == {dtype}
    assert {value.dtype.name for value in weights} == {"float32"}


def test_a_fed_tensor_is_read_in_both_types(dtype: str) -> None:
    with scope(dtype), session() as sess:
        x, w = v1.placeholder(tf.float32, [None, 8]), tf.constant(np.eye(8, dtype="float32"))
        middle = tf.nn.relu(x @ w)
        product, total = middle @ w, tf.reduce_mean(middle)
        sess.run([product, total], {x: X})
        value = np.full((1, 8), 1 + 2.0**-12, "float32")
        half, full = sess.run([product, total], {middle: value})
    assert full == value[0, 0]
    np.testing.assert_array_equal(half, np.ones((1, 8)))


def test_arithmetic_that_is_passed_by_can_be_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> Any:
        with session() as sess:
            numbers = v1.random_uniform([16, 8], seed=1)
            noise = numbers * 1.0 + 0.0
            kept = tf.cast(noise > 0.5, tf.float32) * (tf.constant(X) @ weight("w", 8, 8))
            sess.run(v1.global_variables_initializer())
            return sess.run(kept), sess.run(kept, {noise: np.ones((16, 8))}), sess.run(kept, {noise: np.zeros((16, 8))})

    monkeypatch.setenv("TFMP_STRICT", "0")
    with pytest.warns(MixedPrecisionWarning, match="a tensor is fed that the converted graph does not read"):
        run(program, "float16").check()


@pytest.mark.parametrize("kind", ["tensor", "constant"])
def test_what_is_too_large_for_half_is_fed_all_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFMP_STRICT", "0")
    with scope("float16"), session() as sess:
        c = tf.constant(np.eye(8, dtype="float32"))
        middle = tf.nn.relu(tf.constant(X[:8]) @ c)
        product = middle @ c
        sess.run(product)
        fed = middle if kind == "tensor" else c
        sess.run(product, {fed: np.full((8, 8), np.inf)})
        with pytest.warns(MixedPrecisionWarning, match="a value is fed that float16 cannot hold"):
            result = sess.run(product, {fed: 1e5 * np.eye(8)})
    np.testing.assert_allclose(result, 1e5 * np.eye(8) if kind == "tensor" else 1e10 * np.maximum(X[:8], 0), rtol=1e-6)


def test_a_constant_that_is_fed_reaches_the_products_too(dtype: str) -> None:
    with scope(dtype), session() as sess:
        c = tf.constant(np.eye(8, dtype="float32"))
        product = tf.constant(X) @ c
        sess.run(product)
        np.testing.assert_array_equal(sess.run(product, {c: np.zeros((8, 8))}), np.zeros((16, 8)))


def test_a_cast_of_the_user_that_is_fed_is_read(dtype: str) -> None:
    def program() -> Any:
        with session() as sess:
            given = v1.placeholder(dtype, [4, 8])
            widened = tf.cast(given, tf.float32)
            product, other = widened @ tf.constant(np.eye(8, dtype="float32")), tf.exp(widened)
            first = sess.run([product, other], {given: X[:4]})
            return first, sess.run([product, other], {widened: X[4:8]})

    with pytest.MonkeyPatch.context() as patch, pytest.warns(MixedPrecisionWarning, match="a tensor is fed that the converted graph does not read"):
        patch.setenv("TFMP_STRICT", "0")
        assert np.array_equal(run(program, dtype).on[1][0], X[4:8])


def test_random_numbers_go_on_from_run_to_run(dtype: str) -> None:
    def program() -> Any:
        with session() as sess:
            kept = tf.nn.dropout(tf.constant(X) @ weight("w", 8, 8), 0.5, seed=3)
            sess.run(v1.global_variables_initializer())
            return [value != 0 for value in (sess.run(kept), sess.run([kept, tf.reduce_sum(kept)])[0], sess.run(kept))]

    off, on = program_off_and_on(program, dtype)
    for expected, actual in zip(off, on, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert not np.array_equal(on[0], on[1])


def program_off_and_on(program: Any, dtype: str) -> tuple[Any, Any]:
    """Returns the results of both runs of a program, which are not compared."""
    runs = run(program, dtype)
    assert runs.converted
    return runs.off, runs.on


@pytest.mark.parametrize("dtype", DTYPES[:1])
def test_a_session_that_ran_before_is_told_that_switching_on_has_no_effect(dtype: str) -> None:
    with session() as sess:
        x, y, _, loss = network()
        with OFF:
            sess.run(v1.global_variables_initializer())
            expected = sess.run(loss, {x: X, y: Y})
        with scope(dtype), pytest.warns(MixedPrecisionWarning, match="no effect on a tf.compat.v1.Session that has run before") as caught:
            results = [sess.run(loss, {x: X, y: Y}) for _ in range(5)]
        assert results == [expected] * 5
        assert len(caught) == 1
        with scope(dtype), v1.Session() as new:
            new.run(v1.global_variables_initializer())
            assert types_run(new, loss, {x: X, y: Y})["Mean"] == {"float32"}
            assert new.run(loss, {x: X, y: Y}) != expected


def test_what_is_first_run_in_a_float32_scope_stays_float32(dtype: str) -> None:
    with scope(dtype), session() as sess:
        x, y, _, loss = network()
        sess.run(v1.global_variables_initializer())
        with OFF:
            types = types_run(sess, loss, {x: X, y: Y})
        assert types_run(sess, loss, {x: X, y: Y}) == types
        later = tf.matmul(tf.constant(X), weight("later", 8, 8))
        sess.run(v1.global_variables_initializer())
        assert dtype in set().union(*(found for op, found in types_run(sess, later).items() if "MatMul" in op))
    assert "float32" in set().union(*(found for op, found in types.items() if "MatMul" in op))


def test_sessions_stay_as_they_are_when_the_hook_is_taken_out(dtype: str) -> None:
    with scope(dtype), session() as sess:
        x, y, hidden, loss = network()
        sess.run(v1.global_variables_initializer())
        expected = sess.run([hidden, loss], {x: X, y: Y})
        sessions.uninstall()
        try:
            np.testing.assert_array_equal(sess.run(hidden, {x: X}), expected[0])
            with v1.Session() as other:
                other.run(v1.global_variables_initializer())
                assert "float32" in types_run(other, hidden, {x: X})["Relu"] if "Relu" in types_run(other, hidden, {x: X}) else True
        finally:
            sessions.install()


@pytest.mark.parametrize("strict", [False, True])
def test_a_failed_conversion_falls_back_with_one_warning(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise GraphError("planted")

    monkeypatch.setattr(graph_conversion.engine, "convert", fail)
    monkeypatch.setenv("TFMP_STRICT", "1" if strict else "0")
    with scope("float16"), session() as sess:
        x, y, _, loss = network()
        sess.run(v1.global_variables_initializer())
        if strict:
            with pytest.raises(GraphError, match="planted"):
                sess.run(loss, {x: X, y: Y})
            return
        with pytest.warns(MixedPrecisionWarning, match="the graph of a tf.compat.v1.Session runs unrewritten, in float32: GraphError: planted") as caught:
            sess.run(loss, {x: X, y: Y})
            assert "float16" not in set().union(*types_run(sess, loss, {x: X, y: Y}).values())
            sess.run(tf.gradients(loss, v1.trainable_variables()), {x: X, y: Y})
    assert len(caught) == 1


def test_a_graph_that_cannot_be_copied_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(_graph: object) -> None:
        raise ValueError("GraphDef cannot be larger than 2GB")

    monkeypatch.setattr(shadow, "library_of", too_large)
    monkeypatch.setenv("TFMP_STRICT", "0")
    with scope("float16"), session() as sess, pytest.warns(MixedPrecisionWarning, match="GraphDef cannot be larger") as caught:
        w = weight("w", 8, 8)
        result = tf.function(lambda x: x @ w)(tf.constant(X)) @ w
        sess.run(v1.global_variables_initializer())
        first = sess.run(result)
        np.testing.assert_array_equal(sess.make_callable(result)(), first)
    assert len(caught) == 1


def pooled() -> list[Any]:
    """AvgPool3D, which has a half kernel for GPUs only, between convolutions; a counter; and a training step that is added later."""
    with session() as sess:
        x, w = tf.constant(np.ones((1, 4, 4, 4, 2), "float32")), weight("w", 1, 1, 1, 2, 2)
        count = v1.get_variable("count", [], initializer=v1.zeros_initializer())
        with tf.control_dependencies([v1.assign_add(count, 1.0)]):
            first = tf.nn.conv3d(x, w, [1] * 5, "SAME")
        result = tf.nn.conv3d(tf.nn.avg_pool3d(first, 2, 2, "SAME"), w, [1] * 5, "SAME")
        summed = v1.assign_add(v1.get_variable("sum", [], initializer=v1.zeros_initializer()), tf.reduce_sum(result))
        with tf.control_dependencies([summed]):
            done = tf.constant(1)
        sess.run(v1.global_variables_initializer())
        fetched = [sess.run(first), sess.run(result), sess.run([first, result]), sess.run([done, summed])]
        later = tf.nn.conv3d(result, w, [1] * 5, "SAME")
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(later))
        return [*fetched, sess.run([later, train, result])[::2], sess.make_callable(w)(), sess.run(count), sess.run(later, {first: 2 * fetched[0]})]


def test_the_kernels_of_devices_that_the_session_has_are_asked_for() -> None:
    run(pooled, "float16", device="GPU").check()


def test_a_graph_that_a_device_refuses_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_conversion.tf_sessions, "device_types", lambda _session: frozenset({"CPU", "GPU"}))
    monkeypatch.setenv("TFMP_STRICT", "0")
    with pytest.warns(MixedPrecisionWarning, match="runs unrewritten, in float32: .*AvgPool3D") as caught:
        run(pooled, "float16", device="GPU").check()
    assert len(caught) == 1


def test_a_graph_that_cannot_be_started_runs_in_float32_from_then_on_and_keeps_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(native: Any, options: Any, feeds: Any, fetches: Any, *others: Any) -> Any:
        names = [shadow_session.tf_sessions.tensor_of(fetch)[0] for fetch in fetches]
        if any(name.startswith("Conv3D_1") and not name.endswith(shadow.AGAIN) for name in names):
            raise tf.errors.InvalidArgumentError(None, None, "No OpKernel was registered to support Op 'planted'")
        return really(native, options, feeds, fetches, *others)

    really = shadow_session.tf_sessions.run
    monkeypatch.setattr(shadow_session.tf_sessions, "run", refuse)
    monkeypatch.setenv("TFMP_STRICT", "0")
    with pytest.warns(MixedPrecisionWarning, match="runs unrewritten, in float32: .*planted") as caught:
        run(pooled, "float16").check()
    assert len(caught) == 1


def test_the_users_own_errors_are_theirs(dtype: str) -> None:
    def error(inside: Any) -> Exception:
        with inside, session() as sess:
            x, y, _, loss = network()
            sess.run(v1.global_variables_initializer())
            checked = tf.debugging.check_numerics(loss, "users own")
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                sess.run(checked, {x: X, y: Y * np.nan})
            return caught.value

    off, on = error(OFF), error(scope(dtype))
    assert on.op.name == off.op.name
    assert str(on) == str(off)


def test_uninitialised_variables_are_reported_as_ever(dtype: str) -> None:
    with scope(dtype), session() as sess:
        x, y, _, loss = network()
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized"):
            sess.run(loss, {x: X, y: Y})
        sess.run(v1.global_variables_initializer())
        assert np.isfinite(sess.run(loss, {x: X, y: Y}))


def test_many_threads_run_one_new_session(dtype: str) -> None:
    with scope(dtype), session() as sess:
        x, y, _, loss = network()
        sess.run(v1.global_variables_initializer())
        results: list[float] = []
        tfmp.enable(dtype=dtype, ignore_performance=True)
        try:
            threads = [threading.Thread(target=lambda: results.append(sess.run(loss, {x: X, y: Y}))) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            tfmp.hooks.activation._process.asked = None
        assert len(set(results)) == 1
        assert len(results) == 8


def test_a_session_and_its_graph_are_freed(dtype: str) -> None:
    import gc
    import weakref

    def use() -> list[Any]:
        with session() as sess:
            x, y, _, loss = network()
            sess.run(v1.global_variables_initializer())
            sess.run(loss, {x: X, y: Y})
            return [weakref.ref(sess), weakref.ref(sess.graph)]

    with scope(dtype):
        references = use()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_session_of_a_server_is_converted_too(dtype: str) -> None:
    server = v1.train.Server.create_local_server()
    with scope(dtype), tf.Graph().as_default(), v1.Session(server.target) as sess:
        x, y, _, loss = network()
        sess.run(v1.global_variables_initializer())
        before = len(tfmp.report())
        first = sess.run(loss, {x: X, y: Y})
        assert tfmp.report()[before:][0].converted
        with v1.Session(server.target) as other:
            assert other.run(loss, {x: X, y: Y}) == first


def test_the_report_and_the_dump_name_the_graph(dtype: str, tmp_path: Any) -> None:
    before = len(tfmp.report())
    with scope(dtype, log_path=str(tmp_path)), session() as sess:
        x, y, _, loss = network()
        sess.run(v1.global_variables_initializer())
        sess.run(loss, {x: X, y: Y})
        (record,) = tfmp.report()[before:]
        details = record.details()
    assert details is not None
    assert sess.graph.get_operation_by_name("output") is not None
    assert str(record).startswith("Session graph: converted ")
    assert record.flop_share == 1
    assert sorted(path.name.partition("_main_")[0] for path in tmp_path.iterdir()) == [
        "graphdef_AutoMixedPrecision",
        "graphdef_AutoMixedPrecision",
        "graphdef_preop",
        "graphdef_preop",
        "model_explorer",
        "paintbuckets_AutoMixedPrecision",
    ]
