"""Kernels that exist, but are slower in 16 bit than in float32 on some hardware, as one table.

The ratios of the CPU rows were measured with TensorFlow 2.21 (`benchmarks/kernels.py`) on an x86 CPU that has AVX512_BF16 but not AVX512_FP16: float16 as it
is, bfloat16 with oneDNN switched off, which is what a CPU without AVX512F gets. A row is here from about three times as slow on; MatMul and BatchMatMulV2
take 1 to 2.5 times as long in float16, Conv2D 1.2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

GRADIENTS_2D = ("Conv2DBackpropInput", "Conv2DBackpropFilter")
CONVOLUTIONS_3D = ("Conv3D", "Conv3DBackpropInput", "Conv3DBackpropInputV2", "Conv3DBackpropFilter", "Conv3DBackpropFilterV2")
DEPTHWISE = ("DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter")

NO_FLOAT16, NO_AVX512, NO_CUDNN_8, BEFORE_8_0 = "no-float16", "no-avx512", "no-cudnn-8", "before-8.0"
WEAKNESSES = {
    NO_FLOAT16: "a CPU without float16 instructions",
    NO_AVX512: "a CPU without AVX512",
    NO_CUDNN_8: "a GPU without cuDNN 8",
    BEFORE_8_0: "a GPU of compute capability below 8.0",
}
"""What hardware may lack, by the name that `Settings.weaknesses` takes."""

_ONEDNN = "IsDataTypeSupportedByOneDNNOnThisCPU in tensorflow/core/util/util.cc: what oneDNN does not take goes to Eigen's scalar kernels"
_CUDNN = "UseCudnnWith16BitFloat in tensorflow/core/kernels/depthwise_conv_op.cc; tensorflow issues 27780 and 41715"
_CASTS = "IsBF16SupportedInOps in TensorFlow's convolution kernels: they cast to float32 and back inside"


@dataclasses.dataclass(frozen=True)
class Row:
    """Ops that are slow in one type on hardware with one weakness.

    Attributes:
      ops: the op types.
      dtype: "float16" or "bfloat16".
      device: the device type ("CPU", "GPU") whose own kernels are meant; XLA compiles its own.
      weakness: a key of `WEAKNESSES`, as `hooks.hardware` finds them.
      ratio: how much longer the 16-bit kernel takes than the float32 one, for people.
      source: where that is known from.
    """

    ops: tuple[str, ...]
    dtype: str
    device: str
    weakness: str
    ratio: str
    source: str

    @property
    def reason(self) -> str:
        """One sentence for the user."""
        return f"in {self.dtype} on {WEAKNESSES[self.weakness]} it takes {self.ratio} as long as in float32; ignore_performance=True converts it all the same"


ROWS = (
    Row(GRADIENTS_2D, "float16", "CPU", NO_FLOAT16, "3 to 10 times", _ONEDNN),
    Row(CONVOLUTIONS_3D, "float16", "CPU", NO_FLOAT16, "9 to 12 times", _ONEDNN),
    Row(DEPTHWISE, "float16", "CPU", NO_FLOAT16, "2 to 5 times", _ONEDNN),
    Row(("Einsum",), "float16", "CPU", NO_FLOAT16, "8 times", _ONEDNN),
    Row(GRADIENTS_2D, "bfloat16", "CPU", NO_AVX512, "7 to 20 times", _ONEDNN),
    Row(CONVOLUTIONS_3D, "bfloat16", "CPU", NO_AVX512, "5 to 15 times", _ONEDNN),
    Row(DEPTHWISE, "bfloat16", "CPU", NO_AVX512, "2 to 4 times", _ONEDNN),
    Row(("Einsum",), "bfloat16", "CPU", NO_AVX512, "17 times", _ONEDNN),
    Row(DEPTHWISE, "float16", "GPU", NO_CUDNN_8, "up to 50 times", _CUDNN),
    Row(DEPTHWISE, "bfloat16", "GPU", NO_CUDNN_8, "up to 50 times", _CUDNN),
    Row(("Conv2D", *GRADIENTS_2D, *CONVOLUTIONS_3D), "bfloat16", "GPU", BEFORE_8_0, "more than once", _CASTS),
)
"""Every TensorFlow that tfmp supports has cuDNN 8 or 9 in its wheels; a build of one's own need not."""


CUDNN_FILTERS = (1, 3, 5, 7)
"""Heights, equal to the widths, of the filters with which TensorFlow gives depthwise convolutions to cuDNN, if each channel has one filter
(`ShouldCudnnGroupedConvolutionBeUsed` in XLA's `tsl/util/use_cudnn.cc`); a single channel is an ordinary convolution."""

SLOW_FILTER = (
    f"in 16 bit, TensorFlow's own kernel for a filter that cuDNN does not take (square, of size {', '.join(map(str, CUDNN_FILTERS))}, one for each channel) "
    "takes up to 50 times as long; ignore_performance=True converts it all the same"
)
"""Why a depthwise convolution stays in float32 on a GPU (tensorflow issues 27780 and 41715 measured it)."""


def fits_cudnn(height: int, width: int, channels: int, multiplier: int) -> bool:
    """Returns whether a depthwise convolution with a filter of that shape runs in cuDNN."""
    return channels == 1 or (multiplier == 1 and height == width and height in CUDNN_FILTERS)


def slow_ops(dtype: str, device: str, weaknesses: Iterable[str]) -> dict[str, str]:
    """Returns op type to reason for the ops whose `dtype` kernels are slow on `device`, given what the hardware lacks."""
    lacks = frozenset(weaknesses)
    return {op: row.reason for row in ROWS if (row.dtype, row.device) == (dtype, device) and row.weakness in lacks for op in row.ops}
