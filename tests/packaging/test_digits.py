"""The README's main job, `examples/digits.py`: it trains, compares and tells; and it says what is missing."""

from __future__ import annotations

import math
import pathlib
import re

import pytest

from tests.startup.environments import ROOT, add_running_packages, copy_source, make_environment, pip

EXAMPLE = ROOT / "examples" / "digits.py"
QUIET = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}

ROW = re.compile(r"^(float32|float16|bfloat16) +(\d+\.\d)% +(\d\.\d{4}) +\d+\.\d$", re.MULTILINE)
ACCOUNT = re.compile(r"converted (\d+) of (\d+) nodes to (\w+), 100\.0% of matmul FLOPs, (\d+) casts")

# An untrained network guesses one digit in ten right; after two epochs the float32 run is above three in four. Two runs that differ by
# rounding alone stay within three standard errors of an accuracy measured on 360 images.
LEARNED = 75.0  # per cent
APART = 3 * 100 * math.sqrt(LEARNED / 100 * (1 - LEARNED / 100) / 360)


@pytest.mark.slow
def test_it_compares_float32_with_both_16_bit_types(tmp_path: pathlib.Path) -> None:
    environment = make_environment(tmp_path / "venv")
    add_running_packages(environment)
    pip(environment, "install", copy_source(tmp_path / "source"))
    result = environment.run(EXAMPLE, "--no-setup", "--epochs", "2", environ=QUIET)
    assert result.returncode == 0, result.stderr
    rows = {name: float(accuracy) for name, accuracy, _ in ROW.findall(result.stdout)}
    assert set(rows) == {"float32", "float16", "bfloat16"}
    assert rows["float32"] > LEARNED
    assert max(rows.values()) - min(rows.values()) < APART
    float32, float16, bfloat16 = result.stdout.split("\nfloat32: ")[1].split("loss scale ")[-3:]
    assert float32.startswith("none") and "nothing has been converted" in float32
    assert float(float16.partition(";")[0]) >= 1
    assert bfloat16.startswith("none")
    for text, dtype in ((float16, "float16"), (bfloat16, "bfloat16")):
        accounts = ACCOUNT.findall(text)
        assert accounts and all(0 < int(converted) < int(total) and int(casts) > 0 for converted, total, _, casts in accounts)
        assert {kind for _, _, kind, _ in accounts} == {dtype}


def test_it_names_what_is_missing_and_installs_nothing_when_told_so(tmp_path: pathlib.Path) -> None:
    result = make_environment(tmp_path / "venv").run(EXAMPLE, "--no-setup")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"digits.py: missing: tensorflow, sklearn, tfmp. Without --no-setup they are installed in {ROOT / '.venv'}.\n"
