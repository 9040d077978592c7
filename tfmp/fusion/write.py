"""Kernels in the place of what they compute, in a function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion.batch_norm import BatchNorm, Gradient
from tfmp.fusion.products import SummedProduct
from tfmp.graph.grow import GrowingGraph, Made
from tfmp.graph.view import Edge
from tfmp.program.shapes import Sizes

FORMATS = {4: "NHWC", 5: "NDHWC"}
"""Rank to the `data_format` whose last axis are channels."""

DT_INT32, DT_INT64 = 3, 9


class Writer:
    """Puts kernels into a copy of a function."""

    def __init__(self, editor: GrowingGraph, sizes: Sizes, readers: Sequence[Sequence[Sequence[Edge]]]) -> None:
        """Writes into `editor`."""
        self._editor, self._sizes, self._readers = editor, sizes, readers
        self._became: set[int] = set()

    def write(self, norms: Sequence[BatchNorm], products: Sequence[SummedProduct]) -> None:
        """Replaces batch normalisations and sums of products. What they become is told first, since one may read what another one makes."""
        for product in products:
            self._rename(product.total, "MatMul")
        for norm in norms:
            self._rename(norm.result, "FusedBatchNormV3")
            if norm.gradient and norm.gradient.data is not None and not norm.gradient.summands:
                self._rename(norm.gradient.data, "FusedBatchNormGradV3")
        for norm in norms:
            _BatchNorm(self, norm).write()
        for product in products:
            self._write_product(product)

    def _write_product(self, product: SummedProduct) -> None:
        name, near = self._editor.body.names[product.total], product.total
        rows = []
        for side, edge in (("left", product.left), ("right", product.right)):
            shape = (-1, int(self.shape(edge)[-1] or 0))
            rows.append(self.reshaped(self._editor.text(edge), shape, f"{name}/{side}", near, (None, shape[1])))
        shapes = [(int(self.shape(product.left)[-1] or 0), int(self.shape(product.right)[-1] or 0))]
        kernel = self._editor.become(near, "MatMul", rows, shapes, T=DT_FLOAT, transpose_a=True, transpose_b=False)
        self.let_read((near, 0), kernel.output(0))

    def _rename(self, node: int, op: str) -> None:
        body = self._editor.body
        self._became.add(node)
        self._editor.named[node, 0] = Made(body.names[node], op, bool(body.name)).output(0)

    @property
    def editor(self) -> GrowingGraph:
        """What is written into."""
        return self._editor

    def shape(self, edge: Edge) -> tuple[int | None, ...]:
        """Returns the shape of a tensor whose rank is known."""
        return tuple(self._sizes.shape(edge) or ())

    def let_read(self, source: Edge, text: str) -> None:
        """Lets whatever reads the tensor `source` read `text`."""
        for reader in self._readers[source[0]][source[1]]:
            if reader[0] not in self._became:
                self._editor.redirect(reader, text)

    def constant(self, value: object, dtype: int, name: str, near: int) -> str:
        """Adds a constant; returns how it is written."""
        array = np.asarray(value, {DT_FLOAT: np.float32, DT_INT32: np.int32, DT_INT64: np.int64}[dtype])
        return self._editor.add("Const", name, (), near, [array.shape], value=(array, dtype), dtype=dtype).output(0)

    def reshaped(self, text: str, shape: Sequence[int], name: str, near: int, known: Sequence[int | None] = ()) -> str:
        """Adds a reshape of a float32 tensor to `shape`, of which `known` is known before it runs (by default, all); returns how it is written."""
        target = self.constant(shape, DT_INT32, f"{name}/shape", near)
        return self._editor.add("Reshape", name, [text, target], near, [tuple(known or shape)], T=DT_FLOAT, Tshape=DT_INT32).output(0)


class _BatchNorm:
    """One batch normalisation as it is written."""

    def __init__(self, writer: Writer, norm: BatchNorm) -> None:
        self._writer, self._norm, self._editor = writer, norm, writer.editor
        self._shape = writer.shape(norm.data)
        self._channels = int(self._shape[-1] or 0)
        self._name = self._editor.body.names[norm.result]
        self._attrs = {"T": DT_FLOAT, "U": DT_FLOAT, "epsilon": norm.epsilon, "data_format": FORMATS[len(self._shape)], "is_training": True}

    def write(self) -> None:
        norm, near = self._norm, self._norm.result
        data, scale = self._editor.text(norm.data), self._vector(norm.scale, 1.0, "scale")
        inputs = [data, scale, self._vector(norm.offset, 0.0, "offset"), *[self._writer.constant([], DT_FLOAT, f"{self._name}/none", near)] * 2]
        kernel = self._editor.become(near, "FusedBatchNormV3", inputs, [self._shape, *[(self._channels,)] * 5], **self._attrs)
        self._writer.let_read((near, 0), kernel.output(0))
        for reader in norm.shapes:
            self._editor.redirect(reader, data)
        self._hand_out(norm.mean, kernel.output(1), "mean")
        self._hand_out(norm.variance, self._uncorrected(kernel.output(2)), "variance")
        if norm.gradient is not None:
            self._write_gradient(norm.gradient, kernel, scale)

    def _write_gradient(self, gradient: Gradient, forward: Made, scale: str) -> None:
        editor, data = self._editor, self._editor.text(self._norm.data)
        inputs = [editor.text(gradient.incoming), data, scale, *(forward.output(port) for port in (3, 4, 5))]
        shapes = [self._shape, (self._channels,), (self._channels,), (0,), (0,)]
        whole = gradient.data is not None and not gradient.summands
        near = gradient.data if gradient.data is not None else gradient.scale[0]
        if whole:
            kernel = editor.become(near, "FusedBatchNormGradV3", inputs, shapes, **self._attrs)
            self._writer.let_read((near, 0), kernel.output(0))
        else:
            kernel = editor.add("FusedBatchNormGradV3", f"{self._name}/gradient", inputs, near, shapes, **self._attrs)
        if gradient.summands:
            others = [editor.text(edge) for port, edge in enumerate(editor.body.inputs[near]) if port not in gradient.summands]
            editor.sum_instead(near, [*others, kernel.output(0)])
        self._hand_out(gradient.scale, kernel.output(1), "scale_gradient")
        self._hand_out(gradient.offset, kernel.output(2), "offset_gradient")

    def _vector(self, edge: Edge | None, neutral: float, name: str) -> str:
        """Returns a scale or offset as a vector with one number a channel."""
        name, near = f"{self._name}/{name}", self._norm.result
        if edge is None:
            return self._writer.constant(np.full(self._channels, neutral), DT_FLOAT, name, near)
        text, shape = self._editor.text(edge), self._writer.shape(edge)
        return text if shape == (self._channels,) else self._writer.reshaped(text, (self._channels,), name, near)

    def _hand_out(self, nodes: Iterable[int], text: str, name: str) -> None:
        """Lets those who read what `nodes` compute read the vector `text`, in the shape that they know."""
        for node in nodes:
            shape = tuple(size or 1 for size in self._writer.shape((node, 0)))
            own = text if shape == (self._channels,) else self._writer.reshaped(text, shape, f"{self._name}/{name}", self._norm.result)
            self._writer.let_read((node, 0), own)

    def _uncorrected(self, variance: str) -> str:
        """Returns the variance of the data themselves: the kernel gives that of what they are a sample of, n / (n - 1) as large (Bessel's correction)."""
        name, near, channels = f"{self._name}/correction", self._norm.result, self._channels
        if self._norm.count is not None:
            factor = self._writer.constant((self._norm.count - 1) / self._norm.count, DT_FLOAT, name, near)
        else:
            data = self._editor.text(self._norm.data)
            size = self._editor.add("Size", f"{name}/size", [data], near, [()], T=DT_FLOAT, out_type=DT_INT64).output(0)
            total = self._editor.add("Cast", f"{name}/total", [size], near, [()], SrcT=DT_INT64, DstT=DT_FLOAT).output(0)
            less = self._editor.add("Sub", f"{name}/less", [total, self._writer.constant(channels, DT_FLOAT, f"{name}/channels", near)], near, [()], T=DT_FLOAT)
            factor = self._editor.add("RealDiv", name, [less.output(0), total], near, [()], T=DT_FLOAT).output(0)
        return self._editor.add("Mul", f"{self._name}/uncorrected", [variance, factor], near, [(channels,)], T=DT_FLOAT).output(0)
