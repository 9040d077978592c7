"""Constants that are weights: stored once, in 16 bit, under the name they had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tfmp import tf_api
from tfmp.dtypes import DT_FLOAT, FloatFormat
from tfmp.graph.body import Body
from tfmp.graph.edit import OURS, GraphEditor
from tfmp.graph.remove import without_nodes
from tfmp.graph.wire import Proto


def copies(body: Body, target: FloatFormat) -> dict[int, list[int]]:
    """Returns, for each float32 Const of `body` that a conversion has stored once more in `target`, the numbers of those copies.

    (`GraphEditor.add_constant` makes them, and their names say of what.)
    """
    found: dict[int, list[int]] = {}
    for node in body.proto_nodes:
        original, middle, _ = body.names[node].rpartition(f"-0-{target.cast_name}-")
        number = body.by_name.get(original) if middle and body.ops[node] == "Const" and body.names[node].endswith(OURS) else None
        if number is not None and body.ops[number] == "Const" and body.types[number] == [DT_FLOAT]:
            found.setdefault(number, []).append(node)
    return found


def with_rounded_values(proto: Proto, stored: Mapping[str, Iterable[str]], dtype: int) -> Proto:
    """Rounds constants of `proto`, which is changed and returned.

    Args:
      proto: a FunctionDef or GraphDef.
      stored: name of a Const whose type is `dtype` already, but whose value is still float32, to the names of its copies. What reads a copy reads the
        Const instead, and the copies are gone.
      dtype: number of the 16-bit type.
    """
    is_function = isinstance(proto, tf_api.FunctionDef)
    replaced: dict[str, str] = {}
    for node in proto.node_def if is_function else proto.node:
        if node.name in stored:
            value = tf_api.read_tensor(node.attr["value"].tensor)
            node.attr["value"].tensor.CopyFrom(tf_api.make_tensor(value, dtype))
            replaced.update(dict.fromkeys(stored[node.name], f"{node.name}:output:0" if is_function else node.name))
    return without_nodes(proto, replaced) if replaced else proto


def with_cast_constants(body: Body, original: Proto, twins: Mapping[int, Sequence[int]], target: FloatFormat) -> Proto:
    """Returns a copy of `original` in which the copies of constants that are in `twins` (as `copies` returns them) are casts of their originals."""
    editor, readers = GraphEditor(body, original), body.readers
    for number, found in twins.items():
        for twin in found:
            node = editor.node(twin)
            name, device = node.name, node.device
            node.Clear()
            node.name, node.op, node.device = name, "Cast", device
            node.input.append(body.tensor_name((number, 0)))
            node.attr["SrcT"].type, node.attr["DstT"].type, node.attr["Truncate"].b = DT_FLOAT, target.number, False
            for reader in readers[twin][0]:
                editor.redirect(reader, f"{name}:y:0" if body.name else name)
    return editor.edited()
