"""The functions of a program with kernels in the place of what they compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tfmp.fusion import write_norms, write_products
from tfmp.fusion.norms import Norm, norms
from tfmp.fusion.products import PRODUCTS, SummedProduct, summed_products
from tfmp.fusion.writer import Writer
from tfmp.graph.edit import Proto
from tfmp.graph.grow import GrowingGraph
from tfmp.graph.view import Body, read_function
from tfmp.program.program import Program
from tfmp.program.shapes import Graphs, Sizes

LOOPS_INSIDE = frozenset({"NextIteration"})
"""What a body with loops that are no functions has; it is left alone."""

WANTED = frozenset({"Mean", *PRODUCTS})
"""What a body has that something can be found in."""


@dataclasses.dataclass(frozen=True)
class Fused:
    """A program with kernels put in.

    Attributes:
      bodies: all bodies; those without a kernel are as they were.
      protos: name of a function that has kernels now to its definition.
    """

    bodies: Mapping[str, Body]
    protos: Mapping[str, Proto]


def fuse(program: Program, graphs: Graphs, kept: Mapping[str, frozenset[int]]) -> Fused:
    """Returns `program` with batch normalisations and their gradients run by one kernel each.

    Args:
      program: not changed. A main graph in it stays as it is: any node of it may be fetched or fed.
      graphs: finds the Python graph of a function, for the shapes of its tensors.
      kept: function to the nodes that must stay what they are.
    """
    bodies, protos = dict(program.bodies), {}
    for name, body in program.bodies.items():
        found = _fused(program, body, graphs, kept.get(name, frozenset()) | body.marked) if name and WANTED.intersection(body.ops) else None
        if found is not None:
            protos[name], bodies[name] = found
    return Fused(bodies, protos)


def _fused(program: Program, body: Body, graphs: Graphs, kept: frozenset[int]) -> tuple[Proto, Body] | None:
    if LOOPS_INSIDE.intersection(body.ops):
        return None
    sizes, readers = Sizes.of_body(body, graphs), body.readers()
    found, products = list(norms(body, sizes, readers, kept)), list(summed_products(body, sizes, readers, kept))
    if not found and not products:
        return None
    editor = GrowingGraph(body, program.definitions[body.name])
    _write(Writer(editor, sizes, readers), found, products)
    after = read_function(editor.proto, program.schemas)
    if _has_cycle(after):  # a scale that is not read before the statistics are written, say
        return None
    after.made = {after.by_name[name]: tuple(shapes) for name, shapes in editor.shapes.items()}
    return editor.proto, after


def _write(writer: Writer, found: Sequence[Norm], products: Sequence[SummedProduct]) -> None:
    """Writes all kernels. What nodes become is told first, since one kernel may read what another one makes."""
    for norm in found:
        write_norms.announce(writer, norm)
    for product in products:
        write_products.announce(writer, product)
    for norm in found:
        write_norms.write(writer, norm)
    for product in products:
        write_products.write(writer, product)


def _has_cycle(body: Body) -> bool:
    """Returns whether some node waits for itself."""
    waiting = [len(edges) + len(body.waits_for(node)) for node, edges in enumerate(body.inputs)]
    behind: list[list[int]] = [[] for _ in waiting]
    for node, edges in enumerate(body.inputs):
        for source in (*(source for source, _ in edges), *body.waits_for(node)):
            behind[source].append(node)
    ready = [node for node, count in enumerate(waiting) if not count]
    done = 0
    while ready:
        done += 1
        for node in behind[ready.pop()]:
            waiting[node] -= 1
            if not waiting[node]:
                ready.append(node)
    return done < len(body)
