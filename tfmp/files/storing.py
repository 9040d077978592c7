"""A plan of storage carried out on the protos of a file."""

from __future__ import annotations

from tfmp import tf_api
from tfmp.dtypes import FloatFormat
from tfmp.files.views import GraphView
from tfmp.files.weights import Storage
from tfmp.graph.constants import with_cast_constants, with_rounded_values
from tfmp.graph.handles import set_handle_types
from tfmp.graph.library import with_bodies
from tfmp.graph.wire import Proto
from tfmp.rewriting.retype import retyped


def stored(view: GraphView, storage: Storage, target: FloatFormat) -> tf_api.GraphDef:
    """Returns a copy of the graph of `view` whose weights are of the types that `storage` asks for; raises `RewriteError` if that would not run."""
    definitions: dict[str, Proto] = {"": view.graph, **{function.signature.name: function for function in view.graph.library.function}}
    new = {name: _stored(view, name, definitions[name], storage, target) for name in view.bodies if _concerns(storage, (view.number, name))}
    return with_bodies(view.graph, new)


def _concerns(storage: Storage, where: tuple[int, str]) -> bool:
    return any(where in part for part in (storage.ends, storage.handles, storage.casts))


def _stored(view: GraphView, name: str, proto: Proto, storage: Storage, target: FloatFormat) -> Proto:
    body, where = view.bodies[name], (view.number, name)
    if where in storage.casts:  # the same nodes, so that the numbers stay right
        proto = with_cast_constants(body, proto, storage.casts[where], target)
    names = {body.names[node]: [body.names[twin] for twin in twins] for node, twins in storage.constants.get(where, {}).items()}
    result = retyped(body, proto, storage.ends.get(where, ()), target, view.schemas)
    result = with_rounded_values(result, names, target.number)
    if isinstance(result, tf_api.FunctionDef):
        set_handle_types(result, storage.handles.get(where, ()), target.number)
    return result
