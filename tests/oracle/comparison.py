"""Reads colours off rewritten graphs, the same way for TensorFlow's pass and for tfmp, and lists where two results differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from typing import Any

# Colour key: (node, attribute) in the main graph, (function, node, attribute) in a library function; the attribute reads
# "T" or, for one entry of a list of types, "T[3]".
Key = tuple[str, ...]
Colours = dict[Key, bool]


class ComparisonError(ValueError):
    """A rewritten graph cannot be compared with its original; the text names the node and attribute."""


def _type_entries(node: Any) -> Iterator[tuple[str, int]]:
    for name, value in node.attr.items():
        kind = value.WhichOneof("value")
        if kind == "type":
            yield name, value.type
        elif kind == "list":
            yield from ((f"{name}[{index}]", entry) for index, entry in enumerate(value.list.type))


def _graphs(graph_def: Any) -> dict[Key, Iterable[Any]]:
    """Returns key prefix -> nodes: the empty prefix for the main graph, (name,) for each library function."""
    functions = {(function.signature.name,): function.node_def for function in graph_def.library.function}
    return {(): graph_def.node, **functions}


def _sixteen_bit(dtype: str) -> int:
    from tensorflow.core.framework import types_pb2

    return {"float16": types_pb2.DT_HALF, "bfloat16": types_pb2.DT_BFLOAT16}[dtype]


def type_colours(before: Any, after: Any, dtype: str) -> Colours:
    """Returns, for every type attribute that is float32 in GraphDef `before`, whether it is `dtype` in `after`.

    Nodes are matched by name. Library functions that `after` lacks are left out: grappler deletes those which nothing calls.

    Raises:
        ComparisonError: a node or attribute of `before` is missing in `after`, or has become a third type.
    """
    from tensorflow.core.framework import types_pb2

    allowed = {types_pb2.DT_FLOAT: False, _sixteen_bit(dtype): True}
    graphs_after = _graphs(after)
    colours: Colours = {}
    for prefix, nodes in _graphs(before).items():
        if prefix not in graphs_after:
            continue
        types_after = {node.name: dict(_type_entries(node)) for node in graphs_after[prefix]}
        for node in nodes:
            for attribute in (name for name, old in _type_entries(node) if old == types_pb2.DT_FLOAT):
                new = types_after.get(node.name, {}).get(attribute)
                if new not in allowed:
                    where = "/".join((*prefix, node.name))
                    raise ComparisonError(f"{attribute} of {node.op} node {where!r} was float32 and is now {new}")
                colours[(*prefix, node.name, attribute)] = allowed[new]
    return colours


def added_nodes(before: Any, after: Any) -> frozenset[str]:
    """Returns names of nodes in GraphDef `after`, or in its library functions, that `before` lacks there."""
    known = {prefix: {node.name for node in nodes} for prefix, nodes in _graphs(before).items()}
    return frozenset(node.name for prefix, nodes in _graphs(after).items() for node in nodes if node.name not in known.get(prefix, ()))


def reached_functions(graph_def: Any) -> frozenset[str]:
    """Returns names of the library functions that the main graph calls, also through others, as an op or by an attribute.

    Grappler keeps more: functions that merely implement the same interface as one that is called (attribute `api_implements`).
    """
    bodies = {function.signature.name: function.node_def for function in graph_def.library.function}
    reached: set[str] = set()
    waiting: list[Iterable[Any]] = [graph_def.node]
    while waiting:
        called = {name for node in waiting.pop() for name in _called(node) if name in bodies} - reached
        reached |= called
        waiting.extend(bodies[name] for name in called)
    return frozenset(reached)


def _called(node: Any) -> Iterator[str]:
    yield node.op
    for value in node.attr.values():
        yield value.func.name
        yield from (function.name for function in value.list.func)


def op_types(graph_def: Any) -> dict[Key, str]:
    """Returns op type by key prefix and node name, library functions included."""
    return {(*prefix, node.name): node.op for prefix, nodes in _graphs(graph_def).items() for node in nodes}


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """One type attribute, or op type, that two rewrites of a graph left different."""

    key: Key
    op: str
    ours: str
    theirs: str

    def __str__(self) -> str:
        """Returns one line: where, what we have, what TensorFlow has."""
        *where, attribute = self.key
        return f"{'/'.join(where)} ({self.op}), {attribute}: ours {self.ours}, TensorFlow's {self.theirs}"


def disagreements(before: Any, ours: Any, theirs: Any, dtype: str) -> list[Disagreement]:
    """Returns where GraphDef `ours` differs in a colour or an op type from `theirs`, both rewritten from `before`.

    Functions that the main graph of `before` does not reach are left out: nothing runs them.

    Raises:
        ComparisonError: see `type_colours`.
    """
    ops = op_types(before)
    reached = reached_functions(before)
    our_colours, their_colours = type_colours(before, ours, dtype), type_colours(before, theirs, dtype)
    our_ops, their_ops = op_types(ours), op_types(theirs)
    text = {False: "float32", True: dtype}
    attributes = [
        Disagreement(key, ops[key[:-1]], text[our_colours[key]], text[colour])
        for key, colour in their_colours.items()
        if _is_compared(key[:-1], reached) and our_colours[key] != colour
    ]
    renamed = [
        Disagreement((*key, "op"), op, our_ops[key], their_ops[key]) for key, op in ops.items() if _is_compared(key, reached) and our_ops[key] != their_ops[key]
    ]
    return attributes + renamed


def compared_attributes(before: Any, colours: Colours) -> int:
    """Returns how many of `colours`, read off a rewrite of GraphDef `before`, `disagreements` looks at."""
    reached = reached_functions(before)
    return sum(_is_compared(key[:-1], reached) for key in colours)


def _is_compared(node: Key, reached: Collection[str]) -> bool:
    return len(node) == 1 or node[0] in reached
