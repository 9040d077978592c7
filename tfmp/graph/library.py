"""Putting rewritten functions into the function library of a GraphDef."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tfmp import tf_api


def with_functions(graph: tf_api.GraphDef, functions: Sequence[tf_api.FunctionDef], versions: Mapping[str, Sequence[str]]) -> tf_api.GraphDef:
    """Returns a copy of `graph` that has `functions` in its library.

    Args:
      graph: a main graph that calls `functions` by their new names, with the library it had.
      functions: new functions.
      versions: old name to the names of the new functions that were made of that one.

    A new function takes the name and the place of its original where it is the only version of it, has the same signature, and nothing else refers to
    the original any more; otherwise it is added and the original stays.
    """
    result = tf_api.GraphDef()
    result.CopyFrom(graph)
    if not functions:  # touching the library of a graph without one would give it an empty one
        return result
    originals = {function.signature.name: function for function in graph.library.function}
    new = {function.signature.name: function for function in functions}
    replaced = {old: names[0] for old, names in versions.items() if len(names) == 1 and _same_types(originals[old], new[names[0]])}
    while still_used := replaced.keys() & set(_references(graph, new.values(), [f for name, f in originals.items() if name not in replaced])):
        replaced = {old: name for old, name in replaced.items() if old not in still_used}
    old_name = {name: old for old, name in replaced.items()}
    del result.library.function[:]
    for name, original in originals.items():
        result.library.function.add().CopyFrom(new[replaced[name]] if name in replaced else original)
    result.library.function.extend(function for name, function in new.items() if name not in old_name)
    for function in result.library.function:
        function.signature.name = old_name.get(function.signature.name, function.signature.name)
    for called in _function_values([result], result.library.function):
        called.name = old_name.get(called.name, called.name)
    return result


def _same_types(a: tf_api.FunctionDef, b: tf_api.FunctionDef) -> bool:
    arguments = [[[arg.type for arg in args] for args in (f.signature.input_arg, f.signature.output_arg)] for f in (a, b)]
    return arguments[0] == arguments[1]


def _references(graph: tf_api.GraphDef, *functions: Iterable[tf_api.FunctionDef]) -> Iterator[str]:
    for group in functions:
        for value in _function_values([], group):
            yield value.name
        yield from (node.op for function in group for node in function.node_def)
    yield from (value.name for value in _function_values([graph], ()))
    yield from (node.op for node in graph.node)
    yield from (name for gradient in graph.library.gradient for name in (gradient.function_name, gradient.gradient_func))


def _function_values(graphs: Iterable[tf_api.GraphDef], functions: Iterable[tf_api.FunctionDef]) -> Iterator[tf_api.Message]:
    """Yields every mention of a function in an attribute of a node."""
    for nodes in (*(graph.node for graph in graphs), *(function.node_def for function in functions)):
        for node in nodes:
            for value in node.attr.values():
                if value.HasField("func"):
                    yield value.func
                elif value.HasField("list"):
                    yield from value.list.func
