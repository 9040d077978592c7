"""The graphs of a file as views, one for each MetaGraph, with what is known about them from outside: signatures, collections, the object graph."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping

from tfmp import tf_api
from tfmp import tf_saved_model as tfs
from tfmp.errors import GraphError
from tfmp.graph.body import Body
from tfmp.graph.objects import Objects, read_objects
from tfmp.graph.schema import OpSchema
from tfmp.graph.view import library_schemas, read_function, read_graph

VARIABLE_COLLECTIONS = ("variables", "trainable_variables", "local_variables", "model_variables", "moving_average_variables")
"""Collections of `VariableDef`s in graphs of TensorFlow 1 (`GraphKeys` in `framework/ops.py`)."""


@dataclasses.dataclass(frozen=True)
class GraphView:
    """One main graph and its library.

    Attributes:
      number: which of the file's graphs it is.
      graph: the proto that the views were read from.
      bodies: name to view, "" for the main graph; a function that cannot be read is left out.
      schemas: schemas of the library's functions.
      objects: what the object graph says.
      object_graph: the object graph itself, or None.
      initializers: names of the nodes that give variables their first values.
      outputs: names of the main graph's nodes that the signatures fetch.
      named: names of the main graph's nodes that anything outside the graph names.
    """

    number: int
    graph: tf_api.GraphDef
    bodies: Mapping[str, Body]
    schemas: Mapping[str, OpSchema]
    objects: Objects
    object_graph: tfs.SavedObjectGraph | None
    initializers: frozenset[str]
    outputs: frozenset[str]
    named: frozenset[str]

    @functools.cached_property
    def needed(self) -> bytearray:
        """Node of the main graph to 1 if a signature's outputs need it."""
        return ancestors(self.bodies[""], self.outputs)

    @functools.cached_property
    def run(self) -> bytearray:
        """Node of the main graph to 1 if something that is named outside the graph needs it: outputs, savers, initializers, training ops in collections."""
        return ancestors(self.bodies[""], self.named)

    @functools.cached_property
    def live(self) -> frozenset[str]:
        """The functions that users can call, or that the outputs need, and what those call, directly or not."""
        main = self.bodies[""]
        todo = [name for node in main.proto_nodes if self.needed[node] for name in references(main.protos[node])]
        todo += [name for name in self.objects.functions if name in self.bodies]
        seen = set[str]()
        while todo:
            name = todo.pop()
            if name in self.bodies and name not in seen:
                seen.add(name)
                todo += [callee for node in self.bodies[name].proto_nodes for callee in references(self.bodies[name].protos[node])]
        return frozenset(seen)


def references(node: tf_api.NodeDef | None) -> Iterator[str]:
    """Yields the functions that a node mentions."""
    for value in node.attr.values() if node is not None else ():
        yield from (f.name for f in ([value.func] if value.HasField("func") else value.list.func))


def ancestors(body: Body, names: Iterable[str]) -> bytearray:
    """Returns, for each node of a main graph, 1 if one of those called `names` needs it, through data or control."""
    found = bytearray(len(body))
    todo = [body.by_name[name] for name in names if name in body.by_name]
    while todo:
        node = todo.pop()
        if not found[node]:
            found[node] = 1
            proto = body.protos[node]
            todo += [source for source, _ in body.inputs[node]]
            todo += [body.by_name[text[1:]] for text in (proto.input if proto is not None else ()) if text[0] == "^" and text[1:] in body.by_name]
    return found


def view_graph(
    number: int,
    graph: tf_api.GraphDef,
    outputs: frozenset[str],
    named: frozenset[str],
    object_graph: tfs.SavedObjectGraph | None = None,
    initializers: frozenset[str] = frozenset(),
) -> GraphView:
    """Returns the view of `graph`; the other arguments are the attributes of `GraphView`. Raises `GraphError` if the main graph cannot be read."""
    schemas = library_schemas(graph.library.function)
    bodies = {"": read_graph(graph, schemas)}
    for function in graph.library.function:
        if not function.signature.attr:  # a template: what its types are is up to each call
            try:
                bodies[function.signature.name] = read_function(function, schemas)
            except GraphError:  # whoever calls it is then a call that cannot be followed
                continue
    objects = read_objects(object_graph or tfs.SavedObjectGraph())
    return GraphView(number, graph, bodies, schemas, objects, object_graph, initializers, outputs, named)


def view_meta_graph(number: int, meta: tfs.MetaGraphDef, graph: tf_api.GraphDef) -> GraphView:
    """Returns the view of `graph`, a rewritten form of the graph of `meta`."""
    definitions = list(variable_definitions(meta))
    initializers = frozenset(definition.initializer_name for definition in definitions)
    return view_graph(number, graph, signature_nodes(meta, outputs_only=True), named_nodes(meta), meta.object_graph_def, initializers)


def variable_definitions(meta: tfs.MetaGraphDef) -> Iterator[tfs.VariableDef]:
    """Yields the variables that the collections of `meta` name."""
    for name in VARIABLE_COLLECTIONS:
        for content in meta.collection_def[name].bytes_list.value if name in meta.collection_def else ():
            yield tfs.VariableDef.FromString(content)


def signature_nodes(meta: tfs.MetaGraphDef, outputs_only: bool = False) -> frozenset[str]:
    """Returns the names of the main graph's nodes that the signatures of `meta` name."""
    sides = [side for signature in meta.signature_def.values() for side in ((signature.outputs,) if outputs_only else (signature.inputs, signature.outputs))]
    return frozenset(_node(name) for side in sides for info in side.values() for name in tensor_names(info))


def named_nodes(meta: tfs.MetaGraphDef) -> frozenset[str]:
    """Returns the names of the main graph's nodes that something outside the graph names: signatures, savers, collections, variables, assets."""
    saver = meta.saver_def
    names = {saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name}
    names |= {name for collection in meta.collection_def.values() for name in collection.node_list.value}
    names |= {asset.tensor_info.name for asset in meta.asset_file_def}
    for variable in variable_definitions(meta):
        names |= {variable.variable_name, variable.initializer_name, variable.snapshot_name, variable.initial_value_name}
    return frozenset({_node(name) for name in names if name}) | signature_nodes(meta)


def tensor_names(info: tf_api.Message) -> Iterator[str]:
    """Yields the tensors of the main graph that a `TensorInfo` names: one, or the parts of a sparse or composite tensor."""
    kind = info.WhichOneof("encoding")
    if kind == "name":
        yield info.name
    elif kind == "coo_sparse":
        sparse = info.coo_sparse
        yield from (sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name)
    elif kind == "composite_tensor":
        for part in info.composite_tensor.components:
            yield from tensor_names(part)


def _node(name: str) -> str:
    return name.removeprefix("^").partition(":")[0]
