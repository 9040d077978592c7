"""A small fixed text form for graphs, so that tests of rewrites are two texts that a reader can compare.

One node a line, and of its attributes only those that differ from what `parse` fills in by itself:

    w = Const() value=[[1.0, 2.0], [3.0, 4.0]]
    x = Const() value=0.5 shape=[4, 4]
    y = MatMul(x, w) T=half transpose_a=true @/device:CPU:0
    z = Relu(y, ^x)

    function f(a: float, h: resource) -> (out: float) _XlaMustCompile=true
      r = Relu(a)
      return out = r:activations:0
      control effect = r
    gradient f = g

Filled in: the default of the op's definition; without one, `float` (or the first
type that the op allows) for a type, a float for each input of a list, and the number of inputs for a count.
`T=absent` leaves out an attribute that would be filled in. Attributes that the op does not declare (`_kernel`) take their kind from how they are written.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from tfmp import tf_api

_NODE = re.compile(r"(?P<name>\S+) = (?P<op>[^\s(]+)\((?P<inputs>[^)]*)\)(?P<rest>.*)")
_FUNCTION = re.compile(r"function (?P<name>\S+)\((?P<inputs>[^)]*)\) -> \((?P<outputs>[^)]*)\)(?P<rest>.*)")
_MAPPING = re.compile(r"(?P<what>return|control|gradient) (?P<left>\S+) = (?P<right>\S+)")
_TOKEN = re.compile(r"""\s*(?:(?P<punctuation>[\[\],]) | "(?P<string>(?:[^"\\]|\\.)*)" | (?P<word>[^\s\[\],"]+))""", re.VERBOSE)


_TYPE_NAMES = frozenset(types_pb2.DataType.keys())


class Word(str):
    """A value written without quotation marks that is no number and no truth value: a type, a function, `?`."""


def parse(text: str) -> tf_api.GraphDef:
    """Returns the GraphDef that `text` describes; raises `ValueError` naming the line that it cannot read."""
    graph = tf_api.GraphDef()
    function: tf_api.FunctionDef | None = None
    for line in text.splitlines():
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        if match := _FUNCTION.fullmatch(content):
            function = graph.library.function.add()
            _read_signature(function, match)
        elif match := _MAPPING.fullmatch(content):
            _read_mapping(graph, function, match)
        elif match := _NODE.fullmatch(content):
            inside = function is not None and line.startswith(" ")
            node = function.node_def.add() if inside else graph.node.add()  # type: ignore[union-attr]
            _read_node(node, match)
        else:
            raise ValueError(f"not a node, function, return, control or gradient: {content!r}")
    return graph


def render(graph: tf_api.GraphDef) -> str:
    """Returns the text of `graph`; `parse` makes an equal graph of it, but for debug info and versions."""
    lines = [_node_line(node) for node in graph.node]
    for function in graph.library.function:
        signature = function.signature
        inputs, outputs = (", ".join(f"{arg.name}: {_type_name(arg.type)}" for arg in args) for args in (signature.input_arg, signature.output_arg))
        lines += ["", " ".join([f"function {signature.name}({inputs}) -> ({outputs})", *_attr_words(function.attr, {})])]
        lines += [f"  {_node_line(node)}" for node in function.node_def]
        lines += [f"  return {arg.name} = {function.ret[arg.name]}" for arg in signature.output_arg]
        lines += [f"  control {name} = {function.control_ret[name]}" for name in signature.control_output]
    lines += [f"gradient {gradient.function_name} = {gradient.gradient_func}" for gradient in graph.library.gradient]
    return "\n".join(lines) + "\n"


def functions(graph: tf_api.GraphDef) -> dict[str, tf_api.FunctionDef]:
    """Returns the functions of the library of `graph` by name."""
    return {function.signature.name: function for function in graph.library.function}


def nodes(graph: tf_api.GraphDef, function: str = "") -> dict[str, tf_api.NodeDef]:
    """Returns the nodes of the main graph, or of `function`, by name."""
    return {node.name: node for node in (functions(graph)[function].node_def if function else graph.node)}


def _type_name(number: int) -> str:
    return types_pb2.DataType.Name(number).removeprefix("DT_").lower()


def _type_number(name: str) -> int:
    return types_pb2.DataType.Value(f"DT_{name.upper()}")


def _read_signature(function: tf_api.FunctionDef, match: re.Match[str]) -> None:
    function.signature.name = match["name"]
    for args, text in ((function.signature.input_arg, match["inputs"]), (function.signature.output_arg, match["outputs"])):
        for part in filter(None, text.split(", ")):
            name, _, dtype = part.partition(": ")
            args.add(name=name, type=_type_number(dtype))
    for name, value in _words(match["rest"]):
        _KINDS[_guessed_kind(value)].write(function.attr[name], value)


def _read_mapping(graph: tf_api.GraphDef, function: tf_api.FunctionDef | None, match: re.Match[str]) -> None:
    if match["what"] == "gradient":
        graph.library.gradient.add(function_name=match["left"], gradient_func=match["right"])
    elif function is None:
        raise ValueError(f"outside of a function: {match[0]!r}")
    elif match["what"] == "return":
        function.ret[match["left"]] = match["right"]
    else:
        function.signature.control_output.append(match["left"])
        function.control_ret[match["left"]] = match["right"]


def _read_node(node: tf_api.NodeDef, match: re.Match[str]) -> None:
    node.name, node.op = match["name"], match["op"]
    node.input.extend(filter(None, match["inputs"].split(", ")))
    words, _, node.device = match["rest"].partition(" @")
    given = dict(_words(words))
    if node.op == "Const":
        _read_constant(node, given)
    declared = _declared(node.op)
    for name, value in given.items():
        if value != "absent":
            kind = declared[name].type if name in declared else _guessed_kind(value)
            _KINDS[kind].write(node.attr[name], value)
    for name, value in _filled_in(node).items():
        if name not in given:
            node.attr[name].CopyFrom(value)


def _read_constant(node: tf_api.NodeDef, given: dict[str, Any]) -> None:
    dtype = _type_number(given.setdefault("dtype", Word("float")))
    value, shape = given.pop("value"), given.pop("shape", None)
    if value != "absent":
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.dtypes.as_dtype(dtype), shape))


def _declared(op: str) -> Mapping[str, Any]:
    definition = tf_api.op_def(op)
    return {} if definition is None else {attr.name: attr for attr in definition.attr}


def _filled_in(node: tf_api.NodeDef) -> dict[str, tf_api.AttrValue]:
    """Returns the attributes that a node with this op and these inputs has unless its line says otherwise."""
    found = {}
    counts = dict(_input_counts(node))
    for name, attr in _declared(node.op).items():
        value = tf_api.AttrValue()
        if attr.HasField("default_value"):
            value.CopyFrom(attr.default_value)
        elif attr.type == "type":
            allowed = attr.allowed_values.list.type
            value.type = types_pb2.DT_FLOAT if not allowed or types_pb2.DT_FLOAT in allowed else allowed[0]
        elif name in counts and attr.type == "int":
            value.i = counts[name]
        elif name in counts:
            value.list.type.extend([types_pb2.DT_FLOAT] * counts[name])
        else:
            continue
        found[name] = value
    return found


def _input_counts(node: tf_api.NodeDef) -> Iterator[tuple[str, int]]:
    """Yields each attribute that says how many inputs there are, with the number that the line has for it."""
    definition = tf_api.op_def(node.op)
    arguments = [] if definition is None else list(definition.input_arg)
    lists = [arg.number_attr or arg.type_list_attr for arg in arguments if arg.number_attr or arg.type_list_attr]
    data = sum(not text.startswith("^") for text in node.input) - (len(arguments) - len(lists))
    for name in dict.fromkeys(lists):
        yield name, data // len(lists)


def _words(text: str) -> Iterator[tuple[str, Any]]:
    """Yields attribute name and value of each `name=value` in `text`."""
    position = 0
    while text[position:].strip():
        name, _, _ = text[position:].partition("=")
        value, position = _value(text, position + len(name) + 1)
        yield name.strip(), value


def _value(text: str, position: int) -> tuple[Any, int]:
    """Returns the value written at `position`, and where it ends."""
    match = _TOKEN.match(text, position)
    if match is None:
        raise ValueError(f"no value at {text[position:]!r}")
    if match["string"] is not None:
        return match["string"].encode().decode("unicode_escape"), match.end()
    if match["punctuation"] != "[":
        return _plain_value(match["word"]), match.end()
    values, position = [], match.end()
    while (match := _TOKEN.match(text, position)) and match["punctuation"] != "]":
        if match["punctuation"] == ",":
            position = match.end()
        else:
            value, position = _value(text, position)
            values.append(value)
    if match is None:
        raise ValueError(f"a list has no end: {text!r}")
    return values, match.end()


def _plain_value(word: str) -> Any:
    if word in ("true", "false"):
        return word == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return Word(word)


def _guessed_kind(value: Any) -> str:
    kinds = {bool: "bool", int: "int", float: "float", str: "string"}
    if isinstance(value, list):
        first = value[0] if value else 0
        return "list(shape)" if isinstance(first, list) or first == "?" else f"list({_guessed_kind(first)})"
    if isinstance(value, Word):
        return "type" if f"DT_{value.upper()}" in _TYPE_NAMES else "func"
    return kinds[type(value)]


@dataclasses.dataclass(frozen=True)
class _Kind:
    """One kind of attribute: how a written value goes into an AttrValue, and how an AttrValue is written."""

    write: Callable[[tf_api.AttrValue, Any], None]
    read: Callable[[tf_api.AttrValue], str]


def _scalar(field: str, to_proto: Callable[[Any], Any], to_text: Callable[[Any], str]) -> Iterator[tuple[str, _Kind]]:
    """Yields the kind called `field` and its list."""
    short = {"int": "i", "float": "f", "bool": "b", "string": "s"}.get(field, field)

    def write(attr: tf_api.AttrValue, value: Any) -> None:
        proto = to_proto(value)
        getattr(attr, short).CopyFrom(proto) if hasattr(proto, "CopyFrom") else setattr(attr, short, proto)

    def write_list(attr: tf_api.AttrValue, value: Iterable[Any]) -> None:
        attr.list.SetInParent()
        getattr(attr.list, short).extend(map(to_proto, value))

    yield field, _Kind(write, lambda attr: to_text(getattr(attr, short)))
    yield f"list({field})", _Kind(write_list, lambda attr: f"[{', '.join(map(to_text, getattr(attr.list, short)))}]")


def _shape_proto(value: Any) -> tf_api.Message:
    return tf.TensorShape(None if value == "?" else [None if size == "?" else size for size in value]).as_proto()


def _shape_text(proto: tf_api.Message) -> str:
    shape = tf.TensorShape(proto)
    return "?" if shape.rank is None else f"[{', '.join('?' if size is None else str(size) for size in shape.as_list())}]"


def _func_proto(name: str) -> tf_api.Message:
    value = tf_api.AttrValue()
    value.func.name = name
    return value.func


def _quoted(value: bytes) -> str:
    return '"' + value.decode("latin-1").encode("unicode_escape").decode().replace('"', '\\"') + '"'


def _tensor_text(attr: tf_api.AttrValue) -> str:
    array = np.asarray(tf_api.read_tensor(attr.tensor))
    uniform = array.size > 1 and bool(np.all(array == array.flat[0]))
    text = _array_text(array.flat[0] if uniform else array)
    return f"{text} shape=[{', '.join(map(str, array.shape))}]" if uniform or not array.size else text


def _array_text(array: Any) -> str:
    if np.ndim(array):
        return f"[{', '.join(map(_array_text, array))}]"
    scalar = array[()] if isinstance(array, np.ndarray) else array
    if isinstance(scalar, bytes):
        return _quoted(scalar)
    return _float_text(scalar) if isinstance(scalar, np.inexact) or scalar.dtype.kind == "V" else str(scalar).lower()


def _float_text(scalar: Any) -> str:
    """Returns the shortest decimal that is `scalar` in its type; every version of NumPy has its own way to write one."""
    texts = (f"{float(scalar):.{digits}g}" for digits in range(1, 18))
    text = next((text for text in texts if type(scalar)(float(text)) == scalar), str(scalar))
    return text if re.search(r"[.en]", text) else f"{text}.0"


_KINDS: dict[str, _Kind] = {
    **dict(_scalar("int", int, str)),
    **dict(_scalar("float", float, lambda value: _float_text(np.float32(value)))),
    **dict(_scalar("bool", bool, lambda value: str(value).lower())),
    **dict(_scalar("string", lambda value: value.encode("latin-1"), _quoted)),
    **dict(_scalar("type", _type_number, _type_name)),
    **dict(_scalar("shape", _shape_proto, _shape_text)),
    **dict(_scalar("func", _func_proto, lambda value: value.name)),
    "tensor": _Kind(lambda attr, value: attr.tensor.CopyFrom(tf.make_tensor_proto(value)), _tensor_text),
}


def _node_line(node: tf_api.NodeDef) -> str:
    filled_in = _filled_in(node)
    words = [f"{node.name} = {node.op}({', '.join(node.input)})", *_attr_words(node.attr, filled_in)]
    words += [f"{name}=absent" for name in filled_in if name not in node.attr]
    return " ".join([*words, f"@{node.device}"] if node.device else words)


def _attr_words(attrs: Mapping[str, tf_api.AttrValue], filled_in: Mapping[str, tf_api.AttrValue]) -> Iterator[str]:
    for name, value in sorted(attrs.items()):
        if value != filled_in.get(name):
            yield f"{name}={_KINDS[_kind_of(value)].read(value)}"


def _kind_of(value: tf_api.AttrValue) -> str:
    kinds = {"s": "string", "i": "int", "f": "float", "b": "bool"}
    field = value.WhichOneof("value")
    if field != "list":
        return kinds.get(field, field)
    filled = next((descriptor.name for descriptor, _ in value.list.ListFields()), "i")
    return f"list({kinds.get(filled, filled)})"
