"""One function body or one main graph as plain lists: nodes, edges, and the type of every slot.

A FunctionDef names tensors `argument` or `node:output:index`, a GraphDef `node:port`; both come out the same here. A function's arguments and results
become pseudo nodes (`_Arg`, `_Retval`), as they do in TensorFlow's own optimizer (`grappler_item_builder`, `functions.cc`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tfmp import tf_api
from tfmp.dtypes import REF_OFFSET
from tfmp.graph.edges import Array, Edges, edges_of
from tfmp.graph.kinds import Kind, Kinds
from tfmp.graph.readers import Readers
from tfmp.graph.schema import Layout, Slot
from tfmp.graph.wire import Node, Protos, joined

ARG, RETVAL = "_Arg", "_Retval"

ARG_LAYOUT = Layout((Slot("T"),), (), (0,), {"output": 0})
RETVAL_LAYOUT = Layout((Slot("T"),), (0,), (), {})

NO_OUTPUT = "\ud800"
"""Half of a surrogate pair, which no text has that protobuf has read (its strings are UTF-8)."""

Edge = tuple[int, int]
"""Number of the source node and of its output port."""


Gone = tuple[str, Node, int]
"""A node that was taken out of a body since a kernel does what it did: its op, itself, and the number of the kernel's node."""


@dataclasses.dataclass
class Body:
    """One graph, nodes numbered from 0 in the order: arguments, the proto's nodes, results. Filled by `view` and `reread`, then only read.

    Attributes:
      name: the function's name, or "" for a main graph.
      names: node names; an argument or result has its own name.
      ops: op type of each node.
      devices: device string of each node, "" if unplaced.
      kinds: the kinds of nodes that there are; what is up to op and attributes alone is told once a kind.
      kind_of: number of each node's kind.
      layouts: layout of each node.
      types: type number of each slot of each node. Never written to: nodes of one kind share the list.
      inputs: data inputs of each node, in port order.
      nodes: each node, serialised if it is a function's; None for pseudo nodes (`protos` has them as TensorFlow reads them).
      rest: all else of a function, serialised.
      attrs: the function's own attributes (`_XlaMustCompile`, ...), by name.
      arguments, results: how many pseudo nodes there are of each.
      by_name: name to number, of everything that can be read (results cannot).
      controlled: the nodes that have control inputs, to the nodes that they wait for without reading them.
      control_results: names of the nodes that a function always runs (`FunctionDef.control_ret`).
      called_as_ops: functions of the library that nodes name as their op.
      marked: the nodes of the regions that the user keeps in float32.
      tensors: how the first output of each node is written, to its edge; other outputs are looked up through `by_name`.
      resized: nodes whose result has the shape of another tensor, since what they read was moved (`program.rearrange`).
      made: nodes that the Python graph of the function does not know, or knows as another op, to the shapes of their outputs (`fusion`).
      replaced: nodes that nothing needs any more, since a kernel computes what they did, to the node of that kernel.
      gone: nodes in whose place kernels are, and which are not in the function any more (`prune`).
      pruned: number of all nodes that are not any more.
      residual: nodes that add to what runs past the layers: a layer's result to what the layer normalises, or gradients likewise.
      dead: what `liveness.dead_nodes` has found, once it was asked.
      shapes: what `shapes.Sizes` has looked up, node by node: whoever asks next about this body, or about a copy with other edges, finds it there.
    """

    name: str
    names: list[str] = dataclasses.field(default_factory=list)
    ops: list[str] = dataclasses.field(default_factory=list)
    devices: list[str] = dataclasses.field(default_factory=list)
    kinds: Kinds = dataclasses.field(default_factory=Kinds)
    kind_of: list[int] = dataclasses.field(default_factory=list)
    layouts: list[Layout] = dataclasses.field(default_factory=list)
    types: list[list[int]] = dataclasses.field(default_factory=list)
    inputs: list[list[Edge]] = dataclasses.field(default_factory=list)
    nodes: list[Node | None] = dataclasses.field(default_factory=list)
    rest: bytes = b""
    attrs: Mapping[str, tf_api.AttrValue] = dataclasses.field(default_factory=dict)
    arguments: int = 0
    results: int = 0
    by_name: dict[str, int] = dataclasses.field(default_factory=dict)
    controlled: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    control_results: tuple[str, ...] = ()
    called_as_ops: frozenset[str] = frozenset()
    marked: set[int] = dataclasses.field(default_factory=set)
    tensors: dict[str, Edge] = dataclasses.field(default_factory=dict)
    resized: dict[int, Edge] = dataclasses.field(default_factory=dict)
    made: dict[int, tuple[tuple[int | None, ...] | None, ...]] = dataclasses.field(default_factory=dict)
    replaced: dict[int, int] = dataclasses.field(default_factory=dict)
    gone: tuple[Gone, ...] = ()
    pruned: int = 0
    residual: set[int] = dataclasses.field(default_factory=set)
    dead: tuple[int, ...] | None = None
    shapes: dict[int, Sequence[tuple[int | None, ...] | None]] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        """Returns the number of nodes, pseudo nodes included."""
        return len(self.names)

    @property
    def proto_nodes(self) -> range:
        """The numbers of the nodes that are in the proto; what comes before is arguments, what comes after is results."""
        return range(self.arguments, len(self) - self.results)

    @property
    def pseudo_nodes(self) -> list[int]:
        """The numbers of the nodes that are not in the proto: arguments and results."""
        return np.flatnonzero(self.kinds.which(lambda kind: kind.is_pseudo)[self.kind_array]).tolist()

    @functools.cached_property
    def protos(self) -> Protos:
        """The nodes as TensorFlow reads them."""
        return Protos(self.nodes)

    @functools.cached_property
    def kind_array(self) -> Array:
        """Node to the number of its kind; to be asked as `edges` is."""
        return np.array(self.kind_of, np.int32)

    @functools.cached_property
    def edges(self) -> Edges:
        """The tensors and inputs as arrays; made when they are first asked for, after which nothing of the body may change."""
        return edges_of([kind.layout for kind in self.kinds.table], self.kind_array, self.inputs)

    @functools.cached_property
    def by_op(self) -> Mapping[str, list[int]]:
        """Op type to the nodes of that type, in node order; to be asked as `edges` is."""
        number: dict[str, int] = {}
        of_kind = np.array([number.setdefault(kind.op, len(number)) for kind in self.kinds.table], np.int16)
        op_of = of_kind[self.kind_array]
        nodes, ends = np.argsort(op_of, kind="stable").tolist(), np.cumsum(np.bincount(op_of, minlength=len(number))).tolist()
        return {op: nodes[start:end] for op, start, end in zip(number, [0, *ends], ends, strict=False) if start < end}

    def with_inputs(self, inputs: list[list[Edge]], resized: Mapping[int, Edge]) -> Body:
        """Returns a copy whose nodes read `inputs`; the lists of nodes that read what they did are to be the same objects. `resized` is added to."""
        moved = dataclasses.replace(self, inputs=inputs, resized={**self.resized, **resized}, dead=None)
        changed = {node: inputs[node] for node in itertools.compress(range(len(self)), map(operator.is_not, self.inputs, inputs))}
        stays = self.__dict__.keys() & {"by_op", "kind_array", "control_edges", "protos"}
        moved.__dict__.update({name: self.__dict__[name] for name in stays})
        moved.__dict__["edges"] = self.edges.with_inputs(changed)
        return moved

    def nodes_of(self, ops: Iterable[str]) -> list[int]:
        """Returns the nodes of these op types, in node order; to be asked once nothing of the body changes any more."""
        found = [self.by_op[op] for op in ops if op in self.by_op]
        return found[0] if len(found) == 1 else sorted(itertools.chain.from_iterable(found))

    @functools.cached_property
    def readers(self) -> Readers:
        """Who reads what each node makes; to be asked as `edges` is."""
        return Readers.of(self.edges)

    @functools.cached_property
    def control_edges(self) -> tuple[Array, Array]:
        """The nodes that wait for others without reading them, and what for, as arrays; to be asked as `edges` is."""
        waiting = [(node, source) for node, sources in self.controlled.items() for source in sources]
        readers, sources = np.array(waiting, np.int32).reshape(-1, 2).T
        return readers, sources

    def origin(self, edge: Edge) -> Edge:
        """Returns the tensor that `edge` is a copy of, past any number of Identity nodes; in a malformed graph, where they form a cycle, one of them."""
        passed: set[int] = set()
        while self.ops[edge[0]] == "Identity" and edge[0] not in passed:
            passed.add(edge[0])
            edge = self.inputs[edge[0]][0]
        return edge

    def attr_types(self, node: int, changed: Mapping[int, int]) -> Mapping[str, frozenset[int]]:
        """Returns type attribute to types of `node`, as `kernels.has_kernel` takes them, with the slots numbered in `changed` given other types."""
        types = [changed.get(number, dtype) for number, dtype in enumerate(self.types[node])] if changed else self.types[node]
        return _attr_types(self.layouts[node].keys, tuple(types))

    def tensor_name(self, edge: Edge) -> str:
        """Returns how a NodeDef of this body writes the tensor `edge`."""
        source, port = edge
        if self.ops[source] == ARG and self.nodes[source] is None:
            return self.names[source]
        if not self.name:
            return f"{self.names[source]}:{port}" if port else self.names[source]
        return self.names[source] + self.layouts[source].output_names[port]

    def add(self, names: Sequence[str], kinds: Sequence[int], devices: Iterable[str], nodes: Sequence[Node | None]) -> None:
        """Adds nodes of the kinds numbered `kinds`, which read nothing yet."""
        start, table = len(self), self.kinds.table
        self.names += names
        self.kind_of += kinds
        self.devices += devices
        self.nodes += nodes
        self.inputs += [[]] * len(names)  # until they are connected
        for column, values in (
            (self.ops, [kind.op for kind in table]),
            (self.layouts, [kind.layout for kind in table]),
            (self.types, [kind.types for kind in table]),
        ):
            column += map(values.__getitem__, kinds)  # type: ignore[operator]
        if any(kind.marked for kind in table):
            self.marked.update(start + node for node, kind in enumerate(kinds) if table[kind].marked)

    def joined(self) -> bytes:
        """Returns the function, serialised; of a body that `view`, `reread.grown` or `prune` has made."""
        return joined(self.nodes[self.proto_nodes.start : self.proto_nodes.stop], self.rest)  # type: ignore[arg-type]  # a function's are bytes

    def make_readable(self, numbers: range) -> None:
        """Lets the nodes in `numbers`, and their first outputs, be found by name."""
        names = self.names[numbers.start : numbers.stop]
        self.by_name.update(zip(names, numbers, strict=True))
        suffixes = [self._first_suffix(kind) for kind in self.kinds.table]
        texts = [name + suffixes[kind] for name, kind in zip(names, self.kind_of[numbers.start : numbers.stop], strict=True)]
        self.tensors.update(zip(texts, zip(numbers, itertools.repeat(0)), strict=False))

    def _first_text(self, node: int) -> str:
        """Returns how the first output of a node is written."""
        return self.names[node] + self._first_suffix(self.kinds.table[self.kind_of[node]])

    def _first_suffix(self, kind: Kind) -> str:
        """Returns how the first output of nodes of a kind is written, after their names; of nodes that have none, something that nothing reads."""
        if not kind.layout.outputs:
            return NO_OUTPUT
        return kind.layout.output_names[0] if self.name and not kind.is_pseudo else ""


@functools.lru_cache(maxsize=4096)
def _attr_types(keys: tuple[tuple[str, int, int], ...], types: tuple[int, ...]) -> Mapping[str, frozenset[int]]:
    """Answers `Body.attr_types` for all nodes that are alike, of which a graph has many."""
    found: dict[str, set[int]] = {}
    for (attr, _, _), dtype in zip(keys, types, strict=True):
        if attr:
            found.setdefault(attr, set()).add(dtype)
    return {attr: frozenset(dtypes) for attr, dtypes in found.items()}


def plain(dtype: int) -> int:
    """Returns the type that a reader of a tensor of type `dtype` sees: a reference's value type, else `dtype` itself."""
    return dtype - REF_OFFSET if dtype > REF_OFFSET else dtype
