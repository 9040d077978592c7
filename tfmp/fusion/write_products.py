"""One product in the place of a sum of products."""

from __future__ import annotations

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion.products import SummedProduct
from tfmp.fusion.writer import Writer


def announce(writer: Writer, product: SummedProduct) -> None:
    """Says what will become of the nodes of `product`."""
    writer.announce(product.total, "MatMul", [product.left, product.right])


def write(writer: Writer, product: SummedProduct) -> None:
    """Replaces `product`."""
    writer.near = product.total
    sides = {"left": product.left, "right": product.right}
    columns = tuple(writer.shape(edge)[-1] for edge in sides.values())
    rows = [writer.reshaped(writer.editor.text(edge), (None, writer.shape(edge)[-1]), name) for name, edge in sides.items()]
    writer.become(product.total, "MatMul", rows, [columns], T=DT_FLOAT, transpose_a=True, transpose_b=False)
