"""The passes for vertices that must agree: tensor lists (one colour for whatever shares a handle) and the edges that close loops.

Facts are those of `auto_mixed_precision.cc`: `FindFloat32TensorListOpClustersAndDenylistUnsafe`, `FindTensorListImplicitFloat32Edges`,
`ForceColorMatchBetweenTensorListOps`, `ForceColorMatchOnRecurrentEdges`.
"""

from __future__ import annotations

from tfmp.colouring.canvas import Canvas
from tfmp.colouring.typegraph import reach
from tfmp.dtypes import DT_VARIANT
from tfmp.errors import GraphError
from tfmp.graph.schema import Slot
from tfmp.program.calls import CALLING_OPS

READERS = frozenset({
    "OptionalGetValue", "TensorListConcat", "TensorListConcatV2", "TensorListGather", "TensorListGetItem", "TensorListPopBack", "TensorListStack",
})  # fmt: skip
WRITERS = frozenset({
    "OptionalFromValue",
    "TensorListFromTensor", "TensorListPushBack", "TensorListPushBackBatch", "TensorListScatter", "TensorListScatterV2",
    "TensorListScatterIntoExistingList", "TensorListSetItem", "TensorListSplit",
})  # fmt: skip
BORDERS = frozenset({"_Arg", "_Retval", "OptionalFromValue", "OptionalGetValue", "Placeholder", *CALLING_OPS})
"""Ops behind which the other users of a list handle cannot be seen (`IsSourceOrSinkOp`), unless the handle is tied across them; so are ops that are
functions of the library.

TensorFlow names only the calls, since its runtime lowers loops and branches before; a While that is not lowered would hide a list's readers as well. The
default level knows what handles may pass instead (`PASSES_ON`).
"""

HANDLE = Slot("", fixed=DT_VARIANT)

OPTIONALS = {"OptionalFromValue": "Toutput_types", "OptionalGetValue": "output_types"}
"""Ops that put one tensor into an optional or take it out (branches save tensors for their gradient so) to the attribute with its type."""

PASSES_ON = frozenset({
    "AddN", "Enter", "Exit", "Identity", "IdentityN", "Merge", "NextIteration", "OptionalHasValue", "OptionalNone", "PreventGradient", "Select", "SelectV2",
    "Shape", "StopGradient", "Switch", "ZerosLike",
})  # fmt: skip
"""Ops that hand a handle on or look at it without touching the elements; at the default level a handle that meets any other op is not followed."""

Clusters = list[list[int]]
"""Each cluster's element-type vertices."""


def find_tensor_lists(canvas: Canvas) -> Clusters:
    """Returns the clusters of float32 tensor list (and optional) ops that share a handle, and adds an edge from each writer to each reader of a cluster.

    Clusters with a member that may not be changed, or whose handle crosses a border, are denied.
    """
    clusters: Clusters = []
    done: set[int] = set()
    if canvas.rules.follow_handles:
        _look_into_lists(canvas)
        _leave_other_optionals(canvas)
    for node in canvas.graph.body.nodes_of(_list_ops(canvas)):
        op = canvas.graph.body.ops[node]
        if node not in done and canvas.processable[node] and _is_root(canvas, node):
            clusters.append(_cluster_of(canvas, node, done))
        elif op in OPTIONALS and canvas.rules.follow_handles and node not in done and len(_values(canvas, node)) > 1:
            canvas.keep(node, "list handle leaves the graph")  # several values behind one handle, as a dataset's iterator gives them
    for cluster in clusters:
        for vertex in cluster:
            if canvas.graph.op(vertex) in READERS:
                _connect_writers(canvas, vertex)
    return clusters


def _list_ops(canvas: Canvas) -> list[str]:
    return [op for op in canvas.graph.body.by_op if "TensorList" in op or op in OPTIONALS]


def _look_into_lists(canvas: Canvas) -> None:
    """Connects the handles that lists and optionals hold (nested loops and branches save such lists) with the handle of what holds them: who shares one
    shares the other.
    """
    graph = canvas.graph
    for node in graph.body.nodes_of(_list_ops(canvas)):
        if (handle := graph.vertex(node, HANDLE)) is not None:
            for vertex in graph.vertices(node):
                if graph.slot(vertex).attr and graph.dtype[vertex] == DT_VARIANT:
                    graph.add_edge(handle, vertex)
                    graph.add_edge(vertex, handle)


def _leave_other_optionals(canvas: Canvas) -> None:
    """Leaves optionals alone that hold anything but one float32 tensor, such as a batch of features and labels from an iterator."""
    for node in canvas.graph.body.nodes_of(OPTIONALS):
        if _element(canvas, node) is None:
            canvas.leave(node, "list handle leaves the graph")


def _is_root(canvas: Canvas, node: int) -> bool:
    return _element(canvas, node) is not None and canvas.graph.vertex(node, HANDLE) is not None


def _element(canvas: Canvas, node: int) -> int | None:
    """Returns the vertex of a list op's element type, or None if `node` is no list op or its elements are not float32; optionals are lists of one."""
    op = canvas.graph.body.ops[node]
    if op in OPTIONALS and canvas.rules.follow_handles:
        values = _values(canvas, node)
        return values[0] if len(values) == 1 and canvas.is_float32(values[0]) else None
    if "TensorList" not in op:
        return None
    for vertex in canvas.graph.vertices(node):
        slot = canvas.graph.slot(vertex)
        if slot.attr and slot.index < 0 and canvas.is_float32(vertex):
            return vertex
    return None


def _values(canvas: Canvas, node: int) -> list[int]:
    """Returns the vertices of the values that an optional's op puts in or takes out."""
    return [v for v in canvas.graph.vertices(node) if canvas.graph.slot(v).attr == OPTIONALS[canvas.graph.body.ops[node]]]


def _cluster_of(canvas: Canvas, root: int, done: set[int]) -> list[int]:
    graph = canvas.graph
    members: list[int] = []
    unsafe = False
    start = graph.vertex(root, HANDLE)
    for vertex, _ in reach([start], (graph.fanin, graph.fanout), lambda v: True):  # type: ignore[list-item]
        node = graph.node_of[vertex]
        element = _element(canvas, node)
        if element is None:
            unsafe = unsafe or (vertex not in graph.tied and _is_border(canvas, vertex))
        elif node not in done:
            done.add(node)
            members.append(element)
            unsafe = unsafe or not canvas.processable[node]
    if unsafe:
        for vertex in members:
            canvas.paint_deny(vertex, "list handle leaves the graph")
    return sorted(members)


def _is_border(canvas: Canvas, vertex: int) -> bool:
    op = canvas.graph.op(vertex)
    if canvas.rules.follow_handles:
        if op in OPTIONALS:
            return len(_values(canvas, canvas.graph.node_of[vertex])) > 1
        return "TensorList" not in op and op not in PASSES_ON
    return op in BORDERS or canvas.schema(vertex) is None


def _connect_writers(canvas: Canvas, reader: int) -> None:
    graph = canvas.graph
    handle = graph.vertex(graph.node_of[reader], HANDLE)
    before = reach([handle], (graph.fanin,), lambda v: bool(canvas.processable[graph.node_of[v]]))  # type: ignore[list-item]
    for vertex, _ in before:
        element = _element(canvas, graph.node_of[vertex]) if graph.op(vertex) in WRITERS else None
        if element is not None:
            graph.add_edge(element, reader)


def match_tensor_lists(canvas: Canvas, clusters: Clusters) -> None:
    """Gives every cluster one colour: deny if any member is denied, else allow if any is allow."""
    for cluster in clusters:
        denied = next((v for v in cluster if canvas.deny[v]), None)
        allowed = next((v for v in cluster if canvas.allow[v]), None)
        for vertex in cluster:
            if denied is not None:
                canvas.unpaint_allow(vertex, "shares a tensor list with deny", denied)
                canvas.paint_deny(vertex, "shares a tensor list with deny", denied)
            elif allowed is not None:
                canvas.paint_allow(vertex, "shares a tensor list with allow", allowed)


def loop_edges(canvas: Canvas) -> list[tuple[int, list[int]]]:
    """Returns each NextIteration's vertex with the vertices of the Merge nodes it feeds; raises `GraphError` if it feeds anything else."""
    graph, found = canvas.graph, []
    for node in graph.body.nodes_of(["NextIteration"]):
        vertex = graph.first[node]
        for reader in graph.fanout[vertex]:
            if graph.op(reader) != "Merge":
                raise GraphError(f"NextIteration node {graph.body.names[node]!r} feeds {graph.op(reader)}; only Merge may follow it.")
        found.append((vertex, list(graph.fanout[vertex])))
    return found


def match_loop_edges(canvas: Canvas) -> None:
    """Makes each NextIteration agree with the Merge nodes it feeds: all allow or none, in one sweep in node order."""
    for vertex, merges in loop_edges(canvas):
        _agree(canvas, vertex, merges)


def _agree(canvas: Canvas, vertex: int, merges: list[int]) -> None:
    stray = next((merge for merge in merges if not canvas.allow[merge]), None)
    if stray is None:
        canvas.paint_allow(vertex, "closes a 16-bit loop edge", merges[0] if merges else -1)
        return
    for other in (vertex, *merges):
        canvas.unpaint_allow(other, "closes a float32 loop edge", stray)


def retarget_casts(canvas: Canvas) -> None:
    """Paints the result of an existing Cast to float32 allow if all its readers are, in one sweep in node order."""
    for vertex in _casts(canvas):
        _retarget(canvas, vertex)


def _casts(canvas: Canvas) -> list[int]:
    graph = canvas.graph
    vertices = (graph.vertex(node, Slot("DstT")) for node in graph.body.nodes_of(["Cast"]))
    return [v for v in vertices if v is not None and canvas.is_float32(v)]


def _retarget(canvas: Canvas, vertex: int) -> bool:
    readers = canvas.graph.fanout[vertex]
    if canvas.allow[vertex] or not readers or not all(canvas.allow[reader] for reader in readers):
        return False
    canvas.paint_allow(vertex, "existing cast, read by 16-bit ops only", readers[0])
    return True
