"""Signatures with inputs and outputs of another float type (`--io-dtype`)."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from tfmp import tf_api
from tfmp import tf_saved_model as tfs
from tfmp.dtypes import DT_FLOAT, FloatFormat
from tfmp.files.views import GraphView, tensor_names
from tfmp.graph.body import Body
from tfmp.graph.edit import GraphEditor
from tfmp.graph.library import with_bodies
from tfmp.graph.objects import set_signature_types
from tfmp.graph.schema import Slot
from tfmp.graph.view import read_graph
from tfmp.program.calls import CALLING_OPS, callees
from tfmp.rewriting.retype import End, retyped

INPUTS = frozenset({"Placeholder", "PlaceholderWithDefault"})


@dataclasses.dataclass(frozen=True)
class Renamed:
    """A graph with a new interface, and the tensors that are called otherwise than before."""

    graph: tf_api.GraphDef
    tensors: Mapping[str, str]


def retyped_signatures(meta: tfs.MetaGraphDef, view: GraphView, target: FloatFormat) -> None:
    """Gives every float32 tensor that a signature of `meta`, whose graph `view` shows, takes or returns the type `target`; `meta` is changed."""
    signatures = list(meta.signature_def.values())
    taken, given = ({name for one in signatures for info in getattr(one, side).values() for name in tensor_names(info)} for side in ("inputs", "outputs"))
    functions = [name for name, path in view.objects.functions.items() if path.startswith("signatures.") and name in view.bodies]
    new = _retyped(view, taken, given, functions, target, keep_names=False)
    meta.graph_def.CopyFrom(new.graph)
    after = read_graph(meta.graph_def, view.schemas)
    for info in (info for one in signatures for side in (one.inputs, one.outputs) for info in side.values()):
        if info.WhichOneof("encoding") == "name":
            info.name = new.tensors.get(info.name, info.name)
            info.dtype = target.number if info.dtype == DT_FLOAT and _type(after, info.name) == target.number else info.dtype
    for name in functions:
        set_signature_types(meta.object_graph_def, name, DT_FLOAT, target.number)


def retyped_interface(view: GraphView, inputs: Iterable[str], outputs: Iterable[str], target: FloatFormat) -> tf_api.GraphDef:
    """Returns a copy of a frozen graph whose float32 `inputs` and `outputs` (names of tensors or nodes) are of type `target` under their old names."""
    return _retyped(view, set(inputs), set(outputs), [], target, keep_names=True).graph


def _retyped(view: GraphView, taken: set[str], given: set[str], functions: Iterable[str], target: FloatFormat, keep_names: bool) -> Renamed:
    ends: dict[str, set[End]] = collections.defaultdict(set)
    main = view.bodies[""]
    for name in taken:
        node = main.by_name[_node(name)]
        if main.ops[node] in INPUTS and main.types[node] == [DT_FLOAT]:
            ends[""].add((node, Slot("dtype")))
    for function in functions:
        _add_function_ends(view, function, ends)
    new = {name: retyped(view.bodies[name], _definition(view, name), chosen, target, view.schemas) for name, chosen in ends.items()}
    graph = with_bodies(view.graph, new)
    body = read_graph(graph, view.schemas)
    wide = sorted(name for name in given if _type(body, name) == DT_FLOAT)
    return _with_casts(body, graph, wide, target, keep_names)


def _add_function_ends(view: GraphView, function: str, ends: dict[str, set[End]]) -> None:
    """Adds the float32 arguments that are not bound, the float32 results, and what hands them over and takes them at every call."""
    body = view.bodies[function]
    free = body.arguments - len(view.objects.bound.get(function, ()))
    arguments = [node for node in range(free) if body.types[node] == [DT_FLOAT]]
    results = [node for node in range(len(body) - body.results, len(body)) if body.types[node] == [DT_FLOAT]]
    ends[function] |= {(node, Slot("T")) for node in (*arguments, *results)}
    for name, caller in view.bodies.items():
        for node in caller.proto_nodes:
            proto, row = caller.protos[node], CALLING_OPS.get(caller.ops[node])
            if row is not None and proto is not None and function in callees(proto):
                ends[name] |= {(node, Slot(row.inputs, argument)) for argument in arguments}
                ends[name] |= {(node, Slot(row.outputs, result - (len(body) - body.results))) for result in results}


def _with_casts(body: Body, graph: tf_api.GraphDef, tensors: Iterable[str], target: FloatFormat, keep_names: bool) -> Renamed:
    """Adds a cast behind each of `tensors`; with `keep_names`, the cast has the name, and the node another one."""
    editor = GraphEditor(body, graph)
    names: dict[str, str] = {}
    for tensor in tensors:
        node = body.by_name[_node(tensor)]
        port = int(tensor.partition(":")[2] or 0)
        old = body.names[node]
        if keep_names and port == 0 and len(body.layouts[node].outputs) == 1:
            inner = _free(body, f"{old}_float32")
            editor.node(node).name = inner
            for number in body.proto_nodes:
                editor.rename_inputs(number, old, inner)
            editor.add_cast(old, inner, body.devices[node], DT_FLOAT, target.number)
        else:
            name = _free(body, f"{old}-{port}-{target.cast_name}")
            editor.add_cast(name, body.tensor_name((node, port)), body.devices[node], DT_FLOAT, target.number)
            names[tensor] = f"{name}:0"
    return Renamed(editor.edited(), names)


def _definition(view: GraphView, name: str) -> tf_api.FunctionDef | tf_api.GraphDef:
    return next((function for function in view.graph.library.function if function.signature.name == name), view.graph) if name else view.graph


def _type(body: Body, tensor: str) -> int:
    node = body.by_name.get(_node(tensor), -1)
    port = int(tensor.partition(":")[2] or 0)
    if node < 0 or port >= len(body.layouts[node].outputs):
        return 0
    return body.types[node][body.layouts[node].outputs[port]]


def _node(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]


def _free(body: Body, stem: str) -> str:
    name, number = stem, 0
    while name in body.by_name:
        number += 1
        name = f"{stem}_{number}"
    return name
