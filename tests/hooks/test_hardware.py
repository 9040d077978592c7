"""Which type the hardware gets: a table of machines, settings and what follows."""

from __future__ import annotations

import pathlib

import pytest

from tfmp.hooks import hardware
from tfmp.hooks.hardware import Hardware, decide
from tfmp.settings import Settings

VOLTA = Hardware(gpus=((7, 0),), rocm=False, cpu_bfloat16=False)
PASCAL = Hardware(gpus=((6, 1),), rocm=False, cpu_bfloat16=True)
MIXED_GPUS = Hardware(gpus=((9, 0), (6, 0)), rocm=False, cpu_bfloat16=True)
AMD = Hardware(gpus=((0, 0),), rocm=True, cpu_bfloat16=False)
OLD_CPU = Hardware(gpus=(), rocm=False, cpu_bfloat16=False)
NEW_CPU = Hardware(gpus=(), rocm=False, cpu_bfloat16=True)


@pytest.mark.parametrize(
    ("machine", "settings", "dtype", "device", "caution"),
    [
        (VOLTA, {}, "float16", "GPU", ""),
        (AMD, {}, "float16", "GPU", ""),
        (PASCAL, {}, None, None, "nothing is converted: a GPU has compute capability 6.1"),
        (MIXED_GPUS, {}, None, None, "nothing is converted: a GPU has compute capability 6.0"),
        (OLD_CPU, {}, None, None, "nothing is converted: TensorFlow runs on a CPU without native bfloat16 here"),
        (NEW_CPU, {}, "bfloat16", "CPU", ""),
        (OLD_CPU, {"ignore_performance": True}, "float16", "CPU", ""),
        (NEW_CPU, {"ignore_performance": True}, "bfloat16", "CPU", ""),
        (PASCAL, {"ignore_performance": True}, "float16", "GPU", ""),
        (OLD_CPU, {"simulate_gpu": True}, "float16", "CPU", ""),
        (VOLTA, {"dtype": "bfloat16"}, "bfloat16", "GPU", ""),
        (NEW_CPU, {"dtype": "float16"}, "float16", "CPU", "where float16 is slower than float32; float16 was asked for and is used all the same"),
        (NEW_CPU, {"dtype": "float16", "ignore_performance": True}, "float16", "CPU", ""),
        (OLD_CPU, {"dtype": "bfloat16"}, "bfloat16", "CPU", "bfloat16 was asked for and is used all the same"),
        (VOLTA, {"device": "CPU"}, None, None, "nothing is converted: TensorFlow runs on a CPU without native bfloat16"),
    ],
)
def test_type_and_device(machine: Hardware, settings: dict[str, object], dtype: str | None, device: str | None, caution: str) -> None:
    decision = decide(Settings(**settings), machine)  # type: ignore[arg-type]
    assert caution in decision.caution and bool(caution) == bool(decision.caution)
    if dtype is None:
        assert decision.settings is None
        assert "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE=1" in decision.caution and "ignore_performance=True" in decision.caution
    else:
        assert decision.settings is not None
        assert (decision.settings.dtype, decision.settings.device) == (dtype, device)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor : 0\nflags\t\t: fpu avx512_bf16 sse\n", True),
        ("flags : fpu amx_bf16\n", True),
        ("Features : fp asimd bf16 i8mm\n", True),
        ("flags : fpu avx2 avx512f\nbugs : avx512_bf16\n", False),
        ("", False),
    ],
)
def test_cpu_flags(monkeypatch: pytest.MonkeyPatch, text: str, expected: bool) -> None:
    monkeypatch.setattr(pathlib.Path, "exists", lambda self: True)
    monkeypatch.setattr(pathlib.Path, "read_text", lambda self, **options: text)
    assert hardware.cpu_has_bfloat16() is expected


def test_detection_leaves_devices_to_be_configured() -> None:
    import tensorflow as tf

    found = hardware.detect()
    assert len(found.gpus) == len(tf.config.list_physical_devices("GPU"))
