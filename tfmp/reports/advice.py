"""What the user might do about a report: one rule, one function, all of them in `RULES`."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence

from tfmp import tf_api
from tfmp.graph.body import ARG, RETVAL
from tfmp.graph.flat import Shape
from tfmp.program.calls import CALLING_OPS
from tfmp.reports.memory import written
from tfmp.reports.parts import Part
from tfmp.reports.records import CONVERTED, KEPT, Advice, Details, Node
from tfmp.reports.words import in_units, microseconds, pulling

BLOCK = 8
"""Tensor Cores work best if the dimensions of a product are multiples of 16 bytes, that is of 8 elements in 16 bit (NVIDIA, "Deep Learning Performance:
Matrix Multiplication Background", section 3.1, and "Convolutional Layers", section 2.3: channels)."""

WORTH_NAMING = 0.01
"""Advice on a product with less than this share of the FLOPs would be noise. Our own choice."""

CAST_SECONDS, SECONDS_PER_FLOP = 5e-6, 1 / 15.7e12 - 1 / 125e12
"""What a cast costs at least (the launch of a kernel) and what a FLOP saves, on an NVIDIA V100 (15.7 TFLOPS in float32, 125 in float16: its data sheet):
with fewer FLOPs per cast than the quotient, there is nothing to gain."""

BLOCKING = 3
"""From how many pulled neighbours on a node counts as blocking a region. Our own choice."""

Dimensions = dict[str, int | None]
"""What the dimensions of a product are called, and how long they are."""


def _product(proto: tf_api.NodeDef, inputs: Sequence[Shape], output: Shape) -> Dimensions:
    first = inputs[0]
    if output is None or first is None or min(len(output), len(first)) < 2:
        return {}
    transposed = any(proto.attr[name].b for name in ("transpose_a", "adj_x") if name in proto.attr)
    return {"rows": output[-2], "columns": output[-1], "inner dimension": first[-2 if transposed else -1]}


def _channels(proto: tf_api.NodeDef, inputs: Sequence[Shape], output: Shape) -> Dimensions:
    kernel = inputs[1]
    return {} if kernel is None else {"input channels": kernel[-2], "output channels": kernel[-1]}


def _labels(proto: tf_api.NodeDef, inputs: Sequence[Shape], output: Shape) -> Dimensions:
    """Those of an Einsum by their letters; letters that all terms have stand for batches, and those under "..." are left out."""
    left, _, right = proto.attr["equation"].s.decode().replace(" ", "").partition("->")
    terms = left.split(",")
    if "." in left or len(terms) != len(inputs) or any(shape is None for shape in inputs):
        return {}
    batches = set(right).intersection(*terms)
    sizes = {letter: size for term, shape in zip(terms, inputs, strict=True) for letter, size in zip(term, shape or (), strict=True)}
    return {f"{letter!r}": size for letter, size in sizes.items() if letter not in batches}


DIMENSIONS: dict[str, Callable[[tf_api.NodeDef, Sequence[Shape], Shape], Dimensions]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _product),
    **dict.fromkeys(("Conv2D", "Conv3D"), _channels),
    "Einsum": _labels,
}
"""Op to its dimensions that count. Gradients have those of their forward op."""


def advise(details: Details, parts: Sequence[Part]) -> list[Advice]:
    """Returns all advice on a program, the weightiest first."""
    return sorted((advice for rule in RULES for advice in rule(details, parts)), key=lambda advice: (-advice.weight, advice.kind, advice.node))


def _dimensions(details: Details, parts: Sequence[Part]) -> Iterator[Advice]:
    """Forward products whose dimensions are not multiples of `BLOCK`; equal ones are one advice."""
    weights = _flops_by_layer(details)
    alike: dict[str, list[Node]] = {}
    for index, node in enumerate(details.nodes):
        look = DIMENSIONS.get(node.op)
        if look is None or not node.flops or node.gradient:
            continue
        part = parts[node.function]
        inputs = [_shape_of(details, parts, source, port) for source, port in node.inputs]
        sizes = look(part.body.protos[index - part.first], inputs, node.shape)
        odd = [f"{name} {size} (next: {-(-size // BLOCK) * BLOCK})" for name, size in sizes.items() if size is not None and size % BLOCK]
        if odd:
            alike.setdefault(f"{node.op} {' x '.join(map(_written_out, inputs))}: {' and '.join(odd)}", []).append(node)
    for text, nodes in alike.items():
        layers = list(dict.fromkeys(node.layer for node in nodes))
        weight = min(1.0, sum(weights[layer] for layer in layers) if all(layers) else sum(node.flops for node in nodes) / details.flops)
        if weight >= WORTH_NAMING:
            also = f" Likewise in {', '.join(layers[1:4])}{', ...' if len(layers) > 4 else ''}." if layers[1:] else ""
            advice = f"{text}. Tensor Cores work in blocks of {BLOCK}: on a GPU, a multiple of {BLOCK} is faster.{also}"
            yield Advice("dimensions", nodes[0].layer, nodes[0].name, advice, weight)


def _flops_by_layer(details: Details) -> dict[str, float]:
    return {layer.layer: layer.flops / (details.flops or 1) for layer in details.layers}


def _shape_of(details: Details, parts: Sequence[Part], source: int, port: int) -> Shape:
    part = parts[details.nodes[source].function]
    return part.shapes[source - part.first][port]


def _written_out(shape: Shape) -> str:
    return "?" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _blockers(details: Details, parts: Sequence[Part]) -> Iterator[Advice]:
    """Nodes that keep many others in float32."""
    pulled: dict[int, list[int]] = {}
    for index, node in enumerate(details.nodes):
        if node.root >= 0:
            pulled.setdefault(node.root, []).append(index)
    for root, members in pulled.items():
        node = details.nodes[root]
        size = sum(written(parts[details.nodes[index].function], index - parts[details.nodes[index].function].first)[0] for index in members)
        weight = size / (details.memory.written_before or 1)
        if len(members) >= BLOCKING and weight >= WORTH_NAMING:
            ops = collections.Counter(details.nodes[index].op for index in members if details.nodes[index].op not in (ARG, RETVAL))
            text = (
                f"{node.op}: {pulling(node.reason, len(members))} ({', '.join(f'{op} x {count}' for op, count in ops.most_common(3))}), "
                f"{in_units(size, 'B')} that stay in float32."
            )
            if node.rule == "denylist":
                text += f" If its values are harmless, denylist_remove={node.op!r} lets what follows it be 16 bit; watch the loss."
            yield Advice("blocks", node.layer, node.name, text, weight)


def _islands(details: Details, parts: Sequence[Part]) -> Iterator[Advice]:
    """Ops on no list between 16-bit ones: a cast up before them and a cast down after them."""
    up = {reader: cast for cast in details.casts if cast.to == "float32" for reader in cast.readers}
    down = {cast.source: cast for cast in details.casts if cast.to != "float32"}
    found: dict[str, list[int]] = {}
    for index in up.keys() & down.keys():
        node = details.nodes[index]
        if node.rule == "unlisted" and node.colour == KEPT and node.op not in CALLING_OPS:
            found.setdefault(node.op, []).append(index)
    for op, indices in found.items():
        size = sum(cast.bytes for cast in {id(c): c for index in indices for c in (up[index], down[index])}.values())
        first = details.nodes[min(indices)]
        text = (
            f"{op} is on no list and lies between 16-bit ops {len(indices)} times: {in_units(size, 'B')} of casts around it. "
            f"If it is safe in 16 bit, inferlist_add={op!r} converts it with its neighbours."
        )
        yield Advice("unlisted", first.layer, first.name, text, min(1.0, size / (details.memory.written_before or 1)))


def _nothing_to_gain(details: Details, parts: Sequence[Part]) -> Iterator[Advice]:
    """Programs whose products are too small for their casts, and programs without any."""
    gained = sum(function.flops_converted for function in details.functions) * SECONDS_PER_FLOP
    cost = details.casts_per_run * CAST_SECONDS
    if details.converted and gained < cost:
        text = (
            f"too small to gain: in 16 bit its {in_units(details.flops, 'FLOP')} are done about {microseconds(gained)} sooner on an NVIDIA V100, "
            f"and its {details.casts_per_run} casts take at least {microseconds(cost)}. Larger batches or layers, or a float32 scope around it "
            "(tfmp.mixed_precision(enabled=False)), help."
        )
        yield Advice("too small", "", "", text, 1.0)


def _overrides(details: Details, parts: Sequence[Part]) -> Iterator[Advice]:
    """Op types that were moved between lists, and rules, for nothing."""
    for op in details.unused_overrides:
        yield Advice("no effect", "", "", f"{op} was moved between lists, but this program has no such op.", 0.5)
    for rule in details.unused_rules:
        yield Advice("no effect", "", "", f"the rule {rule} covers nothing in this program.", 0.5)


def _kept_products(details: Details, parts: Sequence[Part]) -> Iterator[Advice]:
    """Products that stayed in float32."""
    groups: dict[tuple[str, str, str], list[Node]] = {}
    for node in details.nodes:
        if node.flops and node.colour != CONVERTED:
            groups.setdefault((node.layer, node.op, node.reason), []).append(node)
    for (layer, op, reason), nodes in groups.items():
        share = sum(node.flops for node in nodes) / details.flops
        if share >= WORTH_NAMING:
            yield Advice("float32", layer, nodes[0].name, f"{op} x {len(nodes)}, {share:.0%} of the FLOPs, stays in float32: {reason}.", share)


RULES: tuple[Callable[[Details, Sequence[Part]], Iterator[Advice]], ...] = (
    _nothing_to_gain, _kept_products, _overrides, _blockers, _dimensions, _islands,
)  # fmt: skip
