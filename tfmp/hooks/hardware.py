"""What the hardware is good at: which 16-bit type, on which device, or none and why not."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import platform
import re
import subprocess
from collections.abc import Collection, Sequence

import tensorflow as tf

from tfmp import slow_kernels
from tfmp.settings import PREFIX, Settings

MINIMUM_CAPABILITY = (7, 0)
"""First CUDA compute capability with tensor cores (`kMinGPUArch` in TensorFlow's `auto_mixed_precision.cc`)."""

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""CPU flags of native bfloat16 arithmetic: x86's two (Intel SDM) and Arm's (FEAT_BF16), as Linux prints them."""

FLOAT16_FLAGS = frozenset({"avx512_fp16", "amx_fp16", "avx_ne_convert"})
AVX512_FLAGS = frozenset({"avx512f", "avx_ne_convert"})
"""x86 flags of which oneDNN needs one, the first three beside AVX512BW, to take float16 and bfloat16 (`IsDataTypeSupportedByOneDNNOnThisCPU` in
TensorFlow's `util.cc`)."""


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What TensorFlow can run on here.

    Attributes:
      gpus: compute capability of each GPU that TensorFlow sees; (0, 0) if it does not say.
      rocm: whether this TensorFlow drives AMD GPUs.
      cpu_bfloat16: whether the CPU multiplies bfloat16 natively.
      weaknesses: names of what it lacks, as `slow_kernels.ROWS` knows them.
    """

    gpus: tuple[tuple[int, int], ...]
    rocm: bool
    cpu_bfloat16: bool
    weaknesses: tuple[str, ...] = ()

    @property
    def fast_gpu(self) -> bool:
        """Whether every GPU is fast in float16: compute capability 7.0 or better, or an AMD GPU (every one that current ROCm drives is)."""
        return bool(self.gpus) and (self.rocm or min(self.gpus) >= MINIMUM_CAPABILITY)


@dataclasses.dataclass(frozen=True)
class Decision:
    """What to convert to, or that nothing is converted.

    Attributes:
      settings: the settings with `dtype` and `device` decided, or None if nothing is to be converted.
      caution: why nothing is converted, or what to know about a type that was forced; "" if all is well.
    """

    settings: Settings | None
    caution: str = ""


def decide(settings: Settings, hardware: Hardware) -> Decision:
    """Returns the type and device for `settings` on `hardware`.

    "auto" becomes float16 on GPUs that are fast in it, bfloat16 on a CPU that is, and float16 anywhere with `ignore_performance`; otherwise nothing is
    converted. A type that is named is used wherever it is, with a caution where it is slow.
    """
    device = settings.device if settings.device != "auto" else "GPU" if hardware.gpus else "CPU"
    fast = _fast_types(device, hardware, settings)
    decided = dataclasses.replace(settings, device=device, weaknesses=settings.weaknesses or hardware.weaknesses)
    if settings.dtype != "auto":
        slow = settings.dtype not in fast and not settings.ignore_performance
        return Decision(decided, f"{_weakness(device, hardware, settings.dtype)}; {settings.dtype} was asked for and is used all the same" if slow else "")
    if fast:
        return Decision(dataclasses.replace(decided, dtype=fast[0]))
    if settings.ignore_performance:
        return Decision(dataclasses.replace(decided, dtype="float16"))
    return Decision(
        None,
        f"nothing is converted: {_weakness(device, hardware, '16-bit types')}. Set {PREFIX}IGNORE_PERFORMANCE=1, pass ignore_performance=True, or name "
        "a type with TFMP_DTYPE=float16 or bfloat16, to convert all the same",
    )


def _fast_types(device: str, hardware: Hardware, settings: Settings) -> tuple[str, ...]:
    if settings.simulate_gpu:
        return ("float16",)
    if device == "GPU":
        return ("float16", "bfloat16") if hardware.fast_gpu else ()
    return ("bfloat16",) if hardware.cpu_bfloat16 else ()


def _weakness(device: str, hardware: Hardware, what: str) -> str:
    if device == "GPU" and hardware.gpus:
        worst = ".".join(map(str, min(hardware.gpus)))
        return f"a GPU has compute capability {worst}, and {what} are fast from 7.0 on".replace("float16 are", "float16 is")
    lacks = "a CPU without native bfloat16" if not hardware.cpu_bfloat16 else "a CPU"
    verb = "are" if what.endswith("s") else "is"
    return f"TensorFlow runs on {lacks} here, where {what} {verb} slower than float32"


@functools.lru_cache(maxsize=1)
def detect() -> Hardware:
    """Returns the hardware that TensorFlow sees. Lists devices but does not initialise them, so that they can still be configured."""
    gpus = tf.config.list_physical_devices("GPU")
    capabilities = (tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0)) for gpu in gpus)
    found = tuple(tuple(capability) for capability in capabilities)
    build = tf.sysconfig.get_build_info()
    return Hardware(found, tf.test.is_built_with_rocm(), cpu_has_bfloat16(), weaknesses(found, str(build.get("cudnn_version", "")), cpu_flags()))


def weaknesses(gpus: Sequence[tuple[int, int]], cudnn: str, flags: Collection[str]) -> tuple[str, ...]:
    """Returns what hardware lacks that some 16-bit kernels need to be fast.

    Args:
      gpus: compute capabilities.
      cudnn: the version that TensorFlow was built with, "" for none.
      flags: the CPU's, as Linux prints them for x86; empty where they are not known, and then nothing is taken to be lacking.
    """
    known = "sse2" in flags
    lacking = {
        slow_kernels.NO_FLOAT16: known and not ("avx512bw" in flags and FLOAT16_FLAGS.intersection(flags)),
        slow_kernels.NO_AVX512: known and AVX512_FLAGS.isdisjoint(flags),
        slow_kernels.NO_CUDNN_8: cudnn.partition(".")[0].isdecimal() and int(cudnn.partition(".")[0]) < 8,
        slow_kernels.BEFORE_8_0: bool(gpus) and (0, 0) < min(gpus) < (8, 0),
    }
    return tuple(name for name, is_so in lacking.items() if is_so)


def cpu_flags() -> frozenset[str]:
    """Returns the instruction sets of this machine's CPU, as Linux names them; none where it cannot be asked so."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.exists() else ""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


def cpu_has_bfloat16() -> bool:
    """Returns whether this machine's CPU says that it has bfloat16 instructions; False where it cannot be asked."""
    flags = cpu_flags()
    if not flags and platform.system() == "Darwin":
        answer = subprocess.run(["/usr/sbin/sysctl", "-n", "hw.optional.arm.FEAT_BF16"], capture_output=True, text=True, check=False)
        return answer.stdout.strip() == "1"
    return not BF16_FLAGS.isdisjoint(flags)
