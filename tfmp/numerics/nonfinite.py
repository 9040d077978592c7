"""The first op that made something infinite or NaN."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfmp import tf_api
from tfmp.graph.body import RETVAL, Edge
from tfmp.measured.counts import Counts
from tfmp.numerics.calibration import count, plain_name
from tfmp.numerics.kinds import kinds, layers
from tfmp.numerics.mixed import Pair, convert
from tfmp.numerics.running import TappedProgram
from tfmp.numerics.sites import Place, Site, Sites, Tensor, by_key
from tfmp.numerics.tables import number
from tfmp.numerics.tracing import Tracer

NEW_NODE = "-AutoMixedPrecision"
"""How the names of nodes end that a conversion adds."""

ORIGIN = re.compile(r"-\d+-CastTo\w+-\d+-AutoMixedPrecision$")
"""What such a name has after that of the node whose output is cast (`rewriting/plan.py`)."""

FEW = 1000
"""Sites that are looked at in float32: the first that had something infinite or NaN. What came after them is what they have led to."""


@dataclasses.dataclass(frozen=True)
class Value:
    """One tensor that an op read or computed, in one run of it.

    Attributes:
      name: "node" or "node:port".
      op: type of the op that made it.
      dtype: its type where it was read, in the mixed program.
      mixed: what it held there.
      full: what it held in the float32 program; None if the op did not run there.
    """

    name: str
    op: str
    dtype: str
    mixed: Counts
    full: Counts | None

    def __str__(self) -> str:
        """Returns one line."""
        full = "" if self.full is None else f"; in float32 {describe(self.full)}"
        return f"{self.name} ({self.op}, {self.dtype}): {describe(self.mixed)}{full}"


def describe(counts: Counts) -> str:
    """Returns in words what a tensor held."""
    parts = [f"magnitudes {number(counts.smallest)} to {number(counts.largest)}"] if counts.nonzero else []
    parts += [f"{amount} {what}" for amount, what in ((counts.zeros, "zero"), (counts.infs, "infinite"), (counts.nans, "NaN")) if amount]
    return f"{', '.join(parts)} of {counts.elements}"


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """The first op, in order of execution, that computed something infinite or NaN. Prints as a few lines.

    Attributes:
      node, op: the node and its op type. Where the value became infinite when a conversion's cast rounded it, the op that reads the cast.
      layer: names of the Keras layers, or of the name scopes, that it is in, joined by "/"; or "".
      kind: activation, activation gradient, ... (see `tfmp.measured.record`).
      function: name of the function that the node is in, without TensorFlow's prefix and number.
      place: the calls that lead to that function, each as "node:attribute".
      run: in which run of the node in this step (from 1; in a loop it runs once a step of the loop).
      output: what it computed.
      inputs: the float tensors that it read.
      by_cast: whether it was the cast of an input that made it infinite.
      also_in_float32: whether nothing went wrong in mixed precision that does not in float32, too.
    """

    node: str
    op: str
    layer: str
    kind: str
    function: str
    place: Place
    run: int
    output: Value
    inputs: tuple[Value, ...]
    by_cast: bool
    also_in_float32: bool

    def __str__(self) -> str:
        """Returns the finding as text: the op, what it computed, what it read, and what follows from it."""
        where = [f"layer {self.layer}"] if self.layer else []
        where += [f"function {self.function}"] + ([f"in {' > '.join(self.place)}"] if self.place else []) + ([f"run {self.run}"] if self.run > 1 else [])
        lines = [f"The first value that is not finite comes from {self.op} node {self.node!r} ({', '.join(where)}; {self.kind}).", f"  computed {self.output}"]
        lines += [f"  read     {value}" for value in self.inputs]
        return "\n".join([*lines, f"  {self.advice}"])

    @property
    def advice(self) -> str:
        """One sentence on what to do."""
        if self.also_in_float32 and not self.inputs:
            return "It is so in float32 too: the value was there before anything was computed. Go back to weights, or data, that are finite."
        if self.also_in_float32:
            return "It is so in float32 too: mixed precision is not the cause."
        cause = f"An input becomes infinite when it is rounded to {self._sixteen}. " if self.by_cast else ""
        return f'{cause}Keep it in float32: keep_float32="name:{self.node}", or calibrate and use the ranges.'

    @property
    def _sixteen(self) -> str:
        return next((value.dtype for value in self.inputs if value.dtype != "float32"), "16 bit")


def find_nonfinite(fn_or_model: Any, batch: Any, **settings: Any) -> NonFinite | None:
    """Runs one batch in mixed precision and returns the first op that computed something infinite or NaN, with what it read; None if none did.

    Use it with the batch of a step that was skipped or whose loss was NaN: the model's weights are still those from before a skipped step. What is infinite
    or NaN in float32 as well (a mask of -inf) is passed over, unless there is nothing else. Nothing of the user's changes.

    Args:
      fn_or_model: a model or a function, as for `calibrate`.
      batch: one batch, as for `calibrate`.
      **settings: changes to the settings in force where this is called (`tfmp.enable`), or to the defaults, as for `compare`.

    Raises:
      TfmpError: `fn_or_model` is neither a function nor a model.
      SettingsError, GraphError, RewriteError: as `tfmp.convert_function`.
      OpError: the program stopped on an error before anything was infinite or NaN.
    """
    pair = convert(Tracer(fn_or_model)(batch), settings)
    found = _Recorder(pair.mixed)
    stopped = found.run(pair, pair.mixed.sites)
    if not found.events:
        if stopped is not None:
            raise stopped
        return None
    full = _Recorder(pair.full, whole=True)
    looked_at = [site for event in found.events[:FEW] for site in (event.site, _reader(event, pair) if event.by_cast else None) if site is not None]
    wanted = {key for site in looked_at for key in (site.key, *((site.place, node) for node, _ in _original_inputs(site, pair)))}
    full.run(pair, [site for site in pair.full.sites if site.key in wanted])
    new = (event for event in found.events[:FEW] if event.is_new(full, pair))
    first = next(new, None)
    return _finding(first or found.events[0], pair, found, full, also_in_float32=first is None)


@dataclasses.dataclass(frozen=True)
class _Event:
    """One run of a site that computed something not finite, with what its inputs held then."""

    site: Site
    run: int
    port: int
    output: Counts
    inputs: Mapping[tuple[str, int], Counts]

    @property
    def by_cast(self) -> bool:
        """Whether a cast or constant that the conversion added computed it."""
        return self.site.node.endswith(NEW_NODE)

    def is_new(self, full: _Recorder, pair: Pair) -> bool:
        """Whether the same run of the same op in float32 had fewer such values. A cast that was added is new if what it read was finite."""
        if self.by_cast:
            return all(counts.infs + counts.nans < self.output.infs + self.output.nans for counts in self.inputs.values())
        before = full.at(self.site.tensor(self.port), self.run)
        return before is None or before.infs + before.nans < self.output.infs + self.output.nans


class _Recorder:
    """Counts what every tensor of a program held last, or with `whole` in every run, and what was not finite."""

    def __init__(self, sites: Sites, whole: bool = False) -> None:
        self._sites, self._whole = sites, whole
        self._history: dict[Tensor, list[Counts]] = {}
        self._runs: dict[tuple[Place, str], int] = {}
        self.events: list[_Event] = []

    def run(self, pair: Pair, sites: Collection[Site]) -> tf_api.OpError | None:
        """Runs the program once; returns the error if it stopped on one, as programs that check for NaNs do."""
        try:
            TappedProgram(self._sites, pair.traced.atomic, self._listen, sites).run(pair.traced)
        except tf_api.OpError as error:
            return error
        return None

    def _listen(self, site: Site, values: Sequence[np.ndarray]) -> None:
        run = self._runs[site.key] = self._runs.get(site.key, 0) + 1
        for port, value in zip(site.ports, values, strict=True):
            counts = dataclasses.replace(count(value), exponents=())
            history = self._history.setdefault(site.tensor(port), [])
            if not self._whole:
                history.clear()
            history.append(counts)
            if counts.infs + counts.nans:
                self.events.append(self._event(site, run, port, counts))

    def last(self, tensor: Tensor) -> Counts | None:
        """Returns what a tensor held last."""
        return self._history[tensor][-1] if tensor in self._history else None

    def event_of(self, site: Site) -> _Event:
        """Returns the first run of `site` that computed something not finite; if there was none, its last run."""
        first = next((event for event in self.events if event.site.key == site.key), None)
        return first or self._event(site, self._runs.get(site.key, 0), site.ports[0], self.last(site.tensor(site.ports[0])) or Counts())

    def _event(self, site: Site, run: int, port: int, output: Counts) -> _Event:
        return _Event(site, run, port, output, {(node, p): found for node, p in site.inputs if (found := self.last((site.place, node, p))) is not None})

    def at(self, tensor: Tensor, run: int) -> Counts | None:
        """Returns what a tensor held in one run; only with `whole`."""
        history = self._history.get(tensor, [])
        return history[run - 1] if 0 < run <= len(history) else None


def _original_inputs(site: Site, pair: Pair) -> Iterator[tuple[str, int]]:
    """Yields the inputs of a site of the mixed program by their names in the float32 program, casts passed over."""
    body = pair.mixed.body(site.instance)
    for edge in body.inputs[site.number]:
        while body.names[edge[0]].endswith(NEW_NODE) and body.inputs[edge[0]]:
            edge = body.inputs[edge[0]][0]
        yield ORIGIN.sub("", body.names[edge[0]]), edge[1]


def _reader(event: _Event, pair: Pair) -> Site | None:
    """Returns the site of the first op that computes with what an added cast or constant gives, in inner functions too."""
    found = next(_readers(pair.mixed, event.site.instance, (event.site.number, event.port)), None)
    return None if found is None else next((site for site in pair.mixed.sites if (site.instance, site.number) == found), None)


def _readers(sites: Sites, instance: int, tensor: Edge) -> Iterator[tuple[int, int]]:
    """Yields instance and number of each node that computes with a tensor, past Identity nodes and into calls, loops and branches."""
    body, calls = sites.body(instance), sites.instances[instance].calls
    for reader, edges in enumerate(body.inputs):
        for port, edge in enumerate(edges):
            if edge != tensor or body.ops[reader] == RETVAL:
                continue
            if body.ops[reader] == "Identity":
                yield from _readers(sites, instance, (reader, 0))
            elif reader not in calls:
                yield instance, reader
            for callee in calls.get(reader, ()):
                argument = port - len(edges) + sites.body(callee.instance).arguments  # the first input of an If is its predicate
                if callee.instance > instance and argument >= 0:
                    yield from _readers(sites, callee.instance, (argument, 0))


def _finding(event: _Event, pair: Pair, mixed: _Recorder, full: _Recorder, *, also_in_float32: bool) -> NonFinite:
    by_cast, reader = event.by_cast, _reader(event, pair) if event.by_cast else None
    if reader is not None:
        event = mixed.event_of(reader)
    site = event.site
    sites = pair.full if site.key in by_key(pair.full) else pair.mixed
    original = by_key(sites)[site.key]
    return NonFinite(
        site.node,
        site.op,
        layers(sites)(original),
        kinds(sites)(original),
        plain_name(original.function),
        site.place,
        event.run,
        _value(site, event.port, event.output, full, (site.node, event.port), event.run),
        tuple(_inputs(event, pair, full)),
        by_cast,
        also_in_float32,
    )


def _inputs(event: _Event, pair: Pair, full: _Recorder) -> Iterator[Value]:
    sites, originals = by_key(pair.mixed), by_key(pair.full)
    for tensor, original in zip(event.site.inputs, _original_inputs(event.site, pair), strict=True):
        source = sites.get((event.site.place, tensor[0]))
        if source is not None and tensor in event.inputs:
            maker = originals.get((event.site.place, original[0]), source)
            yield _value(dataclasses.replace(source, op=maker.op), tensor[1], event.inputs[tensor], full, original, event.run)


def _value(site: Site, port: int, counts: Counts, full: _Recorder, original: tuple[str, int], run: int) -> Value:
    name = original[0] if original[1] == 0 else f"{original[0]}:{original[1]}"
    return Value(name, site.op, site.dtypes[site.ports.index(port)], counts, full.at((site.place, *original), run))
