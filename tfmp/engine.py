"""Programs in, conversions out. No global state and no input or output: the hooks, the files and the command line all come through here."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfmp import tf_api
from tfmp.colouring import passes, user_rules
from tfmp.colouring.rules import Rules
from tfmp.conversion import BodyConversion, Conversion
from tfmp.dtypes import sixteen_bit
from tfmp.errors import GraphError, SettingsError
from tfmp.fusion.fuse import fuse, without_needless
from tfmp.graph.body import Body
from tfmp.graph.edges import Array
from tfmp.graph.kernels import XLA_DEVICES
from tfmp.graph.wire import as_proto
from tfmp.measured.naming import aliases
from tfmp.measured.rules import Measured
from tfmp.program.liveness import dead_nodes
from tfmp.program.moves import move_edges, moved_edges
from tfmp.program.program import Lookup, Program, from_function, from_graph, paired
from tfmp.program.shapes import Graphs, hand_over, unknown
from tfmp.program.trips import frames, runs
from tfmp.program.unfold import Instance, unfold
from tfmp.program.union import Union, unite
from tfmp.program.writes import READ
from tfmp.rewriting.apply import apply
from tfmp.rewriting.hoist import hoist_reads
from tfmp.rewriting.plan import Move, Plan, make_plan
from tfmp.settings import Settings, make_settings

FEW_MEASURED = 0.2
"""Share of the measured nodes below which ranges are taken for those of another program, which a report names. Our own choice: a forward pass has a third
of the nodes of a training step."""


UNTOLD_STEPS = 16
"""Steps that a loop is taken to make if the graph does not tell. Our own choice: what it must be is more than one, so that casts leave the loop."""


def convert(
    program: Program, settings: Settings, fetches: Iterable[str] = (), graphs: Graphs = unknown, *, feedable: bool = False, prune: bool = False
) -> Conversion:
    """Returns the conversion of `program`.

    Args:
      program: a root and what it reaches.
      settings: `dtype` and `device` must be decided (not "auto").
      fetches: names of nodes of a main graph whose types must stay.
      graphs: finds the Python graph of a function, for the shapes of its tensors.
      feedable: whether the main graph is a Session's: any tensor of it may be fed, and it may grow (see `moves.move_edges` and `hoist_reads`).
      prune: whether functions in which kernels take the place of other nodes lose those, and whatever else TensorFlow would prune before it runs them. They
        have half as many nodes then, or less. Nobody may want to look at what is lost, and no setting name it: with rules of the user's, all stay.

    Raises:
      SettingsError: `dtype` or `device` is "auto".
      GraphError: the program cannot be read or coloured.
      RewriteError: a rewritten body failed verification.
    """
    with without_garbage_collection():
        return _convert(program, settings, frozenset(fetches), graphs, feedable, prune)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
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


def _convert(program: Program, settings: Settings, fetches: frozenset[str], graphs: Graphs, feedable: bool, prune: bool) -> Conversion:
    start = time.perf_counter()
    target = sixteen_bit(settings.dtype)
    if settings.device not in XLA_DEVICES:
        raise SettingsError(f"device is {settings.device!r}; tfmp asks for the kernels of one of {', '.join(map(repr, XLA_DEVICES))}.")
    lists, exact = settings.lists(settings.dtype), settings.rules.exact
    table = passes.exact(settings.dtype, tf_api.VERSION) if exact else passes.DEFAULT
    measured = settings.ranges.of(settings.dtype)
    slow: dict[str, Any] = {"slow": settings.slow_ops, "slow_filter": settings.slow_filter}
    rules = Rules(target, lists, settings.device, settings.rules.force, follow_handles=not exact, measured=measured, **slow)
    originals = program.definitions
    program = _with_kernels(program, settings, graphs, prune and not (measured or lists.overridden or any(settings.user_rules)))
    before = program
    if not exact and not settings.emulate:
        program = dataclasses.replace(program, bodies=move_edges(program, fetches, graphs, feedable=feedable))
    instances = unfold(program, share=exact)
    kept, forced = settings.user_rules
    covered = user_rules.cover(program, instances, (*kept, *settings.rules_of_level), forced, program.variables)
    if measured:
        table = passes.with_ranges(table)
    if any(covered.wishes):
        table = passes.with_user_rules(table)
    devices = [_devices(program, instance.function, settings) for instance in instances]
    counts = tuple(runs(program, instances))
    weights = None if exact else _weights(program, instances)
    together = _apart(program, instances) if exact else [unite(program, instances)]
    colourings = tuple(
        passes.colour(
            union,
            dataclasses.replace(rules, fetches=fetches if n == 0 else frozenset(), wishes=covered.of(n, union.offsets)),
            devices[n : n + len(union.instances)],
            table,
            graphs,
            weights,
        )
        for n, union in enumerate(together)
    )
    coloured = [colourings[n] if exact else colourings[0].part(n, program.bodies[one.function]) for n, one in enumerate(instances)]
    plans = [make_plan(colouring, target, exact=exact, emulate=settings.emulate) for colouring in coloured]
    plans = [_with_moves(plan, before.bodies[instance.function]) for plan, instance in zip(plans, instances, strict=True)]
    if not exact and not settings.emulate:
        plans = hoist_reads(program, instances, plans, grows=feedable)
    bodies: dict[str, BodyConversion] = {}
    for number, (instance, plan) in enumerate(zip(instances, plans, strict=True)):
        name, wanted = instance.function, () if settings.emulate else devices[number]
        main = None if name else as_proto(originals[name])
        written = originals[name] if plan.empty else apply(plan, main, program.schemas, wanted)
        bodies[_label(name, bodies)] = BodyConversion(name, coloured[number], plan, written)
    seconds = time.perf_counter() - start
    unused = [str(rule) for rule in (*kept, *forced) if rule not in covered.used]
    if settings.ranges.path and _share_measured(measured, program) < FEW_MEASURED:
        unused.append(settings.ranges.rule)
    return Conversion(
        program.root, target, settings, instances, bodies, colourings, lists, originals, seconds, counts, len(program.roots), tuple(unused)
    )


def _with_kernels(program: Program, settings: Settings, graphs: Graphs, prune: bool) -> Program:
    """Returns `program` with kernels put in, if the settings ask for them, and with `prune` without what TensorFlow prunes where there are some."""
    if not settings.fuses:
        return program
    frozen_gradients = settings.device != "GPU" or not tf_api.ops_are_deterministic()
    fused = fuse(program, graphs, _kept_nodes(program, settings), frozen_gradients=frozen_gradients)
    for name in fused.changed:
        hand_over(program.bodies[name], fused.bodies[name])
    if prune:
        fused = without_needless(fused)
    return dataclasses.replace(program, bodies=fused.bodies)


def _with_moves(plan: Plan, before: Body) -> Plan:
    """Returns `plan` with the inputs that were moved before it was made; a body in which nothing else changes stays as it is. What reads a variable in float32
    goes on reading it where it did.
    """
    if plan.empty or plan.body is before:
        return plan
    converted = {reader for cast in plan.casts for reader in cast.readers} | {reader for shortcut in plan.shortcuts for reader in shortcut.readers}
    moves = (Move(reader, source) for reader, source in moved_edges(before, plan.body))
    return dataclasses.replace(plan, moves=tuple(move for move in moves if move.reader in converted or plan.body.ops[move.source[0]] != READ))


def _kept_nodes(program: Program, settings: Settings) -> Mapping[str, frozenset[int]]:
    """Returns function to the nodes of which the user, or the level, says that they stay in float32."""
    kept = (*settings.user_rules[0], *settings.rules_of_level)
    if not kept:
        return {}
    instances = unfold(program)
    found: dict[str, frozenset[int]] = {}
    for instance, wishes in zip(instances, user_rules.cover(program, instances, kept, (), program.variables).wishes, strict=True):
        found[instance.function] = found.get(instance.function, frozenset()) | frozenset(wishes.keep)
    return found


def _share_measured(measured: Measured, program: Program) -> float:
    """The share of what was measured that a program has."""
    names = {name for body in program.bodies.values() for name in body.names}
    return measured.fitting(names, {alias for body in program.bodies.values() for alias in aliases(body.names)})[1]


def _apart(program: Program, instances: Iterable[Instance]) -> list[Union]:
    """Each instance by itself, as TensorFlow's pass sees it."""
    bodies = [program.bodies[one.function] for one in instances]
    return [Union(body, (0,), (Instance(0, body.name, {}),), (), ()) for body in bodies]


def _weights(program: Program, instances: Sequence[Instance]) -> Array:
    """Returns how often each node of the instances, one after the other, is taken to run: not at all if TensorFlow prunes it."""
    found = []
    for instance, count in zip(instances, runs(program, instances, UNTOLD_STEPS), strict=True):
        body = program.bodies[instance.function]
        weights = np.full(len(body), float(count))
        for node, depth in frames(body).items():
            weights[node] *= UNTOLD_STEPS**depth
        weights[list(dead_nodes(body))] = 0
        found.append(weights)
    return np.concatenate(found)


def _label(function: str, taken: Mapping[str, object]) -> str:
    label, number = function, 1
    while label in taken:
        number += 1
        label = f"{function}#{number}"
    return label


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
    return convert(program, chosen, kept | _kept(names, feeds), _Imported(graph_def))


def convert_function(function: tf_api.ConcreteFunction, *, dtype: str = "float16", level: str = "default", device: str = "CPU", **settings: Any) -> Conversion:
    """Returns the conversion of a traced `tf.function` and everything it calls; the function itself is not changed.

    Arguments and errors are those of `convert_graph_def`; arguments and results of the function always keep their types.
    """
    chosen = make_settings(dtype=dtype, level=level, device=device, **settings)
    names = {_text(function.name): tf_api.variable_names(function.graph)} if chosen.has_rules_of("variable") else {}
    return convert_named(function.name, tf_api.serialised_function, chosen, names, tf_api.python_graphs([function.inference_fn]).get)


VariableNames = Mapping[str, Mapping[int, str]]
"""Function to the names of the variables that are handed to it, by argument number."""


def convert_named(
    name: bytes | str, lookup: Lookup, settings: Settings, variables: VariableNames | None = None, graphs: Graphs = unknown, *, prune: bool = False
) -> Conversion:
    """Returns the conversion of the function called `name`, whose definition and whose callees' `lookup` finds; `variables` is for the user's rules, and
    `graphs` finds the shapes of tensors. `prune` is as for `convert`.
    """
    with without_garbage_collection():
        return convert(dataclasses.replace(from_function(_text(name), lookup), variables=variables or {}), settings, graphs=graphs, prune=prune)


def convert_pair(
    forward: bytes | str,
    backward: bytes | str,
    links: Iterable[tuple[int, int]],
    lookup: Lookup,
    settings: Settings,
    variables: VariableNames | None = None,
    graphs: Graphs = unknown,
    *,
    prune: bool = False,
) -> Conversion:
    """Returns the conversion of a forward function and its backward function as one program.

    Args:
      forward: name of the forward function.
      backward: name of the backward function.
      links: pairs of (result of `forward`, argument of `backward`) that are handed over unseen, so that their types may change.
      lookup: finds the definitions of both and of what they call.
      settings: as for `convert`.
      variables: as for `convert_named`.
      graphs: as for `convert`.
      prune: as for `convert`.
    """
    with without_garbage_collection():
        pair = paired(from_function(_text(forward), lookup), from_function(_text(backward), lookup), links)
        return convert(dataclasses.replace(pair, variables=variables or {}), settings, graphs=graphs, prune=prune)


class _Imported:
    """The Python graphs of a GraphDef and its functions, imported when they are first asked for."""

    def __init__(self, graph_def: tf_api.GraphDef) -> None:
        self._definition = graph_def
        self._functions = {function.signature.name: function for function in graph_def.library.function}
        self._known: dict[str, Any] = {}

    def __call__(self, function: str) -> Any:
        if "" not in self._known:
            self._known[""] = tf_api.imported_nodes(self._definition)
        if function not in self._known:
            outer = self._known[""]
            self._known[function] = outer and tf_api.imported_function(self._functions[function], outer)
        return self._known[function]


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


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
