"""The object graph of a SavedModel: which functions and variables it names, what is bound to what, and which checkpoint keys belong to which variable."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tfmp import tf_saved_model as tfs

INTERNAL = frozenset({"_create_resource", "_initialize", "_destroy_resource"})
"""Names under which an object keeps the functions that make, fill and destroy a table (`CapturableResource` in `trackable/resource.py`)."""


@dataclasses.dataclass(frozen=True)
class Objects:
    """What an object graph says; node numbers are its.

    Attributes:
      functions: name of each function that users can call, to the path by which they reach it ("signatures.serving_default", "__call__").
      named: every function that the object graph names, custom gradients and savers included.
      bound: function name to the objects whose values are its last arguments.
      variables: the variables, each with the path by which it is reached.
      constants: captured constants, to the name of the Const node in the main graph.
      slots: optimizer slots.
      saved_by_functions: objects that functions save and restore, rather than TensorFlow itself.
    """

    functions: Mapping[str, str]
    named: frozenset[str]
    bound: Mapping[str, tuple[int, ...]]
    variables: Mapping[int, str]
    constants: Mapping[int, str]
    slots: frozenset[int]
    saved_by_functions: frozenset[int]


def read_objects(graph: tfs.SavedObjectGraph) -> Objects:
    """Returns what `graph` says; of an empty one (a SavedModel of TensorFlow 1), nothing."""
    paths = dict(_paths(graph))
    savers = {one for node in graph.nodes for saver in node.saveable_objects.values() for one in (saver.save_function, saver.restore_function)}
    functions: dict[str, str] = {}
    for number, node in enumerate(graph.nodes):
        path = paths.get(number, f"object {number}")
        if number not in savers and not set(path.split(".")) & INTERNAL:
            for name in node.function.concrete_functions:
                functions.setdefault(name, path)
            if node.WhichOneof("kind") == "bare_concrete_function":
                name = node.bare_concrete_function.concrete_function_name
                functions[name] = path if path.startswith("signatures.") else functions.get(name, path)
    variables = {number: paths.get(number, f"object {number}") for number, node in enumerate(graph.nodes) if node.WhichOneof("kind") == "variable"}
    return Objects(
        functions,
        frozenset((*graph.concrete_functions, *functions)),
        {name: tuple(function.bound_inputs) for name, function in graph.concrete_functions.items()},
        variables,
        {number: node.constant.operation for number, node in enumerate(graph.nodes) if node.WhichOneof("kind") == "constant"},
        frozenset(slot.slot_variable_node_id for node in graph.nodes for slot in node.slot_variables),
        frozenset(number for number, node in enumerate(graph.nodes) if node.saveable_objects),
    )


def _paths(graph: tfs.SavedObjectGraph) -> Iterator[tuple[int, str]]:
    """Yields each object that can be reached from the root with its shortest path."""
    if not graph.nodes:
        return
    seen, todo = {0}, collections.deque([(0, "")])
    while todo:
        number, path = todo.popleft()
        yield number, path
        for child in graph.nodes[number].children:
            if child.node_id not in seen:
                seen.add(child.node_id)
                todo.append((child.node_id, f"{path}.{child.local_name}".removeprefix(".")))


def checkpoint_keys(graph: tfs.SavedObjectGraph, checkpoint: bytes) -> dict[int, frozenset[str]]:
    """Returns the checkpoint keys of each object of `graph`.

    Args:
      graph: the object graph.
      checkpoint: the serialised object graph that the checkpoint holds under `OBJECT_GRAPH_KEY`. The loader matches the two by the names of children,
        starting from the roots (`tensorflow/python/checkpoint/restore.py`), and so does this.
    """
    saved = tfs.TrackableObjectGraph.FromString(checkpoint)
    keys: dict[int, frozenset[str]] = {}
    todo = [(0, 0)] if graph.nodes and saved.nodes else []
    seen = set(todo)
    while todo:
        here, there = todo.pop()
        found = frozenset(attribute.checkpoint_key for attribute in saved.nodes[there].attributes)
        keys[here] = keys.get(here, frozenset()) | found
        names = {child.local_name: child.node_id for child in saved.nodes[there].children}
        pairs = {(child.node_id, names[child.local_name]) for child in graph.nodes[here].children if child.local_name in names}
        todo += pairs - seen
        seen |= pairs
    return keys


def set_types(graph: tfs.SavedObjectGraph, variables: Collection[int], dtype: int) -> None:
    """Gives the variables with the numbers `variables` the type `dtype`; `graph` is changed.

    Their optimizer slots are no slots any more, since the loader would make them with the variable's type (`Optimizer.add_slot`), which theirs is not.
    """
    for number in variables:
        graph.nodes[number].variable.dtype = dtype
    for node in graph.nodes:
        _drop(node.slot_variables, lambda slot: slot.original_variable_node_id in variables)


def without_slots(checkpoint: bytes, keys: Collection[str]) -> bytes:
    """Returns the serialised object graph of a checkpoint without the optimizer slots of the variables that are under `keys`.

    The slots' tensors stay in the checkpoint under their keys; nothing but a saver in the graph restores them any more.
    """
    graph = tfs.TrackableObjectGraph.FromString(checkpoint)
    variables = {number for number, node in enumerate(graph.nodes) if any(one.checkpoint_key in keys for one in node.attributes)}
    slots = [slot.slot_variable_node_id for node in graph.nodes for slot in node.slot_variables if slot.original_variable_node_id in variables]
    for node in graph.nodes:
        _drop(node.slot_variables, lambda slot: slot.original_variable_node_id in variables)
    for slot in slots:
        del graph.nodes[slot].attributes[:]
    return bytes(graph.SerializeToString(deterministic=True))


def _drop(slots: Any, unwanted: Callable[[Any], bool]) -> None:
    for index in reversed([index for index, slot in enumerate(slots) if unwanted(slot)]):
        del slots[index]


def set_signature_types(graph: tfs.SavedObjectGraph, function: str, origin: int, dtype: int) -> None:
    """Gives every tensor of type `origin` that `function` takes or returns the type `dtype`; `graph` is changed."""
    signature = graph.concrete_functions[function]
    for value in (signature.canonicalized_input_signature, signature.output_signature):
        _set_specs(value, origin, dtype)


def _set_specs(value: object, origin: int, dtype: int) -> None:
    """Walks a `StructuredValue` (`struct.proto`)."""
    kind = value.WhichOneof("kind")  # type: ignore[attr-defined]
    if kind in ("tensor_spec_value", "bounded_tensor_spec_value"):
        spec = getattr(value, kind)
        spec.dtype = dtype if spec.dtype == origin else spec.dtype
    elif kind in ("list_value", "tuple_value"):
        for inner in getattr(value, kind).values:
            _set_specs(inner, origin, dtype)
    elif kind == "dict_value":
        for inner in value.dict_value.fields.values():  # type: ignore[attr-defined]
            _set_specs(inner, origin, dtype)
    elif kind == "named_tuple_value":
        for pair in value.named_tuple_value.values:  # type: ignore[attr-defined]
            _set_specs(pair.value, origin, dtype)
