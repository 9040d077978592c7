"""One function body or one main graph, read once into plain lists: nodes, edges, and the type of every slot.

A FunctionDef names tensors `argument` or `node:output:index`, a GraphDef `node:port`; both come out the same here. A function's arguments and results
become pseudo nodes (`_Arg`, `_Retval`), as they do in TensorFlow's own optimizer (`grappler_item_builder`, `functions.cc`).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfmp import tf_api
from tfmp.dtypes import REF_OFFSET
from tfmp.errors import GraphError
from tfmp.graph.edges import Array, Edges, edges_of
from tfmp.graph.kinds import Kind, Kinds
from tfmp.graph.schema import Layout, OpSchema, Slot
from tfmp.graph.wire import written, written_one

ARG, RETVAL = "_Arg", "_Retval"

_ARG_LAYOUT = Layout((Slot("T"),), (), (0,), {"output": 0})
_RETVAL_LAYOUT = Layout((Slot("T"),), (0,), (), {})

Edge = tuple[int, int]
"""Number of the source node and of its output port."""


Gone = tuple[str, tf_api.NodeDef, int]
"""A node that was taken out of a body since a kernel does what it did: its op, itself, and the number of the kernel's node."""


@dataclasses.dataclass
class Body:
    """One graph, nodes numbered from 0 in the order: arguments, the proto's nodes, results. Filled by `read_function` or `read_graph`, then only read.

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
      protos: each node's NodeDef, None for pseudo nodes. Never written to.
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
    protos: list[tf_api.NodeDef | None] = dataclasses.field(default_factory=list)
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
        return [node for node, proto in enumerate(self.protos) if proto is None]

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
        nodes: dict[str, list[int]] = {kind.op: [] for kind in self.kinds.table}
        of_kind = [nodes[kind.op].append for kind in self.kinds.table]
        for node, kind in enumerate(self.kind_of):
            of_kind[kind](node)
        return {op: found for op, found in nodes.items() if found}

    def with_inputs(self, inputs: list[list[Edge]], resized: Mapping[int, Edge]) -> Body:
        """Returns a copy whose nodes read `inputs`; the lists of nodes that read what they did are to be the same objects. `resized` is added to."""
        moved = dataclasses.replace(self, inputs=inputs, resized={**self.resized, **resized}, dead=None)
        changed = {node: inputs[node] for node in itertools.compress(range(len(self)), map(operator.is_not, self.inputs, inputs))}
        moved.__dict__.update({name: self.__dict__[name] for name in self.__dict__.keys() & {"by_op", "kind_array", "control_edges"}})  # these stay as they are
        moved.__dict__["edges"] = self.edges.with_inputs(changed)
        return moved

    def nodes_of(self, ops: Iterable[str]) -> list[int]:
        """Returns the nodes of these op types, in node order; to be asked once nothing of the body changes any more."""
        found = [self.by_op[op] for op in ops if op in self.by_op]
        return found[0] if len(found) == 1 else sorted(itertools.chain.from_iterable(found))

    def readers(self) -> list[list[list[Edge]]]:
        """Returns, for each node and each of its output ports, the (node, input port) pairs that read it, in node order."""
        counts = [len(kind.layout.outputs) for kind in self.kinds.table]
        found: list[list[list[Edge]]] = [[[]] if count == 1 else [[] for _ in range(count)] for count in map(counts.__getitem__, self.kind_of)]
        for node, edges in enumerate(self.inputs):
            for port, (source, output) in enumerate(edges):
                found[source][output].append((node, port))
        return found

    @functools.cached_property
    def _readers(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """The nodes and ports of all inputs, ordered by what they read, where those of each tensor end there, and node to its first tensor."""
        edges = self.edges
        order = np.argsort(edges.tensor, kind="stable")
        ends = np.cumsum(np.bincount(edges.tensor, minlength=len(edges.maker)))
        return edges.reader[order].tolist(), edges.port[order].tolist(), ends.tolist(), edges.first.tolist()

    def readers_of(self, edge: Edge) -> list[Edge]:
        """Returns the (node, input port) pairs that read one tensor, in node order; for those who do not ask for the `readers` of all."""
        nodes, ports, ends, first = self._readers
        tensor = first[edge[0]] + edge[1]
        inputs = slice(ends[tensor - 1] if tensor else 0, ends[tensor])
        return [*zip(nodes[inputs], ports[inputs], strict=True)]

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
        if self.ops[source] == ARG and self.protos[source] is None:
            return self.names[source]
        if not self.name:
            return f"{self.names[source]}:{port}" if port else self.names[source]
        return self.names[source] + self.layouts[source].output_names[port]

    def _add(self, names: Sequence[str], kinds: Sequence[int], devices: Iterable[str], protos: Sequence[tf_api.NodeDef | None]) -> None:
        """Adds nodes of the kinds numbered `kinds`, which read nothing yet."""
        start, table = len(self), self.kinds.table
        self.names += names
        self.kind_of += kinds
        self.devices += devices
        self.protos += protos
        self.inputs += [[]] * len(names)  # until they are connected
        for column, values in (
            (self.ops, [kind.op for kind in table]),
            (self.layouts, [kind.layout for kind in table]),
            (self.types, [kind.types for kind in table]),
        ):
            column += map(values.__getitem__, kinds)  # type: ignore[operator]
        if any(kind.marked for kind in table):
            self.marked.update(start + node for node, kind in enumerate(kinds) if table[kind].marked)

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
            return ":"
        return kind.layout.first_suffix if self.name and kind.proto is not None else ""


@functools.lru_cache(maxsize=4096)
def _attr_types(keys: tuple[tuple[str, int, int], ...], types: tuple[int, ...]) -> Mapping[str, frozenset[int]]:
    """Answers `Body.attr_types` for all nodes that are alike, of which a graph has many."""
    found: dict[str, set[int]] = {}
    for (attr, _, _), dtype in zip(keys, types, strict=True):
        if attr:
            found.setdefault(attr, set()).add(dtype)
    return {attr: frozenset(dtypes) for attr, dtypes in found.items()}


def read_function(function: tf_api.FunctionDef, library: Mapping[str, OpSchema]) -> Body:
    """Returns the view of `function`.

    Args:
      function: a definition as the eager context or a GraphDef's library holds it.
      library: schemas of functions that nodes may name as their op type.

    Raises:
      GraphError: an op is unknown, a node reads something that is not there, or two nodes have one name.
    """
    signature = function.signature
    body = Body(signature.name, attrs=function.attr, arguments=len(signature.input_arg), results=len(signature.output_arg))
    body.control_results = tuple(function.control_ret.values())
    _add_pseudo(body, ARG, signature.input_arg)
    _add_nodes(body, function.node_def, written(function), library)
    body.called_as_ops = frozenset(library)  # which may look functions up as they are asked for
    body.make_readable(range(len(body)))
    _add_pseudo(body, RETVAL, signature.output_arg)
    _refuse_twins(body)
    _connect(body, range(len(body)), function.ret)
    return body


def read_graph(graph: tf_api.GraphDef, library: Mapping[str, OpSchema]) -> Body:
    """Returns the view of the main graph of `graph`; raises `GraphError` as `read_function` does."""
    body = Body("")
    _add_nodes(body, graph.node, written(graph), library)
    body.called_as_ops = frozenset(library)
    body.make_readable(range(len(body)))
    _refuse_twins(body)
    _connect(body, range(len(body)), {})
    return body


def reread(
    body: Body,
    proto: tf_api.FunctionDef | tf_api.GraphDef,
    touched: Mapping[int, bool],
    library: Mapping[str, OpSchema],
    as_written: Sequence[bytes] = (),
) -> Body:
    """Returns the view of `proto`, an edited copy of what `body` was read from, by reading only what the edit may have changed.

    Args:
      body: the view before the edit.
      proto: the copy: the same nodes in the same order, then added ones. The added ones come last in the view, after the results.
      touched: numbers of the nodes of which something may differ, and of the results whose sources may: to whether that may be more than what they read.
      library: as for `read_function`.
      as_written: the nodes of `proto` as `wire.written` returns them, if they are at hand.
    """
    changed, start, in_proto = [number for number, more in touched.items() if more], len(body), body.proto_nodes
    nodes, signature = (proto.node_def, proto.signature) if body.name else (proto.node, tf_api.OpDef())
    new = _copy(body)
    for number in [number for number in touched if number in in_proto]:
        new.protos[number] = nodes[number - body.arguments]
    find = as_written.__getitem__ if as_written else lambda index: written_one(nodes[index])
    again = [number for number in changed if number in in_proto]
    _reread_nodes(new, again, [find(number - body.arguments) for number in again], library)
    _reread_pseudo(new, [number for number in changed if number < in_proto.start], signature.input_arg, 0)
    _reread_pseudo(new, [number for number in changed if number >= in_proto.stop], signature.output_arg, in_proto.stop)
    _add_pseudo(new, ARG, signature.input_arg[body.arguments :])
    _add_nodes(new, nodes[len(in_proto) :], [find(index) for index in range(len(in_proto), len(nodes))], library)
    new.make_readable(range(start, len(new)))
    _connect(new, [*touched, *range(start, len(new))], proto.ret if body.name else {})
    return new


def _reread_nodes(body: Body, numbers: Sequence[int], as_written: Sequence[bytes], library: Mapping[str, OpSchema]) -> None:
    """Gives the nodes in `numbers` the ops and types that their protos have, of which `as_written` has the attributes."""
    protos: list[tf_api.NodeDef] = [body.protos[number] for number in numbers]
    for number, kind in zip(numbers, body.kinds.read(as_written, protos, library), strict=True):
        one = body.kinds.table[kind]
        body.kind_of[number] = kind
        body.ops[number], body.layouts[number], body.types[number] = one.op, one.layout, one.types


def _reread_pseudo(body: Body, numbers: Sequence[int], args: Sequence[tf_api.Message], first: int) -> None:
    """Gives arguments, or results, the types that `args` have, which start at node `first`."""
    if numbers:
        kinds = body.kinds.pseudo(body.ops[first], body.layouts[first], [args[number - first].type for number in numbers])
        for number, kind in zip(numbers, kinds, strict=True):
            body.kind_of[number], body.types[number] = kind, body.kinds.table[kind].types


def grown(body: Body, proto: tf_api.FunctionDef, touched: Mapping[int, bool], added: Iterable[bytes], library: Mapping[str, OpSchema]) -> Body:
    """Returns the view of `proto` as `read_function` does, with the added nodes before the results, by reading only what the edit may have changed.

    Args:
      body: the view before the edit, of a function.
      proto: the copy: the same arguments, results and nodes in the same order, then added nodes.
      touched: as for `reread`.
      added: the added nodes with their attributes, as `Kinds.read` takes them.
      library: as for `read_function`.
    """
    new, stop, nodes = _copy(body), body.proto_nodes.stop, proto.node_def
    inside = {number: more for number, more in touched.items() if number < stop}
    for number in inside:
        new.protos[number] = nodes[number - body.arguments]
    changed = [number for number, more in inside.items() if more]
    for number in changed:
        new.tensors.pop(new._first_text(number), None)
    _reread_nodes(new, changed, [written_one(new.protos[number]) for number in changed], library)
    new.tensors.update({new._first_text(number): (number, 0) for number in changed})
    columns: list[list[Any]] = [new.names, new.ops, new.devices, new.kind_of, new.layouts, new.types, new.protos, new.inputs]
    results = [column[stop:] for column in columns]
    for column in columns:
        del column[stop:]
    _add_nodes(new, nodes[stop - body.arguments :], added, library)
    new.make_readable(range(stop, len(new)))
    moved = len(new) - stop
    for column, rest in zip(columns, results, strict=True):
        column += rest
    _connect(new, [*(number if number < stop else number + moved for number in touched), *range(stop, stop + moved)], proto.ret)
    return new


CHANGED = (
    "names", "ops", "devices", "kinds", "kind_of", "layouts", "types", "inputs", "protos", "by_name", "tensors", "controlled", "marked",
)  # fmt: skip
"""What reading again may change of a body."""

FOUND_OUT = frozenset({"dead", "shapes", *(name for name, value in vars(Body).items() if isinstance(value, functools.cached_property))})
"""What is found out of a body, and holds no more once it has changed."""


def _copy(body: Body) -> Body:
    """Returns a copy of `body` that can be changed, without what was found out about it."""
    new = Body(body.name)
    new.__dict__.update({name: value for name, value in body.__dict__.items() if name not in FOUND_OUT})
    for name in CHANGED:
        setattr(new, name, copy.copy(getattr(body, name)))
    return new


def library_schemas(functions: Iterable[tf_api.FunctionDef]) -> dict[str, OpSchema]:
    """Returns the signature of each function as the schema of an op with its name (`FunctionLibraryDefinition::LookUpOpDef`)."""
    return {function.signature.name: OpSchema(function.signature) for function in functions}


def _add_pseudo(body: Body, op: str, args: Sequence[tf_api.Message]) -> None:
    """Adds arguments or results of a function."""
    layout = _ARG_LAYOUT if op == ARG else _RETVAL_LAYOUT
    body._add([arg.name for arg in args], body.kinds.pseudo(op, layout, [arg.type for arg in args]), [""] * len(args), [None] * len(args))


def _add_nodes(body: Body, nodes: Iterable[tf_api.NodeDef], as_written: Iterable[bytes], library: Mapping[str, OpSchema]) -> None:
    """Adds `nodes`, of which `as_written` has the attributes. Each field is read once, and column by column, since there may be very many."""
    protos = list(nodes)
    body._add([proto.name for proto in protos], body.kinds.read(as_written, protos, library), [proto.device for proto in protos], protos)


def _refuse_twins(body: Body) -> None:
    readable = len(body) - body.results
    if len(body.by_name) < readable:
        twin = next(name for number, name in enumerate(body.names[:readable]) if body.by_name[name] != number)
        raise GraphError(f"two nodes{_where(body)} are called {twin!r}; rename one of them.")


def _connect(body: Body, numbers: Sequence[int], results: Mapping[str, str]) -> None:
    """Fills `body.inputs` of the nodes in `numbers`; `results` says what each result of a function reads."""
    find, wanted = body.tensors.get, [len(kind.layout.inputs) for kind in body.kinds.table]
    texts = [proto.input[:] if (proto := body.protos[node]) is not None else _read_by(body, node, results) for node in numbers]
    rows: list[list[Any]] = [list(map(find, row)) for row in texts]
    for place in [place for place, row in enumerate(rows) if None in row]:
        rows[place] = _edges(body, texts[place], numbers[place])
    counts = [wanted[body.kind_of[node]] for node in numbers]
    if list(map(len, rows)) != counts:
        node, row, count = next((node, row, count) for node, row, count in zip(numbers, rows, counts, strict=True) if len(row) != count)
        raise GraphError(f"{body.ops[node]} node {body.names[node]!r}{_where(body)} has {len(row)} data inputs; its op takes {count}.")
    if numbers == range(len(body)):
        body.inputs = rows
        return
    for node, row in zip(numbers, rows, strict=True):
        body.inputs[node] = row


def _read_by(body: Body, node: int, results: Mapping[str, str]) -> list[str]:
    """Returns what the argument or result `node` of a function reads."""
    return [results.get(body.names[node], "")] if body.ops[node] == RETVAL else []


def _edges(body: Body, texts: Sequence[str], reader: int) -> list[Edge]:
    """Returns the data inputs among `texts`, which are not all first outputs in their usual form; control inputs come last."""
    data = list(itertools.takewhile(lambda text: text[:1] != "^", texts))
    if len(data) < len(texts):
        body.controlled[reader] = [_waited_for(body, text, reader) for text in texts[len(data) :] if text[:1] == "^"]
    return [body.tensors.get(text) or _find(body, text, reader) for text in data]


def _waited_for(body: Body, text: str, reader: int) -> int:
    """Returns the node of a control input."""
    found = body.by_name.get(text[1:])
    if found is None:
        raise GraphError(f"node {body.names[reader]!r}{_where(body)} waits for {text!r}, which is not there.")
    return found


def _find(body: Body, text: str, reader: int) -> Edge:
    """Returns the edge written `text`, which is not a first output in its usual form."""
    name, _, rest = text.partition(":")
    try:
        source = body.by_name[name]
        layout = body.layouts[source]
        port = layout.port.get(rest)
        if port is None:  # a main graph's number, or a first output in a short form
            port = 0 if not rest else int(rest) if rest.isdecimal() else layout.first_output[rest.partition(":")[0]] + int(rest.partition(":")[2] or 0)
    except (KeyError, ValueError):
        raise GraphError(f"node {body.names[reader]!r}{_where(body)} reads {text!r}, which is not there.") from None
    if port >= len(layout.outputs):
        raise GraphError(f"node {body.names[reader]!r}{_where(body)} reads {text!r}, but {name!r} has {len(layout.outputs)} outputs.")
    return source, port


def _where(body: Body) -> str:
    return f" of function {body.name!r}" if body.name else ""


def plain(dtype: int) -> int:
    """Returns the type that a reader of a tensor of type `dtype` sees: a reference's value type, else `dtype` itself."""
    return dtype - REF_OFFSET if dtype > REF_OFFSET else dtype
