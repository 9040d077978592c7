"""Many conversions of one library put together: new versions of functions that are alike become one, and what nothing needs any more goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tfmp import tf_api
from tfmp.graph.library import function_values, references, same_types


class Versions:
    """Collects rewritten functions of one library, then names them."""

    def __init__(self, graph: tf_api.GraphDef) -> None:
        """Starts with the library of `graph`, which is not changed."""
        self._library = {function.signature.name: function for function in graph.library.function}
        self._new: dict[str, tuple[str, tf_api.FunctionDef]] = {}
        self._roots: dict[str, str] = {}
        self._before = graph

    def add(self, original: str, definition: tf_api.FunctionDef, root: bool = False) -> None:
        """Adds a version of the function `original`, under a name that no other function or version has.

        It calls other versions by the names under which they are added, before or after it. A `root` is found under the name `original` later.
        """
        self._new[definition.signature.name] = (original, definition)
        if root:
            self._roots[original] = definition.signature.name

    def assembled(self, main: tf_api.GraphDef, kept: Iterable[str], suffix: str) -> tf_api.GraphDef:
        """Returns a copy of `main` with its library put together anew; function names in it are as they were wherever `kept` asks for that.

        Args:
          main: a main graph that calls versions by the names under which they were added.
          kept: names of functions that something outside the graph knows.
          suffix: stands in the names of new functions behind that of the original.
        """
        twins = self._twins()
        narrow = self._narrow(twins)
        taken = {*self._library}
        names = {twins[version]: original for original, version in self._roots.items()}
        wide = {original: _fresh(f"{original}_float32", taken) for original in sorted(narrow)}
        for version in twins.values():
            if version not in names:
                names[version] = _fresh(f"{self._new[version][0]}_{suffix}", taken)
        names |= {version: names[twin] for version, twin in twins.items()}

        library = {name: definition for name, definition in self._library.items() if name not in self._roots}
        library |= {wide[original]: _renamed(self._library[original], wide[original], wide) for original in sorted(narrow)}
        library |= {names[v]: _renamed(self._new[v][1], names[v], {**wide, **names}) for v in dict.fromkeys(twins.values())}
        root = _renamed_main(main, {**wide, **names})
        library = self._needed(root, library, frozenset(kept))
        back = self._free_names(library, {names[version]: self._new[version][0] for version in twins.values()}, kept)
        library = {back.get(name, name): _renamed(definition, back.get(name, name), back) for name, definition in library.items()}
        return self._with_library(_renamed_main(root, back), library)

    def _twins(self) -> dict[str, str]:
        """Version to the one that stands for all that are the same."""
        twins: dict[str, str] = {}
        by_content: dict[tuple[str, bytes], str] = {}

        def twin(name: str) -> str:
            if name not in twins:
                twins[name] = name  # for one that calls itself
                original, definition = self._new[name]
                called = {callee: twin(callee) for callee in references([definition]) if callee in self._new}
                content = _renamed(definition, "", called).SerializeToString(deterministic=True)
                twins[name] = by_content.setdefault((original, content), name)
            return twins[name]

        for name in self._new:
            twin(name)
        return twins

    def _narrow(self, twins: Mapping[str, str]) -> set[str]:
        """The functions that some version calls as they were, although they, or what they call, are to have a rewritten version under their name."""
        called = _reached(references([self._new[version][1] for version in set(twins.values())]), self._library)
        return {name for name in called if not self._roots.keys().isdisjoint(_reached([name], self._library))}

    def _needed(self, main: tf_api.GraphDef, library: Mapping[str, tf_api.FunctionDef], kept: frozenset[str]) -> dict[str, tf_api.FunctionDef]:
        """What is left of `library` without the original functions that something called before and nothing does now."""
        before = _reached([*references([self._before]), *kept], self._library)
        idle = (name for name in self._library if name not in before)
        after = _reached([*references([main]), *kept, *idle], library)
        return {name: definition for name, definition in library.items() if name in after}

    def _free_names(self, library: Mapping[str, tf_api.FunctionDef], originals: Mapping[str, str], kept: Iterable[str]) -> dict[str, str]:
        """New names to the names of originals that are gone: a version takes the name of its original if it has the same signature."""
        back: dict[str, str] = {}
        taken = {*library, *kept, *self._roots}
        for name, original in originals.items():
            if name in library and original not in taken and same_types(self._library[original], library[name]):
                back[name] = original
                taken.add(original)
        return back

    def _with_library(self, graph: tf_api.GraphDef, library: Mapping[str, tf_api.FunctionDef]) -> tf_api.GraphDef:
        """Puts `library` into `graph`, functions with old names in the old order first."""
        del graph.library.function[:]
        order = [name for name in self._library if name in library]
        graph.library.function.extend(library[name] for name in (*order, *(name for name in library if name not in self._library)))
        return graph


def _reached(start: Iterable[str], library: Mapping[str, tf_api.FunctionDef]) -> set[str]:
    """The functions of `library` that are in `start` or called, directly or not, by one that is."""
    todo, seen = list(start), set[str]()
    while todo:
        name = todo.pop()
        if name not in seen and name in library:
            seen.add(name)
            todo += references([library[name]])
    return seen


def _fresh(stem: str, taken: set[str]) -> str:
    name, number = stem, 0
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name


def _renamed(definition: tf_api.FunctionDef, name: str, names: Mapping[str, str]) -> tf_api.FunctionDef:
    """Returns a copy of `definition` called `name` whose calls go to the functions that `names` says."""
    copy = tf_api.FunctionDef()
    copy.CopyFrom(definition)
    copy.signature.name = name
    for value in function_values([], [copy]):
        value.name = names.get(value.name, value.name)
    return copy


def _renamed_main(graph: tf_api.GraphDef, names: Mapping[str, str]) -> tf_api.GraphDef:
    copy = tf_api.GraphDef()
    copy.CopyFrom(graph)
    for value in function_values([copy], []):
        value.name = names.get(value.name, value.name)
    return copy
