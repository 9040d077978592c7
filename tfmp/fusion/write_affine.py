"""`FusedBatchNormV3`, with the statistics of data that are normalised, in the place of a scale and an offset."""

from __future__ import annotations

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion.affine import Affine
from tfmp.fusion.write_norms import FORMATS, FORWARD, SMALL, normal
from tfmp.fusion.writer import Writer


def announce(writer: Writer, affine: Affine) -> None:
    """Says what will become of the nodes of `affine`."""
    writer.announce(affine.result, FORWARD, [affine.data, affine.scale, affine.offset])
    writer.announce_redirects(affine.shapes, affine.data)


def write(writer: Writer, affine: Affine) -> None:
    """Replaces `affine`."""
    writer.near = affine.result
    shape = writer.shape(affine.data)
    vector = (shape[-1],)
    data = writer.editor.text(affine.data)
    scale, offset = (writer.as_vector(edge, vector, name) for name, edge in (("scale", affine.scale), ("offset", affine.offset)))
    attrs = {"T": DT_FLOAT, "U": DT_FLOAT, "epsilon": SMALL, "data_format": FORMATS[len(shape)], "is_training": False}
    writer.become(affine.result, FORWARD, [data, scale, offset, *normal(writer, shape[-1] or 0)], [shape, *[vector] * 5], **attrs)
