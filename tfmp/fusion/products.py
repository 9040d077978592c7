"""Products that are made for each example and then added up: one product over all examples is the same sum.

The gradient of x @ w, where x has examples and rows and w has none, is a product for each example (BatchMatMulV2) and their sum (`_BatchMatMulV2Grad` in
TensorFlow's `math_grad.py`). As one product over all rows of all examples it is summed inside the kernel, in float32, and the products are never written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tfmp.dtypes import DT_FLOAT
from tfmp.fusion.counts import axes_of
from tfmp.graph.body import Body, Edge
from tfmp.graph.readers import Readers
from tfmp.program.shapes import Sizes

PRODUCTS = frozenset({"BatchMatMul", "BatchMatMulV2"})


@dataclasses.dataclass(frozen=True)
class SummedProduct:
    """A sum over examples of products.

    Attributes:
      product: the node that multiplies.
      total: the node that adds up.
      left, right: what is multiplied: examples, rows, columns.
    """

    product: int
    total: int
    left: Edge
    right: Edge


def summed_products(body: Body, sizes: Sizes, readers: Readers, kept: frozenset[int]) -> Iterator[SummedProduct]:
    """Yields the sums of products in `body` that are products of sums; the arguments are those of `norms.norms`."""
    for product in body.nodes_of(PRODUCTS):
        if body.types[product][0] == DT_FLOAT and product not in kept:
            found = readers[product][0]
            if len(found) == 1 and body.ops[found[0][0]] == "Sum" and found[0][0] not in kept and _adds_up_examples(body, sizes, product, found[0][0]):
                yield SummedProduct(product, found[0][0], *body.inputs[product])


def _adds_up_examples(body: Body, sizes: Sizes, product: int, total: int) -> bool:
    left, right = (sizes.shape(edge) for edge in body.inputs[product])
    if left is None or right is None or len(left) != len(right) or len(left) < 3 or not left[-1] or not right[-1]:
        return False
    attrs = body.protos[product].attr
    if not attrs["adj_x"].b or attrs["adj_y"].b or body.protos[total].attr["keep_dims"].b:
        return False
    examples, axes = len(left) - 2, body.inputs[total][1]
    if _are_of_a_gradient(body, sizes, axes, examples):
        return left[:-1] == right[:-1]
    return axes_of(body, axes, len(left), lambda edge: None, {}) == tuple(range(examples)) and left[:-1] == right[:-1] and None not in left[:-1]


def _are_of_a_gradient(body: Body, sizes: Sizes, axes: Edge, examples: int) -> bool:
    """Returns whether axes are those along which an operand without examples is repeated: all of the other's.

    There, what is multiplied has the examples of the operand that has them, and of the gradient for the product, which are as many.
    """
    node, port = axes
    if body.ops[node] != "BroadcastGradientArgs":
        return False
    own, other = (sizes.shape(body.inputs[node][one]) for one in (port, 1 - port))
    return own == (0,) and other == (examples,)
