"""The ops that call functions which tfmp may rewrite, as one table.

An op that is not here keeps the functions it names untouched: a `tf.data` op's functions belong to the input pipeline, and SymbolicGradient
differentiates the function it names, so its types must stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tfmp import tf_api
from tfmp.graph.body import Body

MUST_COMPILE = "_XlaMustCompile"
"""Attribute of a call node and of a function: the callee is compiled by XLA (`jit_compile=True`; `compiler/jit/defs.cc`)."""

IMPLEMENTS = "api_implements"
"""Attribute of a function that TensorFlow may swap, on another device, for a function with the same value and the same signature (`implementation_selector.cc`;
tf_keras's LSTM and GRU layers)."""


@dataclasses.dataclass(frozen=True)
class CallingOp:
    """One op that runs functions.

    Attributes:
      op: the op type.
      function_attrs: the attributes that name functions (`func` or `list(func)`).
      inputs: the list(type) attribute whose entries are the arguments of every function.
      outputs: the one whose entries are the results; a loop has one for both, since what it carries has one type.
      predicates: those of `function_attrs` whose result is not a result of the op (a loop's condition).
    """

    op: str
    function_attrs: tuple[str, ...]
    inputs: str = "Tin"
    outputs: str = "Tout"
    predicates: tuple[str, ...] = ()


CALLING_OPS = {
    row.op: row
    for row in (
        CallingOp("PartitionedCall", ("f",)),
        CallingOp("StatefulPartitionedCall", ("f",)),
        CallingOp("While", ("cond", "body"), "T", "T", ("cond",)),
        CallingOp("StatelessWhile", ("cond", "body"), "T", "T", ("cond",)),
        CallingOp("If", ("then_branch", "else_branch")),
        CallingOp("StatelessIf", ("then_branch", "else_branch")),
        CallingOp("Case", ("branches",)),
        CallingOp("StatelessCase", ("branches",)),
    )
}


def argument_ports(body: Body, node: int) -> list[int]:
    """Returns the input ports of a calling node whose values are the arguments of what it calls."""
    layout, attr = body.layouts[node], CALLING_OPS[body.ops[node]].inputs
    return [port for port, slot in enumerate(layout.inputs) if layout.slots[slot].attr == attr]


def is_compiled(attrs: object) -> bool:
    """Returns whether the attributes (a proto map) of a call node or function ask for compilation by XLA."""
    value = attrs.get(MUST_COMPILE)  # type: ignore[attr-defined]
    return value is not None and value.b


def callees(proto: tf_api.NodeDef) -> Iterator[str]:
    """Yields the names of the functions that a node calls, in the order of `CALLING_OPS`; none if its op is not there."""
    row = CALLING_OPS.get(proto.op)
    for attr in row.function_attrs if row else ():
        value = proto.attr.get(attr)
        if value is not None:
            yield from (f.name for f in ([value.func] if value.HasField("func") else value.list.func))


def call_nodes(body: Body) -> Iterator[tuple[int, list[str]]]:
    """Yields each calling node of `body` with the names of what it calls; a node whose op is itself a function's name is not one of them."""
    for node in body.nodes_of(CALLING_OPS):
        yield node, list(callees(body.protos[node]))
