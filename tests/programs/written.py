"""A converted program as TensorFlow is given it: every function before and after, how many casts came in, what stayed float32, and a text of all changes."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping

import tensorflow as tf

import tfmp
from tfmp import tf_api
from tfmp.dtypes import DT_BFLOAT16, DT_FLOAT, DT_HALF, DT_RESOURCE, DT_VARIANT

WIDTH = {DT_FLOAT: "32", DT_HALF: "16", DT_BFLOAT16: "16"}
PRODUCTS = frozenset({"MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"})
_COUNTER = re.compile(r"(?<=_cond|_body|_true)_\d+(?=_)|(?<=_false)_\d+(?=_)|(?<=[a-z])_\d\d+(?=_|\b)")
"""Numbers in names that count what the process has made so far."""

_CAST = re.compile(r"(.+)-(\d+)-CastTo(?:Fp|Bf)(16|32)-\d+-AutoMixedPrecision")


@dataclasses.dataclass(frozen=True)
class Version:
    """One function of the program as it will run, with the definition it was made of (the same one if nothing changed)."""

    before: tf_api.FunctionDef
    after: tf_api.FunctionDef

    @property
    def name(self) -> str:
        """The function's name without the numbers that TensorFlow adds."""
        return re.sub(r"^__(inference|forward|backward)_|_\d+(?=_|$)|_rewritten", "", self.before.signature.name)

    @property
    def added(self) -> list[tf_api.NodeDef]:
        """The nodes that were not there before."""
        names = {node.name for node in self.before.node_def}
        return [node for node in self.after.node_def if node.name not in names]

    @property
    def casts(self) -> list[tf_api.NodeDef]:
        """The Cast nodes that were not there before."""
        return [node for node in self.added if node.op == "Cast"]


class Written:
    """The functions of a converted program.

    Attributes:
      conversion: what was converted.
      versions: new name to version of each function that the new roots reach, roots first.
    """

    def __init__(self, conversion: tfmp.Conversion) -> None:
        """Links `conversion` and follows its calls."""
        self.conversion = conversion
        linked = conversion.functions(lambda name, version: f"{name}_new_{version}")  # the roots first: one, or a forward and its backward function
        new = {one.name: Version(conversion.originals[conversion.instances[one.instance].function], one.proto) for one in linked}
        self.versions: dict[str, Version] = {}
        todo = [one.name for one in reversed(linked[: conversion.roots])]
        while todo:
            name = todo.pop()
            if name not in self.versions:
                definition = None if name in new else tf_api.function_definition(name)
                self.versions[name] = new[name] if definition is None else Version(definition, definition)
                todo += reversed([called for node in self.versions[name].after.node_def for called in called_by(node)])

    @property
    def casts(self) -> int:
        """Number of Cast nodes that were added, each function counted once."""
        return sum(len(version.casts) for version in self.versions.values())

    def nodes(self, *ops: str) -> Iterator[tf_api.NodeDef]:
        """Yields the nodes of all functions whose op is one of `ops`."""
        return (node for version in self.versions.values() for node in version.after.node_def if node.op in ops)

    def types(self, *ops: str, attr: str = "T") -> set[str]:
        """Returns the names of the types that the nodes of `ops` have in `attr`; fails if there is no such node."""
        found = {tf.dtypes.as_dtype(node.attr[attr].type).name for node in self.nodes(*ops)}
        assert found, f"the program has no {' or '.join(ops)}"
        return found

    def kept_products(self) -> dict[str, int]:
        """Returns why matrix multiplications and convolutions are float32 still: rule to number of nodes; fails if one has no recorded reason."""
        decided = collections.Counter(
            (decision.function, decision.node, decision.rule) for decision in self.conversion.decisions() if decision.op in PRODUCTS and not decision.converted
        )
        found = {(version.before.signature.name, node.name) for version in self.versions.values() for node in version.after.node_def if is_float32(node)}
        rules = {(function, node): rule for function, node, rule in decided}
        assert found <= rules.keys(), f"float32 without a reason: {sorted(found - rules.keys())}"
        return dict(collections.Counter(rules[key] for key in found))

    def text(self) -> str:
        """Returns every function with float types in it, one line a node that has such a type or calls something.

        `T=32>16` was changed, `+` was added, `x>16` is the cast of `x` to 16 bit; what is not marked is as it was. Integers are left out, and constants
        that were there before.
        """
        short = _short_names(self.versions)
        text = "\n".join(line for name, version in self.versions.items() for line in _lines(version, short[name], short))
        return _COUNTER.sub("", text)


def is_float32(node: tf_api.NodeDef) -> bool:
    """Returns whether `node` is a matrix multiplication or convolution in float32."""
    return node.op in PRODUCTS and node.attr["T"].type == DT_FLOAT


def called_by(node: tf_api.NodeDef) -> list[str]:
    """Returns the names of the functions in the attributes of `node`, sorted by attribute."""
    values = [value for _, value in sorted(node.attr.items())]
    return [function.name for value in values for function in ([value.func] if value.HasField("func") else value.list.func)]


def _short_names(versions: Mapping[str, Version]) -> dict[str, str]:
    """Returns name to a readable one; the second of the same is called f'2."""
    counts: collections.Counter[str] = collections.Counter()
    short = {}
    for name, version in versions.items():
        counts[version.name] += 1
        short[name] = version.name + (f"'{counts[version.name]}" if counts[version.name] > 1 else "")
    return short


def _lines(version: Version, title: str, short: Mapping[str, str]) -> Iterator[str]:
    before = {node.name: node for node in version.before.node_def}
    tensors = _Tensors(version.after)
    yield f"function {title}({_signature(version, 'input_arg')}) -> ({_signature(version, 'output_arg')})" + _compiled(version.after)
    for node in version.after.node_def:
        added = node.name not in before
        if tensors.shows(node.name) and (added or node.op != "Const"):
            calls = [short.get(name, name) for name in called_by(node)]
            types = [] if added and node.op == "Cast" else _types(before.get(node.name, node), node)
            words = [f"{'+' if added else ' '} {_node(node.name)} = {node.op}({tensors.inputs(node)})", *types]
            yield " ".join([*words, *([f"calls {', '.join(calls)}"] if calls else [])])
    for arg in version.after.signature.output_arg:
        if tensors.shows(version.after.ret[arg.name].partition(":")[0]):
            yield f"  return {arg.name} = {tensors.tensor(version.after.ret[arg.name])}"
    yield ""


class _Tensors:
    """How tensors of one function are written, and which of them: floats, and handles of what may hold floats."""

    def __init__(self, definition: tf_api.FunctionDef) -> None:
        self._outputs = {node.name: _first_output(node) for node in definition.node_def}
        handles = {arg.name for arg in definition.signature.input_arg if arg.type in {*WIDTH, DT_RESOURCE, DT_VARIANT}}
        self._shown = handles | {node.name for node in definition.node_def if _types(node, node) or called_by(node)}

    def shows(self, name: str) -> bool:
        return name in self._shown

    def inputs(self, node: tf_api.NodeDef) -> str:
        return ", ".join(self.tensor(text) for text in node.input if self.shows(text.partition(":")[0]))

    def tensor(self, text: str) -> str:
        """Returns `node:output:index` without what goes without saying."""
        name, *rest = text.split(":")
        if rest and rest[0] == self._outputs[name]:
            rest = rest[1:]
        return ":".join([_node(name), *rest]).removesuffix(":0")


def _signature(version: Version, field: str) -> str:
    """Only the float arguments or results; the others are counted."""
    old = {arg.name: arg.type for arg in getattr(version.before.signature, field)}
    new = getattr(version.after.signature, field)
    floats = [f"{arg.name}: {_change(old.get(arg.name), arg.type)}" for arg in new if arg.type in WIDTH]
    return ", ".join([*floats, *([f"{len(new) - len(floats)} more"] if len(floats) < len(new) else [])])


def _compiled(definition: tf_api.FunctionDef) -> str:
    return " compiled" if definition.attr["_XlaMustCompile"].b else ""


def _change(old: int | None, new: int) -> str:
    """`old` is None for an argument, result or loop variable that was not there."""
    return WIDTH[new] if old == new else f"{'+' if old is None else WIDTH[old] + '>'}{WIDTH[new]}"


def _types(old: tf_api.NodeDef, new: tf_api.NodeDef) -> list[str]:
    words = []
    for name, value in sorted(new.attr.items()):
        if not name.startswith("_"):
            if value.type in WIDTH:
                words.append(f"{name}={_change(old.attr[name].type, value.type)}")
            elif any(entry in WIDTH for entry in value.list.type):
                pairs = itertools.zip_longest(old.attr[name].list.type, value.list.type)
                words.append(f"{name}=[{', '.join(_change(a, b) if b in WIDTH else '-' for a, b in pairs)}]")
    return words


def _first_output(node: tf_api.NodeDef) -> str:
    definition = tf_api.op_def(node.op)
    return definition.output_arg[0].name if definition is not None and definition.output_arg else ""


def _node(name: str) -> str:
    match = _CAST.fullmatch(name)
    return f"{match[1]}{':' + match[2] if match[2] != '0' else ''}>{match[3]}" if match else name
