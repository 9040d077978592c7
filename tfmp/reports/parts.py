"""The instances of a converted program as reports look at them: numbered nodes, layers, shapes, and what never runs."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator, Sequence

from tfmp.conversion import BodyConversion, Conversion
from tfmp.dtypes import DT_FLOAT
from tfmp.graph.body import Body
from tfmp.graph.flat import Shape
from tfmp.graph.wire import node_def
from tfmp.program.calls import callees
from tfmp.program.liveness import dead_nodes
from tfmp.program.unfold import Instance
from tfmp.reports.flops import UNKNOWN, flops, multiplying
from tfmp.reports.layers import Place, place
from tfmp.reports.records import CONVERTED, KEPT, OTHER
from tfmp.reports.shapes import Shapes
from tfmp.user_rules import LAYER_MARK


@dataclasses.dataclass(frozen=True)
class Part:
    """One instance.

    Attributes:
      label: name of the function, with "#2", ... for further instances.
      instance: what it calls.
      result: its colours and edits.
      runs: how often it runs.
      first: index of its first node among all nodes of the program.
      shapes: node to the shapes of its outputs.
      places: node to where it belongs.
    """

    label: str
    instance: Instance
    result: BodyConversion
    runs: int
    first: int
    shapes: Shapes
    places: tuple[Place, ...]

    @property
    def body(self) -> Body:
        """The graph before the rewrite."""
        return self.result.plan.body

    @functools.cached_property
    def dead(self) -> frozenset[int]:
        """The nodes that TensorFlow prunes before it runs the function."""
        return frozenset(dead_nodes(self.body))

    def times(self, node: int) -> int:
        """Returns how often `node` runs in one run of the program."""
        return 0 if node in self.dead else self.runs

    def sixteen(self, node: int, port: int) -> bool:
        """Returns whether an output of `node` is in 16 bit after the rewrite (in emulation: rounded to it)."""
        graph = self.result.colouring.graph
        return bool(self.result.colouring.sixteen[graph.first[node] + self.body.layouts[node].outputs[port]])

    def float_outputs(self, node: int) -> Iterator[int]:
        """Yields the output ports of `node` that were float32."""
        return (port for port, slot in enumerate(self.body.layouts[node].outputs) if self.body.types[node][slot] == DT_FLOAT)

    def colour(self, node: int) -> str:
        """Returns "converted", "kept" or "other"."""
        return colour_of(self.result, node)

    def elements(self, node: int, port: int) -> float:
        """Returns the number of elements of an output; 0 if its rank is unknown."""
        return size_of(self.shapes[node][port])

    def flops(self, node: int) -> float:
        """Returns the FLOPs of `node` in one run of the program."""
        body, counted = self.body, self._counted.get(node)
        if counted is None or not self.times(node):
            return 0.0
        inputs = [self.shapes[source][port] for source, port in body.inputs[counted]]
        return self.runs * flops(body.protos[counted], inputs, self.shapes[counted][0])

    @functools.cached_property
    def _counted(self) -> dict[int, int]:
        return {worker: self.body.by_name[node_def(node).name] for node, worker in multiplying(self.body)}

    @property
    def estimated(self) -> bool:
        """Whether some float32 tensor has a dimension that is not known."""
        return any(_is_estimated(self.shapes[node][port]) for node in self.body.proto_nodes for port in self.float_outputs(node))


def colour_of(result: BodyConversion, node: int) -> str:
    """Returns "converted" if a type attribute of `node` is in 16 bit now and it runs, "kept" if one is float32, else "other"."""
    if node in result.sixteen:
        return CONVERTED
    retyped = any(result.colouring.sixteen[vertex] for vertex in result.colouring.graph.vertices(node))
    return KEPT if DT_FLOAT in result.plan.body.types[node] and not retyped else OTHER


def _is_estimated(shape: Shape) -> bool:
    return shape is None or None in shape


def size_of(shape: Shape) -> float:
    """Returns the number of elements, `flops.UNKNOWN` standing for an unknown dimension; 0 for an unknown rank."""
    if shape is None:
        return 0.0
    size = 1.0
    for length in shape:
        size *= UNKNOWN if length is None else length
    return size


def _place(body: Body, node: int, caller: Place | None) -> Place:
    """Returns the place of a node, by its mark if it has one (only while rules name layers; see `user_rules`), else by its name."""
    found, proto = place(body.names[node], caller), body.protos[node]
    mark = proto.attr.get(LAYER_MARK) if proto is not None else None
    if mark is None:
        return found
    return dataclasses.replace(found, layer="/".join(layer.partition(":")[0] for layer in mark.s.decode().split("/")))


def _place_of_sources(body: Body, node: int, places: Sequence[Place]) -> Place:
    """Returns the place of a call that no scope names, as TensorFlow writes the backward function of a function: that of most of what it reads."""
    layers = collections.Counter(places[source].layer for source, _ in body.inputs[node] if places[source].layer)
    return Place(next((layer for layer, _ in layers.most_common(1)), ""), True)


def _is_backward(body: Body, node: int) -> bool:
    """TensorFlow calls them "__inference___backward_name_1_2" (`_BACKWARD_PREFIX` in its `atomic_function.py`)."""
    return any("_backward_" in name for name in callees(body.protos[node]))


def parts_of(conversion: Conversion, shapes: Sequence[Shapes]) -> list[Part]:
    """Returns the parts of `conversion`, in the order of its instances; `shapes` has those of each."""
    parts: list[Part] = []
    callers: dict[int, Place] = {}
    first = 0
    rows = zip(conversion.instances, conversion.bodies.items(), conversion.runs, shapes, strict=True)
    for number, (instance, (label, result), runs, known) in enumerate(rows):
        body = result.plan.body
        places = tuple(_place(body, node, callers.get(number)) for node in range(len(body)))
        for node, called in instance.calls.items():
            caller = _place_of_sources(body, node, places) if _is_backward(body, node) else places[node]
            for callee in called:
                callers.setdefault(callee.instance, caller)
        if number and number < conversion.roots:  # the backward function
            places = tuple(dataclasses.replace(one, gradient=True) for one in places)
        parts.append(Part(label, instance, result, runs, first, known, places))
        first += len(body)
    return parts
