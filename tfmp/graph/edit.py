"""The editor of graphs. What a `Body` was read from is never changed; of a function, only nodes that change are read and written."""

from __future__ import annotations

import functools
from collections.abc import MutableSequence, Sequence
from typing import Any, NamedTuple

from tfmp import tf_api
from tfmp.dtypes import DT_FLOAT
from tfmp.graph import wire
from tfmp.graph.body import Body, Edge
from tfmp.graph.kinds import NEWER
from tfmp.graph.schema import Slot
from tfmp.graph.wire import (
    Columns,
    Node,
    Original,
    Proto,
    as_bytes,
    as_proto,
    columns_of,
    copy_of,
    joined,
    node_as_written,
    node_def,
    parted,
    serialise,
    with_inputs,
)

OURS = "-AutoMixedPrecision"
"""How the names of nodes end that a conversion has added (TensorFlow's own pass names its casts so)."""

RENAMED = frozenset(NEWER.values())


class Edited(NamedTuple):
    """What of a graph is not what it was.

    Attributes:
      numbers: the nodes that are not.
      columns: these nodes as they are now, then the added ones.
      touched: numbers of these nodes, of arguments and of results, to whether more has changed than what they read.
      head: all of a function but its nodes. It and `touched` are the editor's own.
    """

    numbers: Sequence[int]
    columns: Columns
    touched: dict[int, bool]
    head: tf_api.FunctionDef


class GraphEditor:
    """Edits one graph.

    Attributes:
      body: its view before any edit; node numbers are its.
      head: all of a function but its nodes, to be edited; of a main graph, nothing.
      touched: numbers of the nodes that were edited, to whether more was than which tensors they read.
    """

    def __init__(self, body: Body, original: Proto | None = None) -> None:
        """Starts from `original`, a proto with the nodes of `body`; or, of a function, from what `body` was read from.

        Raises:
          ValueError: there is no `original`, and `body` is a main graph.
        """
        if original is None and not body.name:
            raise ValueError("a main graph is edited together with its GraphDef, which has its functions.")
        self.body = body
        self.touched: dict[int, bool] = {}
        self._original = original
        self._nodes: Sequence[Node | None] = body.nodes
        rest = body.rest
        if original is not None:
            self._nodes = [*[None] * body.arguments, *(original.node_def if body.name else original.node)]
            rest = parted(as_bytes(original))[1] if body.name else b""
        self.head = tf_api.FunctionDef.FromString(rest)
        self._written: dict[int, bytes] = {}
        self._edited: dict[int, tf_api.NodeDef] = {}
        self._redirected: dict[int, dict[int, str]] = {}
        self._added: list[bytes] = []

    def node(self, number: int) -> tf_api.NodeDef:
        """Returns the node with the body's number, to be edited."""
        self.touched[number] = True
        node = self._edited.get(number)
        if node is None:
            node = self._edited[number] = tf_api.NodeDef.FromString(self._now(number))
            self._rewire(number, node.input)
            self._redirected.pop(number, None)
        return node

    def _now(self, number: int) -> bytes:
        """Returns a node that is not being edited as it is now, serialised, but for what it is redirected to."""
        return self._written.get(number) or as_bytes(self._nodes[number])

    def _set(self, number: int, attribute: bytes) -> None:
        """Gives a node that is not being edited an attribute, which may be there already: the last one counts (protobuf's encoding guide, on maps)."""
        self.touched[number] = True
        if wire.doubles():
            node = self.node(number)
            for name, value in tf_api.NodeDef.FromString(attribute).attr.items():
                node.attr[name].CopyFrom(value)
        else:
            self._written[number] = self._now(number) + attribute

    def forget_shapes(self, number: int) -> None:
        """Takes away the shapes of its results from a node of a saved function whose results have others now: TensorFlow refuses a node with wrong ones."""
        self.node(number).attr.pop("_output_shapes", None)

    def retype(self, number: int, slot: Slot, dtype: int) -> None:
        """Sets one type attribute, or the type of an argument or result; a node that the body read as a newer op becomes that op."""
        if self.body.nodes[number] is None:
            self._retype_signature(number, dtype)
        elif slot.index >= 0:
            self.node(number).attr[slot.attr].list.type[slot.index] = dtype
        elif number in self._edited or self.body.ops[number] in RENAMED:
            node = self.node(number)
            if node.op != self.body.ops[number]:
                node.op = self.body.ops[number]
                node.attr["U"].type = DT_FLOAT
            node.attr[slot.attr].type = dtype
        else:
            self._set(number, _typed(slot.attr, dtype))

    def _retype_signature(self, number: int, dtype: int) -> None:
        self.touched[number] = True
        signature, last = self.head.signature, len(self.body) - self.body.results
        (signature.input_arg[number] if number < last else signature.output_arg[number - last]).type = dtype

    def add(self, node: Node) -> None:
        """Adds a node."""
        self._added.append(as_bytes(node))

    def add_cast(self, name: str, source: str, device: str, origin: int, target: int) -> str:
        """Adds a Cast of the tensor written `source`; returns how its output is written."""
        self.add(node_as_written(name, [source], _cast(device, origin, target)))
        return self.cast_output(name)

    def cast_output(self, name: str) -> str:
        """Returns how the output of the Cast called `name` is written."""
        return f"{name}:y:0" if self.body.name else name

    def add_constant(self, name: str, like: int, dtype: int) -> str:
        """Adds a copy of the Const numbered `like` with its value rounded to `dtype`; returns how its output is written."""
        node = tf_api.NodeDef()
        node.CopyFrom(node_def(self._nodes[like]))
        node.name = name
        node.attr["dtype"].type = dtype
        value = tf_api.read_tensor(node.attr["value"].tensor)
        node.attr["value"].tensor.CopyFrom(tf_api.make_tensor(value, dtype))
        self.add(node)
        return f"{name}:output:0" if self.body.name else name

    def add_read(self, name: str, handle: str, like: tf_api.NodeDef, before: int | None) -> str:
        """Adds a copy of the ReadVariableOp `like` that reads `handle`; returns how its output is written.

        With `before`, it is read when the node of that number has all that it waits for, else at once.
        """
        node = tf_api.NodeDef()
        node.CopyFrom(like)
        node.name = name
        node.input[:] = [handle]
        if before is not None:
            waited_for = dict.fromkeys(text.removeprefix("^").partition(":")[0] for text in self.node(before).input)
            node.input.extend(f"^{one}" for one in waited_for if self.body.by_name.get(one, self.body.arguments) >= self.body.arguments)
        self.add(node)
        return f"{name}:value:0" if self.body.name else name

    def wait_for(self, number: int, name: str) -> None:
        """Gives the node numbered `number` a control input from the node called `name`."""
        self.node(number).input.append(f"^{name}")

    def add_control_output(self, name: str) -> None:
        """Makes a function not count as done before its node called `name` is; in a main graph, where a run ends when it has what is fetched, nothing."""
        self.head.signature.control_output.append(name)
        self.head.control_ret[name] = name

    def rename_inputs(self, number: int, old: str, new: str) -> None:
        """Makes the node `number` of a main graph read the node `new` wherever it reads the node `old`, as data or as control."""
        inputs = [*(self._edited.get(number) or node_def(self._nodes[number])).input]
        self._rewire(number, inputs)
        for port, text in enumerate(inputs):
            name, colon, rest = text.removeprefix("^").partition(":")
            if name == old:
                self.node(number).input[port] = f"{'^' if text.startswith('^') else ''}{new}{colon}{rest}"

    def add_argument(self, name: str, dtype: int, returned: bool) -> None:
        """Adds an argument to the function's signature, and with `returned` a result that hands it back."""
        self.head.signature.input_arg.add(name=name, type=dtype)
        if "_input_shapes" in self.head.attr:  # a shape for each argument, in SavedModels
            self.head.attr["_input_shapes"].list.shape.add(unknown_rank=True)
        if returned:
            self.head.signature.output_arg.add(name=f"{name}_out", type=dtype)
            self.head.ret[f"{name}_out"] = name

    def hand_over(self, number: int, text: str, types: str, dtype: int) -> None:
        """Lets the calling node `number` hand over the tensor written `text`, of type `dtype`, as one more value; `types` is its attribute with their types."""
        node = self.node(number)
        waits = [one for one in node.input if one.startswith("^")]
        node.input[:] = [*node.input[: len(node.input) - len(waits)], text, *waits]
        node.attr[types].list.type.append(dtype)
        for name in ("output_shapes", "_output_shapes"):  # the second one is in SavedModels
            if name in node.attr and node.attr[name].list.shape:
                node.attr[name].list.shape.add(unknown_rank=True)

    def redirect(self, reader: Edge, text: str) -> None:
        """Makes one data input, or one result of the function, read the tensor written `text`."""
        number, port = reader
        self.touched.setdefault(number, False)
        if self.body.nodes[number] is None:
            self.head.ret[self.body.names[number]] = text
        elif number in self._edited:
            self._edited[number].input[port] = text
        else:
            self._redirected.setdefault(number, {})[port] = text

    def _rewire(self, number: int, inputs: MutableSequence[str]) -> None:
        """Lets the inputs of a node be what they were redirected to. Data inputs precede control inputs (NodeDef.input)."""
        for port, text in self._redirected.get(number, {}).items():
            inputs[port] = text

    def finish(self) -> Edited:
        """Returns all that was edited and added."""
        in_between = self.body.proto_nodes
        numbers = [number for number in self.touched if number in in_between]
        self._written.update((number, serialise(node)) for number, node in self._edited.items())
        edits = [functools.partial(self._rewire, number) for number in self._redirected]
        self._written.update(zip(self._redirected, with_inputs(map(self._now, self._redirected), edits), strict=True))
        self._redirected = {}
        return Edited(numbers, columns_of([*map(self._written.__getitem__, numbers), *self._added]), self.touched, self.head)

    def definition(self, edited: Edited) -> Original:
        """Returns the function, serialised, or the main graph, with all that was `edited`."""
        first, count = self.body.arguments, len(edited.numbers)
        if isinstance(self._original, tf_api.GraphDef):
            graph = copy_of(self._original)
            for number, node in zip(edited.numbers, edited.columns.nodes, strict=False):
                graph.node[number].ParseFromString(node)
            graph.node.extend(map(node_def, edited.columns.nodes[count:]))
            return graph
        nodes: list[Any] = [*self._nodes[first : first + len(self.body.proto_nodes)], *edited.columns.nodes[count:]]
        for number, node in zip(edited.numbers, edited.columns.nodes, strict=False):
            nodes[number - first] = node
        return joined(nodes if self._original is None else map(as_bytes, nodes), serialise(edited.head))

    def edited(self) -> Proto:
        """Returns an edited copy."""
        return as_proto(self.definition(self.finish()))


@functools.lru_cache(maxsize=1024)
def _typed(attr: str, dtype: int) -> bytes:
    """Returns an attribute of that type, as a serialised NodeDef that has nothing else."""
    return bytes(tf_api.NodeDef(attr={attr: tf_api.AttrValue(type=dtype)}).SerializeToString())


@functools.lru_cache(maxsize=1024)
def _cast(device: str, origin: int, target: int) -> bytes:
    """Returns a Cast without name and inputs, serialised."""
    node = tf_api.NodeDef(op="Cast", device=device)
    node.attr["SrcT"].type, node.attr["DstT"].type, node.attr["Truncate"].b = origin, target, False
    return serialise(node)
