"""Copies of functions whose nodes hand their outputs to Python callbacks: how `numerics` looks at every tensor, in loops and branches too.

A tap is a PyFunc node without outputs. It is stateful, so no optimizer of TensorFlow drops it, and it is a control result of its function (or what reads
the tapped node waits for it), so it runs wherever the function runs, also where calls are inlined and loops are lowered.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Collection, Iterable, Sequence

from tfmp import tf_api
from tfmp.graph.body import RETVAL, Body, Edge
from tfmp.graph.edit import GraphEditor
from tfmp.graph.retarget import Retarget, retargeted

STATEFUL = {"PartitionedCall": "StatefulPartitionedCall", "StatelessWhile": "While", "StatelessIf": "If", "StatelessCase": "Case"}
"""Ops that call functions which may have no side effects, to the same op without that promise (`functional_ops.cc`: the attributes are the same)."""

FRAME_OPS = frozenset({"Enter", "Exit", "Merge", "NextIteration", "Switch"})
"""TensorFlow 1's loops and branches, in which a control edge may not leave its frame or branch."""

COMPILED = ("_XlaMustCompile", "_XlaCompile")
"""Attributes that hand a function to XLA, which cannot call Python."""


DEVICE = re.compile(r"(device:|/)(?!CPU|cpu)\w+:\d+$")
"""The device in a device string ("/job:worker/replica:0/task:1/device:GPU:0", "/gpu:0"), if it is no CPU: Python runs on the CPU beside it."""


@dataclasses.dataclass(frozen=True)
class Tap:
    """The outputs `ports` of `node` go to the callback registered as `token`, every time the node runs."""

    node: int
    ports: tuple[int, ...]
    token: str


def with_taps(
    body: Body,
    name: str,
    taps: Sequence[Tap],
    calls: Collection[int],
    retargets: Iterable[Retarget],
    *,
    place: str,
    in_turn: bool,
) -> tf_api.FunctionDef:
    """Returns a copy of a function, called `name`, with `taps`. It is never compiled by XLA.

    Args:
      body: the function; it is not changed.
      name: the name of the copy.
      taps: what to look at, at most one for each node.
      calls: nodes that call functions with taps.
      place: where in its program the function is called. Random ops that have no seed get one that depends on it, so that the copies of a program and of
        its conversion draw the same numbers.
      retargets: what those nodes call now.
      in_turn: let taps, and the calls with taps, run one after the other in topological order, loops one step at a time, and no stateless op before the
        taps that precede it. Not done in a function with TensorFlow 1's loops or branches.
    """
    editor = GraphEditor(body)
    head = editor.head
    for attr in COMPILED:
        head.attr.pop(attr, None)
    for number in calls:
        node = editor.node(number)
        node.op = STATEFUL.get(node.op, node.op)
        for attr in COMPILED:
            node.attr.pop(attr, None)
        if in_turn and node.op == "While":
            node.attr["parallel_iterations"].i = 1
    _seed(editor, place)
    framed = not FRAME_OPS.isdisjoint(body.ops)
    readers = body.readers if framed else []
    waits = in_turn and not framed
    by_node = {tap.node: tap for tap in taps if body.ops[tap.node] != "Switch"}  # one of a Switch's outputs never comes
    before = ""
    for number in topological(body):
        tap = by_node.get(number)
        if tap is None and number not in calls:
            continue
        if before and waits and number in body.proto_nodes and _may_wait(body, number):
            editor.node(number).input.append(f"^{before}")
        if number in calls:
            before = body.names[number]
        if tap is not None:
            before = _add(editor, tap, before if waits else "")
            if not framed or _hold_up(editor, tap, before, readers):
                editor.add_control_output(before)
    head.signature.is_stateful |= bool(taps or calls)
    return retargeted(editor.edited(), name, retargets)


def _may_wait(body: Body, number: int) -> bool:
    """A stateful op may be waited for by another one that comes later in the order (a collective on another device); only calls, which hold taps, wait."""
    op = body.ops[number]
    definition = tf_api.op_def(op)
    return op != "Const" and (op in STATEFUL or op in STATEFUL.values() or (definition is not None and not definition.is_stateful))


def _add(editor: GraphEditor, tap: Tap, before: str) -> str:
    """Adds the node of one tap, that runs after the node `before`; returns its name."""
    name, body = f"tfmp_tap_{tap.node}", editor.body
    while name in body.by_name:
        name += "_"
    node = tf_api.NodeDef(name=name, op="PyFunc", device=DEVICE.sub(r"\1CPU:0", body.devices[tap.node]))
    layout, types = body.layouts[tap.node], body.types[tap.node]
    for port in tap.ports:
        node.input.append(body.tensor_name((tap.node, port)))
        node.attr["Tin"].list.type.append(types[layout.outputs[port]])
    if before:
        node.input.append(f"^{before}")
    node.attr["Tout"].list.SetInParent()
    node.attr["token"].s = tap.token.encode()
    editor.add(node)
    return name


def _hold_up(editor: GraphEditor, tap: Tap, name: str, readers: Sequence[Sequence[Sequence[Edge]]]) -> bool:
    """Makes what reads a tapped node wait for its tap, which is in the same frame and branch; returns whether a result of the function does.

    In TensorFlow 1's loops a tap cannot be a control result, so this is what makes it run. A Merge waits for one of its inputs only.
    """
    found = False
    for reader in {node for port in tap.ports for node, _ in readers[tap.node][port]}:
        if editor.body.ops[reader] == RETVAL:
            found = True
        elif editor.body.ops[reader] != "Merge":
            editor.node(reader).input.append(f"^{name}")
    return found


def _seed(editor: GraphEditor, place: str) -> None:
    for number in editor.body.proto_nodes:
        proto = editor.body.protos[number]
        seeds = [proto.attr.get(attr) for attr in ("seed", "seed2")]
        if all(seed is not None and seed.i == 0 for seed in seeds):
            editor.node(number).attr["seed2"].i = 1 + zlib.crc32(f"{place}/{editor.body.names[number]}".encode())


def topological(body: Body) -> list[int]:
    """Returns the numbers of the arguments and nodes of a function, each after those whose outputs it reads or that it waits for, otherwise in their order.

    Nodes in a cycle (TensorFlow 1's loops) come last, in their order.
    """
    sources = [{source for source, _ in edges}.union(body.controlled.get(number, ())) for number, edges in enumerate(body.inputs)]
    readers: list[list[int]] = [[] for _ in sources]
    for number, found in enumerate(sources):
        for source in found:
            readers[source].append(number)
    missing = [len(found) for found in sources]
    order: list[int] = []
    stack = [number for number in reversed(range(len(body))) if not missing[number]]
    while stack:
        number = stack.pop()
        order.append(number)
        for reader in reversed(readers[number]):
            missing[reader] -= 1
            if not missing[reader]:
                stack.append(reader)
    done = set(order)
    order += [number for number in range(len(body)) if number not in done]
    return [number for number in order if number < body.proto_nodes.stop]
