"""The records of a conversion: what was decided and what came of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from tfmp import tf_api
from tfmp.colouring.passes import Colouring
from tfmp.colouring.reasons import Decision, decisions
from tfmp.dtypes import FloatFormat
from tfmp.graph.library import with_functions
from tfmp.graph.wire import Original, Proto, as_proto
from tfmp.oplists import OpLists
from tfmp.program.liveness import dead_nodes
from tfmp.program.unfold import Instance
from tfmp.rewriting.link import Linked, Written, link
from tfmp.rewriting.plan import Plan
from tfmp.settings import Settings


@dataclasses.dataclass(frozen=True)
class BodyConversion:
    """What happened to one instance of a function: its colours, the edits, and the new definition (the original one if nothing changed).

    It still calls the functions that the original called; `Conversion.functions` has them with their new names.
    """

    function: str
    colouring: Colouring
    plan: Plan
    definition: Original

    @functools.cached_property
    def proto(self) -> Proto:
        """The new definition as a proto."""
        return as_proto(self.definition)

    @functools.cached_property
    def sixteen(self) -> frozenset[int]:
        """The nodes, arguments and results among them, with at least one 16-bit type attribute; but for those that TensorFlow prunes."""
        nodes = np.unique(self.colouring.graph.nodes[np.frombuffer(self.colouring.sixteen, bool)])
        return frozenset(nodes.tolist()).difference(dead_nodes(self.plan.body))

    @property
    def converted(self) -> int:
        """Number of nodes with at least one 16-bit type attribute that TensorFlow does not prune."""
        return len(self.sixteen.intersection(self.plan.body.proto_nodes))

    @property
    def total(self) -> int:
        """Number of nodes, those that were taken out among them; arguments and results are not counted."""
        return len(self.plan.body.proto_nodes) + self.plan.body.pruned

    @property
    def kernel_of(self) -> list[int]:
        """The kernel, by number, of each node that one replaces."""
        body = self.plan.body
        return [] if self.plan.empty else [*body.replaced.values(), *(kernel for _, _, kernel in body.gone)]


@dataclasses.dataclass(frozen=True)
class Conversion:
    """The result of converting one program. The program itself is unchanged.

    Attributes:
      root: name of the root function, "" for a main graph.
      format: the 16-bit type.
      settings: what the conversion went by.
      instances: the copies of functions that were coloured, the root first.
      bodies: what became of each instance, in the same order, by name of the function; further copies of one function are called "name#2", ...
      colourings: the colours of the program: one for all instances, or one for each where they are coloured apart (TensorFlow's levels).
      lists: the op lists that were in force.
      definitions: name to the definition before.
      seconds: wall-clock time of the conversion.
      runs: how often each instance runs when the root runs once, as far as the graph tells (see `trips.runs`).
      roots: how many of the instances are roots: two for a forward function and its backward function.
      unused_rules: the user's rules (`keep_float32`, `force_16bit`) that covered no node.
    """

    root: str
    format: FloatFormat
    settings: Settings
    instances: tuple[Instance, ...]
    bodies: Mapping[str, BodyConversion]
    colourings: tuple[Colouring, ...]
    lists: OpLists
    definitions: Mapping[str, Original]
    seconds: float
    runs: tuple[int, ...]
    roots: int = 1
    unused_rules: tuple[str, ...] = ()

    @functools.cached_property
    def originals(self) -> Mapping[str, Proto]:
        """Name to the proto before."""
        return {name: as_proto(definition) for name, definition in self.definitions.items()}

    @property
    def converted(self) -> int:
        """Number of nodes, in all bodies, that have a 16-bit type attribute now and run."""
        return sum(body.converted for body in self.bodies.values())

    @property
    def total(self) -> int:
        """Number of nodes in all bodies."""
        return sum(body.total for body in self.bodies.values())

    @property
    def casts(self) -> int:
        """Number of Cast nodes that were added, in all bodies, each counted once."""
        return sum(body.plan.run_time_casts for body in self.bodies.values())

    @property
    def casts_per_run(self) -> int:
        """Number of casts that one run of the root carries out: those in loops as often as the loop goes round, where the graph tells."""
        return sum(times * body.plan.run_time_casts for times, body in zip(self.runs, self.bodies.values(), strict=True))

    @property
    def kernels(self) -> int:
        """Number of places, in all bodies, where kernels were put in the place of several nodes (`tfmp.fusion`): normalisations and sums of products."""
        return sum(len(set(body.kernel_of)) for body in self.bodies.values())

    @property
    def replaced(self) -> int:
        """Number of nodes, in all bodies, in whose place those are."""
        return sum(len(body.kernel_of) for body in self.bodies.values())

    @property
    def changed(self) -> bool:
        """Whether any body has an edit."""
        return any(not body.plan.empty for body in self.bodies.values())

    def functions(self, new_name: Callable[[str, int], str]) -> list[Linked]:
        """Returns the roots and every function that differs from the original, under new names and calling each other (see `link`)."""
        return link(self.instances, [Written(body.plan, body.definition) for body in self.bodies.values()], self.roots, new_name)

    @functools.cached_property
    def graph_def(self) -> tf_api.GraphDef:
        """The converted GraphDef; only for what came in as a GraphDef.

        A changed function takes the place of the original where nothing else refers to that and its signature is the same; otherwise it is added to the
        library and the original stays.
        """
        if self.root:
            raise AttributeError("this conversion came from a function; its definitions are in `bodies`.")
        original = self.originals[""]
        taken = {function.signature.name for function in original.library.function}
        root, *functions = self.functions(_new_names(taken, self.format.name))
        replaced: dict[str, list[str]] = {}
        for function in functions:
            replaced.setdefault(self.instances[function.instance].function, []).append(function.name)
        return with_functions(root.proto, [function.proto for function in functions], replaced)

    def decisions(self, ops: Collection[str] | None = None, *, only_float32: bool = False) -> Iterator[Decision]:
        """Yields the decision, with its reason, for every type attribute that was float32, body by body in node order; with `ops`, of these op types, and with
        `only_float32` those for float32.
        """
        for colouring in self.colourings:
            yield from decisions(colouring, ops, only_float32=only_float32)

    def unused_overrides(self) -> list[str]:
        """Returns the op types that the user moved between lists and that no body contains, sorted."""
        bodies = [body.plan.body for body in self.bodies.values()]
        return sorted(op for op in self.lists.overridden if not any(body.nodes_of([op]) for body in bodies))


def _new_names(taken: set[str], dtype: str) -> Callable[[str, int], str]:
    """Names for new functions that are not in `taken`."""

    def new_name(name: str, version: int) -> str:
        candidate = f"{name}_{dtype}" + (f"_{version}" if version else "")
        while candidate in taken:
            candidate += "_"
        taken.add(candidate)
        return candidate

    return new_name
