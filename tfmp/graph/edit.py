"""The only writer of graph protos. It works on copies: the protos that a `Body` was read from are never changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from tfmp import tf_api
from tfmp.dtypes import DT_FLOAT
from tfmp.graph.body import Body, Edge
from tfmp.graph.schema import Slot
from tfmp.graph.wire import Original, Proto


def copy_of(original: Original) -> Proto:
    """Returns a new proto that says what `original` does."""
    if isinstance(original, bytes):
        return tf_api.FunctionDef.FromString(original)
    copy = type(original)()
    copy.CopyFrom(original)
    return copy


class GraphEditor:
    """Edits a copy of one body's proto.

    Attributes:
      body: the view of the proto before any edit; node numbers are its.
      proto: the edited copy.
      touched: numbers of the nodes that were edited, to whether more was than which tensors they read.
    """

    def __init__(self, body: Body, original: Original) -> None:
        """Copies `original`, the proto that `body` was read from."""
        self.body = body
        self.proto: Proto = copy_of(original)
        self._nodes = self.proto.node_def if body.name else self.proto.node
        self.touched: dict[int, bool] = {}

    def node(self, number: int) -> tf_api.NodeDef:
        """Returns the copy's node with the body's number, to be edited."""
        self.touched[number] = True
        return self._nodes[number - self.body.arguments]

    def forget_shapes(self, number: int) -> None:
        """Takes away the shapes of its results from a node of a saved function whose results have others now: TensorFlow refuses a node with wrong ones."""
        self.node(number).attr.pop("_output_shapes", None)

    def retype(self, number: int, slot: Slot, dtype: int) -> None:
        """Sets one type attribute, or the type of an argument or result; a node that the body read as a newer op becomes that op."""
        if self.body.protos[number] is None:
            self._retype_signature(number, dtype)
            return
        node = self.node(number)
        if node.op != self.body.ops[number]:
            node.op = self.body.ops[number]
            node.attr["U"].type = DT_FLOAT
        if slot.index < 0:
            node.attr[slot.attr].type = dtype
        else:
            node.attr[slot.attr].list.type[slot.index] = dtype

    def _retype_signature(self, number: int, dtype: int) -> None:
        self.touched[number] = True
        signature, last = self.proto.signature, len(self.body) - self.body.results
        (signature.input_arg[number] if number < last else signature.output_arg[number - last]).type = dtype

    def add_cast(self, name: str, source: str, device: str, origin: int, target: int) -> str:
        """Adds a Cast of the tensor written `source`; returns how its output is written."""
        node = self._nodes.add(name=name, op="Cast", device=device)
        node.input.append(source)
        node.attr["SrcT"].type = origin
        node.attr["DstT"].type = target
        node.attr["Truncate"].b = False
        return self.cast_output(name)

    def cast_output(self, name: str) -> str:
        """Returns how the output of the Cast called `name` is written."""
        return f"{name}:y:0" if self.body.name else name

    def add_constant(self, name: str, like: int, dtype: int) -> str:
        """Adds a copy of the Const numbered `like` with its value rounded to `dtype`; returns how its output is written."""
        old = self.body.protos[like]
        node = self._nodes.add()
        node.CopyFrom(old)
        node.name = name
        node.attr["dtype"].type = dtype
        value = tf_api.read_tensor(node.attr["value"].tensor)
        node.attr["value"].tensor.CopyFrom(tf_api.make_tensor(value, dtype))
        return f"{name}:output:0" if self.body.name else name

    def add_read(self, name: str, handle: str, like: tf_api.NodeDef, before: int | None) -> str:
        """Adds a copy of the ReadVariableOp `like` that reads `handle`; returns how its output is written.

        With `before`, it is read when the node of that number has all that it waits for, else at once.
        """
        node = self._nodes.add()
        node.CopyFrom(like)
        node.name = name
        del node.input[:]
        node.input.append(handle)
        if before is not None:
            waited_for = dict.fromkeys(text.removeprefix("^").partition(":")[0] for text in self.node(before).input)
            node.input.extend(f"^{one}" for one in waited_for if self.body.by_name.get(one, self.body.arguments) >= self.body.arguments)
        return f"{name}:value:0" if self.body.name else name

    def wait_for(self, number: int, name: str) -> None:
        """Gives the node numbered `number` a control input from the node called `name`."""
        self.node(number).input.append(f"^{name}")

    def add_control_output(self, name: str) -> None:
        """Makes a function not count as done before its node called `name` is; in a main graph, where a run ends when it has what is fetched, nothing."""
        if self.body.name:
            self.proto.signature.control_output.append(name)
            self.proto.control_ret[name] = name

    def rename_inputs(self, number: int, old: str, new: str) -> None:
        """Makes the node `number` of a main graph read the node `new` wherever it reads the node `old`, as data or as control."""
        inputs = self._nodes[number - self.body.arguments].input
        for port, text in enumerate(inputs):
            name, colon, rest = text.removeprefix("^").partition(":")
            if name == old:
                inputs[port] = f"{'^' if text.startswith('^') else ''}{new}{colon}{rest}"

    def add_argument(self, name: str, dtype: int, returned: bool) -> None:
        """Adds an argument to the function's signature, and with `returned` a result that hands it back."""
        self.proto.signature.input_arg.add(name=name, type=dtype)
        if "_input_shapes" in self.proto.attr:  # a shape for each argument, in SavedModels
            self.proto.attr["_input_shapes"].list.shape.add(unknown_rank=True)
        if returned:
            self.proto.signature.output_arg.add(name=f"{name}_out", type=dtype)
            self.proto.ret[f"{name}_out"] = name

    def hand_over(self, number: int, text: str, types: str, dtype: int) -> None:
        """Lets the calling node `number` hand over the tensor written `text`, of type `dtype`, as one more value; `types` is its attribute with their types."""
        node = self.node(number)
        set_data_inputs(node, [*(one for one in node.input if not one.startswith("^")), text])
        node.attr[types].list.type.append(dtype)
        for name in ("output_shapes", "_output_shapes"):  # the second one is in SavedModels
            if name in node.attr and node.attr[name].list.shape:
                node.attr[name].list.shape.add(unknown_rank=True)

    def redirect(self, reader: Edge, text: str) -> None:
        """Makes one data input, or one result of the function, read the tensor written `text`."""
        number, port = reader
        self.touched.setdefault(number, False)
        if self.body.protos[number] is None:
            self.proto.ret[self.body.names[number]] = text
        else:
            self._nodes[number - self.body.arguments].input[port] = text  # data inputs precede control inputs (NodeDef.input)


def set_data_inputs(node: tf_api.NodeDef, texts: Iterable[str]) -> None:
    """Lets `node` read the tensors written `texts`; what it waits for stays."""
    node.input[:] = [*texts, *(one for one in node.input if one.startswith("^"))]


@dataclasses.dataclass(frozen=True)
class Retarget:
    """The function attribute `attr` (entry `position`, if it is a list) of the node called `node` names `function` from now on."""

    node: str
    attr: str
    position: int
    function: str


@dataclasses.dataclass(frozen=True)
class Renamed:
    """The function `original` under the name `name`, for those who only want its serialised form."""

    original: Original
    name: str

    def SerializeToString(self) -> bytes:  # noqa: N802  (protobuf's name)
        """Returns the function, serialised. A message that is followed by another is parsed as the first with what the second says merged into it
        (protobuf's encoding guide, "Last One Wins"), and so the new name wins.
        """
        renaming = tf_api.FunctionDef()
        renaming.signature.name = self.name
        serialised = self.original if isinstance(self.original, bytes) else self.original.SerializeToString()
        return bytes(serialised + renaming.SerializeToString())


def retargeted(original: Original, name: str, retargets: Iterable[Retarget]) -> Proto:
    """Returns a copy of `original`, a function under the name `name` or a GraphDef, whose calls go where `retargets` say."""
    copy = copy_of(original)
    is_function = isinstance(copy, tf_api.FunctionDef)
    if is_function:
        copy.signature.name = name
    nodes = {node.name: node for node in (copy.node_def if is_function else copy.node)}
    for retarget in retargets:
        value = nodes[retarget.node].attr[retarget.attr]
        (value.func if value.HasField("func") else value.list.func[retarget.position]).name = retarget.function
    return copy


def set_handle_types(function: tf_api.FunctionDef, arguments: Iterable[int], dtype: int) -> None:
    """Says that the handles that are `arguments` of `function`, which is changed, lead to variables of type `dtype`, wherever their type is noted."""
    for argument in arguments:
        for data in function.signature.input_arg[argument].handle_data:
            data.dtype = dtype
        for name in ("_handle_dtypes",) if argument in function.arg_attr else ():
            types = function.arg_attr[argument].attr[name].list.type if name in function.arg_attr[argument].attr else []
            types[:] = [dtype] * len(types)


OURS = "-AutoMixedPrecision"
"""How the names of nodes end that a conversion has added (TensorFlow's own pass names its casts so)."""


def without_idle_casts(proto: Proto) -> Proto:
    """Takes the casts that a conversion has added, and that cast to the type they read, out of `proto`, which is changed and returned."""
    nodes = proto.node_def if isinstance(proto, tf_api.FunctionDef) else proto.node
    idle = {node.name: node.input[0] for node in nodes if node.op == "Cast" and node.name.endswith(OURS) and node.attr["SrcT"].type == node.attr["DstT"].type}
    return without_nodes(proto, idle) if idle else proto


def without_nodes(proto: Proto, replaced: Mapping[str, str]) -> Proto:
    """Takes nodes out of `proto`, which is changed and returned.

    Args:
      proto: a FunctionDef or GraphDef.
      replaced: name of a node with one output to how the tensor is written that its readers read from now on; "" for a node that nothing reads.
    """
    is_function = isinstance(proto, tf_api.FunctionDef)
    nodes = proto.node_def if is_function else proto.node
    for node in nodes:
        node.input[:] = [_instead(text, replaced) for text in node.input]
    for result in proto.ret if is_function else ():
        proto.ret[result] = _instead(proto.ret[result], replaced)
    for index in reversed([index for index, node in enumerate(nodes) if node.name in replaced]):
        del nodes[index]
    return proto


def _instead(text: str, replaced: Mapping[str, str]) -> str:
    """Returns what to write for the input or result written `text`; chains of replaced nodes are followed."""
    control = text.startswith("^")
    name = text.removeprefix("^").partition(":")[0]
    while name in replaced:
        text = replaced[name]
        name = text.partition(":")[0]
        text = f"^{name}" if control else text
    return text
