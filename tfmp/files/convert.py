"""`tfmp.convert` and `tfmp.explain`: a file in, its 16-bit twin and a report out."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib
import os
import pathlib
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

from tfmp import tf_api
from tfmp import tf_saved_model as tfs
from tfmp.errors import GraphError, RewriteError, SettingsError, TargetError
from tfmp.files import bundle as bundles
from tfmp.files import check
from tfmp.files.bundle import Bundle
from tfmp.files.interface import INPUTS, retyped_interface, retyped_signatures
from tfmp.files.options import AUTO, IO_FORMATS, Options, make_options
from tfmp.files.programs import Outcome, Progress, Root, convert_programs
from tfmp.files.report import FileReport, Sizes
from tfmp.files.source import SAVED_MODEL_FILES, VARIABLES, GraphSource, Path, SavedModelSource, Source, open_source
from tfmp.files.storing import stored
from tfmp.files.tally import import_all
from tfmp.files.target import check_target, replacing
from tfmp.files.views import GraphView, named_nodes, view_graph, view_meta_graph
from tfmp.files.weights import Storage, Target, kept_by, plan_storage
from tfmp.graph import kernels
from tfmp.graph.kernels import XLA_DEVICES
from tfmp.graph.objects import read_objects, set_types, without_slots
from tfmp.graph.view import Body, library_schemas, read_graph

FINGERPRINT = "fingerprint.pb"

LARGEST_PROTO = 2**31 - 1
"""Bytes (the limit of protobuf's encoding)."""


def explain(source: Path, *, progress: Progress | None = None, **options: Any) -> FileReport:
    """Returns what `convert` would make of a SavedModel or frozen graph, and why, without writing anything.

    Arguments and errors are those of `convert`, without those about the target.
    """
    chosen = make_options(**options)
    _import(chosen.modules)
    return _plan(open_source(source), chosen, progress or _ignore).report


def convert(
    source: Path,
    target: Path,
    *,
    device: str = "gpu",
    dtype: str = AUTO,
    level: str = "default",
    io_dtype: str | None = None,
    keep_weights: bool = False,
    keep_float32: str | Iterable[str] | None = (),
    outputs: Iterable[str] | None = (),
    modules: Iterable[str] | None = (),
    check_on: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> FileReport:
    """Writes a 16-bit inference twin of a SavedModel or frozen graph, which plain TensorFlow loads, and returns what was done.

    Every signature, function, asset and table is in it; variables and constants that only 16-bit ops read are stored in 16 bit.

    Args:
      source: a folder with a SavedModel of TensorFlow 1 or 2, or a file with a GraphDef (.pb, or .pbtxt in text form). It is not changed.
      target: where to write; what is written appears there at once and complete, or not at all.
      device: "gpu", "cpu", "xla_gpu" or "xla_cpu" (compiled by XLA): where it will run, and whose kernels must exist.
      dtype: "float16", "bfloat16", or "auto": float16 for GPUs, bfloat16 for CPUs.
      level: a key of `tfmp.LEVELS`.
      io_dtype: type of the inputs and outputs of signatures that were float32; None keeps them.
      keep_weights: keep weights stored in float32, for further training.
      keep_float32: rules for what stays in float32, weights included ("op:Softmax", "name:head/*", "variable:embedding").
      outputs: outputs of a frozen graph (names of nodes or tensors); without any, the nodes that nothing reads.
      modules: names of Python modules that are imported first, for the ops that they register ("tensorflow_text").
      check_on: an .npz file with an array for each input ("input" or "signature/input"), or "random": run both files on it and report the differences.
      force: replace what is at `target`, if that is of the same kind.
      progress: called with what is going on, how many steps of it are done, and of how many.
      **settings: any other setting of `tfmp.Settings`, such as `denylist_add="Softmax"`.

    Raises:
      FileError: `source` is missing, damaged, or nothing that can be converted.
      TargetError: `target` cannot be written, or something is there. Nothing is lost.
      CheckError: the files cannot be compared. `target` is written all the same, unless the data are missing.
      SettingsError: an option has a value that it cannot have.
    """
    tell = progress or _ignore
    common = dict(device=device, dtype=dtype, level=level, io_dtype=io_dtype, keep_weights=keep_weights, outputs=outputs, keep_float32=keep_float32)
    chosen = make_options(**common, modules=modules, **settings)
    data = check.check_data(os.fspath(check_on)) if check_on is not None else ""
    _import(chosen.modules)
    opened = open_source(source)
    where = check_target(opened, target, force)
    plan = _plan(opened, chosen, tell)
    if not plan.report.converted:
        return plan.report
    with replacing(where) as new:
        _write(plan, new, where.name, tell)
        after = _sizes_of(new)
    report = dataclasses.replace(plan.report, target=str(target), after=after)
    if data:
        tell("comparing", 0, 1)
        report = dataclasses.replace(report, differences=check.compare(plan.request(str(where), data)))
        tell("comparing", 1, 1)
    return report


@dataclasses.dataclass(frozen=True)
class _Plan:
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

    def request(self, converted: str, data: str) -> check.Request:
        """Returns what is to be compared."""
        tags = sorted(self.source.proto.meta_graphs[0].meta_info_def.tags) if isinstance(self.source, SavedModelSource) else ()
        return check.Request(os.fspath(self.source.path), converted, data, tags, self.inputs, self.outputs, self.options.modules)


def _plan(source: Source, options: Options, progress: Progress) -> _Plan:
    _check_kernels(options)
    return _plan_saved_model(source, options, progress) if isinstance(source, SavedModelSource) else _plan_graph(source, options, progress)


def _plan_saved_model(source: SavedModelSource, options: Options, progress: Progress) -> _Plan:
    bundle = Bundle(source.variables) if source.variables else None
    views, outcomes = [], []
    for number, meta in enumerate(source.proto.meta_graphs):
        objects = read_objects(meta.object_graph_def)
        roots = [Root("", "main graph", named_nodes(meta)), *(Root(name, path) for name, path in objects.functions.items())]
        bound = {name: {at: meta.object_graph_def.nodes[node].variable.name for at, node in enumerate(nodes)} for name, nodes in objects.bound.items()}
        graph, found = convert_programs(meta.graph_def, roots, objects.named, bound, options, progress)
        views.append(view_meta_graph(number, meta, graph))
        outcomes += found if objects.functions == {} else found[1:]
    storage = plan_storage(views, bundle, _storage_target(options))
    proto = tfs.SavedModel()
    proto.CopyFrom(source.proto)
    for view, meta in zip(views, proto.meta_graphs, strict=True):
        meta.graph_def.CopyFrom(stored(view, storage, options.format))
        set_types(meta.object_graph_def, {node for graph, node in storage.variables if graph == view.number}, options.format.number)
        if options.io_dtype:
            retyped_signatures(meta, view_meta_graph(view.number, meta, meta.graph_def), IO_FORMATS[options.io_dtype])
        _list_ops(meta)
        import_all(meta.graph_def, "TensorFlow cannot read the converted graph", RewriteError)
    before = _sizes_of(source.path)
    after = dataclasses.replace(before, graphs=proto.ByteSize(), weights=before.weights - sum(bundle.size(key) // 2 for key in storage.keys if bundle))
    return _Plan(source, options, proto, bundle, storage, _report(source, options, "SavedModel", outcomes, storage, before, after))


def _plan_graph(source: GraphSource, options: Options, progress: Progress) -> _Plan:
    body = read_graph(source.proto, library_schemas(source.proto.library.function))
    inputs = tuple(body.names[node] for node in body.proto_nodes if body.ops[node] in INPUTS)
    outputs = _outputs(body, options.outputs)
    named = frozenset(name.partition(":")[0] for name in (*inputs, *outputs))
    graph, outcomes = convert_programs(source.proto, [Root("", "graph", named)], (), {}, options, progress)
    nodes = frozenset(name.partition(":")[0] for name in outputs)
    view = view_graph(0, graph, nodes, named)
    storage = plan_storage([view], None, _storage_target(options))
    proto = stored(view, storage, options.format)
    if options.io_dtype:
        proto = retyped_interface(view_graph(0, proto, nodes, named), inputs, outputs, IO_FORMATS[options.io_dtype])
    import_all(proto, "TensorFlow cannot read the converted graph", RewriteError)
    before, after = Sizes(source.path.stat().st_size, 0, 0), Sizes(proto.ByteSize(), 0, 0)
    report = _report(source, options, "frozen graph", outcomes, storage, before, after)
    return _Plan(source, options, proto, None, storage, report, inputs, outputs)


def _outputs(body: Body, wanted: Sequence[str]) -> tuple[str, ...]:
    """Returns the outputs of a frozen graph: the wanted ones, or every tensor of the nodes that nothing reads; raises `GraphError` for one that is not there."""
    for name in wanted:
        if name.partition(":")[0] not in body.by_name:
            raise GraphError(f"output {name!r} is not in the graph, which has {len(body.names)} nodes.")
    if wanted:
        return tuple(wanted)
    read = {source for edges in body.inputs for source, _ in edges}
    unread = [node for node in body.proto_nodes if node not in read and body.ops[node] not in (*INPUTS, "Const")]
    return tuple(body.names[node] + (f":{port}" if port else "") for node in unread for port in range(len(body.layouts[node].outputs)))


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


def _storage_target(options: Options) -> Target:
    rules = [rule for rule in options.settings.user_rules[0] if rule.kind in ("name", "variable")]

    def kept(names: Iterable[str]) -> str:
        known = list(names)
        return next((str(rule) for rule in rules if any(fnmatch.fnmatchcase(name, rule.pattern) for name in known)), "")

    return Target(options.format, _devices(options), options.settings.lists(options.settings.dtype), kept, options.keep_weights)


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
    programs, weights = tuple(outcomes), tuple(storage.weights)
    return FileReport(
        os.fspath(source.path), "", kind, options.device.name, options.format.name, programs, weights, before, after, unused_rules=tuple(sorted(unused))
    )


def _write(plan: _Plan, new: pathlib.Path, name: str, tell: Progress) -> None:
    """Writes the converted file, which will be called `name`, to `new`."""
    if isinstance(plan.source, GraphSource):
        new.write_bytes(_encoded(plan.proto, name))
        return
    new.mkdir()
    for file in sorted(plan.source.path.rglob("*")):
        relative = file.relative_to(plan.source.path)
        if relative.parts[0] not in (plan.source.file, FINGERPRINT) and (relative.parts[0] != VARIABLES.partition("/")[0] or plan.bundle is None):
            _copy(file, new / relative)
    if plan.bundle is not None:
        prefix = new / VARIABLES
        prefix.parent.mkdir()
        objects = without_slots(plan.bundle.objects, plan.storage.keys) if plan.bundle.objects else b""
        bundles.write(plan.bundle, str(prefix), plan.storage.keys, plan.options.format.number, objects, lambda done, total: tell("writing weights", done, total))
    (new / plan.source.file).write_bytes(_encoded(plan.proto, plan.source.file))
    if (plan.source.path / FINGERPRINT).exists():
        tfs.write_fingerprint(str(new))


def _copy(file: pathlib.Path, new: pathlib.Path) -> None:
    """Copies content only: the permissions of a read-only original would keep the copy from being finished."""
    if file.is_dir():
        new.mkdir()
    else:
        shutil.copyfile(file, new)


def _encoded(proto: tf_api.Message, file: str) -> bytes:
    if proto.ByteSize() > LARGEST_PROTO:
        raise TargetError(f"the converted graph has {proto.ByteSize():,} bytes; protobuf, and TensorFlow with it, reads at most {LARGEST_PROTO:,}.")
    return tfs.as_text(proto).encode() if file.endswith(".pbtxt") else proto.SerializeToString(deterministic=True)


def _sizes_of(path: pathlib.Path) -> Sizes:
    if path.is_file():
        return Sizes(path.stat().st_size, 0, 0)
    sizes = {file.relative_to(path): file.stat().st_size for file in path.rglob("*") if file.is_file()}
    graphs = sum(size for file, size in sizes.items() if file.name in SAVED_MODEL_FILES)
    weights = sum(size for file, size in sizes.items() if file.parts[0] == VARIABLES.partition("/")[0])
    return Sizes(graphs, weights, sum(sizes.values()) - graphs - weights)


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise SettingsError(f"module {module!r} cannot be imported: {error}.") from None


def _ignore(what: str, done: int, total: int) -> None:
    """Tells nobody."""
