"""What an op's definition says about types: which port has which type attribute, and which types an attribute may hold.

The unit of every decision is a type attribute of a node, not the node (`TypeAttrId` in TensorFlow's `auto_mixed_precision.cc`): FusedBatchNormV3 has
T for data and U for statistics, IdentityN one entry of a list per port. A node's attributes are its *slots*, numbered from 0.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from tfmp import tf_api
from tfmp.dtypes import DT_RESOURCE
from tfmp.errors import GraphError


@dataclasses.dataclass(frozen=True)
class Slot:
    """One type attribute of one node.

    Attributes:
      attr: the attribute's name, or "" for a port whose type the op definition fixes.
      index: position in a list(type) attribute, or -1 for a plain one.
      fixed: the fixed type's number, or 0 (DT_INVALID) if the type is an attribute.
    """

    attr: str
    index: int = -1
    fixed: int = 0

    def __str__(self) -> str:
        """Returns "T", "T[2]" or "fixed 3"."""
        if not self.attr:
            return f"fixed {self.fixed}"
        return self.attr if self.index < 0 else f"{self.attr}[{self.index}]"


@dataclasses.dataclass(frozen=True)
class Layout:
    """The slots of a node and the slot of each of its ports.

    Attributes:
      slots: every type attribute, the ones with ports first, in port order.
      inputs: slot number of each data input.
      outputs: slot number of each output.
      first_output: output argument name to the number of its first output port (FunctionDef inputs are written `node:argument:index`).
    """

    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    first_output: Mapping[str, int]

    @functools.cached_property
    def keys(self) -> tuple[tuple[str, int, int], ...]:
        """The slots as plain tuples (attr, index, fixed), for the loops that read every node."""
        return tuple((slot.attr, slot.index, slot.fixed) for slot in self.slots)

    @functools.cached_property
    def output_names(self) -> tuple[str, ...]:
        """How a FunctionDef writes each output, after the node's name: ":argument:index"."""
        ends = [*list(self.first_output.values())[1:], len(self.outputs)]
        spans = zip(self.first_output.items(), ends, strict=True) if self.first_output else ()
        return tuple(f":{argument}:{port - first}" for (argument, first), end in spans for port in range(first, end))

    @functools.cached_property
    def port(self) -> Mapping[str, int]:
        """What comes after a node's name and a colon where a FunctionDef writes one of its outputs, to the number of that."""
        return {name[1:]: port for port, name in enumerate(self.output_names)}

    @functools.cached_property
    def number(self) -> dict[Slot, int]:
        """Slot to its number."""
        return {slot: number for number, slot in enumerate(self.slots)}


class OpSchema:
    """The definition of one op type, read once.

    Attributes:
      op: the op type.
      stateful: whether TensorFlow marks it stateful.
      has_refs: whether an argument is a reference (a v1 variable).
      takes_handles: whether an argument is a handle of something that it may change: a variable, a table, an iterator.
      bound: whether its types say what something else holds: a constant's value, a variable or array behind a handle or a reference.
      names_functions: whether it has attributes that name functions for it to call.
      defaults: type attributes that a node may leave out, to their default type numbers.
    """

    def __init__(self, definition: tf_api.OpDef) -> None:
        """Reads `definition`; keeps no reference to it."""
        self.op: str = definition.name
        self.stateful: bool = definition.is_stateful
        self._inputs = [_Argument(arg) for arg in definition.input_arg]
        self._outputs = [_Argument(arg) for arg in definition.output_arg]
        self.has_refs = any(arg.is_ref for arg in (*definition.input_arg, *definition.output_arg))
        self.takes_handles = any(arg.type == DT_RESOURCE for arg in definition.input_arg)
        behind_handles = any(arg.type == DT_RESOURCE for arg in (*definition.input_arg, *definition.output_arg))
        self.bound = self.has_refs or behind_handles or definition.name == "Const"
        self.names_functions = any(attr.type in ("func", "list(func)") for attr in definition.attr)
        self._attrs = {attr.name: attr.type for attr in definition.attr if attr.type in ("type", "list(type)")}
        self._allowed = {attr.name: frozenset(attr.allowed_values.list.type) for attr in definition.attr if attr.name in self._attrs}
        self.defaults = {attr.name: attr.default_value.type for attr in definition.attr if attr.type == "type" and attr.HasField("default_value")}
        self._lengths = tuple(
            sorted({arg.list_attr for arg in self._arguments if arg.list_attr} | {name for name, kind in self._attrs.items() if kind == "list(type)"})
        )
        self._counts = tuple(sorted({arg.number_attr for arg in self._arguments if arg.number_attr}))
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._only = None if self._lengths or self._counts else self._make_layout({})
        self._plain = [(attr, fixed, fixed or self.defaults.get(attr, 0)) for attr, _, fixed in self._only.keys] if self._only else []

    @property
    def _arguments(self) -> list[_Argument]:
        return [*self._inputs, *self._outputs]

    def allows(self, slot: Slot, dtype: int) -> bool:
        """Returns whether the op definition lets `slot` have the type numbered `dtype`; says nothing about kernels."""
        if not slot.attr:
            return slot.fixed == dtype
        allowed = self._allowed[slot.attr]
        return not allowed or dtype in allowed

    def read(self, attrs: Mapping[str, tf_api.AttrValue]) -> tuple[Layout, list[int]]:
        """Returns the `layout` and the `types` of a node with the attributes `attrs`. The types of most ops hang on no lengths, and are read at once."""
        if self._only is None:
            layout = self.layout(attrs)
            return layout, self.types(layout, attrs)
        get = attrs.get
        return self._only, [otherwise if fixed or (value := get(attr)) is None else value.type for attr, fixed, otherwise in self._plain]

    def types(self, layout: Layout, attrs: Mapping[str, tf_api.AttrValue]) -> list[int]:
        """Returns the type number of each slot of `layout` in a node with the attributes `attrs` (0 where it is nowhere given)."""
        found = []
        for attr, index, fixed in layout.keys:
            value = attrs.get(attr) if attr else None
            if value is None:
                found.append(fixed or self.defaults.get(attr, 0))
            else:
                found.append(value.type if index < 0 else value.list.type[index])
        return found

    def layout(self, attrs: Mapping[str, tf_api.AttrValue]) -> Layout:
        """Returns the layout of a node with the attributes `attrs`; nodes whose lists have equal lengths share one object."""
        if self._only is not None:
            return self._only
        lists, counts = map(attrs.get, self._lengths), map(attrs.get, self._counts)  # indexing a proto map would add what is missing
        key = (*(len(value.list.type) if value else 0 for value in lists), *(value.i if value else 1 for value in counts))
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = self._make_layout(dict(zip((*self._lengths, *self._counts), key, strict=True)))
        return found

    def _make_layout(self, sizes: Mapping[str, int]) -> Layout:
        numbers: dict[Slot, int] = {}
        inputs, _ = self._ports(self._inputs, sizes, numbers)
        outputs, first_output = self._ports(self._outputs, sizes, numbers)
        for name, kind in self._attrs.items():  # attributes with no port, such as StackV2's elem_type
            for slot in [Slot(name)] if kind == "type" else [Slot(name, index) for index in range(sizes[name])]:
                numbers.setdefault(slot, len(numbers))
        return Layout(tuple(numbers), tuple(inputs), tuple(outputs), first_output)

    @staticmethod
    def _ports(arguments: list[_Argument], sizes: Mapping[str, int], numbers: dict[Slot, int]) -> tuple[list[int], dict[str, int]]:
        ports: list[int] = []
        first: dict[str, int] = {}
        for argument in arguments:
            first[argument.name] = len(ports)
            for slot in argument.slots(sizes):
                ports.append(numbers.setdefault(slot, len(numbers)))
        return ports, first


class _Argument:
    """One input or output argument of an op definition."""

    def __init__(self, arg: tf_api.Message) -> None:
        self.name, self.list_attr, self.number_attr = arg.name, arg.type_list_attr, arg.number_attr
        self._slot = Slot(arg.type_attr) if arg.type_attr else Slot("", fixed=arg.type)

    def slots(self, sizes: Mapping[str, int]) -> list[Slot]:
        """Returns one slot for each port that the argument stands for."""
        if self.list_attr:
            return [Slot(self.list_attr, index) for index in range(sizes[self.list_attr])]
        return [self._slot] * (sizes[self.number_attr] if self.number_attr else 1)


@functools.cache
def registered_schema(op: str) -> OpSchema:
    """Returns the schema of a registered op; raises `GraphError` if there is none (not remembered: `tf.load_op_library` may bring it later)."""
    definition = tf_api.op_def(op)
    if definition is None:
        raise GraphError(f"op {op!r} is not registered in this process; load the library that defines it before converting.")
    return OpSchema(definition)
