"""`tfmp compare` on a SavedModel: the table, the exit codes, and what is said of models and data that do not fit."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfmp import cli, numerics


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A SavedModel with two inputs whose product overflows where they are large."""
    path = tmp_path_factory.mktemp("model")
    module = tf.Module()
    module.weight = tf.Variable(np.full((4, 4), 10.0, "float32"))
    spec = tf.TensorSpec([None, 4], tf.float32)

    @tf.function(input_signature=[spec, spec])
    def product(a: Any, b: Any) -> Any:
        return {"out": tf.nn.relu(tf.matmul(a, module.weight, name="first")) + tf.matmul(b, module.weight, name="second")}

    @tf.function(input_signature=[spec])
    def single(a: Any) -> Any:
        return {"out": tf.matmul(a, module.weight, name="first")}

    tf.saved_model.save(module, str(path), {"serving_default": product, "single": single})
    return path


def data(folder: pathlib.Path, **arrays: Any) -> str:
    np.savez(folder / "data.npz", **arrays)
    return str(folder / "data.npz")


ONES, LARGE = np.ones((2, 4), "float32"), np.full((2, 4), 6000.0, "float32")


def test_a_model_that_fits(saved: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", str(saved), "--data", data(tmp_path, a=ONES, b=ONES)]) == 0
    printed = capsys.readouterr().out
    assert "0 broke, 0 diverged" in printed and "first" in printed and "second" in printed


def test_what_broke_is_on_top(saved: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = data(tmp_path, a=ONES, b=LARGE)
    assert cli.main(["compare", str(saved), "--data", file, "--rows", "1"]) == cli.BROKEN
    printed = capsys.readouterr().out
    assert "BROKE" in printed and "second" in printed and "first" not in printed
    assert cli.main(["compare", str(saved), "--data", file, "--dtype", "bfloat16"]) == 0
    loaded = tf.saved_model.load(str(saved))
    ranges = numerics.calibrate(loaded.signatures["serving_default"], [{"a": ONES, "b": LARGE}])
    numerics.save(ranges, tmp_path / "ranges.json")
    assert cli.main(["compare", str(saved), "--data", file, "--ranges", str(tmp_path / "ranges.json")]) == 0


def test_one_array_is_enough_for_one_input(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    np.save(tmp_path / "a.npy", ONES.astype("float64"))
    assert cli.main(["compare", str(saved), "--data", str(tmp_path / "a.npy"), "--signature", "single"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--signature", "other"], "'{model}' has no signature 'other'; it has 'serving_default', 'single'."),
        (["--signature", "single"], "'{data}' holds 'a', 'c'; the signature takes 'a' (float32, (None, 4))."),
        ([], "'{data}' holds 'a', 'c'; the signature takes 'a' (float32, (None, 4)), 'b' (float32, (None, 4))."),
        (["--dtype", "float8"], "dtype is 'float8'; valid values are 'auto', 'float16', 'bfloat16'."),
    ],
)
def test_what_does_not_fit_is_named(
    saved: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    file = data(tmp_path, a=ONES, **({"b": ONES} if "--dtype" in arguments else {"c": ONES}))
    assert cli.main(["compare", str(saved), "--data", file, *arguments]) == cli.WRONG_USAGE
    assert capsys.readouterr().err == f"tfmp compare: {message.format(model=saved, data=file)}\n"


def test_shapes_and_files_that_do_not_fit_are_named(saved: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", str(saved), "--data", data(tmp_path, a=ONES[0], b=ONES)]) == cli.WRONG_USAGE
    assert "'a' in" in (error := capsys.readouterr().err) and "has the shape (4,); the signature takes (None, 4)." in error
    (tmp_path / "text.npz").write_text("no arrays")
    assert cli.main(["compare", str(saved), "--data", str(tmp_path / "text.npz")]) == cli.WRONG_USAGE
    assert "is no .npz or .npy file that can be read" in capsys.readouterr().err
    assert cli.main(["compare", str(tmp_path), "--data", str(tmp_path / "text.npz")]) == cli.WRONG_USAGE
    assert "is no SavedModel that can be loaded" in capsys.readouterr().err


def test_a_loop_of_tensorflow_1_is_followed(tmp_path: pathlib.Path) -> None:
    v1 = tf.compat.v1
    v2 = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [None, 4])
            w = v1.get_variable("w", initializer=np.full((4, 4), 3.0, "float32"), use_resource=True)
            _, h = tf.while_loop(lambda i, h: i < 6, lambda i, h: (i + 1, tf.matmul(h, w, name="turn")), [0, x])
            y = tf.cond(tf.reduce_sum(h) > 1.0, lambda: h * 0.5, lambda: h - 1.0)
            session.run(v1.global_variables_initializer())
            signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
            builder = v1.saved_model.Builder(str(tmp_path / "model"))
            builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
            builder.save()
    finally:
        if v2:
            v1.enable_control_flow_v2()
    function = (model := tf.saved_model.load(str(tmp_path / "model"))).signatures["serving_default"]
    row = numerics.compare(function, {"x": np.full((2, 4), 0.5, "float32")})[0]
    assert (row.op, row.runs, row.broken, row.infs) == ("MatMul", 6, 5, (0, 16))
    counts = [one.outputs[0] for one in numerics.calibrate(function, [{"x": np.full((2, 4), 0.5, "float32")}]) if one.op == "MatMul"]
    assert [(one.elements, one.smallest, one.largest) for one in counts] == [(48, 6.0, 0.5 * 12.0**6)]
    del model


def test_convert_keeps_what_the_ranges_say(saved: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = tf.saved_model.load(str(saved))
    numerics.save(numerics.calibrate(loaded.signatures["serving_default"], [{"a": ONES, "b": LARGE}]), tmp_path / "ranges.json")
    found = {}
    for name, arguments in {"plain": [], "ranges": ["--ranges", str(tmp_path / "ranges.json")]}.items():
        to = ["convert", str(saved), str(tmp_path / name), "--device", "cpu", "--dtype", "float16"]
        assert cli.main([*to, *arguments]) == 0, capsys.readouterr().err
        converted = tf.saved_model.load(str(tmp_path / name))
        found[name] = converted.signatures["serving_default"](a=tf.constant(ONES), b=tf.constant(LARGE))["out"].numpy()
    assert not np.isfinite(found["plain"]).any()
    np.testing.assert_allclose(found["ranges"], 40 + 240000, rtol=1e-3)
    assert cli.main(["convert", str(saved), str(tmp_path / "no"), "--ranges", str(tmp_path / "missing.json")]) != 0
    assert "missing.json' cannot be read: No such file or directory." in capsys.readouterr().err
