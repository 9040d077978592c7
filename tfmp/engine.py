"""Programs in, conversions out. No global state and no input or output: the hooks, the files and the command line all come through here."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfmp import tf_api
from tfmp.colouring import passes
from tfmp.colouring.canvas import Rules
from tfmp.colouring.passes import Colouring
from tfmp.colouring.reasons import Decision, decisions
from tfmp.dtypes import FloatFormat, sixteen_bit
from tfmp.errors import GraphError, SettingsError
from tfmp.graph.kernels import XLA_DEVICES
from tfmp.graph.schema import OpSchema
from tfmp.graph.view import library_schemas
from tfmp.oplists import OpLists
from tfmp.program.program import Lookup, Program, from_function, from_graph
from tfmp.rewriting.apply import apply
from tfmp.rewriting.plan import Plan, make_plan
from tfmp.settings import Settings, make_settings


@dataclasses.dataclass(frozen=True)
class BodyConversion:
    """What happened to one body: its colours, the edits, and the new proto (the original one if nothing changed)."""

    colouring: Colouring
    plan: Plan
    proto: tf_api.FunctionDef | tf_api.GraphDef

    @property
    def converted(self) -> int:
        """Number of nodes with at least one 16-bit type attribute."""
        node_of = self.colouring.graph.node_of
        return len({node_of[vertex] for vertex, sixteen in enumerate(self.colouring.sixteen) if sixteen})

    @property
    def total(self) -> int:
        """Number of nodes, arguments and results not counted."""
        return len(self.plan.body.proto_nodes)


@dataclasses.dataclass(frozen=True)
class Conversion:
    """The result of converting one program. The program itself is unchanged.

    Attributes:
      root: name of the root function, "" for a main graph.
      format: the 16-bit type.
      settings: what the conversion went by.
      bodies: name to conversion of the root and of every function it reaches.
      lists: the op lists that were in force.
      originals: name to the proto before.
      seconds: wall-clock time of the conversion.
    """

    root: str
    format: FloatFormat
    settings: Settings
    bodies: Mapping[str, BodyConversion]
    lists: OpLists
    originals: Mapping[str, tf_api.FunctionDef | tf_api.GraphDef]
    seconds: float

    @property
    def converted(self) -> int:
        """Number of nodes, in all bodies, that have a 16-bit type attribute now."""
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
    def changed(self) -> bool:
        """Whether any body has an edit."""
        return any(not body.plan.empty for body in self.bodies.values())

    @property
    def graph_def(self) -> tf_api.GraphDef:
        """The converted GraphDef with its whole function library; only for what came in as a GraphDef."""
        if self.root:
            raise AttributeError("this conversion came from a function; its definitions are in `bodies`.")
        result = tf_api.GraphDef()
        result.CopyFrom(self.originals[""])
        result.ClearField("node")
        result.node.extend(self.bodies[""].proto.node)
        for function in result.library.function:
            if function.signature.name in self.bodies:
                function.CopyFrom(self.bodies[function.signature.name].proto)
        return result

    def decisions(self) -> Iterator[Decision]:
        """Yields the decision, with its reason, for every type attribute that was float32, body by body in node order."""
        for name, body in self.bodies.items():
            yield from decisions(name, body.colouring)

    def unused_overrides(self) -> list[str]:
        """Returns the op types that the user moved between lists and that no body contains, sorted."""
        present = {op for body in self.bodies.values() for op in body.plan.body.ops}
        return sorted(self.lists.overridden - present)


def convert(program: Program, settings: Settings, library: Mapping[str, OpSchema], fetches: Iterable[str] = ()) -> Conversion:
    """Returns the conversion of `program`.

    Args:
      program: a root and what it reaches.
      settings: `dtype` and `device` must be decided (not "auto").
      library: schemas of functions that nodes name as their op.
      fetches: names of nodes of a main graph whose types must stay.

    Raises:
      SettingsError: `dtype` or `device` is "auto".
      GraphError: the program cannot be read or coloured.
      RewriteError: a rewritten body failed verification.
    """
    with _no_garbage_collection():
        return _convert(program, settings, library, frozenset(fetches))


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Holds the cycle collector back: a conversion makes many small objects and no cycles, and each full collection walks all of TensorFlow's
    objects (measured: half the time of a conversion of 8,000 nodes).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _convert(program: Program, settings: Settings, library: Mapping[str, OpSchema], fetches: frozenset[str]) -> Conversion:
    start = time.perf_counter()
    target = sixteen_bit(settings.dtype)
    if settings.device not in XLA_DEVICES:
        raise SettingsError(f"device is {settings.device!r}; tfmp asks for the kernels of one of {', '.join(map(repr, XLA_DEVICES))}.")
    lists = settings.lists(settings.dtype)
    table = passes.exact(settings.dtype, tf_api.VERSION) if settings.rules.exact else passes.DEFAULT
    bodies = {}
    for name, body in program.bodies.items():
        rules = Rules(target, lists, _devices(program, name, settings), settings.rules.force, fetches if name == program.root else frozenset())
        colouring = passes.colour(body, rules, table)
        plan = make_plan(colouring, target, exact=settings.rules.exact, emulate=settings.emulate)
        original = program.definitions[name]
        proto = original if plan.empty else apply(plan, original, library, () if settings.emulate else rules.devices)
        bodies[name] = BodyConversion(colouring, plan, proto)
    return Conversion(program.root, target, settings, bodies, lists, program.definitions, time.perf_counter() - start)


def _devices(program: Program, name: str, settings: Settings) -> tuple[str, ...]:
    """The device types whose kernels a body needs: the device's own where it runs interpreted, XLA's where it is compiled."""
    own = (settings.device,) if name in program.interpreted else ()
    compiled = (XLA_DEVICES[settings.device],) if name in program.compiled else ()
    return (*own, *compiled)


def convert_graph_def(
    graph_def: tf_api.GraphDef,
    *,
    fetches: Iterable[str] = (),
    feeds: Iterable[str] = (),
    dtype: str = "float16",
    level: str = "default",
    device: str = "GPU",
    **settings: Any,
) -> Conversion:
    """Returns the conversion of `graph_def` and the functions of its library that it reaches; `graph_def` is not changed.

    Args:
      graph_def: a main graph with its function library.
      fetches: nodes or tensors ("name" or "name:0") whose types must stay. Without any, those are the nodes that no other node reads.
      feeds: nodes or tensors that are fed; their types stay.
      dtype: "float16" or "bfloat16".
      level: a key of `settings.LEVELS`.
      device: "GPU" or "CPU": where nodes without a device run, and whose kernels are asked for.
      **settings: any other setting of `settings.make_settings`, such as `denylist_add="Softmax"`.

    Raises:
      SettingsError, GraphError, RewriteError: as `convert` does; also for a fetch or feed that is not in the graph.
    """
    chosen = make_settings(dtype=dtype, level=level, device=device, **settings)
    program = from_graph(graph_def)
    names = program.bodies[""].names
    kept = _kept(names, fetches) or frozenset(_unread(program))
    return convert(program, chosen, library_schemas(graph_def.library.function), kept | _kept(names, feeds))


def convert_function(function: tf_api.ConcreteFunction, *, dtype: str = "float16", level: str = "default", device: str = "CPU", **settings: Any) -> Conversion:
    """Returns the conversion of a traced `tf.function` and everything it calls; the function itself is not changed.

    Arguments and errors are those of `convert_graph_def`; arguments and results of the function always keep their types.
    """
    chosen = make_settings(dtype=dtype, level=level, device=device, **settings)
    return convert_named(function.name, tf_api.function_definition, chosen)


def convert_named(name: bytes | str, lookup: Lookup, settings: Settings) -> Conversion:
    """Returns the conversion of the function called `name`, whose definition and whose callees' `lookup` finds."""
    text = name.decode() if isinstance(name, bytes) else name
    with _no_garbage_collection():
        return convert(from_function(text, lookup), settings, {})


def _kept(names: list[str], wanted: Iterable[str]) -> frozenset[str]:
    kept = frozenset(name.removeprefix("^").partition(":")[0] for name in wanted)
    missing = sorted(kept - set(names))
    if missing:
        raise GraphError(f"fetched or fed node {missing[0]!r} is not in the graph, which has {len(names)} nodes.")
    return kept


def _unread(program: Program) -> Iterator[str]:
    body = program.bodies[""]
    read = {source for edges in body.inputs for source, _ in edges}
    return (name for node, name in enumerate(body.names) if node not in read)
