"""Which type the hardware gets: a table of machines, settings and what follows."""

from __future__ import annotations

import pathlib

import pytest

from tfmp.hooks import hardware
from tfmp.hooks.hardware import Hardware, decide
from tfmp.settings import Settings
from tfmp.slow_kernels import BEFORE_8_0, NO_AVX512, NO_CUDNN_8, NO_FLOAT16

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


@pytest.mark.parametrize(
    ("gpus", "cudnn", "flags", "expected"),
    [
        ((), "", "", ()),
        ((), "", "fp asimd bf16", ()),  # Arm: not known to be slow
        ((), "", "sse2 avx2", (NO_FLOAT16, NO_AVX512)),
        ((), "9", "sse2 avx512f avx512bw avx512_bf16", (NO_FLOAT16,)),
        ((), "9", "sse2 avx512f avx512bw avx512_fp16", ()),
        ((), "9", "sse2 avx512f avx512bw amx_fp16", ()),
        (((7, 0), (9, 0)), "7.6", "", (NO_CUDNN_8, BEFORE_8_0)),
        (((8, 0),), "8.9", "", ()),
        (((0, 0),), "", "", ()),  # an AMD GPU does not say
    ],
)
def test_what_hardware_lacks(gpus: tuple[tuple[int, int], ...], cudnn: str, flags: str, expected: tuple[str, ...]) -> None:
    assert hardware.weaknesses(gpus, cudnn, flags.split()) == expected


def test_slow_kernels_follow_from_the_machine_unless_performance_is_ignored() -> None:
    machine = Hardware((), False, True, (NO_FLOAT16,))
    slow = decide(Settings(dtype="float16"), machine).settings.slow_ops
    assert "Conv2DBackpropInput" in slow and "MatMul" not in slow and "Conv2D" not in slow
    assert "ignore_performance=True" in slow["Einsum"] and "without float16 instructions" in slow["Einsum"]
    assert decide(Settings(dtype="bfloat16"), machine).settings.slow_ops == {}
    assert decide(Settings(dtype="float16", ignore_performance=True), machine).settings.slow_ops == {}
