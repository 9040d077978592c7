"""Nodes that are taken out of protos, which are changed."""

from __future__ import annotations

from collections.abc import Mapping

from tfmp import tf_api
from tfmp.graph.edit import OURS
from tfmp.graph.wire import Proto


def without_idle_casts(proto: Proto) -> Proto:
    """Takes the casts that a conversion has added, and that cast to the type they read, out of `proto`, which is changed and returned."""
    nodes = proto.node_def if isinstance(proto, tf_api.FunctionDef) else proto.node
    idle = {node.name: node.input[0] for node in nodes if node.op == "Cast" and node.name.endswith(OURS) and node.attr["SrcT"].type == node.attr["DstT"].type}
    return without_nodes(proto, idle) if idle else proto


def without_nodes(proto: Proto, replaced: Mapping[str, str]) -> Proto:
    """Takes nodes out of `proto`, which is changed and returned.

    Args:
      proto: a FunctionDef or GraphDef.
      replaced: name of a node with one output to how the tensor is written that its readers read from now on; "" for a node that nothing reads.
    """
    is_function = isinstance(proto, tf_api.FunctionDef)
    nodes = proto.node_def if is_function else proto.node
    for node in nodes:
        node.input[:] = [_instead(text, replaced) for text in node.input]
    for result in proto.ret if is_function else ():
        proto.ret[result] = _instead(proto.ret[result], replaced)
    for index in reversed([index for index, node in enumerate(nodes) if node.name in replaced]):
        del nodes[index]
    return proto


def _instead(text: str, replaced: Mapping[str, str]) -> str:
    """Returns what to write for the input or result written `text`; chains of replaced nodes are followed."""
    control = text.startswith("^")
    name = text.removeprefix("^").partition(":")[0]
    while name in replaced:
        text = replaced[name]
        name = text.partition(":")[0]
        text = f"^{name}" if control else text
    return text
