"""A converted SavedModel loads in plain TensorFlow and computes the same, with everything in it that was there before."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tfmp
from tests.files.conftest import Original
from tests.files.running import DATA, call, contents, run, weights, worst
from tfmp.dtypes import SIXTEEN_BIT

TARGETS: list[dict[str, Any]] = [{}, {"device": "cpu"}, {"device": "xla_gpu"}, {"io_dtype": "float16"}, {"keep_weights": True}, {"level": "tensorflow"}]
MODELS = ["module", "training", "keras3", "with_optimizer", "old_references", "old_resources"]

HALF = {
    "module": {"weight", "bias", "rows", "square", "layers/0/kernel", "layers/1/kernel"},
    "training": {"bias", "rows", "square", "layers/0/kernel", "layers/1/kernel"},
    "with_optimizer": {"layer_with_weights-0/kernel", "layer_with_weights-0/bias", "layer_with_weights-2/kernel"},
    "old_references": {"net/weight", "net/bias", "net/rows"},
    "old_resources": {"net/weight", "net/bias", "net/rows"},
}
"""Which weights are stored in float16. Not: what a function or an optimizer in the file may change, what is added in float32, slots and counters."""


def half_products(path: pathlib.Path) -> int:
    """Returns how many matrix multiplications and convolutions of a SavedModel are in 16 bit."""
    saved = saved_model_pb2.SavedModel()
    if (path / "saved_model.pb").exists():
        saved.ParseFromString((path / "saved_model.pb").read_bytes())
    else:
        from google.protobuf import text_format

        text_format.Parse((path / "saved_model.pbtxt").read_text(), saved)
    graphs = [meta.graph_def for meta in saved.meta_graphs]
    nodes = [node for graph in graphs for part in (graph.node, *(function.node_def for function in graph.library.function)) for node in part]
    return sum(node.op in ("MatMul", "Conv2D") and node.attr["T"].type in (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum) for node in nodes)


@pytest.mark.parametrize("options", TARGETS, ids=lambda options: " ".join(map(str, options.values())) or "default")
@pytest.mark.parametrize("name", MODELS)
def test_every_signature_computes_the_same(original: Original, tmp_path: pathlib.Path, name: str, options: dict[str, Any]) -> None:
    before, after = original(name), tmp_path / "out"
    report = tfmp.convert(before, after, **options)
    roundoff = SIXTEEN_BIT[report.dtype].unit_roundoff
    assert half_products(before) == 0 < half_products(after)
    expected, actual = run(before), run(after)
    assert sorted(expected) == sorted(actual)
    differences = [worst(expected[signature], actual[signature]) for signature in expected]
    assert 0 < max(differences) < 8 * roundoff  # a product of weights and data rounded once each, a few times one after the other
    for signature, outputs in expected.items():
        for key, value in outputs.items():
            changed = options.get("io_dtype") if value.dtype == np.float32 else None
            assert actual[signature][key].dtype == (changed or value.dtype)


def test_functions_of_the_object_graph_are_converted_too(original: Original, tmp_path: pathlib.Path) -> None:
    tfmp.convert(original("module"), tmp_path / "out")
    before, after = (tf.saved_model.load(str(path)) for path in (original("module"), tmp_path / "out"))
    x = tf.constant(DATA["x"] @ np.ones((16, 32), np.float32))
    expected, actual = ({"compiled": model.compiled(x), **model.serve(tf.constant(DATA["x"]), tf.constant(DATA["words"]))} for model in (before, after))
    for key, value in expected.items():
        assert (actual[key].dtype, actual[key].shape) == (value.dtype, value.shape)
        difference = np.abs(value.numpy() - actual[key].numpy()).max()
        assert difference < 1e-2 * np.abs(value.numpy()).max() and (difference > 0) == (key != "n")


@pytest.mark.parametrize("name", HALF)
def test_weights_that_tolerate_it_are_stored_in_half(original: Original, tmp_path: pathlib.Path, name: str) -> None:
    tfmp.convert(original(name), tmp_path / "out")
    before, after = weights(original(name)), weights(tmp_path / "out")
    assert {key for key, value in after.items() if value.dtype == np.float16} == HALF[name]
    for key, value in before.items():
        assert (after[key] == value.astype(after[key].dtype)).all()
    assert {key for key, value in before.items() if value.dtype != after[key].dtype} == HALF[name]


def test_a_keras_model_is_half_as_large(original: Original, tmp_path: pathlib.Path) -> None:
    report = tfmp.convert(original("keras3"), tmp_path / "out")
    large = [value for value in weights(tmp_path / "out").values() if value.ndim > 1]
    assert large and all(value.dtype == np.float16 for value in large)
    assert report.after.weights < 0.6 * report.before.weights


@pytest.mark.parametrize("name", MODELS)
def test_kept_weights_are_the_same_bytes(original: Original, tmp_path: pathlib.Path, name: str) -> None:
    tfmp.convert(original(name), tmp_path / "out", keep_weights=True)
    before, after = weights(original(name)), weights(tmp_path / "out")
    assert before.keys() == after.keys()
    assert all(value.dtype == after[key].dtype and value.tobytes() == after[key].tobytes() for key, value in before.items())


@pytest.mark.parametrize("name", MODELS)
def test_the_original_stays_and_other_files_come_along(original: Original, tmp_path: pathlib.Path, name: str) -> None:
    folder = original(name)
    (folder / "assets.extra").mkdir(exist_ok=True)
    (folder / "assets.extra" / "notes.txt").write_text("kept")
    before = contents(folder)
    tfmp.convert(folder, tmp_path / "out")
    after = contents(tmp_path / "out")
    assert contents(folder) == before
    assert after.keys() == before.keys()
    changed = {"saved_model.pb", "saved_model.pbtxt", "fingerprint.pb", *(key for key in before if key.startswith("variables/"))}
    assert {key: after[key] for key in before.keys() - changed} == {key: before[key] for key in before.keys() - changed}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_conversion_can_be_repeated_to_the_byte(original: Original, tmp_path: pathlib.Path) -> None:
    for name in ("one", "two"):
        tfmp.convert(original("training"), tmp_path / name)
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert {key: value for key, value in one.items() if key != "fingerprint.pb"} == {key: value for key, value in two.items() if key != "fingerprint.pb"}


def test_the_fingerprint_is_that_of_the_new_file(original: Original, tmp_path: pathlib.Path) -> None:
    tfmp.convert(original("module"), tmp_path / "out")
    before, after = (tf.saved_model.experimental.read_fingerprint(str(path)) for path in (original("module"), tmp_path / "out"))
    assert before.graph_def_program_hash != after.graph_def_program_hash
    assert before.signature_def_hash == after.signature_def_hash


def test_a_training_function_still_trains_its_float32_weight(original: Original, tmp_path: pathlib.Path) -> None:
    tfmp.convert(original("training"), tmp_path / "out")
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    x = tf.constant(DATA["x"])
    losses = [float(loaded.train(x)) for _ in range(20)]
    assert losses[-1] < 0.8 * losses[0]
    assert (loaded.weight.dtype, float(loaded.count)) == (tf.float32, 20.0)


@pytest.mark.parametrize("name", MODELS)
def test_version_1_loads_runs_saves_and_restores_it(original: Original, tmp_path: pathlib.Path, name: str) -> None:
    """The main graph's own saver is what TensorFlow Serving restores with."""
    v1 = tf.compat.v1
    tfmp.convert(original(name), tmp_path / "out")
    results = []
    for path in (original(name), tmp_path / "out"):
        with tf.Graph().as_default(), v1.Session() as session:
            meta = v1.saved_model.load(session, ["serve"], str(path))
            signature = meta.signature_def["serving_default"]
            feeds = {info.name: DATA[key] for key, info in signature.inputs.items()}
            fetches = {key: info.name for key, info in signature.outputs.items()}
            results.append(session.run(fetches, feeds))
            saver, filename = meta.saver_def, str(tmp_path / "checkpoint")
            for operation in (saver.save_tensor_name, saver.restore_op_name):
                session.run(operation, {saver.filename_tensor_name: filename})
            again = session.run(fetches, feeds)
            assert all((again[key] == value).all() for key, value in results[-1].items())
    assert 0 < worst(*results) < 5e-3


def test_every_graph_of_a_file_is_converted(original: Original, tmp_path: pathlib.Path) -> None:
    report = tfmp.convert(original("old_resources"), tmp_path / "out")
    assert [outcome.tally.share for outcome in report.programs] == [1.0, 1.0]
    results = []
    for path in (original("old_resources"), tmp_path / "out"):
        loaded = tf.saved_model.load(str(path), tags=["serve", "other"])
        results.append({key: value.numpy() for key, value in call(loaded, "other").items()})
    assert 0 < worst(*results) < 5e-3


def test_slots_of_an_optimizer_stay_float32_and_do_not_keep_the_file_from_loading(original: Original, tmp_path: pathlib.Path) -> None:
    tfmp.convert(original("with_optimizer"), tmp_path / "out")
    slots = {key: value for key, value in weights(tmp_path / "out").items() if ".OPTIMIZER_SLOT" in key}
    assert len(slots) == 12 and all(value.dtype == np.float32 for value in slots.values())
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    assert {variable.dtype for variable in loaded.variables} == {tf.float16, tf.float32}


def test_keras_loads_a_file_with_kept_weights(original: Original, tmp_path: pathlib.Path) -> None:
    import tf_keras

    report = tfmp.convert(original("with_optimizer"), tmp_path / "half")
    assert any("tf_keras.models.load_model" in note for note in report.notes)
    assert not tfmp.convert(original("with_optimizer"), tmp_path / "out", keep_weights=True).notes
    loaded = tf_keras.models.load_model(str(tmp_path / "out"))
    assert loaded.predict(DATA["x"], verbose=0).shape == (4, 4)


def test_a_second_conversion_finds_nothing_and_writes_nothing(original: Original, tmp_path: pathlib.Path) -> None:
    tfmp.convert(original("module"), tmp_path / "once")
    report = tfmp.convert(tmp_path / "once", tmp_path / "twice")
    assert (report.converted, report.target, (tmp_path / "twice").exists()) == (False, "", False)


def test_rules_keep_weights_and_what_reads_them(original: Original, tmp_path: pathlib.Path) -> None:
    report = tfmp.convert(original("module"), tmp_path / "out", keep_float32=["variable:square", "name:nothing*"])
    assert {key for key, value in weights(tmp_path / "out").items() if value.dtype == np.float16} == HALF["module"] - {"square"}
    assert [weight.reason for weight in report.weights if weight.name == "square"] == ["rule 'variable:square' keeps it"]
    compiled = next(outcome for outcome in report.programs if outcome.root.label == "signatures.compiled")
    assert (compiled.tally.share, report.unused_rules) == (0.0, ("name:nothing*",))


def test_explain_tells_the_same_and_writes_nothing(original: Original, tmp_path: pathlib.Path) -> None:
    before = contents(original("training").parent)
    told = tfmp.explain(original("training"))
    done = tfmp.convert(original("training"), tmp_path / "out")
    assert contents(original("training").parent) == before
    assert (told.weights, [outcome.tally for outcome in told.programs]) == (done.weights, [outcome.tally for outcome in done.programs])
    assert told.after.graphs == done.after.graphs
    assert abs(told.after.weights - done.after.weights) < 100  # but for the index of the checkpoint
    assert "AssignSubVariableOp may change it" in str(told)
