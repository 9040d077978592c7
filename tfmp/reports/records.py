"""What a report on one converted program says, as frozen records; `describe` makes them, the printed forms only read them.

All numbers are per run of the program: what lies in a loop counts as often as the loop goes round, where the graph tells. FLOPs are floating-point
operations of matrix multiplications and convolutions (two for a multiply-add), sizes are in bytes. Where a dimension is not known before the program
runs, `flops.UNKNOWN` stands for it and `estimated` says so.
"""

from __future__ import annotations

import dataclasses

from tfmp.graph.flat import Shape

CONVERTED, KEPT, OTHER = "converted", "kept", "other"
"""A node's colour: it has a type attribute in 16 bit; it has float32 ones only; it has neither (integers, handles), or it has 16-bit ones and never runs."""


@dataclasses.dataclass(frozen=True)
class Node:
    """One node of one instance of a function, its arguments (`_Arg`) and results (`_Retval`) included.

    Attributes:
      function: index of the function in `Details.functions`.
      name, op: as in the graph.
      layer: path of the layer, "" if the name tells of none.
      gradient: whether it is part of a backward pass.
      colour: "converted", "kept" or "other".
      rule: which rule decided (a key of `colouring.reasons.WORDS`), "" for other nodes.
      reason: a sentence.
      root: index of the node that is the root of why it stayed in float32 (a denied op further up), -1 if it is one itself or there is none.
      pulled: how many nodes have this one as their root.
      shape: of the first output.
      flops: of this node.
      inputs: (index of the source node, its output port) of each data input.
      calls: indices of the functions that it calls.
    """

    function: int
    name: str
    op: str
    layer: str
    gradient: bool
    colour: str
    rule: str
    reason: str
    root: int
    pulled: int
    shape: Shape
    flops: float
    inputs: tuple[tuple[int, int], ...]
    calls: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Cast:
    """One tensor that gets a second form.

    Attributes:
      kind: "cast" (a Cast node), "constant" (stored in 16 bit, costs nothing), "rounding" (there and back, in emulation), "variable" (a weight, read and
        cast once before a loop).
      source, port: index of the node whose tensor it is, and which of its outputs.
      to: "float16", "bfloat16" or "float32".
      readers: indices of the nodes that read the new form.
      shape: of the tensor.
      times: how often it runs; 0 for what never runs (constants, and what only pruned nodes read).
      bytes: what it writes in all these runs.
    """

    kind: str
    source: int
    port: int
    to: str
    readers: tuple[int, ...]
    shape: Shape
    times: int
    bytes: float


@dataclasses.dataclass(frozen=True)
class Function:
    """One instance of a function: name, how often it runs, node counts (arguments and results not counted), FLOPs, and casts per run of the program."""

    name: str
    runs: int
    nodes: int
    converted: int
    kept: int
    flops: float
    flops_converted: float
    casts: int
    cast_bytes: float


@dataclasses.dataclass(frozen=True)
class Why:
    """One reason why nodes stayed in float32, and how many of them."""

    reason: str
    nodes: int


@dataclasses.dataclass(frozen=True)
class Layer:
    """What became of one layer, forward and backward together.

    Attributes:
      layer: its path, "" for what belongs to none.
      nodes, converted, kept: node counts; nodes without float32 types are neither converted nor kept.
      flops, flops_converted: all FLOPs, and those in 16 bit.
      casts, cast_bytes: casts of tensors that the layer makes.
      bytes_before, bytes_after: what its nodes write in float32, and after the rewrite with its casts.
      why: reasons of the nodes that stayed in float32, the most telling first.
    """

    layer: str
    nodes: int
    converted: int
    kept: int
    flops: float
    flops_converted: float
    casts: int
    cast_bytes: float
    bytes_before: float
    bytes_after: float
    why: tuple[Why, ...]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Estimated sizes, before and after the rewrite: everything that one run writes (casts included), and what is kept for the backward pass."""

    written_before: float
    written_after: float
    saved_before: float
    saved_after: float


@dataclasses.dataclass(frozen=True)
class Advice:
    """One thing that the user might do: what it is about (`kind`), where, and the sentence; `weight` (0 to 1) sorts it."""

    kind: str
    layer: str
    node: str
    text: str
    weight: float


@dataclasses.dataclass(frozen=True)
class Details:
    """Everything that a report says of one program.

    Attributes:
      function: name of the root function, "" for a main graph.
      dtype: "float16" or "bfloat16".
      device: "GPU" or "CPU".
      level: a key of `settings.LEVELS`.
      seconds: how long the rewrite took.
      estimated: whether some dimension was not known.
      functions, layers, casts, advice: see there; layers with most FLOPs first, then by what they write.
      memory: estimated sizes.
      nodes: all nodes, instance by instance.
      unused_overrides: op types moved between lists that the program does not contain.
      unused_rules: rules of the user that cover nothing in the program.
    """

    function: str
    dtype: str
    device: str
    level: str
    seconds: float
    estimated: bool
    functions: tuple[Function, ...]
    layers: tuple[Layer, ...]
    casts: tuple[Cast, ...]
    memory: Memory
    nodes: tuple[Node, ...]
    advice: tuple[Advice, ...] = ()
    unused_overrides: tuple[str, ...] = ()
    unused_rules: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Number of nodes in all functions."""
        return sum(function.nodes for function in self.functions)

    @property
    def converted(self) -> int:
        """Number of nodes with a 16-bit type attribute."""
        return sum(function.converted for function in self.functions)

    @property
    def flops(self) -> float:
        """FLOPs of one run."""
        return sum(function.flops for function in self.functions)

    @property
    def flop_share(self) -> float:
        """Share (0 to 1) of the FLOPs that run in 16 bit; 1 if there are none."""
        return sum(function.flops_converted for function in self.functions) / self.flops if self.flops else 1.0

    @property
    def casts_per_run(self) -> int:
        """Number of casts that one run carries out."""
        return sum(function.casts for function in self.functions)

    @property
    def cast_bytes(self) -> float:
        """Bytes that the casts of one run write."""
        return sum(function.cast_bytes for function in self.functions)
