"""What one variant of a training step costs: the figures of `quality.py`, all read off a `Program`."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator

from benchmarks.executed import Edge, Execution, source
from benchmarks.flat import ASSIGNS, Program, reach

UNSAFE = frozenset({
    "Cumprod", "Cumsum", "CumulativeLogsumexp", "EuclideanNorm", "Exp", "Expm1", "L2Loss", "Mean", "Pow", "Prod", "SegmentMean", "SegmentSum", "SegmentSumV2",
    "SoftmaxCrossEntropyWithLogits", "SparseSegmentMean", "SparseSegmentSum", "SparseSoftmaxCrossEntropyWithLogits", "Sum", "UnsortedSegmentProd",
    "UnsortedSegmentSum",
})  # fmt: skip
"""Ops that sum, exponentiate or compute a loss: TensorFlow's denylist for float16, and what it leaves out there because it converts no such op at all."""

REDUCTIONS = UNSAFE | {"Max", "Min"}


def _filter(index: int, output: int | None) -> Callable[[Execution], float]:
    """FLOPs of a convolution with its filter as input `index`, from the shape of what slides: input `output`, or output 0."""

    def flops(one: Execution) -> float:
        filters = one.inputs[index].shape if index >= 0 else one.outputs[0].shape
        slid = one.outputs[0] if output is None else one.inputs[output]
        return 2.0 * math.prod(slid.shape) * math.prod(filters[:-1])

    return flops


def _depthwise(index: int, output: int | None) -> Callable[[Execution], float]:
    def flops(one: Execution) -> float:
        filters = one.inputs[index].shape if index >= 0 else one.outputs[0].shape
        return 2.0 * math.prod((one.outputs[0] if output is None else one.inputs[output]).shape) * math.prod(filters[:2])

    return flops


def _einsum(one: Execution) -> float:
    equation = one.node.attr["equation"].s.decode()
    sizes: dict[str, int] = {}
    for labels, tensor in zip(equation.partition("->")[0].split(","), one.inputs, strict=True):
        sizes.update(zip(labels.replace("...", ""), tensor.shape[len(tensor.shape) - len(labels.replace("...", "")) :], strict=True))
    extra = max(len(tensor.shape) for tensor in one.inputs) - max(map(len, equation.replace("...", "").partition("->")[0].split(",")))
    if "..." in equation and extra > 0:
        raise ValueError(f"cannot count the FLOPs of einsum {equation!r} with an ellipsis")
    return 2.0 * math.prod(sizes.values())


FLOPS: dict[str, Callable[[Execution], float]] = {
    **{op: lambda one: one.flops for op in ("MatMul", "BatchMatMul", "BatchMatMulV2")},
    "Einsum": _einsum,
    **{op: _filter(1, None) for op in ("Conv2D", "Conv3D")},
    **{op: _filter(1, 2) for op in ("Conv2DBackpropInput", "Conv3DBackpropInputV2")},
    **{op: _filter(-1, 2) for op in ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2")},
    "DepthwiseConv2dNative": _depthwise(1, None),
    "DepthwiseConv2dNativeBackpropInput": _depthwise(1, 2),
    "DepthwiseConv2dNativeBackpropFilter": _depthwise(-1, 2),
}
"""Matrix multiplications and convolutions: two operations for each multiply-add, padding counted as if it were data."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """The figures of one variant.

    Attributes:
      coverage: share of the FLOPs of matrix multiplications and convolutions that are done in 16 bit.
      casts: casts between float types that one step runs; those of constants are folded before and not counted.
      cast_bytes: bytes that those read and write.
      traffic: bytes that all ops read and write.
      without_update: the same without the weight update.
      saved: bytes that the forward part keeps for the backward part, weights not counted.
      redundant: casts that could be left out (see `redundant_casts`).
      unsafe: nodes that sum, exponentiate or compute a loss in 16 bit.
      rounded: tensors in 16 bit between a variable's read and its write (see `rounded_slots`).
    """

    coverage: float
    casts: int
    cast_bytes: int
    traffic: int
    without_update: int
    saved: int
    redundant: tuple[str, ...]
    unsafe: tuple[str, ...]
    rounded: tuple[str, ...]


def costs(program: Program) -> Costs:
    """Returns the figures of `program`."""
    runs = program.executions
    flops = {False: 0.0, True: 0.0}
    for one in runs:
        if one.node.op in FLOPS:
            flops[one.outputs[0].sixteen] += FLOPS[one.node.op](one)
    casts = [one for one in runs if one.is_cast]
    return Costs(
        coverage=flops[True] / sum(flops.values()),
        casts=len(casts),
        cast_bytes=sum(one.traffic for one in casts),
        traffic=sum(one.traffic for one in runs),
        without_update=sum(one.traffic for one in runs if one.node.name not in program.update),
        saved=program.saved_bytes(),
        redundant=tuple(redundant_casts(program)),
        unsafe=tuple(sorted(unsafe_ops(program))),
        rounded=tuple(sorted(rounded_slots(program))),
    )


def unsafe_ops(program: Program) -> set[str]:
    """Returns the nodes that sum, exponentiate or compute a loss in 16 bit: those of `UNSAFE`, and sums over the steps of a loop."""
    risky = {name for name, node in program.nodes.items() if node.op in UNSAFE} | program.loop_sums
    return {one.node.name for one in program.executions if one.node.name in risky and any(tensor.sixteen for tensor in (*one.inputs, *one.outputs))}


def redundant_casts(program: Program) -> Iterator[str]:
    """Yields the names of casts between float types that do nothing or do again what has been done.

    - a cast of what another cast has made, seen through ops that share their input's buffer: a chain;
    - a second cast of one tensor to one type. Two reads of a variable are one tensor if neither waits for a write to that variable.
    """
    casts = {one.node.name: one.node for one in program.executions if one.is_cast}
    done: set[tuple[Edge, int]] = set()
    for name, node in sorted(casts.items()):
        maker, port, _ = program.origin(source(node.input[0]))
        again = (program.value((maker, port)), node.attr["DstT"].type)
        if maker in casts or again in done:
            yield name
        done.add(again)


def rounded_slots(program: Program) -> set[str]:
    """Returns the nodes that make a 16-bit tensor on a way from a variable's read to a write to the same variable.

    Ways lead through elementwise ops only: through a matrix multiplication, a convolution, a reduction or a loss, everything in a training step lies between a
    weight's read and its write.
    """
    stops = FLOPS.keys() | REDUCTIONS | {"BiasAddGrad"}
    sixteen = {(one.node.name, port) for one in program.executions for port, tensor in enumerate(one.outputs) if tensor.sixteen}
    readers: dict[Edge, list[Edge]] = {}
    makers: dict[Edge, list[Edge]] = {}
    reads: dict[str, list[Edge]] = {}
    writes: dict[str, list[Edge]] = {}
    for node in program.nodes.values():
        edges = program.edges(node)
        if node.op == "ReadVariableOp" or node.op in ASSIGNS:
            handle = program.origin(edges[0])[0]
            (reads if node.op == "ReadVariableOp" else writes).setdefault(handle, []).append((node.name, 0) if node.op == "ReadVariableOp" else edges[1])
        for edge in edges if node.op not in stops else ():
            for port in range(len(program.types[node.name])):
                readers.setdefault(edge, []).append((node.name, port))
                makers.setdefault((node.name, port), []).append(edge)
    found: set[str] = set()
    for handle in reads.keys() & writes.keys():
        between = reach(reads[handle], readers) & sixteen
        if between:
            found |= {name for name, _ in between & reach(writes[handle], makers)}
    return found


def by_maker(program: Program) -> Counter[str]:
    """Returns the bytes cast, by the variable or node whose result is cast (seen through ops that share its buffer), see `plain`."""
    found = Counter[str]()
    for one in program.executions:
        if one.is_cast:
            found[plain(program.variable(program.origin(source(one.node.input[0]))[0]))] += one.traffic
    return found


def by_node(program: Program) -> Counter[str]:
    """Returns the bytes that each node which is no cast between float types moves, see `plain`."""
    found = Counter[str]()
    for one in program.executions:
        if not one.is_cast:
            found[plain(one.node.name)] += one.traffic
    return found


def plain(name: str) -> str:
    """Returns a node's name without the numbers that lowering gives to parts of loops and branches: those differ between variants of one program."""
    return "/".join("_" if re.fullmatch(r"_\d+", part) else part for part in name.split("/"))
