"""A conversion worked out from beginning to end, before anything is written."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

from tfmp import tf_api
from tfmp import tf_saved_model as tfs
from tfmp.colouring.reasons import ROUNDS_BADLY
from tfmp.dtypes import DT_RESOURCE, DT_VARIANT
from tfmp.errors import GraphError, RewriteError, SettingsError
from tfmp.files.bundle import Bundle
from tfmp.files.check import Request
from tfmp.files.interface import INPUTS, retyped_interface, retyped_signatures
from tfmp.files.options import IO_FORMATS, Options
from tfmp.files.programs import Outcome, Progress, Root, convert_programs
from tfmp.files.report import FileReport
from tfmp.files.source import GraphSource, SavedModelSource, Sizes, Source, sizes_of
from tfmp.files.storing import stored
from tfmp.files.tally import import_all
from tfmp.files.views import ancestors, named_nodes, view_graph, view_meta_graph
from tfmp.files.weights import Storage, Target, kept_by, plan_storage
from tfmp.graph import kernels
from tfmp.graph.body import Body
from tfmp.graph.kernels import XLA_DEVICES
from tfmp.graph.objects import read_objects, set_types
from tfmp.graph.view import library_schemas, read_graph
from tfmp.oplists import ALLOW

KERAS_METADATA = "keras_metadata.pb"
"""File with which tf_keras rebuilds its layers."""

OpAndName: TypeAlias = tuple[str, str]
"""Op type and name of a node."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A conversion that is ready to be written.

    Attributes:
      source: what was read.
      options: what it was converted to.
      proto: the new SavedModel or GraphDef.
      bundle: the checkpoint of the original, or None.
      storage: which of its tensors change their type.
      report: what it comes to.
      inputs, outputs: those of a frozen graph.
    """

    source: Source
    options: Options
    proto: tfs.SavedModel | tf_api.GraphDef
    bundle: Bundle | None
    storage: Storage
    report: FileReport
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def request(self, converted: str, data: str) -> Request:
        """Returns what is to be compared."""
        tags = sorted(self.source.proto.meta_graphs[0].meta_info_def.tags) if isinstance(self.source, SavedModelSource) else ()
        return Request(os.fspath(self.source.path), converted, data, tags, self.inputs, self.outputs, self.options.modules)


def plan_file(source: Source, options: Options, progress: Progress) -> Plan:
    """Returns the conversion of `source`; raises what `convert` raises about it."""
    _import(options.modules)
    _check_kernels(options)
    return _plan_saved_model(source, options, progress) if isinstance(source, SavedModelSource) else _plan_graph(source, options, progress)


def _plan_saved_model(source: SavedModelSource, options: Options, progress: Progress) -> Plan:
    bundle = Bundle(source.variables) if source.variables else None
    views, outcomes, delicate = [], [], set[OpAndName]()
    for number, meta in enumerate(source.proto.meta_graphs):
        objects = read_objects(meta.object_graph_def)
        roots = [Root("", "main graph", named_nodes(meta)), *(Root(name, path) for name, path in objects.functions.items())]
        nodes = meta.object_graph_def.nodes
        bound = {name: {at: nodes[number].variable.name for at, number in enumerate(numbers)} for name, numbers in objects.bound.items()}
        graph, found = convert_programs(meta.graph_def, roots, objects.named, bound, options, progress)
        views.append(view_meta_graph(number, meta, graph))
        delicate |= _delicate(found)
        outcomes += found if objects.functions == {} else found[1:]
    storage = plan_storage(views, bundle, _storage_target(options, delicate))
    proto = tfs.SavedModel()
    proto.CopyFrom(source.proto)
    for view, meta in zip(views, proto.meta_graphs, strict=True):
        meta.graph_def.CopyFrom(stored(view, storage, options.format))
        set_types(meta.object_graph_def, {node for graph, node in storage.variables if graph == view.number}, options.format.number)
        if options.io_dtype:
            retyped_signatures(meta, view_meta_graph(view.number, meta, meta.graph_def), IO_FORMATS[options.io_dtype])
        _list_ops(meta)
        import_all(meta.graph_def, "TensorFlow cannot read the converted graph", RewriteError)
    before = sizes_of(source.path)
    after = dataclasses.replace(before, graphs=proto.ByteSize(), weights=before.weights - sum(bundle.size(key) // 2 for key in storage.keys if bundle))
    return Plan(source, options, proto, bundle, storage, _report(source, options, "SavedModel", outcomes, storage, before, after))


def _plan_graph(source: GraphSource, options: Options, progress: Progress) -> Plan:
    body = read_graph(source.proto, library_schemas(source.proto.library.function))
    outputs = _outputs(body, options.outputs)
    needed = ancestors(body, (name.partition(":")[0] for name in outputs))
    inputs = tuple(body.names[node] for node in body.proto_nodes if body.ops[node] in INPUTS and needed[node] and _is_value(body, node, 0))
    named = frozenset(name.partition(":")[0] for name in (*inputs, *outputs))
    graph, outcomes = convert_programs(source.proto, [Root("", "graph", named)], (), {}, options, progress)
    nodes = frozenset(name.partition(":")[0] for name in outputs)
    view = view_graph(0, graph, nodes, named)
    storage = plan_storage([view], None, _storage_target(options, _delicate(outcomes)))
    proto = stored(view, storage, options.format)
    if options.io_dtype:
        proto = retyped_interface(view_graph(0, proto, nodes, named), inputs, outputs, IO_FORMATS[options.io_dtype])
    import_all(proto, "TensorFlow cannot read the converted graph", RewriteError)
    before, after = Sizes(source.path.stat().st_size, 0, 0), Sizes(proto.ByteSize(), 0, 0)
    report = _report(source, options, "frozen graph", outcomes, storage, before, after)
    return Plan(source, options, proto, None, storage, report, inputs, outputs)


def _outputs(body: Body, wanted: Sequence[str]) -> tuple[str, ...]:
    """Returns the outputs of a frozen graph: the wanted ones, or every tensor of the nodes that nothing reads; raises `GraphError` if one is not there."""
    for name in wanted:
        if name.partition(":")[0] not in body.by_name:
            raise GraphError(f"output {name!r} is not in the graph, which has {len(body.names)} nodes.")
    if wanted:
        return tuple(wanted)
    read = {source for edges in body.inputs for source, _ in edges}
    unread = [node for node in body.proto_nodes if node not in read and body.ops[node] not in (*INPUTS, "Const")]
    found = ((node, port) for node in unread for port in range(len(body.layouts[node].outputs)))
    return tuple(body.names[node] + (f":{port}" if port else "") for node, port in found if _is_value(body, node, port))


def _is_value(body: Body, node: int, port: int) -> bool:
    return body.types[node][body.layouts[node].outputs[port]] not in (DT_RESOURCE, DT_VARIANT)


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise SettingsError(f"module {module!r} cannot be imported: {error}.") from None


def _check_kernels(options: Options) -> None:
    """Raises `SettingsError` where TensorFlow here knows no kernels of the device at all: nothing would be converted, and nobody would know why."""
    devices = _devices(options)
    if not any(kernels.has_kernel("MatMul", device, {"T": frozenset({options.format.number})}) for device in devices):
        raise SettingsError(
            f"device is {options.device.name!r}, but the TensorFlow that is installed here has no {options.format.name} kernels for it, so that nothing can be "
            "decided. Use the tensorflow package rather than tensorflow-cpu (no GPU is needed), or another device."
        )


def _devices(options: Options) -> tuple[str, ...]:
    return (XLA_DEVICES[options.device.type],) if options.device.compiled else (options.device.type,)


def _delicate(outcomes: Iterable[Outcome]) -> set[OpAndName]:
    """Returns op types and names of the products that stay in float32 because of their numbers. Which function they are in is left out: a namesake in another
    one keeps its weights, too, which costs space and nothing else.
    """
    conversions = (outcome.conversion for outcome in outcomes if outcome.conversion is not None)
    found = (decision for one in conversions for decision in one.decisions(one.lists.ops(ALLOW)))
    return {(decision.op, decision.node) for decision in found if decision.rule in ROUNDS_BADLY}


def _storage_target(options: Options, delicate: Collection[OpAndName]) -> Target:
    rules = options.settings.user_rules[0]

    def kept(names: Iterable[str]) -> str:
        known = list(names)
        return next((str(rule) for rule in rules if rule.kind in ("name", "variable") and any(fnmatch.fnmatchcase(name, rule.pattern) for name in known)), "")

    def kept_op(op: str, name: str) -> bool:
        values = {"op": op, "name": name}
        return (op, name) in delicate or any(rule.kind in values and fnmatch.fnmatchcase(values[rule.kind], rule.pattern) for rule in rules)

    return Target(options.format, _devices(options), options.settings.lists(options.settings.dtype), kept, kept_op, options.keep_weights)


def _list_ops(meta: tfs.MetaGraphDef) -> None:
    """Adds the ops that conversions add to the list of ops that a MetaGraph has, for loaders that look there for defaults of attributes."""
    listed = meta.meta_info_def.stripped_op_list.op
    definition = tf_api.op_def("Cast")
    if listed and definition is not None and all(one.name != "Cast" for one in listed):
        listed.append(definition)


def _report(source: Source, options: Options, kind: str, outcomes: Sequence[Outcome], storage: Storage, before: Sizes, after: Sizes) -> FileReport:
    conversions = [outcome.conversion for outcome in outcomes if outcome.conversion is not None]
    unused = set.intersection(*(set(conversion.unused_rules) for conversion in conversions)) if conversions else set()
    unused -= {rule for rule in unused if any(weight.reason == kept_by(rule) for weight in storage.weights)}
    return FileReport(
        os.fspath(source.path),
        "",
        kind,
        options.device.name,
        options.format.name,
        tuple(outcomes),
        tuple(storage.weights),
        before,
        after,
        unused_rules=tuple(sorted(unused)),
        notes=tuple(_notes(source, storage)),
    )


def _notes(source: Source, storage: Storage) -> Iterator[str]:
    if storage.variables and (source.path / KERAS_METADATA).exists():
        yield "tf_keras.models.load_model rebuilds layers with float32 variables and needs --keep-weights (keep_weights=True); tf.saved_model.load does not."
