"""What writing kernels into a function takes: new nodes near an old one, and readers that read something else."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion.counts import LOOKS_AT_SHAPES
from tfmp.fusion.needed import Needs
from tfmp.graph.body import Edge
from tfmp.graph.grow import GrowingFunction, Made
from tfmp.graph.readers import Readers
from tfmp.program.shapes import Sizes

DT_INT32, DT_INT64 = 3, 9
ARRAYS = {DT_FLOAT: np.float32, DT_INT32: np.int32, DT_INT64: np.int64}

KnownShape = tuple[int | None, ...]


class Writer:
    """Puts kernels into a copy of a function.

    Attributes:
      editor: what is written into.
      near: number of the node that new nodes belong to: they get its name, its device and its marks.
      needs: what is needed once all is written.
    """

    def __init__(self, editor: GrowingFunction, sizes: Sizes, readers: Readers) -> None:
        """Writes into `editor`."""
        self.editor, self._sizes, self._readers, self.needs = editor, sizes, readers, Needs(editor.body, readers)
        self.near = 0
        self._became: set[int] = set()
        self._handed: set[int] = set()
        self._redirects: dict[Edge, Edge] = {}
        self._constants: dict[Any, str] = {}
        self._targets: dict[Any, str] = {}

    def announce(self, node: int, op: str, reads: Sequence[Edge]) -> None:
        """Says that `node` will become of op `op`, made of the tensors `reads`: whatever is written from now on reads it as that."""
        body = self.editor.body
        self.needs.reads(node, reads)
        self._became.add(node)
        self.editor.named[node, 0] = Made(body.names[node], op).output(0)

    def become(self, node: int, op: str, inputs: Sequence[str], shapes: Sequence[KnownShape], **attrs: object) -> Made:
        """Makes `node` be of op `op`, as announced, and lets its readers read it as that."""
        made = self.editor.become(node, op, inputs, shapes, **attrs)
        for reader in self._readers[node][0]:
            if reader[0] not in self._became:
                self.editor.redirect(reader, made.output(0))
        return made

    def add(self, op: str, name: str, inputs: Sequence[str], shapes: Sequence[KnownShape], **attrs: object) -> Made:
        """Adds a node that is called `name` after `near`."""
        return self.editor.make(op, f"{self.editor.body.names[self.near]}/{name}", inputs, self.near, shapes, attrs=attrs)

    def shape(self, edge: Edge) -> KnownShape:
        """Returns the shape of a tensor whose rank is known."""
        return tuple(self._sizes.shape(edge) or ())

    def constant(self, value: float | tuple[float, ...], name: str, dtype: int = DT_FLOAT, size: int | None = None) -> str:
        """Returns how a constant is written that is `value`, or a vector with `size` times that; it is added if there is none yet."""
        key = dtype, value, size, self.editor.body.devices[self.near]
        found = self._constants.get(key)
        if found is None:
            array = np.asarray(value, ARRAYS[dtype]) if size is None else np.full(size, value, ARRAYS[dtype])
            found = self._constants[key] = self.editor.constant(array, dtype, f"{self.editor.body.names[self.near]}/{name}", self.near)
        return found

    def target(self, shape: KnownShape, name: str, like: str) -> str:
        """Returns how a tensor is written that says `shape`: a constant, or the shape of the float32 tensor written `like` if that is not known enough."""
        key = shape, self.editor.body.devices[self.near]
        if key not in self._targets and shape.count(None) < 2:
            self._targets[key] = self.constant(tuple([-1 if size is None else size for size in shape]), f"{name}/shape", DT_INT32)
        if key in self._targets:
            return self._targets[key]
        return self.add("Shape", f"{name}/shape", [like], [(len(shape),)], T=DT_FLOAT, out_type=DT_INT32).output(0)

    def reshaped(self, text: str, shape: KnownShape, name: str) -> str:
        """Adds a reshape of a float32 tensor to a shape with one unknown size at most; returns how it is written."""
        return self.add("Reshape", name, [text, self.target(shape, name, "")], [shape], T=DT_FLOAT, Tshape=DT_INT32).output(0)

    def as_vector(self, edge: Edge, vector: KnownShape, name: str) -> str:
        """Returns how a tensor with one number for each element of `vector` is written, as a vector."""
        text = self.editor.text(edge)
        return text if self.shape(edge) == vector else self.reshaped(text, vector, name)

    def announce_outputs(self, nodes: Sequence[int], reads: Sequence[Edge]) -> None:
        """Says that what `nodes` compute will be handed out, by something that is made of the tensors `reads`, where one size of it at most is not known before
        the program runs.
        """
        for node in nodes:
            shape = self._sizes.shape((node, 0))
            if shape is not None and shape.count(None) < 2:
                self.needs.hands_out(node, reads)

    def announce_redirects(self, readers: Iterable[Edge], edge: Edge) -> None:
        """Says that inputs will be the tensor `edge`, whatever else is written."""
        for reader in readers:
            self.needs.redirects(reader, edge)
            self._redirects[reader] = edge

    def looking_at_shapes(self, nodes: Sequence[int]) -> list[Edge]:
        """Returns where the shape of what `nodes` compute is looked at."""
        return [reader for node in nodes for reader in self._looking.get(node, ())]

    @functools.cached_property
    def _looking(self) -> Mapping[int, Sequence[Edge]]:
        """The nodes whose first output's shape is looked at, to where that is."""
        body, found = self.editor.body, dict[int, list[Edge]]()
        for reader in body.nodes_of(LOOKS_AT_SHAPES):
            for port, (node, output) in enumerate(body.inputs[reader]):
                if not output:
                    found.setdefault(node, []).append((reader, port))
        return found

    def wanted(self, nodes: Sequence[int]) -> Sequence[int]:
        """Returns those of `nodes` that something needed will read what is to be handed out of, and was not yet."""
        return [node for node in nodes if node not in self._handed and self.needs.is_read(node)]

    def hand_out(self, nodes: Sequence[int], text: str, own: KnownShape, name: str) -> None:
        """Lets those who will be needed and read what `nodes`, which are `wanted`, compute read the tensor written `text`, of shape `own`, in the shape that
        they know.
        """
        self._handed.update(nodes)
        for node in nodes:
            shape = self.shape((node, 0))
            instead = text if shape == own else self.reshaped(text, shape, name)
            for reader in self._readers[node][0]:
                if reader[0] not in self._became and reader[0] not in self.needs.needless:
                    self.editor.redirect(reader, instead)

    def finish(self) -> None:
        """Redirects, once all is written, what was announced to be."""
        for reader, edge in self._redirects.items():
            self.editor.redirect(reader, self.editor.text(edge))
