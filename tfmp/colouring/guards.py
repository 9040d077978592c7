"""The default level's guards: what TensorFlow's pass would convert and the default level keeps in float32, each with its reason.

They run before colours spread, so that what they deny is decided once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfmp.colouring.canvas import Canvas
from tfmp.colouring.constants import Question, answer, overflows, rounds_badly
from tfmp.dtypes import DT_FLOAT, FloatFormat
from tfmp.graph.edges import Array, distinct
from tfmp.graph.kinds import Kind
from tfmp.graph.schema import Slot
from tfmp.oplists import ALLOW
from tfmp.program.calls import CALLING_OPS

ELEMENTWISE = frozenset({
    "Abs", "Add", "AddN", "AddV2", "ClipByValue", "Div", "DivNoNan", "Identity", "Inv", "Maximum", "Minimum", "Mul", "MulNoNan", "Neg", "Pow",
    "RealDiv", "Reciprocal", "Rsqrt", "Select", "SelectV2", "Sign", "Sqrt", "Square", "SquaredDifference", "StopGradient", "Sub",
})  # fmt: skip
"""Ops that a weight update is written with: each element of the result depends on the same element of the inputs."""

CARRIERS = frozenset({
    "BroadcastTo", "Concat", "ConcatV2", "Enter", "Exit", "ExpandDims", "Fill", "Identity", "IdentityN", "Merge", "Neg", "NextIteration", "Pack", "Pad",
    "PadV2", "Reshape", "Select", "SelectV2", "Slice", "Split", "SplitV", "Squeeze", "StopGradient", "StridedSlice", "Switch", "Tile", "Transpose",
    "Unpack",
})  # fmt: skip
"""Ops that hand on the values of an input: a constant or an integer behind them is as dangerous as in front."""

ROOTS = frozenset({"Rsqrt", "RsqrtGrad"})
"""Ops on no list that make something large of an epsilon: where that is out of range, so is what they give to their readers."""

ADDITIONS = frozenset({"Add", "AddN", "AddV2", "Sub"})
GROWING = ADDITIONS | {"Mul"}
"""Ops whose result is as large as their largest input, or larger."""

READS = frozenset({"ReadVariableOp", "Variable", "VariableV2"})
WRITE_STEMS = (
    "Assign", "ResourceApply", "Apply", "ResourceSparseApply", "SparseApply", "ResourceScatter", "Scatter", "ResourceStridedSliceAssign",
    "StridedSliceAssign",
)  # fmt: skip

LARGEST_INTEGER = {10: 1, 4: 255, 6: 127, 5: 32767, 17: 65535}
"""Bool and the integer types of at most 16 bits (`types.proto`) to the largest magnitude they hold; of wider types any value may come."""

INTEGERS = frozenset({3, 9, 22, 23, *LARGEST_INTEGER})
"""int32, int64, uint32, uint64, and the narrow ones."""


def leave_calls(canvas: Canvas) -> None:
    """Leaves the types of a call alone where what it calls is not part of the program: such a function keeps its float32 signature. (TensorFlow's bfloat16
    list has While on its clearlist, since its runtime lowers loops before the pass; a While that is not lowered does not run then.)
    """
    followed = {end[0] for tie in canvas.union.ties for end in tie}
    for node in canvas.graph.body.nodes_of(CALLING_OPS):
        if node not in followed:
            canvas.leave(node, "call")


def leave_reference_readers(canvas: Canvas) -> None:
    """Leaves what reads a v1 variable by reference alone: it sees the value of the moment in which it runs, a cast before it might see an older one."""
    body = canvas.graph.body
    first = {op: canvas.graph.first[nodes[0]] for op, nodes in body.by_op.items() if body.types[nodes[0]]}
    referring = {op for op, vertex in first.items() if (schema := canvas.schema(vertex)) is not None and schema.has_refs}
    for node, edges in enumerate(body.inputs) if referring else ():
        if body.ops[node] not in referring and any(body.ops[source] in referring for source, _ in edges):
            canvas.leave(node, "reads a reference")


def keep_loop_sums(canvas: Canvas) -> None:
    """Keeps in float32 what a loop adds up: a value that comes back as itself plus something (gradients of weights summed over time steps, a running mean).

    A sum in 16 bit stops growing once a term is below half a step of it ("Mixed Precision Training", section 3.3: sums in float32).
    """
    body = canvas.graph.body
    for loop in canvas.union.loops:
        source, _ = body.origin(body.inputs[loop.result][0])
        if body.ops[source] in ADDITIONS:
            terms = [body.origin(term)[0] for term in body.inputs[source]]
            if loop.argument in terms:
                canvas.keep(source, "sum over a loop")
                canvas.keep(loop.argument, "sum over a loop")


def keep_ops_without_kernel(canvas: Canvas) -> None:
    """Keeps allowlist nodes in float32 that no 16-bit kernel can run on a device that will run them (TensorFlow's pass does not ask for those)."""
    graph = canvas.graph
    known: dict[bytes, tuple[bool, bool]] = {}
    for node in distinct(graph.nodes[canvas.are_on({ALLOW}) & canvas.may_change[graph.nodes]]).tolist():
        vertices = graph.vertices(node)
        sorts = canvas.sorts[vertices.start : vertices.stop].tobytes()
        if sorts not in known:
            changed = [number for number, v in enumerate(vertices) if canvas.is_float32(v) and canvas.supports_type(v)]
            known[sorts] = bool(changed), canvas.kernels_exist(node, changed)
        has_form, has_kernel = known[sorts]
        if not (has_form and has_kernel):
            canvas.keep(node, "no kernel" if has_form else "no 16-bit form")


def keep_constant_readers(canvas: Canvas) -> None:
    """Keeps in float32 whatever reads a constant that the 16-bit type cannot hold, and spreads that as the denylist does.

    Examples for float16: an attention mask of -1e9, an epsilon of 1e-12, a clip bound of 1 - 1e-6.
    """
    graph = canvas.graph
    constants = graph.body.kinds.which(lambda kind: kind.types == [DT_FLOAT], {"Const"})
    rounded = _among(canvas, constants, rounds_badly)
    if not rounded.any():
        return
    _keep_readers(canvas, _vertices_of(canvas, rounded), "constant out of range", exempt=())
    kept = np.array(canvas.reasons.of_rules({"constant out of range"}), np.int32)
    found, origins = graph.fanout.walk(kept, graph.are_of(ROOTS) & graph.is_float32)
    canvas.keep_all(graph.nodes[found], "constant out of range", origins)
    beyond = _among(canvas, rounded, overflows)
    if beyond.any():
        _keep_products(canvas, _vertices_of(canvas, beyond))


def _among(canvas: Canvas, constants: Array, question: Question) -> Array:
    """Returns number of a kind to whether it is one of `constants` (likewise), and the answer to `question` about its value is yes."""
    body, found = canvas.graph.body, constants.copy()
    found &= np.bincount(body.kind_array, minlength=len(found)) > 0  # nodes of the others were taken out (`graph.prune`)
    found[found] = [answer(question, body, kind, canvas.rules.format) for kind in np.flatnonzero(found).tolist()]
    return found


def _vertices_of(canvas: Canvas, constants: Array) -> Array:
    """Returns the vertices of all nodes of the kinds that are `constants`."""
    return canvas.graph.first_array[constants[canvas.graph.body.kind_array]]


def _keep_products(canvas: Canvas, beyond: Array) -> None:
    """Keeps allowlist ops in float32 that read something made of the constants `beyond` by adding and multiplying: what is as large as those becomes
    infinite in 16 bit. (A mask of -1e9 mostly ends in a softmax, which hands on nothing of it.)
    """
    graph = canvas.graph
    found, origins = graph.fanout.walk(beyond, graph.is_float32, graph.flags(beyond) | graph.are_of(CARRIERS | GROWING))
    are_products = canvas.kinds_at({ALLOW})[found]
    canvas.keep_all(graph.nodes[found[are_products]], "constant out of range", origins[are_products])


def keep_integer_readers(canvas: Canvas) -> None:
    """Keeps in float32 what computes with integers that were cast to float32 and may be too large to stay exact (ids, labels, counts, positions).

    Allowlist ops are exempt: a product of rounded factors is what 16 bit means for them.
    """
    starts = float_ends_of_casts(canvas, Slot("DstT"), Slot("SrcT"), lambda dtype: _may_be_inexact(dtype, canvas.rules.format))
    _keep_readers(canvas, starts, "integer from a cast", exempt=(ALLOW,))


def keep_integer_sources(canvas: Canvas) -> None:
    """Keeps in float32 what only hands values on to a cast that makes integers of them (ids and labels that travel as floats)."""
    graph = canvas.graph
    starts = float_ends_of_casts(canvas, Slot("SrcT"), Slot("DstT"), lambda dtype: _may_be_inexact(dtype, canvas.rules.format))
    if not len(starts):
        return
    found, origins = graph.fanin.walk(starts, graph.is_float32 & graph.are_of(CARRIERS))
    canvas.leave_all(graph.nodes[found[found != origins]], "integer for a cast", origins[found != origins])


def float_ends_of_casts(canvas: Canvas, near: Slot, far: Slot, test: Callable[[int], bool]) -> Array:
    """Returns the `near` end of each Cast where that is float32 and `test` says yes of the type at the `far` one, in node order."""
    graph, body = canvas.graph, canvas.graph.body

    def is_meant(kind: Kind) -> bool:
        return kind.type_of(near) == DT_FLOAT and test(kind.type_of(far))

    nodes = np.flatnonzero(body.kinds.which(is_meant, {"Cast"})[body.kind_array])
    return graph.stand_ins[graph.first_array[nodes] + (body.layouts[nodes[0]].number[near] if len(nodes) else 0)]


def _may_be_inexact(dtype: int, target: FloatFormat) -> bool:
    return dtype in INTEGERS and LARGEST_INTEGER.get(dtype, 2**31) > target.largest_integer


def _keep_readers(canvas: Canvas, starts: Array, rule: str, exempt: tuple[str, ...]) -> None:
    """Keeps the nodes that read `starts`, also through carriers, unless their op is on an `exempt` list."""
    if not len(starts):
        return
    graph = canvas.graph
    is_start = graph.flags(starts)
    found, origins = graph.fanout.walk(starts, graph.is_float32 & ~canvas.kinds_at(exempt), is_start | graph.are_of(CARRIERS))
    others = ~is_start[found]
    canvas.keep_all(graph.nodes[found[others]], rule, origins[others])


class Filtered(Sequence[Sequence[int]]):
    """An adjacency in which only some vertices have neighbours."""

    def __init__(self, adjacency: Sequence[Sequence[int]], passes: Callable[[int], bool]) -> None:
        """Lets the vertices that `passes` says yes to keep their neighbours in `adjacency`."""
        self._adjacency, self._passes = adjacency, passes

    def __len__(self) -> int:
        return len(self._adjacency)

    def __getitem__(self, vertex: Any) -> Any:
        return self._adjacency[vertex] if self._passes(vertex) else ()


def keep_weight_updates(canvas: Canvas) -> None:
    """Keeps in float32 the elementwise arithmetic that ends in the write of a variable: master weights, optimizer slots, moving averages.

    TensorFlow's pass rounds Adam's momentum to half where it is written out (`m += (g - m) * c`, g straight from a matmul), and a step of `1e-4 * g` to
    nothing. What only hands a variable's value on to that arithmetic (a slice, a transposition) is left in float32 as well.
    """
    graph, body = canvas.graph, canvas.graph.body
    writes = np.flatnonzero(graph.are_of([op for op in body.by_op if op.startswith(WRITE_STEMS)]) & graph.is_float32)
    elementwise = graph.are_of(ELEMENTWISE) & graph.is_float32
    found, origins = graph.fanin.walk(writes, elementwise)
    update = found[elementwise[found]]
    canvas.keep_all(graph.nodes[update], "weight update", origins[elementwise[found]])
    if not len(update):
        return
    handed_on, sources = graph.fanout.walk(np.flatnonzero(graph.are_of(READS) & graph.is_float32), graph.are_of(CARRIERS))
    found, origins = graph.fanin.walk(update, graph.flags(handed_on[handed_on != sources]))
    canvas.leave_all(graph.nodes[found], "weight update", origins)
