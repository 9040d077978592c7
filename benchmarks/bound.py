"""The least traffic that any colouring of a graph could reach, by a minimum cut: what a colouring is measured against, found without colouring anything.

The rule: an op costs the bytes that it reads and writes, at its width; a cast costs reading its source and writing its target, once per tensor and direction.
Ops of TensorFlow's allowlist are in 16 bit; ops of its denylist, ops on no list, reads and writes of variables, arguments and results are in float32; ops of
its inferlist and clearlist and casts from and to other types are free. A sum over the steps of a loop is in float32, as other sums are. Reads of a variable
before a write to it are one tensor. Constants cost nothing to have in both types. The lists come from TensorFlow's pass itself.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import tempfile
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import op_def_registry

from benchmarks.costs import UNSAFE
from benchmarks.executed import Edge, Tensor
from benchmarks.flat import ASSIGNS, Program
from tests.oracle import client

LOG_PATH = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH"
KINDS = ("allow", "deny", "infer", "clear")
FREE_OPS = frozenset({"Cast", "OptionalFromValue", "OptionalGetValue"})
"""Ops on no list that are free: casts from and to other types, and what branches use to hand tensors to their gradients."""

KEPT_OPS = frozenset({"Placeholder", "ReadVariableOp", "ResourceGather"})


Vertex = tuple[str, str, int]
"""Node, type attribute, and number in a list of types: what has one colour."""

ALWAYS_32: Vertex = ("", "float32", 0)
ALWAYS_16: Vertex = ("", "16 bit", 0)


@functools.cache
def lists() -> Mapping[str, str]:
    """Returns op type to "allow", "deny", "infer" or "clear", as TensorFlow's pass for float16 writes its lists down."""
    with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default() as graph:
        tf.identity(tf.matmul(tf.fill([2, 2], 1.0), tf.fill([2, 2], 1.0)), name="fetch")
        client.optimize(graph.as_graph_def().SerializeToString(), ["fetch"], ["auto_mixed_precision"], environment={LOG_PATH: folder})
        (text,) = [path.read_text() for path in sorted(pathlib.Path(folder).glob("paintbuckets*"))][:1]
    found, kind = {}, ""
    for line in text.splitlines():
        word = line.strip().rstrip(":").lower()
        if line.strip().endswith(":") and any(word.startswith(name) for name in KINDS):
            kind = next(name for name in KINDS if word.startswith(name))
        elif line.strip() and kind:
            found[line.strip()] = kind
    return found


def strict(op: str) -> str | None:
    """Returns the list that an op type is on, by TensorFlow's lists."""
    return lists().get(op)


def loose(op: str) -> str | None:
    """Returns "infer", free, for every op type that is not on the allowlist and neither sums, exponentiates, computes a loss nor writes a variable."""
    return "allow" if strict(op) == "allow" else "deny" if op in UNSAFE | ASSIGNS else "infer"


def arguments(node: Any, written: bool) -> list[Vertex | None]:
    """Returns what colours each input (or output, if `written`) of `node`: the type attribute, or None where its type cannot be 16 bit."""
    definition = op_def_registry.get(node.op)
    halves = {attr.name: not attr.HasField("allowed_values") or types_pb2.DT_HALF in attr.allowed_values.list.type for attr in definition.attr}
    result: list[Vertex | None] = []
    for argument in definition.output_arg if written else definition.input_arg:
        if argument.type_list_attr:
            result += [(node.name, argument.type_list_attr, index) for index in range(len(node.attr[argument.type_list_attr].list.type))]
        else:
            vertex = (node.name, argument.type_attr, 0) if argument.type_attr and halves[argument.type_attr] else None
            result += [vertex] * (node.attr[argument.number_attr].i if argument.number_attr else 1)
    return result


@dataclasses.dataclass
class Cell:
    """A tensor: who makes it and who reads it (None: in float32 whatever happens), and its bytes in float32, all runs together."""

    maker: Vertex | None
    readers: list[Vertex | None]
    bytes: int


@dataclasses.dataclass
class Problem:
    """What a colouring of one program costs.

    Attributes:
      moved: vertex to the bytes that its node moves for it in float32; half of them in 16 bit.
      fixed: bytes that are moved whatever the colouring.
      cells: the tensors.
      forced: vertex to whether it must be 16 bit.
      tied: pairs that have the same colour: the ops of one tensor list.
    """

    moved: dict[Vertex, int]
    fixed: int
    cells: dict[Edge, Cell]
    forced: dict[Vertex, bool]
    tied: list[tuple[Vertex, Vertex]]

    def traffic(self, sixteen: Mapping[Vertex, bool]) -> int:
        """Returns the bytes moved under a colouring, casts included; what it does not mention is in float32."""
        moved = sum(size // 2 if sixteen.get(vertex, False) else size for vertex, size in self.moved.items())
        return self.fixed + moved + sum(self.cast_bytes(edge, sixteen) for edge in self.cells)

    def cast_bytes(self, edge: Edge, sixteen: Mapping[Vertex, bool]) -> int:
        """Returns what the cast of one tensor costs, 0 if all its readers have its type."""
        cell = self.cells[edge]
        own = sixteen.get(cell.maker, False)
        return cell.bytes * 3 // 2 if any(sixteen.get(reader, False) != own for reader in cell.readers) else 0

    def gain(self, sixteen: Mapping[Vertex, bool], region: Collection[Vertex]) -> int:
        """Returns how many bytes fewer are moved if all of `region` changes its colour."""
        flipped = ChainMap({vertex: not sixteen.get(vertex, False) for vertex in region}, sixteen)  # type: ignore[arg-type]
        moved = sum((1 if sixteen.get(vertex, False) else -1) * (size - size // 2) for vertex in region if (size := self.moved.get(vertex, 0)))
        return -moved + sum(self.cast_bytes(edge, sixteen) - self.cast_bytes(edge, flipped) for edge in self.touching(region))

    def touching(self, region: Collection[Vertex]) -> set[Edge]:
        """Returns the tensors that a vertex of `region` makes or reads."""
        return {edge for vertex in region for edge in self._touching.get(vertex, ())}

    @functools.cached_property
    def _touching(self) -> dict[Vertex, list[Edge]]:
        found: dict[Vertex, list[Edge]] = {}
        for edge, cell in self.cells.items():
            for end in {cell.maker, *cell.readers} - {None}:
                found.setdefault(end, []).append(edge)  # type: ignore[arg-type]
        return found


def problem(program: Program, with_update: bool = True, kind_of: Callable[[str], str | None] = strict) -> Problem:
    """Returns the cost model of a float32 `program`; without the weight update, its nodes are in float32 and cost nothing. `kind_of`: `strict` or `loose`."""
    result = Problem({}, 0, {}, {}, [])
    for name, node in program.nodes.items():
        if node.op == "Const":
            continue
        left_out = name in program.update and (not with_update or kind_of is loose)
        for written in (False, True):
            for vertex in arguments(node, written):
                if vertex is not None:
                    forced = _forced(node, kind_of(node.op), name in program.fetches or left_out or name in program.loop_sums)
                    if forced is not None:
                        result.forced[vertex] = forced
        result.tied += _ties(program, node)
    for one in program.executions:
        node = one.node
        if node.op == "Const":
            continue
        counted = with_update or node.name not in program.update
        sides = [list(zip(arguments(node, written), tensors, strict=False)) for written, tensors in ((False, one.inputs), (True, one.outputs))]
        whole = one.traffic if counted else 0
        parts = [(vertex, tensor.bytes) for side in sides for vertex, tensor in side if tensor.bytes]
        total = sum(size for _, size in parts)
        for vertex, size in parts:
            share = whole * size // total
            if vertex is None:
                result.fixed += share
            else:
                result.moved[vertex] = result.moved.get(vertex, 0) + share
        if not total:
            result.fixed += whole
        _make_cells(result, node, sides[1], counted)
    for node in program.nodes.values():
        for edge, vertex in zip(program.edges(node), arguments(node, False), strict=False):
            if edge in result.cells and node.op != "Const":
                result.cells[program.value(edge)].readers.append(vertex)
    return result


def _make_cells(result: Problem, node: Any, side: list[tuple[Vertex | None, Tensor]], counted: bool) -> None:
    for port, (vertex, tensor) in enumerate(side):
        if tensor.bytes:
            cell = result.cells.setdefault((node.name, port), Cell(vertex, [], 0))
            cell.bytes += tensor.bytes if counted else 0


def _forced(node: Any, kind: str | None, kept: bool) -> bool | None:
    if kind == "allow" and not kept:
        return True
    if kept or node.op in KEPT_OPS or kind == "deny" or (kind is None and node.op not in FREE_OPS):
        return False
    return None


def _ties(program: Program, node: Any) -> Iterator[tuple[Vertex, Vertex]]:
    """Yields what has the same colour because a handle of a list of tensors, or an optional, is passed on: the ops that use it, and those that carry it."""
    for number, (name, port) in enumerate(program.edges(node)):
        if program.types[name][port].dtype == tf.variant:
            maker, reader = _carried(program.nodes[name], True, port), _carried(node, False, number)
            if maker and reader:
                yield maker, reader


def _carried(node: Any, written: bool, index: int) -> Vertex | None:
    """Returns what has the colour of the tensors behind the handle that is input or output number `index` of `node`."""
    for name in ("element_dtype", "Toutput_types", "output_types"):
        if name in node.attr:
            if len(node.attr[name].list.type) > 1:
                raise ValueError(f"{node.op} {node.name!r} carries several tensors; the bound knows optionals of one")
            return (node.name, name, 0)
    return arguments(node, written)[index]


def least(found: Problem) -> dict[Vertex, bool]:
    """Returns a colouring with the least traffic. Capacities are rounded down to 1/2**29 of the whole, since the solver counts in 32 bits."""
    whole = sum(found.moved.values()) + sum(3 * cell.bytes for cell in found.cells.values())
    unit = whole // 2**29 + 1
    forever = 2**30
    numbers: dict[object, int] = {ALWAYS_16: 0, ALWAYS_32: 1}
    capacities: dict[tuple[int, int], int] = {}

    def connect(start: object, end: object, capacity: int) -> None:
        edge = tuple(numbers.setdefault(name, len(numbers)) for name in (start, end))
        capacities[edge] = min(capacities.get(edge, 0) + capacity, forever)  # type: ignore[index]

    for vertex, size in found.moved.items():
        connect(ALWAYS_16, vertex, (size - size // 2) // unit)
    for vertex, sixteen in found.forced.items():
        connect(*((ALWAYS_16, vertex) if sixteen else (vertex, ALWAYS_32)), forever)
    for first, second in found.tied:
        connect(first, second, forever)
        connect(second, first, forever)
    for edge, cell in found.cells.items():
        maker, down, up = cell.maker or ALWAYS_32, ("down", *edge), ("up", *edge)
        connect(down, maker, cell.bytes * 3 // 2 // unit)
        connect(maker, up, cell.bytes * 3 // 2 // unit)
        for reader in cell.readers:
            connect(reader or ALWAYS_32, down, forever)
            connect(up, reader or ALWAYS_32, forever)
    rows, columns = np.array(list(capacities)).T
    matrix = csr_array((np.array(list(capacities.values()), "int32"), (rows, columns)), shape=(len(numbers),) * 2)
    flow = maximum_flow(matrix, 0, 1).flow
    residual = csr_array(matrix.astype("int64") - flow.astype("int64"))
    residual.data = (residual.data > 0).astype("int8")
    residual.eliminate_zeros()
    reached = set(breadth_first_order(residual, 0, return_predecessors=False).tolist())
    return {name: number in reached for name, number in numbers.items() if isinstance(name, tuple) and len(name) == 3 and name[0] not in ("down", "up", "")}
