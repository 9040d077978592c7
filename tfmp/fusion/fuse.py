"""The functions of a program with kernels in the place of what they compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion import write_affine, write_norms, write_products
from tfmp.fusion.affine import CONVOLUTIONS, affines
from tfmp.fusion.found import Norm
from tfmp.fusion.norms import ADDITIONS, norms
from tfmp.fusion.products import PRODUCTS, summed_products
from tfmp.fusion.ready import way_back
from tfmp.fusion.writer import Writer
from tfmp.graph.body import Body, Edge
from tfmp.graph.grow import GrowingFunction
from tfmp.graph.prune import pruned
from tfmp.graph.readers import Readers
from tfmp.graph.reread import grown
from tfmp.program.liveness import LOOP_BACK, arrows, dead_nodes
from tfmp.program.program import Program
from tfmp.program.shapes import Graphs, Sizes

SUMS = ADDITIONS | {"AddN"}

WANTED = frozenset({"Mean", *PRODUCTS, *CONVOLUTIONS})
"""What a body has that something can be found in."""


@dataclasses.dataclass(frozen=True)
class Fused:
    """A program with kernels put in.

    Attributes:
      bodies: all bodies; those without a kernel are as they were.
      changed: names of the functions that have kernels now.
    """

    bodies: Mapping[str, Body]
    changed: frozenset[str]


def fuse(program: Program, graphs: Graphs, kept: Mapping[str, frozenset[int]], *, frozen_gradients: bool = True) -> Fused:
    """Returns `program` with normalisations and their gradients, scales and offsets of channels, and sums of products run by kernels that stand for them.

    Args:
      program: not changed. A main graph in it stays as it is: any node of it may be fetched or fed.
      graphs: finds the Python graph of a function, for the shapes of its tensors.
      kept: function to the nodes that must stay what they are.
      frozen_gradients: whether `FusedBatchNormGradV3` may be asked for gradients of statistics that do not change. A GPU refuses that where operations are
        to be deterministic (`tf.config.experimental.enable_op_determinism`).
    """
    found = {}
    for name, body in program.bodies.items():
        ops = {kind.op for kind in body.kinds.table}
        hopeful = name and not WANTED.isdisjoint(ops) and LOOP_BACK.isdisjoint(ops)
        after = _fused(program, body, graphs, kept.get(name, frozenset()) | body.marked, frozen_gradients) if hopeful else None
        if after is not None:
            found[name] = after
    return Fused({**program.bodies, **found}, frozenset(found))


def without_needless(fused: Fused) -> Fused:
    """Returns `fused` without the nodes that kernels replace, nor anything else that TensorFlow prunes, in the functions that have kernels."""
    smaller = {name: pruned(fused.bodies[name], dead_nodes(fused.bodies[name])) for name in fused.changed}
    return dataclasses.replace(fused, bodies={**fused.bodies, **smaller})


def _fused(program: Program, body: Body, graphs: Graphs, kept: frozenset[int], frozen_gradients: bool) -> Body | None:
    sizes, readers = Sizes.of_body(body, graphs), body.readers
    found, products = list(norms(body, sizes, readers, kept)), list(summed_products(body, sizes, readers, kept))
    if not frozen_gradients:
        found = [norm for norm in found if not (norm.by_row and norm.gradient and norm.scaled)]
    while True:
        scaled = list(affines(body, sizes, readers, kept.union(*((*norm.own, *norm.beside) for norm in found))))
        if not found and not products and not scaled:
            return None
        after = _grown(program, body, sizes, readers, {write_norms: found, write_products: products, write_affine: scaled})
        cycles = _nodes_of_cycles(after) if any(map(body.controlled.__contains__, _ends(body, found))) else frozenset()
        if not cycles:
            return after
        rest = [norm for norm in found if cycles.isdisjoint(_ends(body, [norm]))]
        if len(rest) == len(found):
            return None
        found = rest


def _ends(body: Body, found: Sequence[Norm]) -> Iterator[int]:
    """Yields the nodes that may make kernels for `found` wait for what reads their statistics: those that become kernels, and where scale and offset come from.

    Moving averages may be written before a scale is read, say, or before the last op of a normalisation.
    """
    for norm in found:
        yield norm.result
        if norm.gradient is not None and norm.gradient.data is not None:
            yield norm.gradient.data
        for edge in (norm.scale, norm.offset):
            if edge is not None:
                yield from way_back(body, edge)


def _grown(program: Program, body: Body, sizes: Sizes, readers: Readers, work: Mapping[Any, Sequence[Any]]) -> Body:
    """Returns the function with all kernels written; `work` is as for `_write`."""
    found, products, scaled = work.values()
    editor = GrowingFunction(body)
    writer = Writer(editor, sizes, readers)
    _write(writer, work)
    growth = editor.finish()
    after = grown(body, growth, program.schemas)
    after.made = {after.by_name[name]: tuple(shapes) for name, shapes in editor.shapes.items()}
    gone = writer.needs.needless.difference(dead_nodes(body))
    replaced = {node: norm.result for norm in found for node in norm.beside if node in gone}
    replaced |= {node: norm.result for norm in found for node in norm.own if node in gone}  # it may be beside another one
    replaced |= {affine.product: affine.result for affine in scaled if affine.product in gone}
    replaced |= {product.product: product.total for product in products if product.product in gone}
    after.replaced = replaced
    after.dead = writer.needs.needless_of(after, growth.touched)
    after.residual = set(_residual(body, readers, after, sizes, found))
    return after


def _residual(before: Body, readers: Readers, after: Body, sizes: Sizes, found: Sequence[Norm]) -> Iterator[int]:
    """Yields the sums that a normalisation of rows reads, and those that add the gradient of one to others."""
    ends = set()
    for norm in (norm for norm in found if norm.by_row):
        ends.add(norm.data[0])
        if norm.gradient is not None and norm.gradient.data is not None:
            ends.add(norm.gradient.data)
    reading = {reader for end in ends for edges in readers[end] for reader, _ in edges}
    for node in sorted(ends | reading):
        if after.ops[node] in SUMS and after.types[node][0] == DT_FLOAT and _all_alike(sizes, [(node, 0), *before.inputs[node]]):
            yield node


def _all_alike(sizes: Sizes, edges: Sequence[Edge]) -> bool:
    """Returns whether tensors have one shape, of a known rank."""
    shapes = [sizes.shape(edge) for edge in edges]
    return shapes[0] is not None and all(shape == shapes[0] for shape in shapes)


def _write(writer: Writer, work: Mapping[Any, Sequence[Any]]) -> None:
    """Writes all kernels; `work` is what each of the modules that write is to write. What nodes become is told first, since one kernel may read what another
    one makes.
    """
    for module, found in work.items():
        for one in found:
            module.announce(writer, one)
    for module, found in work.items():
        for one in found:
            module.write(writer, one)
    writer.finish()


def _nodes_of_cycles(body: Body) -> frozenset[int]:
    """Returns the nodes that wait for another one that waits for them."""
    readers, sources = arrows(body)
    steps = csr_array((np.ones(len(readers)), (readers, sources)), shape=(len(body), len(body)))
    part_of = connected_components(steps, connection="strong")[1]
    return frozenset(np.flatnonzero(np.bincount(part_of)[part_of] > 1).tolist())
