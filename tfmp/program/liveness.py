"""Which nodes of a function TensorFlow will run at all: the others are pruned before the first step, so nothing is gained by converting them.

Keras, for one, traces a recurrent cell once outside its loop to learn shapes, and leaves it in the graph.
"""

from __future__ import annotations

from tfmp.graph.schema import registered_schema
from tfmp.graph.view import Body


def dead_nodes(body: Body) -> tuple[int, ...]:
    """Returns the nodes of a function from which no path of tensors or control edges leads to a result, a control result or a stateful op.

    (`PruneFunctionGraph` in TensorFlow's `graph_optimizer` keeps just those.) A main graph has none: what is fetched from it next time is not known.
    """
    if body.dead is None:
        body.dead = tuple(_dead_nodes(body)) if body.name else ()
    return body.dead


def _dead_nodes(body: Body) -> list[int]:
    stateful = {op: op not in body.called_as_ops and registered_schema(op).stateful for op in {body.ops[node] for node in body.proto_nodes}}
    roots = {op for op, is_stateful in stateful.items() if is_stateful or op in body.called_as_ops}
    state = bytearray(LIVE if op in roots else DEAD for op in body.ops)
    results = range(body.proto_nodes.stop, body.proto_nodes.stop + body.results)
    for node in (*results, *(body.by_name[name] for name in body.control_results)):
        state[node] = LIVE
    inputs, controlled = body.inputs, body.controlled
    while LIVE in state:  # once, where nodes come after what they read, as they mostly do
        for node in reversed(range(len(body))):
            if state[node] == LIVE:
                state[node] = DONE
                for source, _ in inputs[node]:
                    state[source] = state[source] or LIVE
                for source in _controlling(body, node) if node in controlled else ():
                    state[source] = state[source] or LIVE
    return [node for node in body.proto_nodes if not state[node]]


DEAD, LIVE, DONE = range(3)
"""Not known to be needed; needed; needed, and so is known to be what it reads."""


def _controlling(body: Body, node: int) -> list[int]:
    return [body.by_name[text[1:]] for text in body.protos[node].input[:] if text[0] == "^"]  # type: ignore[union-attr]
