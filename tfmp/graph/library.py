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
    replaced = {old: names[0] for old, names in versions.items() if len(names) == 1 and same_types(originals[old], new[names[0]])}
    while still_used := replaced.keys() & set(references([graph, *new.values(), *(f for name, f in originals.items() if name not in replaced)])):
        replaced = {old: name for old, name in replaced.items() if old not in still_used}
    old_name = {name: old for old, name in replaced.items()}
    del result.library.function[:]
    for name, original in originals.items():
        result.library.function.add().CopyFrom(new[replaced[name]] if name in replaced else original)
    result.library.function.extend(function for name, function in new.items() if name not in old_name)
    for function in result.library.function:
        function.signature.name = old_name.get(function.signature.name, function.signature.name)
    for called in function_values([result], result.library.function):
        called.name = old_name.get(called.name, called.name)
    return result


def with_bodies(graph: tf_api.GraphDef, bodies: Mapping[str, tf_api.FunctionDef | tf_api.GraphDef]) -> tf_api.GraphDef:
    """Returns a copy of `graph` in which the main graph's nodes (name "") and functions of the library are those of `bodies`."""
    result = tf_api.GraphDef()
    result.CopyFrom(graph)
    if "" in bodies:
        del result.node[:]
        result.node.extend(bodies[""].node)
    for function in result.library.function:
        if function.signature.name in bodies:
            function.CopyFrom(bodies[function.signature.name])
    return result


def same_types(a: tf_api.FunctionDef, b: tf_api.FunctionDef) -> bool:
    """Returns whether two functions take and return the same types in the same order."""
    arguments = [[[arg.type for arg in args] for args in (f.signature.input_arg, f.signature.output_arg)] for f in (a, b)]
    return arguments[0] == arguments[1]


def references(protos: Iterable[tf_api.FunctionDef | tf_api.GraphDef]) -> Iterator[str]:
    """Yields the name of every function that some node mentions or has as its op, and that a main graph's library names as a gradient; also op names."""
    for proto in protos:
        is_graph = isinstance(proto, tf_api.GraphDef)
        yield from (value.name for value in function_values([proto] if is_graph else [], [] if is_graph else [proto]))
        yield from (node.op for node in (proto.node if is_graph else proto.node_def))
        if is_graph:
            yield from (name for gradient in proto.library.gradient for name in (gradient.function_name, gradient.gradient_func))
            yield from (gradient.gradient_func for gradient in proto.library.registered_gradients)


def function_values(graphs: Iterable[tf_api.GraphDef], functions: Iterable[tf_api.FunctionDef]) -> Iterator[tf_api.Message]:
    """Yields every mention of a function in an attribute of a node of a main graph or of a function."""
    for nodes in (*(graph.node for graph in graphs), *(function.node_def for function in functions)):
        for node in nodes:
            for value in node.attr.values():
                if value.HasField("func"):
                    yield value.func
                elif value.HasField("list"):
                    yield from value.list.func


def put_in(graph: tf_api.GraphDef, functions: Iterable[tf_api.FunctionDef], roots: Iterable[str]) -> None:
    """Puts `functions` into the library of `graph` itself, in the places of those that have the same names.

    What only the replaced ones have called goes; `roots` are functions that somebody knows by name.
    """
    roots = list(roots)
    before = reachable(graph, roots)
    new = {function.signature.name: function for function in functions}
    for function in graph.library.function:
        if function.signature.name in new:
            function.CopyFrom(new.pop(function.signature.name))
    graph.library.function.extend(new.values())
    gone = before - reachable(graph, roots)
    kept = [function for function in graph.library.function if function.signature.name not in gone]
    del graph.library.function[:]
    graph.library.function.extend(kept)


def reachable(graph: tf_api.GraphDef, roots: Iterable[str]) -> set[str]:
    """Returns the names of the functions that the main graph, or a function in `roots`, uses, directly or not, gradients of functions included."""
    library = {function.signature.name: function for function in graph.library.function}
    gradients = {gradient.function_name: gradient.gradient_func for gradient in graph.library.gradient}
    found, todo = set[str](), [*roots, *(value.name for value in function_values([graph], [])), *(node.op for node in graph.node)]
    while todo:
        name = todo.pop()
        if name in library and name not in found:
            found.add(name)
            todo += [value.name for value in function_values([], [library[name]])]
            todo += [node.op for node in library[name].node_def]
            todo += [gradients[name]] if name in gradients else []
    return found
