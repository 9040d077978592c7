"""The guard for logarithms: products of which a logarithm is taken, as in the front end of most models of sound.

A product in 16 bit is wrong by some 2^-11 (float16) of what is *largest* in its inputs. A logarithm asks for the accuracy of what is small: the quiet bands of
a spectrum lie 60 to 120 dB below the loud ones, and squares of them are below what float16 holds. (The derivative of log x is 1/x.)
"""

from __future__ import annotations

from tfmp.colouring.canvas import Canvas
from tfmp.colouring.dangers import STATISTIC
from tfmp.colouring.guards import CARRIERS, ELEMENTWISE
from tfmp.colouring.typegraph import reach
from tfmp.oplists import ALLOW

LINEAR = frozenset({
    "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Conv2D", "Conv2DBackpropInput", "Conv3D", "Conv3DBackpropInputV2", "DepthwiseConv2dNative", "Einsum",
    "MatMul",
})  # fmt: skip
"""Products: what is small in their result comes of what is small in their inputs, or of terms that cancel."""

SUMS = frozenset({"Max", "Mean", "Min", "Sum"})

MOVES = frozenset({"AvgPool", "BatchToSpaceND", "BiasAdd", "Gather", "GatherNd", "GatherV2", "MaxPool", "MirrorPad", "ReverseV2", "Roll", "SpaceToBatchND"})

HANDS_ON = (CARRIERS | ELEMENTWISE | SUMS | MOVES) - {"Sign"}
"""Ops of which a small result comes of small inputs. Not: exponentials and what is made of them (softmax, sigmoid), where a small result comes of a large
negative input, nor Relu, so that the walk ends at the last layer of an ordinary network.
"""

BOUND = 0.1
"""log(c + x) of a positive x is no finer than that of c: from this c on, x need not be finer than ordinary data. Our own choice."""


def keep_what_logarithms_read(canvas: Canvas) -> None:
    """Keeps products in float32 whose result, or powers, sums and quotients of it, a logarithm reads, the products that those are made of, and what lies
    between them and the logarithm.
    """
    graph = canvas.graph
    logarithms = [v for node in graph.body.nodes_of(["Log"]) if _matters(canvas, node) for v in graph.vertices(node) if canvas.is_float32(v)]
    if not logarithms:
        return
    products = {v for v in canvas.on_lists({ALLOW}) if graph.op(v) in LINEAR}

    def enter(vertex: int) -> bool:
        return canvas.is_float32(vertex) and (vertex in products or vertex in graph.tied or (graph.op(vertex) in HANDS_ON and not _bounds(canvas, vertex)))

    read = {vertex for vertex, _ in reach(logarithms, (graph.fanin,), enter)}
    kept = sorted(read & products)
    for vertex, origin in (*reach(kept, (graph.fanout,), read.__contains__), *reach(kept, (graph.fanin,), read.__contains__)):
        if vertex in graph.tied:
            canvas.paint_deny(vertex, "read by a logarithm", origin)
        else:
            canvas.keep(graph.node_of[vertex], "read by a logarithm", -1 if origin == vertex else origin)


def _matters(canvas: Canvas, node: int) -> bool:
    """Returns whether a logarithm is one that somebody wrote and that will run: not the one in the gradient of x ** y by y, which is there for every x ** 2 and
    has nothing to do if y is a number (`_PowGrad` in `math_grad.py`: the logarithm of x where that is positive and else of 1).
    """
    body = canvas.graph.body
    choice = body.origin(body.inputs[node][0])[0]
    if not canvas.weight(node):
        return False
    if body.ops[choice] not in ("Select", "SelectV2"):
        return True
    decision, _, otherwise = (body.origin(edge) for edge in body.inputs[choice])
    if body.ops[otherwise[0]] == "Fill":
        otherwise = body.inputs[otherwise[0]][1]
    return body.ops[decision[0]] != "Greater" or not (body.ops[otherwise[0]] == "OnesLike" or canvas.ranges.of(otherwise) == (1.0, 1.0))


def _bounds(canvas: Canvas, vertex: int) -> bool:
    """Returns whether the op adds something that is nowhere small, or adds up many elements."""
    node = canvas.graph.node_of[vertex]
    op, inputs = canvas.graph.body.ops[node], canvas.graph.body.inputs[node]
    if op in ("Add", "AddV2"):
        return any(canvas.ranges.of(edge)[0] >= BOUND for edge in inputs)
    return op in SUMS and canvas.sizes.elements(inputs[0]) > STATISTIC * canvas.sizes.elements((node, 0))
