"""Where the tensors of a program are: one site for every live node, in every place its function is called from, that has float outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tfmp.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tfmp.graph.body import Body
from tfmp.program.liveness import dead_nodes
from tfmp.program.program import Program
from tfmp.program.unfold import Instance, unfold

DT_DOUBLE = 2
FLOATS = {FLOAT32.number: "float32", FLOAT16.number: "float16", BFLOAT16.number: "bfloat16", DT_DOUBLE: "float64"}
"""Number of a float type (`types.proto`) to its name."""

Place = tuple[str, ...]
"""The calls that lead from the root to a function, each as "node:attribute" of the function before; () is the root itself."""

Tensor = tuple[Place, str, int]
"""One tensor of a program: place, name of the node, output port. Original and converted program have the same ones, casts excepted."""


@dataclasses.dataclass(frozen=True)
class Site:
    """One node in one place of a program.

    Attributes:
      instance: number of the instance it is in.
      number: its number in the instance's body.
      place: how the instance is reached.
      function: name of the function, as TensorFlow has it.
      node, op: name and op type; "_Arg" for an argument.
      ports: its float outputs.
      dtypes: the type of each of `ports` ("float32", ...).
      inputs: (name of the node, output port) of each data input, in order.
      is_call: whether it calls functions whose nodes are sites themselves.
    """

    instance: int
    number: int
    place: Place
    function: str
    node: str
    op: str
    ports: tuple[int, ...]
    dtypes: tuple[str, ...]
    inputs: tuple[tuple[str, int], ...]
    is_call: bool = False

    @property
    def key(self) -> tuple[Place, str]:
        """What names the site in the original and in the converted program."""
        return self.place, self.node

    def tensor(self, port: int) -> Tensor:
        """Returns the name of one output."""
        return (*self.key, port)


@dataclasses.dataclass(frozen=True)
class Sites:
    """All sites of a program.

    Attributes:
      program: the program.
      instances: its functions, one for each place that calls them (see `unfold`).
      places: instance number to how it is reached, first caller first.
      live: numbers of the instances that TensorFlow can reach; what only dead nodes call is not among them.
      sites: in the order of the instances and of the nodes in each.
    """

    program: Program
    instances: tuple[Instance, ...]
    places: tuple[Place, ...]
    live: frozenset[int]
    sites: tuple[Site, ...]

    def body(self, instance: int) -> Body:
        """Returns the body of an instance."""
        return self.program.bodies[self.instances[instance].function]


def find_sites(program: Program) -> Sites:
    """Returns the sites of `program`, a function and what it calls."""
    instances = unfold(program)
    dead = {name: frozenset(dead_nodes(body)) for name, body in program.bodies.items()}
    places: dict[int, Place] = {0: ()}
    live = {0}
    for instance in instances:
        body = program.bodies[instance.function]
        for node, callees in instance.calls.items():
            for callee in callees:
                step = f"{body.names[node]}:{callee.attr}" + (f"[{callee.position}]" if callee.position else "")
                places.setdefault(callee.instance, (*places[instance.number], step))
                if instance.number in live and node not in dead[instance.function]:
                    live.add(callee.instance)
    found = [
        site
        for instance in instances
        if instance.number in live
        for site in _in_instance(instance, program.bodies[instance.function], places[instance.number], dead[instance.function])
    ]
    return Sites(program, instances, tuple(places[number] for number in range(len(instances))), frozenset(live), tuple(found))


def _in_instance(instance: Instance, body: Body, place: Place, dead: frozenset[int]) -> Sequence[Site]:
    sites = []
    for number in range(body.proto_nodes.stop):
        types = body.types[number]
        floats = {port: FLOATS[types[slot]] for port, slot in enumerate(body.layouts[number].outputs) if types[slot] in FLOATS}
        if floats and number not in dead:
            inputs = tuple((body.names[source], port) for source, port in body.inputs[number])
            is_call = number in instance.calls
            sites.append(
                Site(
                    instance.number,
                    number,
                    place,
                    instance.function,
                    body.names[number],
                    body.ops[number],
                    tuple(floats),
                    tuple(floats.values()),
                    inputs,
                    is_call,
                )
            )
    return sites


def by_key(sites: Sites) -> Mapping[tuple[Place, str], Site]:
    """Returns the sites by what names them."""
    return {site.key: site for site in sites.sites}
