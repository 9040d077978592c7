"""The commands `tfmp convert` and `tfmp explain`: what they print, their exit codes, and damaged or impossible input of all kinds."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.files.conftest import Original
from tests.files.models import normal
from tests.files.running import DATA, contents
from tfmp import cli
from tfmp.errors import CheckError
from tfmp.files import check, command

Output = tuple[int, str, list[str]]


@pytest.fixture
def tfmp_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Output]:
    """Runs the command in this process and returns exit code, output, and its own lines of the error output, none of which is a traceback."""

    def run(*arguments: object) -> Output:
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as error:
            code = int(error.code or 0)
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return code, output.out, [line for line in output.err.splitlines() if line.startswith("tfmp")]

    return run


Command = Callable[..., Output]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command, and the script that compares, set for their own processes must not stay in this one."""
    for name in ("TF_ENABLE_AUTO_MIXED_PRECISION", "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE", "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING"):
        monkeypatch.setenv(name, os.environ.get(name, "0"))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def compare_here(monkeypatch: pytest.MonkeyPatch, _environment: None) -> None:
    """Files are compared in this process, which has TensorFlow already, rather than in a new one."""

    def here(request: check.Request) -> tuple[check.Difference, ...]:
        from tfmp.files import compared

        try:
            return tuple(check.Difference(**row) for row in compared.compare(dataclasses.asdict(request)))
        except compared.UnusableError as error:
            raise CheckError(f"{error}.") from None

    monkeypatch.setattr("tfmp.files.convert.compare", here)


def test_convert_prints_the_report_and_the_comparison(tfmp_command: Command, original: Original, tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "data.npz", x=DATA["x"], words=np.array(["half", "graph", "a", "b"]), **{"compiled/x": normal(3, 32)})
    code, out, errors = tfmp_command("convert", original("module"), tmp_path / "out", "--check", tmp_path / "data.npz")
    assert (code, errors) == (0, [])
    rows = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    assert rows["signatures.serving_default"][-2] == rows["signatures.compiled"][-2] == "100.0%"
    assert set(rows) >= {"program", "weights", "bytes", "graphs", "total", "compared output"}
    assert {"serving_default: y", "serving_default: z", "serving_default: n", "compiled: output_0"} <= set(rows)
    assert 0 < float(rows["serving_default: y"][3]) < 1e-2
    assert rows["serving_default: n"][-1] == "100.0%"


def test_explain_names_what_is_kept_and_why_and_writes_nothing(tfmp_command: Command, original: Original) -> None:
    before = sorted(original("training").parent.iterdir())
    code, out, errors = tfmp_command("explain", original("training"), "--keep-float32", "op:Tanh", "--details")
    assert (code, errors) == (0, [])
    assert "AssignSubVariableOp node" in out and "a rule keeps it in float32" in out
    assert sorted(original("training").parent.iterdir()) == before


def test_help_tells_every_exit_code(tfmp_command: Command) -> None:
    code, out, _ = tfmp_command("convert", "--help")
    assert code == 0
    assert all(f"{number:>3}  {meaning}" in out for number, meaning in command.EXIT_CODES.items())
    text = (pathlib.Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    paragraph = text.partition("Exit codes: ")[2].partition("In Python")[0]
    assert all(f"{number} " in paragraph for number in command.EXIT_CODES)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--device", "tpu"], "device is 'tpu'; valid values are 'gpu', 'cpu', 'xla_gpu', 'xla_cpu'."),
        (["--dtype", "float8"], "dtype is 'float8'; valid values are 'auto', 'float16', 'bfloat16'."),
        (["--io-dtype", "int8"], "io_dtype is 'int8'; valid values are 'float16', 'bfloat16', 'float32'."),
        (["--keep-float32", "Softmax"], "keep_float32 has the rule 'Softmax'; a rule is one of: op:GLOB"),
        (["--check", "no.npz"], "data for the comparison are 'no.npz', which is no file; give an .npz file with an array for each input, or 'random'."),
        (["--import", "no_such_module"], "module 'no_such_module' cannot be imported: No module named 'no_such_module'."),
    ],
)
def test_a_wrong_option_is_named_with_the_valid_ones(
    tfmp_command: Command, original: Original, tmp_path: pathlib.Path, options: list[str], error: str
) -> None:
    code, out, errors = tfmp_command("convert", original("frozen.pb"), tmp_path / "out.pb", *options)
    assert (code, out, len(errors)) == (4 if "--check" in options else 2, "", 1)
    assert errors[0].startswith(f"tfmp convert: {error}")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays_without_force(tfmp_command: Command, original: Original, tmp_path: pathlib.Path) -> None:
    (tmp_path / "out.pb").write_text("precious")
    code, _, errors = tfmp_command("convert", original("frozen.pb"), tmp_path / "out.pb")
    assert (code, errors) == (3, [f"tfmp convert: {tmp_path / 'out.pb'} is there already; --force (force=True) replaces it."])
    assert (tmp_path / "out.pb").read_text() == "precious"
    assert tfmp_command("convert", original("frozen.pb"), tmp_path / "out.pb", "--force")[0] == 0
    assert (tmp_path / "out.pb").stat().st_size > 1000


def test_nothing_to_convert_is_exit_code_1(tfmp_command: Command, original: Original, tmp_path: pathlib.Path) -> None:
    code, _, errors = tfmp_command("convert", original("frozen.pb"), tmp_path / "out.pb", "--keep-float32", "op:*")
    assert (code, list(tmp_path.iterdir())) == (1, [])
    assert errors == [f"tfmp convert: nothing in {original('frozen.pb')} can be in 16 bit; `tfmp explain --details` says why."]


@pytest.mark.usefixtures("compare_here")
@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ({"image": normal(2, 8, 8, 4), "ids": np.arange(3)}, "the original does not run here on these data (graph): "),
        ({"picture": normal(2, 8, 8, 3)}, "the data have picture, which no signature takes: graph takes image, ids."),
        (None, "the data in "),
    ],
)
def test_data_that_do_not_fit_are_exit_code_4_and_the_file_is_written(
    tfmp_command: Command, original: Original, tmp_path: pathlib.Path, arrays: dict[str, np.ndarray] | None, error: str
) -> None:
    if arrays is None:
        (tmp_path / "data.npz").write_text("no arrays")
    else:
        np.savez(tmp_path / "data.npz", **arrays)
    code, _, errors = tfmp_command("convert", original("frozen.pb"), tmp_path / "out.pb", "--check", tmp_path / "data.npz")
    assert (code, (tmp_path / "out.pb").exists(), len(errors)) == (4, True, 1)
    assert errors[0].startswith(f"tfmp convert: {error}")


@pytest.mark.usefixtures("compare_here")
def test_values_that_become_infinite_are_exit_code_4(tfmp_command: Command, original: Original, tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "data.npz", image=np.full((1, 8, 8, 3), 1e6), ids=np.arange(2))
    code, out, errors = tfmp_command("convert", original("frozen.pb"), tmp_path / "out.pb", "--check", tmp_path / "data.npz")
    assert (code, errors) == (4, [f"tfmp convert: {command.EXIT_CODES[4]}"])
    assert "values are not finite any more" in out


def test_an_interruption_is_one_line_and_leaves_nothing(
    tfmp_command: Command, original: Original, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tfmp.files.write._encoded", interrupt)
    code, _, errors = tfmp_command("convert", original("module"), tmp_path / "out")
    assert (code, errors, list(tmp_path.iterdir())) == (130, ["tfmp convert: interrupted; OUT is as it was"], [])


# Damaged input. Each case gets a copy of a good SavedModel and damages it.

DAMAGE: dict[str, Callable[[pathlib.Path], object]] = {
    "no proto": lambda folder: (folder / "saved_model.pb").unlink(),
    "empty proto": lambda folder: (folder / "saved_model.pb").write_bytes(b""),
    "text for a proto": lambda folder: (folder / "saved_model.pb").write_text("this is no proto"),
    "half a proto": lambda folder: _cut(folder / "saved_model.pb", 0.5),
    "proto without the last byte": lambda folder: _cut(folder / "saved_model.pb", -1),
    "no index": lambda folder: (folder / "variables" / "variables.index").unlink(),
    "empty index": lambda folder: (folder / "variables" / "variables.index").write_bytes(b""),
    "half an index": lambda folder: _cut(folder / "variables" / "variables.index", 0.5),
    "no data": lambda folder: (folder / "variables" / "variables.data-00000-of-00001").unlink(),
    "half the data": lambda folder: _cut(folder / "variables" / "variables.data-00000-of-00001", 0.5),
    "other data": lambda folder: _overwrite(folder / "variables" / "variables.data-00000-of-00001"),
    "a folder for a proto": lambda folder: ((folder / "saved_model.pb").unlink(), (folder / "saved_model.pb").mkdir()),
}


def _cut(file: pathlib.Path, part: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(part) if part < 0 else int(len(content) * part)])


def _overwrite(file: pathlib.Path) -> None:
    file.write_bytes(bytes(byte ^ 0x55 for byte in file.read_bytes()))


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_saved_models_are_one_line_and_exit_code_2(tfmp_command: Command, original: Original, tmp_path: pathlib.Path, damage: str) -> None:
    shutil.copytree(original("module"), tmp_path / "model")
    DAMAGE[damage](tmp_path / "model")
    before = contents(tmp_path / "model")
    for arguments in (["convert", tmp_path / "model", tmp_path / "out"], ["explain", tmp_path / "model"]):
        code, out, errors = tfmp_command(*arguments)
        assert (code, out, len(errors)) == (2, "", 1), errors
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert contents(tmp_path / "model") == before


@pytest.mark.parametrize("content", [b"", b"no graph at all", b"\x0a", bytes(range(7, 256, 4)), b"\x00" * 100, b"\x08\x01"], ids=range(6))
@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt"])
def test_what_is_no_graph_is_one_line_and_exit_code_2(tfmp_command: Command, tmp_path: pathlib.Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    code, out, errors = tfmp_command("convert", tmp_path / name, tmp_path / "out.pb")
    assert (code, out, len(errors)) == (2, "", 1), errors
    assert [path.name for path in tmp_path.iterdir()] == [name]


@given(seed=st.integers(0, 2**32), file=st.sampled_from(["frozen.pb", "saved_model.pb", "variables.index", "variables.data-00000-of-00001"]))
@settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_flipped_cut_and_repeated_bytes_are_never_a_traceback(
    tfmp_command: Command, original: Original, tmp_path_factory: pytest.TempPathFactory, seed: int, file: str
) -> None:
    """Some damage is not noticed (a name, a number): then the file is converted. All other damage is one line; nothing half-written is ever left."""
    folder, rng = tmp_path_factory.mktemp("damaged"), random.Random(seed)
    source = folder / ("frozen.pb" if file == "frozen.pb" else "model")
    shutil.copy(original("frozen.pb"), source) if file == "frozen.pb" else shutil.copytree(original("with_optimizer"), source)
    (damaged,) = [source] if source.is_file() else source.rglob(file)
    content = bytearray(damaged.read_bytes())
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content))
        end = start + rng.randint(1, 40)
        content[start:end] = rng.choice([b"", bytes(rng.randrange(256) for _ in range(8)), bytes(content[start:end]) * 2])
    damaged.write_bytes(content)
    code, _, errors = tfmp_command("convert", source, folder / "out")
    assert code in (0, 1, 2) and len(errors) == (0 if code == 0 else 1)
    assert {path.name for path in folder.iterdir()} == {source.name, *(["out"] if code == 0 else [])}
    shutil.rmtree(folder)


# Targets that cannot be written.


def test_a_full_disk_is_one_line_and_loses_nothing(tfmp_command: Command, original: Original, tmp_path: pathlib.Path) -> None:
    (tmp_path / "out").mkdir()
    shutil.copytree(original("keras3"), tmp_path / "out", dirs_exist_ok=True)
    before = contents(tmp_path / "out")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (1_000, 20_000, 100_000):  # assets, then weights, then the graph do not fit any more
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            code, _, errors = tfmp_command("convert", original("keras3"), tmp_path / "out", "--force")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (code, len(errors)) == (3, 1), (limit, errors)
        assert "cannot be written" in errors[0]
        assert contents(tmp_path / "out") == before
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(not pathlib.Path("/proc/self").is_dir(), reason="needs a folder that not even root can write to")
@pytest.mark.parametrize("name", ["frozen.pb", "module"])
def test_a_folder_that_cannot_be_written_to_is_one_line(tfmp_command: Command, original: Original, name: str) -> None:
    code, _, errors = tfmp_command("convert", original(name), "/proc/self/out")
    assert (code, len(errors)) == (3, 1)
    assert errors[0].startswith("tfmp convert: /proc/self/out cannot be written: ")


def test_a_killed_conversion_leaves_the_target_as_it_was(original: Original, tmp_path: pathlib.Path) -> None:
    """What is left is beside the target, and its name says what it is."""
    shutil.copytree(original("keras3"), tmp_path / "out")
    before = contents(tmp_path / "out")
    code = (
        "import os, sys; from tfmp import cli; import tfmp.files.write as w\n"
        "w.tfs.write_fingerprint = lambda folder: os.kill(os.getpid(), 9)\n"
        f"cli.main(['convert', {str(original('keras3'))!r}, {str(tmp_path / 'out')!r}, '--force'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=pathlib.Path(__file__).parents[2], capture_output=True, check=False)
    assert done.returncode == -9
    assert contents(tmp_path / "out") == before
    assert [path.name.startswith(".out.tfmp-new-") for path in sorted(tmp_path.iterdir())] == [True, False]


def test_a_process_of_its_own_prints_one_line_and_does_not_switch_itself_on(original: Original, tmp_path: pathlib.Path) -> None:
    environ = os.environ | {"TF_ENABLE_AUTO_MIXED_PRECISION": "1", "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    (tmp_path / "bad.pb").write_text("bad")
    arguments = ["convert", tmp_path / "bad.pb", tmp_path / "out.pb"]
    done = subprocess.run([sys.executable, "-m", "tfmp", *map(str, arguments)], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"tfmp convert: {tmp_path / 'bad.pb'} is not a GraphDef, or damaged (3 bytes): ") and done.stderr.count("\n") == 1
