"""A root graph and every function it reaches, read once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from tfmp import tf_api
from tfmp.errors import GraphError
from tfmp.graph.body import Body
from tfmp.graph.schema import OpSchema
from tfmp.graph.view import library_schemas, read_function, read_graph
from tfmp.graph.wire import Original, signature
from tfmp.program.calls import call_nodes, is_compiled

Lookup = Callable[[str], Original]
"""Function name to its definition, which is read in half the time if it is serialised."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A root and the functions that it calls, directly or not, through the ops of `calls.CALLING_OPS`; templates (functions with attributes) are left out.

    Attributes:
      root: name of the root function, or "" for a main graph.
      bodies: name to body; the root comes first.
      definitions: name to what a body was read from, before kernels were put in.
      compiled: names of the bodies that some path from the root reaches under `jit_compile=True`.
      interpreted: names of the bodies that some path reaches without it. A body may be in both.
      partner: name of a second root, or "": a backward function, which runs after the first root on what that has saved.
      links: pairs of (result of the root, argument of the partner) that are one value, which nobody else sees.
      schemas: schemas of the functions that nodes name as their op.
      variables: root function to the names of the variables that are handed to it, by argument number, as far as they are known and needed.
    """

    root: str
    bodies: Mapping[str, Body]
    definitions: Mapping[str, Original]
    compiled: frozenset[str]
    interpreted: frozenset[str]
    partner: str = ""
    links: tuple[tuple[int, int], ...] = ()
    schemas: Mapping[str, OpSchema] = dataclasses.field(default_factory=dict)
    variables: Mapping[str, Mapping[int, str]] = dataclasses.field(default_factory=dict)

    @property
    def roots(self) -> tuple[str, ...]:
        """The root, and the partner if there is one."""
        return (self.root, self.partner) if self.partner else (self.root,)

    @property
    def size(self) -> int:
        """Number of nodes in all bodies."""
        return sum(len(body) for body in self.bodies.values())


def from_function(name: str, lookup: Lookup) -> Program:
    """Returns the program whose root is the function `name`; `lookup` raises for a name it does not know."""
    definition = lookup(name)
    schemas = _CalledAsOps(lookup)

    def read(definition: Original) -> Body:
        return read_function(definition, schemas)

    return _explore(read(definition), {name: definition}, lookup, read, schemas)


class _CalledAsOps(dict[str, OpSchema]):
    """Schemas of the functions that nodes name as their op, as TensorFlow 1's `Defun`s are called; each is looked up when it is first asked for."""

    def __init__(self, lookup: Lookup) -> None:
        super().__init__()
        self._lookup = lookup

    def __contains__(self, op: object) -> bool:
        if op in _registered or not isinstance(op, str):
            return False
        if not super().__contains__(op):
            if tf_api.op_def(op) is not None:
                _registered.add(op)
                return False
            if not tf_api.has_function(op):
                return False
            self[op] = OpSchema(signature(self._lookup(op)))
        return True


_registered: set[str] = set()
"""Ops that TensorFlow has: an op that is registered stays so."""


def paired(forward: Program, backward: Program, links: Iterable[tuple[int, int]]) -> Program:
    """Returns the program that runs `forward` and then `backward`, the values in `links` handed over unseen."""
    return Program(
        forward.root,
        {**forward.bodies, **backward.bodies},
        {**forward.definitions, **backward.definitions},
        forward.compiled | backward.compiled,
        forward.interpreted | backward.interpreted,
        backward.root,
        tuple(links),
        {**forward.schemas, **backward.schemas},
    )


def from_graph(graph: tf_api.GraphDef) -> Program:
    """Returns the program whose root is the main graph of `graph` and whose functions come from its library; raises `GraphError` if one is missing."""
    library = {function.signature.name: function for function in graph.library.function}
    schemas = library_schemas(graph.library.function)
    return _explore(read_graph(graph, schemas), {"": graph}, _finder(library), lambda definition: read_function(definition, schemas), schemas)


def from_library(name: str, library: Mapping[str, tf_api.FunctionDef], schemas: Mapping[str, OpSchema]) -> Program:
    """Returns the program whose root is the function `name` of `library`; raises `GraphError` if that, or one that it calls, is missing.

    `schemas` are those of the library (`view.library_schemas`).
    """
    lookup = _finder(library)

    def read(definition: Original) -> Body:
        return read_function(definition, schemas)

    return _explore(read(lookup(name)), {name: library[name]}, lookup, read, schemas)


def _finder(library: Mapping[str, tf_api.FunctionDef]) -> Lookup:
    def lookup(name: str) -> tf_api.FunctionDef:
        if name not in library:
            raise GraphError(f"function {name!r} is called, but is not in the graph's library, which has {len(library)} functions.")
        return library[name]

    return lookup


def _explore(
    root: Body,
    definitions: dict[str, Original],
    lookup: Lookup,
    read: Callable[[Original], Body],
    schemas: Mapping[str, OpSchema],
) -> Program:
    bodies = {root.name: root}
    reached = {True: set[str](), False: set[str]()}
    todo = [(root.name, False)]
    while todo:
        name, under_xla = todo.pop()
        if name not in bodies:
            definition = lookup(name)
            if signature(definition).attr:  # a template: what its types are is up to each call
                continue
            definitions[name], bodies[name] = definition, read(definition)
        body = bodies[name]
        compiled = under_xla or is_compiled(body.attrs)
        if name in reached[compiled]:
            continue
        reached[compiled].add(name)
        for node, names in call_nodes(body):
            asks = is_compiled(body.protos[node].attr)
            todo += [(callee, compiled or asks) for callee in reversed(names)]
    return Program(root.name, bodies, definitions, frozenset(reached[True]), frozenset(reached[False]), schemas=schemas)
