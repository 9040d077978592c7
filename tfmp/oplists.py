"""The four op lists, one row an op: what TensorFlow does with it in float16 and in bfloat16, and where that is written.

Colours are decided from these lists (`colouring/`):

- allow: fast and safe in 16 bit; always converted.
- infer: safe unless a deny op is upstream; converted when it lies between allow ops.
- deny: dangerous in 16 bit; the danger spreads downstream through infer and clear ops until an allow op.
- clear: no numerical effect; follows its neighbours.

An op on no list stays in float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from tfmp.errors import SettingsError

ALLOW, INFER, DENY, CLEAR = "allow", "infer", "deny", "clear"
KINDS = (ALLOW, INFER, DENY, CLEAR)
UNLISTED = None

_HEADER = "tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h of TensorFlow 2.21"
BOTH = f"{_HEADER}: the fp16 and the bf16 list"
FLOAT16 = f"{_HEADER}: the fp16 list only"
BFLOAT16 = f"{_HEADER}: the bf16 list only"
LISTS = f"{_HEADER}: the tensor list ops"
CUDA_9_1 = f"{_HEADER}: fp16 from CUDA 9.1 on, which every TensorFlow that tfmp supports needs"
CUDNN_7_6 = f"{_HEADER}: fp16 from cuDNN 7.6.2 on, which every TensorFlow that tfmp supports needs"
CUDNN_8 = f"{_HEADER}: fp16 from cuDNN 8.0 on, which every TensorFlow that tfmp supports needs"


@dataclasses.dataclass(frozen=True)
class Row:
    """What TensorFlow's lists say of one op. `float16` and `bfloat16` are a kind or None; `source` says where it is written."""

    op: str
    float16: str | None
    bfloat16: str | None
    source: str


@dataclasses.dataclass(frozen=True)
class Change:
    """One op that the default level treats unlike TensorFlow, and why."""

    op: str
    kind: str | None
    reason: str


# fmt: off
ROWS: tuple[Row, ...] = (
    Row("BatchMatMul", ALLOW, ALLOW, CUDA_9_1),
    Row("BatchMatMulV2", ALLOW, ALLOW, CUDA_9_1),
    Row("BlockLSTM", ALLOW, UNLISTED, FLOAT16),
    Row("BlockLSTMGrad", ALLOW, UNLISTED, FLOAT16),
    Row("BlockLSTMGradV2", ALLOW, UNLISTED, FLOAT16),
    Row("BlockLSTMV2", ALLOW, UNLISTED, FLOAT16),
    Row("Conv2D", ALLOW, ALLOW, BOTH),
    Row("Conv2DBackpropFilter", ALLOW, ALLOW, BOTH),
    Row("Conv2DBackpropInput", ALLOW, ALLOW, BOTH),
    Row("Conv3D", ALLOW, ALLOW, CUDNN_7_6),
    Row("Conv3DBackpropFilter", ALLOW, UNLISTED, CUDNN_7_6),
    Row("Conv3DBackpropFilterV2", ALLOW, ALLOW, CUDNN_7_6),
    Row("Conv3DBackpropInput", ALLOW, UNLISTED, CUDNN_7_6),
    Row("Conv3DBackpropInputV2", ALLOW, ALLOW, CUDNN_7_6),
    Row("CudnnRNN", ALLOW, UNLISTED, FLOAT16),
    Row("CudnnRNNBackprop", ALLOW, UNLISTED, FLOAT16),
    Row("CudnnRNNBackpropV2", ALLOW, UNLISTED, FLOAT16),
    Row("CudnnRNNBackpropV3", ALLOW, UNLISTED, FLOAT16),
    Row("CudnnRNNV2", ALLOW, UNLISTED, FLOAT16),
    Row("CudnnRNNV3", ALLOW, UNLISTED, FLOAT16),
    Row("DepthwiseConv2dNative", ALLOW, ALLOW, CUDNN_8),
    Row("DepthwiseConv2dNativeBackpropFilter", ALLOW, ALLOW, CUDNN_8),
    Row("DepthwiseConv2dNativeBackpropInput", ALLOW, ALLOW, CUDNN_8),
    Row("Einsum", ALLOW, ALLOW, BOTH),
    Row("FastUnsortedSegmentMax", ALLOW, UNLISTED, FLOAT16),
    Row("FusedConv2DBiasActivation", ALLOW, UNLISTED, FLOAT16),
    Row("FusedPadConv2D", UNLISTED, ALLOW, BFLOAT16),
    Row("FusedSparseConvGpuV2", ALLOW, UNLISTED, FLOAT16),
    Row("GRUBlockCell", ALLOW, UNLISTED, FLOAT16),
    Row("GRUBlockCellGrad", ALLOW, UNLISTED, FLOAT16),
    Row("LSTMBlockCell", ALLOW, UNLISTED, FLOAT16),
    Row("LSTMBlockCellGrad", ALLOW, UNLISTED, FLOAT16),
    Row("MatMul", ALLOW, ALLOW, BOTH),
    Row("Mha", ALLOW, UNLISTED, FLOAT16),
    Row("MhaV2", ALLOW, UNLISTED, FLOAT16),
    Row("Pmlp", ALLOW, UNLISTED, FLOAT16),
    Row("Tmlp", ALLOW, UNLISTED, FLOAT16),
    Row("TmlpV2", ALLOW, UNLISTED, FLOAT16),
    Row("TmlpV3", ALLOW, UNLISTED, FLOAT16),
    Row("VoxelMax", ALLOW, UNLISTED, FLOAT16),
    Row("_FusedBatchNormEx", INFER, INFER, BOTH),
    Row("Add", INFER, INFER, BOTH),
    Row("AddN", INFER, INFER, BOTH),
    Row("AddV2", INFER, INFER, BOTH),
    Row("AvgPool", INFER, INFER, BOTH),
    Row("AvgPool3D", INFER, INFER, BOTH),
    Row("AvgPool3DGrad", INFER, INFER, BOTH),
    Row("AvgPoolGrad", INFER, INFER, BOTH),
    Row("BiasAdd", INFER, INFER, BOTH),
    Row("BiasAddGrad", INFER, INFER, BOTH),
    Row("BiasAddV1", INFER, INFER, BOTH),
    Row("Elu", INFER, INFER, BOTH),
    Row("EluGrad", INFER, INFER, BOTH),
    Row("Erf", INFER, INFER, BOTH),
    Row("Erfc", INFER, INFER, BOTH),
    Row("FloorDiv", INFER, INFER, BOTH),
    Row("FusedBatchNormGradV2", INFER, INFER, BOTH),
    Row("FusedBatchNormGradV3", INFER, INFER, BOTH),
    Row("FusedBatchNormV2", INFER, INFER, BOTH),
    Row("FusedBatchNormV3", INFER, INFER, BOTH),
    Row("Inv", INFER, INFER, BOTH),
    Row("LeakyRelu", INFER, INFER, BOTH),
    Row("LeakyReluGrad", INFER, INFER, BOTH),
    Row("Log", INFER, INFER, BOTH),
    Row("Log1p", INFER, INFER, BOTH),
    Row("LogSoftmax", INFER, INFER, BOTH),
    Row("Mean", DENY, INFER, BOTH),
    Row("Mul", INFER, INFER, BOTH),
    Row("Prod", INFER, INFER, BOTH),
    Row("RealDiv", INFER, INFER, BOTH),
    Row("Reciprocal", INFER, INFER, BOTH),
    Row("Rsqrt", UNLISTED, INFER, BFLOAT16),
    Row("Selu", INFER, INFER, BOTH),
    Row("SeluGrad", INFER, INFER, BOTH),
    Row("Sigmoid", INFER, INFER, BOTH),
    Row("SigmoidGrad", INFER, INFER, BOTH),
    Row("Softmax", INFER, INFER, BOTH),
    Row("Softplus", INFER, INFER, BOTH),
    Row("SoftplusGrad", INFER, INFER, BOTH),
    Row("Softsign", INFER, INFER, BOTH),
    Row("SoftsignGrad", INFER, INFER, BOTH),
    Row("Sqrt", INFER, INFER, BOTH),
    Row("Square", UNLISTED, INFER, BFLOAT16),
    Row("SquaredDifference", UNLISTED, INFER, BFLOAT16),
    Row("Sub", INFER, INFER, BOTH),
    Row("Sum", DENY, INFER, BOTH),
    Row("Tanh", INFER, INFER, BOTH),
    Row("TanhGrad", INFER, INFER, BOTH),
    Row("Exp", DENY, DENY, BOTH),
    Row("Expm1", DENY, DENY, BOTH),
    Row("L2Loss", DENY, DENY, BOTH),
    Row("Pow", DENY, DENY, BOTH),
    Row("SaveV2", DENY, DENY, BOTH),
    Row("SoftmaxCrossEntropyWithLogits", DENY, DENY, BOTH),
    Row("SparseSoftmaxCrossEntropyWithLogits", DENY, DENY, BOTH),
    Row("Abs", CLEAR, CLEAR, BOTH),
    Row("ArgMax", CLEAR, CLEAR, BOTH),
    Row("ArgMin", CLEAR, CLEAR, BOTH),
    Row("BatchToSpace", CLEAR, CLEAR, BOTH),
    Row("BatchToSpaceND", CLEAR, CLEAR, BOTH),
    Row("BroadcastTo", CLEAR, CLEAR, BOTH),
    Row("Ceil", CLEAR, CLEAR, BOTH),
    Row("CheckNumerics", CLEAR, CLEAR, BOTH),
    Row("ClipByValue", CLEAR, CLEAR, BOTH),
    Row("Concat", CLEAR, CLEAR, BOTH),
    Row("ConcatV2", CLEAR, CLEAR, BOTH),
    Row("DepthToSpace", CLEAR, CLEAR, BOTH),
    Row("DynamicPartition", CLEAR, CLEAR, BOTH),
    Row("DynamicStitch", CLEAR, CLEAR, BOTH),
    Row("EnsureShape", CLEAR, CLEAR, BOTH),
    Row("Enter", CLEAR, CLEAR, BOTH),
    Row("Equal", CLEAR, CLEAR, BOTH),
    Row("Exit", CLEAR, CLEAR, BOTH),
    Row("ExpandDims", CLEAR, CLEAR, BOTH),
    Row("Fill", CLEAR, CLEAR, BOTH),
    Row("Floor", CLEAR, CLEAR, BOTH),
    Row("Gather", CLEAR, CLEAR, BOTH),
    Row("GatherNd", CLEAR, CLEAR, BOTH),
    Row("GatherV2", CLEAR, CLEAR, BOTH),
    Row("Greater", CLEAR, CLEAR, BOTH),
    Row("GreaterEqual", CLEAR, CLEAR, BOTH),
    Row("Identity", CLEAR, CLEAR, BOTH),
    Row("IdentityN", CLEAR, CLEAR, BOTH),
    Row("IsFinite", CLEAR, CLEAR, BOTH),
    Row("IsInf", CLEAR, CLEAR, BOTH),
    Row("IsNan", CLEAR, CLEAR, BOTH),
    Row("Less", CLEAR, CLEAR, BOTH),
    Row("LessEqual", CLEAR, CLEAR, BOTH),
    Row("Max", CLEAR, CLEAR, BOTH),
    Row("Maximum", CLEAR, CLEAR, BOTH),
    Row("MaxPool", CLEAR, CLEAR, BOTH),
    Row("MaxPool3D", CLEAR, CLEAR, BOTH),
    Row("MaxPool3DGrad", CLEAR, CLEAR, BOTH),
    Row("MaxPool3DGradGrad", CLEAR, UNLISTED, FLOAT16),
    Row("MaxPoolGrad", CLEAR, CLEAR, BOTH),
    Row("MaxPoolGradGrad", CLEAR, CLEAR, BOTH),
    Row("MaxPoolGradGradV2", CLEAR, CLEAR, BOTH),
    Row("MaxPoolGradV2", CLEAR, CLEAR, BOTH),
    Row("MaxPoolV2", CLEAR, CLEAR, BOTH),
    Row("Merge", CLEAR, CLEAR, BOTH),
    Row("Min", CLEAR, CLEAR, BOTH),
    Row("Minimum", CLEAR, CLEAR, BOTH),
    Row("MirrorPad", CLEAR, CLEAR, BOTH),
    Row("MirrorPadGrad", CLEAR, CLEAR, BOTH),
    Row("Neg", CLEAR, CLEAR, BOTH),
    Row("NextIteration", CLEAR, CLEAR, BOTH),
    Row("NotEqual", CLEAR, CLEAR, BOTH),
    Row("OneHot", CLEAR, UNLISTED, FLOAT16),
    Row("OnesLike", CLEAR, CLEAR, BOTH),
    Row("Pack", CLEAR, CLEAR, BOTH),
    Row("Pad", CLEAR, CLEAR, BOTH),
    Row("PadV2", CLEAR, CLEAR, BOTH),
    Row("PreventGradient", CLEAR, CLEAR, BOTH),
    Row("Rank", CLEAR, CLEAR, BOTH),
    Row("Relu", CLEAR, CLEAR, BOTH),
    Row("Relu6", CLEAR, CLEAR, BOTH),
    Row("Relu6Grad", CLEAR, CLEAR, BOTH),
    Row("ReluGrad", CLEAR, CLEAR, BOTH),
    Row("Reshape", CLEAR, CLEAR, BOTH),
    Row("ResizeBilinear", UNLISTED, CLEAR, BFLOAT16),
    Row("ResizeNearestNeighbor", CLEAR, CLEAR, BOTH),
    Row("ResizeNearestNeighborGrad", CLEAR, CLEAR, BOTH),
    Row("Reverse", CLEAR, CLEAR, BOTH),
    Row("ReverseSequence", CLEAR, CLEAR, BOTH),
    Row("ReverseV2", CLEAR, CLEAR, BOTH),
    Row("Round", CLEAR, CLEAR, BOTH),
    Row("ScatterNd", UNLISTED, CLEAR, BFLOAT16),
    Row("Select", CLEAR, CLEAR, BOTH),
    Row("SelectV2", CLEAR, CLEAR, BOTH),
    Row("Shape", CLEAR, CLEAR, BOTH),
    Row("ShapeN", CLEAR, CLEAR, BOTH),
    Row("Sign", CLEAR, CLEAR, BOTH),
    Row("Size", CLEAR, UNLISTED, FLOAT16),
    Row("Slice", CLEAR, CLEAR, BOTH),
    Row("Snapshot", CLEAR, CLEAR, BOTH),
    Row("SpaceToBatch", CLEAR, CLEAR, BOTH),
    Row("SpaceToBatchND", CLEAR, CLEAR, BOTH),
    Row("SpaceToDepth", CLEAR, CLEAR, BOTH),
    Row("Split", CLEAR, CLEAR, BOTH),
    Row("SplitV", CLEAR, CLEAR, BOTH),
    Row("Squeeze", CLEAR, CLEAR, BOTH),
    Row("StatelessWhile", UNLISTED, CLEAR, BFLOAT16),
    Row("StopGradient", CLEAR, CLEAR, BOTH),
    Row("StridedSlice", CLEAR, CLEAR, BOTH),
    Row("StridedSliceGrad", CLEAR, CLEAR, BOTH),
    Row("Switch", CLEAR, CLEAR, BOTH),
    Row("TensorListConcat", CLEAR, CLEAR, LISTS),
    Row("TensorListConcatLists", CLEAR, CLEAR, LISTS),
    Row("TensorListConcatV2", CLEAR, CLEAR, LISTS),
    Row("TensorListFromTensor", CLEAR, CLEAR, LISTS),
    Row("TensorListGather", CLEAR, CLEAR, LISTS),
    Row("TensorListGetItem", CLEAR, CLEAR, LISTS),
    Row("TensorListPopBack", CLEAR, CLEAR, LISTS),
    Row("TensorListPushBack", CLEAR, CLEAR, LISTS),
    Row("TensorListPushBackBatch", CLEAR, CLEAR, LISTS),
    Row("TensorListScatter", CLEAR, CLEAR, LISTS),
    Row("TensorListScatterIntoExistingList", CLEAR, CLEAR, LISTS),
    Row("TensorListScatterV2", CLEAR, CLEAR, LISTS),
    Row("TensorListSetItem", CLEAR, CLEAR, LISTS),
    Row("TensorListSplit", CLEAR, CLEAR, LISTS),
    Row("TensorListStack", CLEAR, CLEAR, LISTS),
    Row("Tile", CLEAR, CLEAR, BOTH),
    Row("TopK", CLEAR, CLEAR, BOTH),
    Row("TopKV2", CLEAR, CLEAR, BOTH),
    Row("Transpose", CLEAR, CLEAR, BOTH),
    Row("Unpack", CLEAR, CLEAR, BOTH),
    Row("Where", CLEAR, CLEAR, BOTH),
    Row("While", UNLISTED, CLEAR, BFLOAT16),
    Row("ZerosLike", CLEAR, CLEAR, BOTH),
)
# fmt: on

NOT_IN_PIP_TENSORFLOW = frozenset({
    "FusedConv2DBiasActivation", "FusedSparseConvGpuV2", "Mha", "MhaV2", "Tmlp", "TmlpV2", "TmlpV3", "Pmlp", "FastUnsortedSegmentMax", "VoxelMax",
})
"""Allowlist names that no pip TensorFlow registers; they are kept since a build that has them gains from them."""

DEFAULT_CHANGES: tuple[Change, ...] = (
    Change("Sum", DENY, "a sum in bfloat16 stops growing at 256 equal terms (8 significant bits); sums are kept in float32"),
    Change("OptionalFromValue", CLEAR, "hands its value on inside a handle, as list ops do; branches save tensors for their gradients so"),
    Change("OptionalGetValue", CLEAR, "takes the value out again"),
    Change("Prod", DENY, "a product of many factors leaves the range of 16 bit, and its rounding errors add up"),
    Change("Mean", DENY, "a mean is a sum; in bfloat16 the mean of more than 256 ones is below one"),
)
"""Where the default level departs from TensorFlow's lists, for both 16-bit types ("Mixed Precision Training", section 3.3: reductions in float32)."""


@dataclasses.dataclass(frozen=True)
class OpLists:
    """The lists in force for one conversion.

    Attributes:
      kind_of: op type to "allow", "infer", "deny" or "clear"; an op that is not a key is on no list.
      overridden: op types whose place the user changed.
    """

    kind_of: Mapping[str, str]
    overridden: frozenset[str] = frozenset()

    def ops(self, kind: str) -> frozenset[str]:
        """Returns the op types on the list `kind`."""
        return frozenset(op for op, k in self.kind_of.items() if k == kind)


def default_lists(dtype: str, exact: bool) -> dict[str, str]:
    """Returns op type to kind for `dtype` ("float16" or "bfloat16").

    With `exact` these are TensorFlow's own lists for that type. Without it both types use the float16 rows (bfloat16's list only names what
    oneDNN runs on a CPU, which the kernel check finds out by itself) where there is one, and `DEFAULT_CHANGES` apply.
    """
    if exact:
        return {row.op: kind for row in ROWS if (kind := getattr(row, dtype))}
    kinds = {row.op: kind for row in ROWS if (kind := row.float16 or (row.bfloat16 if dtype == "bfloat16" else None))}
    kinds.update({change.op: change.kind for change in DEFAULT_CHANGES if change.kind})
    return kinds


def moved(kinds: Mapping[str, str], add: Mapping[str, Iterable[str]], remove: Mapping[str, Iterable[str]]) -> OpLists:
    """Returns `kinds` with the user's moves carried out.

    Adding an op to one list takes it off every other one, so a move is one step (in TensorFlow it takes a removal and an addition, and
    forgetting one switches the pass off). Removals come first, then additions.

    Args:
      kinds: op type to kind.
      add: kind to the op types to put on that list.
      remove: kind to the op types to take off that list; an op that is not on it is left where it is.

    Raises:
      SettingsError: one op is added to two lists.
    """
    result = dict(kinds)
    for kind, ops in remove.items():
        for op in ops:
            if result.get(op) == kind:
                del result[op]
    placed: dict[str, str] = {}
    for kind, ops in add.items():
        for op in ops:
            if placed.setdefault(op, kind) != kind:
                raise SettingsError(f"op {op!r} is added to the {placed[op]}list and to the {kind}list; keep one of the two.")
            result[op] = kind
    touched = frozenset(placed).union(*(frozenset(ops) for ops in remove.values()))
    return OpLists(result, touched)
