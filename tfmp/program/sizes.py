"""Which unknown sizes are the same: a batch of unknown size is as large at the end of a network as it is at its beginning.

TensorFlow's shape inference says None for both. Here a size is followed to where it comes from, through ops that hand it on; two sizes that come from one place
are equal, whatever they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tfmp import tf_api
from tfmp.graph.body import Body, Edge
from tfmp.program.shapes import Shape

Place = tuple[Edge, int]
"""A tensor and one of its axes."""

Size = int | Place | None
"""A number, or where it comes from; None if it is not even known which axis it is."""

ALIKE = frozenset({
    "Abs", "Add", "AddN", "AddV2", "Cast", "Ceil", "CheckNumerics", "ClipByValue", "Div", "DivNoNan", "Elu", "EluGrad", "Equal", "Erf", "Erfc", "Exp", "Expm1",
    "Floor", "Greater", "GreaterEqual", "Identity", "Inv", "LeakyRelu", "LeakyReluGrad", "Less", "LessEqual", "Log", "Log1p", "LogSoftmax", "LogicalAnd",
    "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mul", "MulNoNan", "Neg", "NotEqual", "Pow", "PreventGradient", "RealDiv", "Reciprocal", "Relu", "Relu6",
    "Relu6Grad", "ReluGrad", "Round", "Rsqrt", "RsqrtGrad", "Select", "SelectV2", "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad", "Sign", "Snapshot", "Softmax",
    "Softplus", "SoftplusGrad", "Softsign", "SoftsignGrad", "Sqrt", "SqrtGrad", "Square", "SquaredDifference", "StopGradient", "Sub", "Tanh", "TanhGrad",
    "ZerosLike", "OnesLike",
})  # fmt: skip
"""Elementwise ops, and those that keep the shape of their input: an axis is as long as that of each input that is not repeated along it."""

KEEPING = frozenset({"Max", "Mean", "Min", "Prod", "Sum"})
"""With `keep_dims` and constant axes, the other axes stay."""

FIRST_AXIS = frozenset({
    "AvgPool", "AvgPool3D", "BiasAdd", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "FusedBatchNorm", "FusedBatchNormGradV3", "FusedBatchNormV2",
    "FusedBatchNormV3", "MaxPool", "MaxPool3D", "ResizeBilinear", "ResizeNearestNeighbor",
})  # fmt: skip
"""Ops that keep the first axis of their first input, the batch."""

SHAPES = frozenset({"Shape", "ShapeN"})


class SameSizes:
    """Finds where sizes come from, in one body."""

    def __init__(self, body: Body, inputs: Sequence[Sequence[Edge]], shape: Callable[[Edge], Shape]) -> None:
        """Takes the body, what its nodes read, and what tells static shapes."""
        self._body, self._inputs, self._shape = body, inputs, shape
        self._known: dict[Place, Place] = {}

    def of(self, edge: Edge) -> tuple[Size, ...] | None:
        """Returns the sizes of a tensor, None if its rank is unknown."""
        shape = self._shape(edge)
        return None if shape is None else tuple(self._origin((edge, axis)) if size is None else size for axis, size in enumerate(shape))

    def in_vector(self, edge: Edge) -> tuple[Size, ...] | None:
        """Returns the sizes that a tensor holds which is a shape, or the head of one; None if it is not known of what."""
        node, port = edge
        op, inputs = self._body.ops[node], self._inputs[node]
        if op in SHAPES:
            return self.of(inputs[port])
        if op == "Const":
            return tuple(self._constant(node))
        if op == "StridedSlice":
            whole, ends = self.in_vector(inputs[0]), [self._constant(source) if self._body.ops[source] == "Const" else None for source, _ in inputs[1:]]
            masks = [self._number(node, f"{kind}_mask") for kind in ("shrink_axis", "new_axis", "ellipsis")]
            head = ends[0] == [0] and ends[2] == [1] and not any(masks)
            return whole[: None if self._number(node, "end_mask") else ends[1][0]] if whole is not None and head and ends[1] else None
        return None

    def _origin(self, place: Place) -> Place:
        """Returns the place that a size comes from: itself, if it does not come from just one other."""
        todo = [place]
        while todo:
            here = todo[-1]
            sources = self._sources(here) if here not in self._known else []
            missing = [source for source in sources if source not in self._known]
            todo += missing
            if not missing:
                if here not in self._known:
                    origins = {self._known[source] for source in sources}
                    self._known[here] = origins.pop() if len(origins) == 1 else here
                todo.pop()
        return self._known[place]

    def _sources(self, place: Place) -> list[Place]:
        """Returns the places whose size an unknown size certainly is."""
        (node, port), axis = place
        op, inputs = self._body.ops[node], self._inputs[node]
        if op in ALIKE:
            return self._broadcast(place, inputs)
        if (op in FIRST_AXIS and port == axis == 0) or (op in KEEPING and self._keeps(node, axis)):
            return self._unknown((inputs[0], axis))
        if op == "MatMul":
            return self._unknown((inputs[axis], int(axis != self._flag(node, ("transpose_a", "transpose_b")[axis]))))
        if op in ("BatchMatMul", "BatchMatMulV2") and axis < len(self._shape((node, 0)) or ()) - 2:
            return self._broadcast(place, inputs)
        if op == "Transpose" and self._body.ops[inputs[1][0]] == "Const":
            return self._unknown((inputs[0], self._constant(inputs[1][0])[axis]))
        if op == "Reshape":
            return self._reshaped(place, inputs)
        if op in ("GatherV2", "ResourceGather") and axis < len(self._shape(inputs[1]) or ()):
            of_rows = op == "ResourceGather" or (self._body.ops[inputs[2][0]] == "Const" and self._constant(inputs[2][0]) == [0])
            return self._unknown((inputs[1], axis)) if of_rows and not self._number(node, "batch_dims") else []
        return []

    def _broadcast(self, place: Place, inputs: Sequence[Edge]) -> list[Place]:
        edge, axis = place
        rank, found = len(self._shape(edge) or ()), list[Place]()
        for one in inputs:
            shape = self._shape(one)
            if shape is None:
                return []
            mine = axis - (rank - len(shape))
            if mine >= 0 and shape[mine] is None:
                found.append((one, mine))
        return found

    def _reshaped(self, place: Place, inputs: Sequence[Edge]) -> list[Place]:
        """The only unknown size before and after, among others that multiply to the same; or one that the new shape is taken from."""
        (edge, axis), old = place, self._shape(inputs[0])
        new = self._shape(edge) or ()
        if old is not None and old.count(None) == new.count(None) == 1 and math.prod(filter(None, old)) == math.prod(filter(None, new)) and 0 not in old:
            return [(inputs[0], old.index(None))]
        if self._body.ops[inputs[1][0]] in SHAPES:
            return self._unknown((self._inputs[inputs[1][0]][inputs[1][1]], axis))
        return []

    def _keeps(self, node: int, axis: int) -> bool:
        """Returns whether a reduction leaves an axis as it is."""
        axes, shape = self._inputs[node][1][0], self._shape((node, 0))
        if shape is None or self._body.ops[axes] != "Const" or not self._flag(node, "keep_dims"):
            return False
        return axis not in {one % len(shape) for one in self._constant(axes)}

    def _unknown(self, place: Place) -> list[Place]:
        shape = self._shape(place[0])
        return [place] if shape is not None and place[1] < len(shape) and shape[place[1]] is None else []

    def _constant(self, node: int) -> list[int]:
        return tf_api.read_tensor(self._body.protos[node].attr["value"].tensor).reshape(-1).tolist()

    def _number(self, node: int, attr: str) -> int:
        return self._body.protos[node].attr[attr].i if attr in self._body.protos[node].attr else 0

    def _flag(self, node: int, attr: str) -> int:
        return int(attr in self._body.protos[node].attr and self._body.protos[node].attr[attr].b)
