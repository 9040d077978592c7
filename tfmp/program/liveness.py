"""Which nodes of a function TensorFlow will run at all: the others are pruned before the first step, so nothing is gained by converting them.

Keras, for one, traces a recurrent cell once outside its loop to learn shapes, and leaves it in the graph.
"""

from __future__ import annotations

from tfmp.graph.schema import registered_schema
from tfmp.graph.view import Body


def dead_nodes(body: Body) -> list[int]:
    """Returns the nodes of a function from which no path of tensors or control edges leads to a result, a control result or a stateful op.

    (`PruneFunctionGraph` in TensorFlow's `graph_optimizer` keeps just those.) A main graph has none: what is fetched from it next time is not known.
    """
    if not body.name:
        return []
    stateful = {op: op not in body.called_as_ops and registered_schema(op).stateful for op in {body.ops[node] for node in body.proto_nodes}}
    stack = [node for node in body.proto_nodes if stateful[body.ops[node]] or body.ops[node] in body.called_as_ops]
    stack += range(body.proto_nodes.stop, body.proto_nodes.stop + body.results)
    stack += [body.by_name[name] for name in body.control_results]
    live = bytearray(len(body))
    while stack:
        node = stack.pop()
        if not live[node]:
            live[node] = 1
            stack += [source for source, _ in body.inputs[node]]
            if node in body.controlled:
                stack += [body.by_name[text[1:]] for text in body.protos[node].input if text[0] == "^"]  # type: ignore[union-attr]
    return [node for node in body.proto_nodes if not live[node]]
