"""How much of a program is in 16 bit: nodes, casts, and FLOPs by the shapes that TensorFlow infers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfmp import tf_api
from tfmp import tf_saved_model as tfs
from tfmp.conversion import Conversion
from tfmp.errors import FileError
from tfmp.graph.wire import node_def
from tfmp.reports.flops import flops, multiplying

Shape = Sequence[int | None] | None


@dataclasses.dataclass(frozen=True)
class Tally:
    """What a program comes to.

    Attributes:
      converted: number of nodes with a 16-bit type attribute.
      total: number of nodes.
      casts: number of casts that one run carries out, those in loops as often as the loop goes round (once, where the graph does not tell).
      flops: floating-point operations of matrix multiplications and convolutions of one run, unknown sizes taken for `flops.UNKNOWN`.
      sixteen: those of them that are in 16 bit.
    """

    converted: int = 0
    total: int = 0
    casts: int = 0
    flops: float = 0.0
    sixteen: float = 0.0

    @property
    def share(self) -> float:
        """Share (0 to 1) of the FLOPs that is in 16 bit; 1 if there are none."""
        return self.sixteen / self.flops if self.flops else 1.0

    def with_calls(self, callee: Tally, times: int, again: bool = False) -> Tally:
        """Returns the tally of this program and of another one that it calls `times` times; `again`: its nodes are counted already."""
        return Tally(
            self.converted + (0 if again else callee.converted),
            self.total + (0 if again else callee.total),
            self.casts + times * callee.casts,
            self.flops + times * callee.flops,
            self.sixteen + times * callee.sixteen,
        )


def tally(conversion: Conversion, shapes: Shapes) -> Tally:
    """Returns what the program of `conversion` comes to; functions that are not part of it are left out."""
    done = {True: 0.0, False: 0.0}
    for times, result in zip(conversion.runs, conversion.bodies.values(), strict=True):
        for node, worker in multiplying(result.plan.body):
            proto = node_def(node)
            if (known := shapes(result.function, proto.name)) is not None:
                sixteen = any(result.colouring.sixteen[vertex] for vertex in result.colouring.graph.vertices(worker))
                done[sixteen] += times * flops(proto, *known)
    return Tally(conversion.converted, conversion.total, conversion.casts_per_run, sum(done.values()), done[True])


class Shapes:
    """Shapes of tensors as TensorFlow infers them; making one is also the check that TensorFlow can read the graph."""

    def __init__(self, graph: tf_api.GraphDef) -> None:
        """Raises `FileError` if TensorFlow cannot read `graph`."""
        self._graphs = import_all(graph, "TensorFlow cannot read the graph", FileError)

    @property
    def graphs(self) -> Mapping[str, Any]:
        """The graph that TensorFlow made of each function, by name, and of the main graph, under ""."""
        return self._graphs

    def __call__(self, function: str, node: str) -> tuple[list[Shape], Shape] | None:
        """Returns the shapes of the inputs and of the first output of a node, or None if TensorFlow does not know the node."""
        try:
            operation = self._graphs[function].get_operation_by_name(node)
        except KeyError:
            return None
        return [_shape(tensor) for tensor in operation.inputs], _shape(operation.outputs[0])


def import_all(graph: tf_api.GraphDef, complaint: str, error: type[Exception]) -> Mapping[str, Any]:
    """Returns what TensorFlow makes of the main graph (under "") and of every function of its library; raises `error` if it refuses one of them."""
    name = ""
    try:
        main = tfs.import_graph(graph)
        graphs = {"": main}
        for function in graph.library.function:
            name = function.signature.name
            graphs[name] = tfs.import_function(function, main)
    except (ValueError, TypeError, KeyError, IndexError, tf_api.OpError) as cause:
        where = f" (function {name!r})" if name else ""
        raise error(f"{complaint}{where}: {_first_line(cause)}") from None
    return graphs


def _first_line(error: Exception) -> str:
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return next(iter(text.strip().splitlines()), type(error).__name__)


def _shape(tensor: Any) -> Shape:
    return None if tensor.shape.rank is None else tensor.shape.as_list()
