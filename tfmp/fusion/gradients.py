"""The gradient of a normalisation, found by what it computes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator, Sequence

from tfmp.fusion.algebra import DY, Monomial, Polynomial, X, add, alike, scale
from tfmp.fusion.forms import Form, centred
from tfmp.fusion.found import Gradient
from tfmp.fusion.groups import Groups
from tfmp.fusion.ready import NEAR, SAME_NUMBERS
from tfmp.graph.body import Body, Edge

PRODUCTS = frozenset({"Mul", "RealDiv"})

HANDING_ON = frozenset({"Identity", "Neg", "Reshape", "Sum"})

MOST_SUMMANDS = 8
"""Of how many known summands each choice is tried. Our own choice: two normalisations of one tensor have six, and one is left for a shortcut."""


class Gradients:
    """The gradients of normalisations of one tensor of data: one that is returned is no other one's."""

    def __init__(self, body: Body, groups: Groups) -> None:
        """Looks at nothing yet; `groups` are those of the data."""
        self._body, self._groups = body, groups
        self._spread: dict[Edge, Groups] = {}
        self._summed: set[Edge] = set()
        self._parameters: set[int] = set()

    def for_data(self, form: Form, root: float, inner: Collection[int]) -> Gradient | None:
        """Returns the gradient of a normalisation, if there is one for its data.

        Args:
          form: of the normalisation.
          root: the reciprocal root that it multiplies by.
          inner: what it is made of. Where several gradients fit, since normalisations are the same, its own is made of that as well.
        """
        return self._take(inner, (one for incoming in self._incoming for one in self._for_data(incoming, form, root)))

    def for_parameters(self, form: Form, root: float, inner: Collection[int]) -> Gradient | None:
        """Returns the gradient of a normalisation, if there is one for a scale and an offset, but none for its data; the arguments are those of `for_data`."""
        return self._take(inner, (one for incoming in self._incoming for one in self._for_parameters(incoming, root)))

    def _take(self, inner: Collection[int], gradients: Iterator[Gradient]) -> Gradient | None:
        found = None
        for one in gradients:
            if any(source in inner for node in one.around for source, _ in self._body.inputs[node]):
                found = one
                break
            found = found or one
        if found is not None:
            self._summed |= found.summed(self._body)
            self._parameters.update(found.scale, found.offset)
        return found

    @functools.cached_property
    def _incoming(self) -> Sequence[Edge]:
        """What may be the gradient for the result."""
        body, unknown = self._body, self._groups.unknown
        ways = [self._way_back(edge) for edge, nodes in unknown.items() if not PRODUCTS.isdisjoint(body.ops[node] for node in nodes)]
        return list(dict.fromkeys([*(way[-1] for way in ways), *(edge for way in ways for edge in way)]))

    def _way_back(self, edge: Edge) -> Sequence[Edge]:
        """Returns the tensors of the data's shape that `edge` is made of by what gradients of broadcasts put in its way: sums over axes that may be none,
        reshapes, a sign.
        """
        body, found = self._body, [edge]
        for _ in range(NEAR):
            if body.ops[edge[0]] not in HANDING_ON:
                break
            edge = body.inputs[edge[0]][0]
            found += [edge] if self._groups.is_data(edge) else []
        return found

    def _from(self, incoming: Edge) -> Groups:
        """Returns the groups with what is computed from `incoming`."""
        if incoming not in self._spread:
            self._spread[incoming] = self._groups.with_gradient(incoming)
        return self._spread[incoming]

    def _for_data(self, incoming: Edge, form: Form, root: float) -> Iterator[Gradient]:
        """Yields the gradients that `incoming` begins."""
        groups = self._from(incoming)
        wanted, parameters = _of_data(groups, form, root), _of_parameters(groups, root)
        whole = [(node, ()) for node in groups.nodes if self._body.ops[node] not in SAME_NUMBERS and alike(groups.values[node, 0], wanted)]
        for node, ports in whole or self._summands(groups, wanted):
            one = Gradient(incoming, node, ports, *parameters, tuple(groups.nodes))
            if self._summed.isdisjoint(one.summed(self._body)):
                yield one

    def _for_parameters(self, incoming: Edge, root: float) -> Iterator[Gradient]:
        groups = self._from(incoming)
        scale, offset = _of_parameters(groups, root)
        if scale and offset and not self._parameters.issuperset(scale):
            yield Gradient(incoming, None, (), scale, offset, tuple(groups.nodes))

    def _summands(self, groups: Groups, wanted: Polynomial) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yields the sums of which some summands together are `wanted`, with the input ports of those."""
        body = self._body
        whole = {node: range(len(body.inputs[node])) for node in groups.nodes if body.ops[node] == "AddN" and groups.is_data((node, 0))}
        for node, ports in {**groups.partial, **whole}.items():
            for some in _choices([port for port in ports if (node, port) not in self._summed]):
                if alike(add([groups.values[body.inputs[node][port]] for port in some]), wanted):
                    yield node, some
                    break


def _choices(ports: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields all of `ports`, then what some of them are if they are not too many."""
    for size in range(len(ports), 0 if len(ports) <= MOST_SUMMANDS else len(ports) - 1, -1):
        yield from itertools.combinations(ports, size)


def _of_parameters(groups: Groups, root: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the nodes that compute the gradients for scale and offset."""
    return (_of_weights if groups.by_row else _of_leaves)(groups, root)


def _of_leaves(groups: Groups, root: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the nodes that compute the gradients for a scale and an offset with one number a group."""
    product = groups.moment((X, DY)) - groups.mean * groups.moment((DY,))
    return groups.computing(root * product * groups.count), groups.computing(groups.moment((DY,)) * groups.count)


def _of_weights(groups: Groups, root: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the nodes that compute the gradients for a scale and an offset that are the same for all groups."""
    wanted: tuple[Polynomial, Polynomial] = scale(centred((DY,), groups.mean), root), {(DY,): 1.0}
    ours, theirs = (tuple(node for node, value in groups.across.items() if alike(value, one)) for one in wanted)
    return ours, theirs


def _of_data(groups: Groups, form: Form, root: float) -> Polynomial:
    """Returns the gradient for the data: f * (d - mean(d) - (x - mean) / (variance + epsilon) * mean(d * (x - mean))), where f is the factor of `form`, and d
    the incoming gradient times the symbols of `form` (`FusedBatchNormGrad` in TensorFlow's `fused_batch_norm_op.cc`).
    """
    gradient: Monomial = (DY, *form.symbols)
    mean = groups.moment(gradient)
    slope = root**2 * (groups.moment((X, *gradient)) - groups.mean * mean)
    return scale({gradient: 1.0, (): slope * groups.mean - mean, (X,): -slope}, form.factor)
