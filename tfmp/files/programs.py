"""Every program of a file converted: the main graph and each function that its users can call."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from tfmp import engine, tf_api
from tfmp.conversion import Conversion
from tfmp.errors import GraphError, RewriteError
from tfmp.files.options import Options
from tfmp.files.tally import Shapes, Tally, tally
from tfmp.graph.versions import Versions
from tfmp.graph.view import library_schemas
from tfmp.program.calls import call_nodes
from tfmp.program.program import Program, from_graph, from_library


@dataclasses.dataclass(frozen=True)
class Root:
    """One program of a file.

    Attributes:
      function: name of its root function, "" for the main graph.
      label: how users reach it.
      fetches: for the main graph, names of the nodes whose types must stay.
    """

    function: str
    label: str
    fetches: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one program.

    Attributes:
      root: the program.
      tally: what it comes to, with the programs that it calls.
      failure: why it could not be converted, or "".
      conversion: what was decided; functions that are programs of their own may be left out. None if it could not be converted.
      graphs: what TensorFlow made of the functions of the file, by name, for the shapes of tensors.
    """

    root: Root
    tally: Tally
    failure: str = ""
    conversion: Conversion | None = None
    graphs: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)


Progress = Callable[[str, int, int], None]
"""Called with what is going on, how many steps of it are done, and how many there are."""


VariableNames = Mapping[str, Mapping[int, str]]
"""Function to the names of the variables that are bound to it, by their place among what is bound."""


def convert_programs(
    graph: tf_api.GraphDef, roots: Collection[Root], kept: Iterable[str], bound: VariableNames, options: Options, progress: Progress
) -> tuple[tf_api.GraphDef, list[Outcome]]:
    """Returns the converted graph, with its library, and what became of each program. A program that cannot be converted stays as it is.

    Args:
      graph: a main graph with its library; not changed.
      roots: the programs; one may reach another.
      kept: names of functions that something outside the graph knows.
      bound: names of variables, for the user's rules.
      options: what to convert to.
      progress: told of every program.

    Raises:
      FileError: TensorFlow itself cannot read the graph.
      GraphError, RewriteError: a program cannot be converted, and the settings are strict.
    """
    converter = _Converter(graph, {root.function for root in roots}, bound, options)
    versions, numbers, main = Versions(graph), itertools.count(), graph
    outcomes: dict[str, Outcome] = {}
    for root in converter.callees_first(roots):
        progress("converting programs", len(outcomes), len(roots))
        try:
            outcomes[root.function] = converter.convert(root, {name: outcome.tally for name, outcome in outcomes.items() if not outcome.failure})
        except (GraphError, RewriteError) as error:
            if options.settings.strict:
                raise
            outcomes[root.function] = Outcome(root, Tally(), str(error))
        conversion = outcomes[root.function].conversion
        if conversion is not None and conversion.changed:
            linked = conversion.functions(lambda name, _: f"{name}@{next(numbers)}")
            for one in linked if root.function else linked[1:]:
                versions.add(conversion.instances[one.instance].function, one.proto, root=one is linked[0])
            main = main if root.function else linked[0].proto
    progress("converting programs", len(roots), len(roots))
    return versions.assembled(main, kept, options.format.name), [outcomes[root.function] for root in roots]


class _Converter:
    """Converts the programs of one graph, one by one."""

    def __init__(self, graph: tf_api.GraphDef, roots: Collection[str], bound: VariableNames, options: Options) -> None:
        self._graph, self._roots, self._bound, self._options = graph, frozenset(roots) - {""}, bound, options
        self._shapes = Shapes(graph)
        self._library = {function.signature.name: function for function in graph.library.function}
        self._schemas = library_schemas(graph.library.function)

    def callees_first(self, roots: Iterable[Root]) -> list[Root]:
        """Returns `roots` so that each comes after those it calls; the main graph, which all others are left out of, last."""
        found, todo, seen = [], [(root, False) for root in sorted(roots, key=lambda root: not root.function, reverse=True)], set()
        by_name = {root.function: root for root in roots}
        while todo:
            root, expanded = todo.pop()
            if expanded:
                found.append(root)
            elif root.function not in seen:
                seen.add(root.function)
                inner = self._inner(root.function) if root.function else ()
                todo += [(root, True), *((by_name[name], False) for name in inner if name not in seen)]
        return found

    def _inner(self, name: str) -> list[str]:
        """The other programs that a function reaches, outermost first."""
        todo, seen = [name], {name}
        while todo:
            for node in self._library[todo.pop()].node_def if todo[-1] in self._library else ():
                for value in node.attr.values():
                    new = {f.name for f in ([value.func] if value.HasField("func") else value.list.func)} - seen
                    seen |= new
                    todo += new
        return [one for one in self._library if one in seen and one in self._roots and one != name]

    def convert(self, root: Root, tallies: Mapping[str, Tally]) -> Outcome:
        """Returns what becomes of `root`.

        Functions that are programs of their own, and are in `tallies`, are called as they are where that costs no casts; otherwise the program gets versions
        of its own of them. In the main graph they are called as they are in any case.
        """
        program = from_library(root.function, self._library, self._schemas) if root.function else from_graph(self._graph)
        inner = frozenset(program.bodies) & (tallies.keys() if root.function else self._roots) - {root.function}
        bound = self._bound.get(root.function, {})
        if bound:
            first = program.bodies[root.function].arguments - len(bound)
            program = dataclasses.replace(program, variables={root.function: {first + at: name for at, name in bound.items() if name}})
        if self._options.device.compiled:
            program = dataclasses.replace(program, compiled=frozenset(program.bodies), interpreted=frozenset())
        apart = self._outcome(root, _without(program, inner), tallies)
        if not inner or not root.function:
            return apart
        whole = self._outcome(root, program, {})
        cheap = apart.tally.casts <= whole.tally.casts and apart.tally.share >= whole.tally.share
        alike = not (program.compiled and program.interpreted) and not self._options.settings.has_rules_of("function")
        return apart if cheap and alike else whole

    def _outcome(self, root: Root, program: Program, tallies: Mapping[str, Tally]) -> Outcome:
        fetches = root.fetches & set(program.bodies[program.root].names)
        conversion = engine.convert(program, self._options.settings, fetches, self._shapes.graphs.get)
        total, counted = tally(conversion, self._shapes), set[str]()
        for instance, runs in zip(conversion.instances, conversion.runs, strict=True):
            for _, names in call_nodes(program.bodies[instance.function]):
                for name in names:
                    if name in tallies and name not in program.bodies:
                        total = total.with_calls(tallies[name], runs, again=name in counted)
                        counted.add(name)
        return Outcome(root, total, conversion=conversion, graphs=self._shapes.graphs)


def _without(program: Program, functions: frozenset[str]) -> Program:
    """Returns `program` without `functions`: calls of them keep their types."""
    return dataclasses.replace(program, bodies={name: body for name, body in program.bodies.items() if name not in functions})
