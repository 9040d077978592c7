"""`FusedBatchNormV3` and `FusedBatchNormGradV3` in the place of normalisations and their gradients.

The kernels take data of either width and compute in float32 inside; statistics, scale and offset are float32 (`nn_ops.cc`, `fused_batch_norm_op.cc`).
Channels are normalised by one kernel each way. Rows are channels of data that have the shape (1, rows, elements, 1), with the channels first, as in tf_keras's
own `LayerNormalization`; scale and offset are for elements there, and a second kernel each way applies them, with the statistics of data that are normalised.
"""

from __future__ import annotations

import math

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion.found import Gradient, Norm
from tfmp.fusion.writer import DT_INT32, DT_INT64, KnownShape, Writer
from tfmp.graph.body import Edge
from tfmp.graph.grow import Made

FORWARD, BACKWARD = "FusedBatchNormV3", "FusedBatchNormGradV3"

FORMATS = {4: "NHWC", 5: "NDHWC"}
"""Rank to the `data_format` whose last axis are channels."""

SMALL = 2.0**-10
"""Epsilon where a kernel is to divide by 1: the variance is 1 less that, both exactly. cuDNN took none below 1e-5 once (`CUDNN_BN_MIN_EPSILON`)."""


def announce(writer: Writer, norm: Norm) -> None:
    """Says what will become of the nodes of `norm`."""
    parameters = [edge for edge in (norm.scale, norm.offset) if edge is not None]
    writer.announce(norm.result, "Reshape" if norm.by_row else FORWARD, [norm.data, *parameters])
    kernel = norm.data if norm.by_row else (norm.result, 0)
    writer.announce_outputs((*norm.mean, *norm.variance), [kernel])
    writer.announce_redirects(writer.looking_at_shapes(norm.like_data), norm.data)
    if norm.gradient is not None:
        _announce_gradient(writer, norm, norm.gradient, [kernel, norm.data, *([] if norm.scale is None else [norm.scale])])


def _announce_gradient(writer: Writer, norm: Norm, gradient: Gradient, forward: list[Edge]) -> None:
    """Says what will become of the nodes of `gradient`, whose kernel reads `forward` as well."""
    reads = [gradient.incoming, *forward]
    if gradient.data is not None and gradient.summands:
        writer.needs.adds(gradient.data, reads, gradient.summands)
    elif gradient.data is not None:
        writer.announce(gradient.data, "Reshape" if norm.by_row else BACKWARD, reads)
    if norm.scaled or not norm.by_row:
        one = norm.by_row or gradient.data is None or gradient.summands  # does the kernel that has them have a node of its own?
        writer.announce_outputs((*gradient.scale, *gradient.offset), reads if one else [(gradient.data, 0)])  # type: ignore[list-item]


def write(writer: Writer, norm: Norm) -> None:
    """Replaces `norm`."""
    writer.near = norm.result
    (_Rows if norm.by_row else _Channels)(writer, norm).write()


class _Channels:
    """Data that are normalised by channel."""

    def __init__(self, writer: Writer, norm: Norm) -> None:
        self._writer, self._norm = writer, norm
        self._shape = writer.shape(norm.data)
        self._data = writer.editor.text(norm.data)
        self._vector = (self._shape[-1],)
        self._attrs = {"T": DT_FLOAT, "U": DT_FLOAT, "epsilon": norm.epsilon, "data_format": FORMATS[len(self._shape)], "is_training": True}

    def write(self) -> None:
        writer, norm = self._writer, self._norm
        scale = _parameter(writer, norm, "scale", self._vector)
        inputs = [self._data, scale, _parameter(writer, norm, "offset", self._vector), *_nothing(writer)]
        kernel = writer.become(norm.result, FORWARD, inputs, [self._shape, *[self._vector] * 5], **self._attrs)
        _hand_out_statistics(writer, norm, kernel, self._vector, self._data)
        if norm.gradient is not None:
            self._write_gradient(norm.gradient, kernel, scale)

    def _write_gradient(self, gradient: Gradient, forward: Made, scale: str) -> None:
        writer = self._writer
        inputs = [writer.editor.text(gradient.incoming), self._data, scale, *(forward.output(port) for port in (3, 4, 5))]
        shapes = [self._shape, self._vector, self._vector, (0,), (0,)]
        if gradient.data is not None and not gradient.summands:
            kernel = writer.become(gradient.data, BACKWARD, inputs, shapes, **self._attrs)
        else:
            kernel = writer.add(BACKWARD, "gradient", inputs, shapes, **self._attrs)
            _add_to_others(writer, gradient, kernel.output(0))
        writer.hand_out(writer.wanted(gradient.scale), kernel.output(1), self._vector, "scale_gradient")
        writer.hand_out(writer.wanted(gradient.offset), kernel.output(2), self._vector, "offset_gradient")


class _Rows:
    """Data that are normalised by row."""

    def __init__(self, writer: Writer, norm: Norm) -> None:
        self._writer, self._norm = writer, norm
        self._shape = writer.shape(norm.data)
        leading, self._elements = self._shape[:-1], self._shape[-1]
        self._rows = None if None in leading else math.prod(leading)  # type: ignore[arg-type]
        self._as_channels: KnownShape = (1, self._rows, self._elements, 1)
        self._as_rows: KnownShape = (self._rows, 1, 1, self._elements)
        self._attrs = {"T": DT_FLOAT, "U": DT_FLOAT, "epsilon": norm.epsilon, "data_format": "NCHW", "is_training": True}
        self._neutral = {**self._attrs, "epsilon": SMALL, "data_format": "NHWC", "is_training": False}

    def write(self) -> None:
        writer, norm = self._writer, self._norm
        text = writer.editor.text(norm.data)
        data = writer.reshaped(text, self._as_channels, "rows")
        ones, zeros = self._of_rows(text)
        statistics = (self._rows,)
        kernel = writer.add(FORWARD, "normalised", [data, ones, zeros, *_nothing(writer)], [self._as_channels, *[statistics] * 5], **self._attrs)
        _hand_out_statistics(writer, norm, kernel, statistics, text)
        rows, vector = kernel.output(0), (self._elements,)
        if norm.scaled:
            rows = writer.reshaped(rows, self._as_rows, "elements")
            scale, settled = _parameter(writer, norm, "scale", vector), normal(writer, self._elements or 0)
            inputs = [rows, scale, _parameter(writer, norm, "offset", vector), *settled]
            final = writer.add(FORWARD, "scaled", inputs, [self._as_rows, *[vector] * 5], **self._neutral).output(0)
        else:
            final = rows
        target = writer.target(self._shape, "result", text)
        writer.become(norm.result, "Reshape", [final, target], [self._shape], T=DT_FLOAT, Tshape=DT_INT32)
        if norm.gradient is not None:
            incoming = writer.editor.text(norm.gradient.incoming)
            if norm.scaled:
                incoming = self._write_gradient_of_scale(norm.gradient, incoming, rows, scale, settled)
            self._write_gradient(norm.gradient, incoming, [data, ones, *(kernel.output(port) for port in (3, 4, 5))], target)

    def _write_gradient_of_scale(self, gradient: Gradient, incoming: str, rows: str, scale: str, settled: list[str]) -> str:
        """Writes the gradients for scale and offset; returns how the gradient for the normalised data is written."""
        writer, vector = self._writer, (self._elements,)
        inputs = [writer.reshaped(incoming, self._as_rows, "incoming"), rows, scale, *settled, *_nothing(writer)[:1]]
        kernel = writer.add(BACKWARD, "scale_and_offset", inputs, [self._as_rows, vector, vector, (0,), (0,)], **self._neutral)
        writer.hand_out(writer.wanted(gradient.scale), kernel.output(1), vector, "scale_gradient")
        writer.hand_out(writer.wanted(gradient.offset), kernel.output(2), vector, "offset_gradient")
        return kernel.output(0)

    def _write_gradient(self, gradient: Gradient, incoming: str, forward: list[str], target: str) -> None:
        """Writes the gradient for the data; `forward` are the data, their scale and what the forward kernel has kept."""
        if gradient.data is None:
            return
        writer, statistics = self._writer, (self._rows,)
        inputs = [writer.reshaped(incoming, self._as_channels, "gradient/incoming"), *forward]
        kernel = writer.add(BACKWARD, "gradient", inputs, [self._as_channels, statistics, statistics, (0,), (0,)], **self._attrs)
        if gradient.summands:
            reshape = writer.add("Reshape", "gradient/result", [kernel.output(0), target], [self._shape], T=DT_FLOAT, Tshape=DT_INT32)
            _add_to_others(writer, gradient, reshape.output(0))
        else:
            writer.become(gradient.data, "Reshape", [kernel.output(0), target], [self._shape], T=DT_FLOAT, Tshape=DT_INT32)

    def _of_rows(self, data: str) -> tuple[str, str]:
        """Returns how vectors are written that have a 1, and a 0, for each row."""
        writer = self._writer
        if self._rows is not None:
            return writer.constant(1.0, "ones", size=self._rows), writer.constant(0.0, "zeros", size=self._rows)
        size = writer.add("Size", "size", [data], [()], T=DT_FLOAT, out_type=DT_INT32).output(0)
        elements = writer.constant((self._elements or 0,), "row", DT_INT32)
        rows = writer.add("FloorDiv", "count", [size, elements], [(1,)], T=DT_INT32).output(0)
        made = [
            writer.add("Fill", name, [rows, writer.constant(value, f"{name}/value")], [(None,)], T=DT_FLOAT, index_type=DT_INT32).output(0)
            for name, value in (("ones", 1.0), ("zeros", 0.0))
        ]
        return made[0], made[1]


def normal(writer: Writer, elements: int) -> list[str]:
    """Returns how mean and variance of data that are normalised are written, for kernels whose epsilon is `SMALL`."""
    return [writer.constant(0.0, "mean_0", size=elements), writer.constant(1.0 - SMALL, "variance_1", size=elements)]


def _nothing(writer: Writer) -> list[str]:
    """Returns how mean and variance are written for a kernel that finds them itself."""
    return [writer.constant((), "none")] * 2


def _parameter(writer: Writer, norm: Norm, name: str, vector: KnownShape) -> str:
    """Returns how scale or offset is written, as a vector."""
    edge = norm.scale if name == "scale" else norm.offset
    if edge is None:
        return writer.constant(1.0 if name == "scale" else 0.0, name, size=vector[0] or 0)
    return writer.as_vector(edge, vector, name)


def _add_to_others(writer: Writer, gradient: Gradient, text: str) -> None:
    """Lets the sum that the gradient for the data is a part of add `text`."""
    if gradient.data is not None:
        writer.editor.sum_instead(gradient.data, gradient.summands, text)


def _hand_out_statistics(writer: Writer, norm: Norm, kernel: Made, vector: KnownShape, data: str) -> None:
    writer.hand_out(writer.wanted(norm.mean), kernel.output(1), vector, "mean")
    variance = writer.wanted(norm.variance)
    if variance:
        writer.hand_out(variance, _uncorrected(writer, norm, kernel.output(2), vector, data), vector, "variance")


def _uncorrected(writer: Writer, norm: Norm, variance: str, vector: KnownShape, data: str) -> str:
    """Returns the variance of the data themselves: the kernel gives that of what they are a sample of, n / (n - 1) as large (Bessel's correction)."""
    if norm.count is not None:
        factor = writer.constant((norm.count - 1) / norm.count, "correction")
    else:
        size = writer.add("Size", "correction/size", [data], [()], T=DT_FLOAT, out_type=DT_INT64).output(0)
        total = writer.add("Cast", "correction/total", [size], [()], SrcT=DT_INT64, DstT=DT_FLOAT).output(0)
        less = writer.add("Sub", "correction/less", [total, writer.constant(vector[0] or 0, "correction/groups")], [()], T=DT_FLOAT).output(0)
        factor = writer.add("RealDiv", "correction", [less, total], [()], T=DT_FLOAT).output(0)
    return writer.add("Mul", "uncorrected", [variance, factor], [vector], T=DT_FLOAT).output(0)
