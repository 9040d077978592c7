"""What each tensor is for (weight, activation, gradient, update), and which Keras layer it belongs to: from names and from what reads what."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator

from tfmp.graph.body import RETVAL, Body
from tfmp.graph.readers import Readers
from tfmp.graph.taps import topological
from tfmp.measured.record import ACTIVATION, ACTIVATION_GRADIENT, UPDATE, WEIGHT, WEIGHT_GRADIENT
from tfmp.numerics.sites import Site, Sites
from tfmp.program.calls import CALLING_OPS
from tfmp.user_rules import LAYER_MARK

GRADIENT_SCOPE = re.compile(r"(?:^|/)(?:gradient_tape|gradients(?:_\d+)?)/")
"""Name scopes in which TensorFlow's `GradientTape` and `tf.gradients` put what they add."""

BACKWARD_FUNCTION = "__backward_"
"""In the names of the functions that TensorFlow makes for the gradient of a function."""

SEED = re.compile(r"(?:^|/)(?:ones(?:_like)?|grad_ys)(?:_\d+)*$")
"""Names of what gradients begin with: the gradient of the loss with respect to itself (`backprop.py`, `gradients_util.py`)."""

SUM_OF_GRADIENTS = "AddN"
"""What a tape adds up the gradients of one tensor with, outside of any scope (`backprop.py: aggregate_indexed_slices_gradients`)."""

READS = frozenset({"ReadVariableOp", "ResourceGather", "Variable", "VariableV2"})

Output = tuple[int, int, int]
"""Instance, node and port."""


def kinds(sites: Sites) -> Callable[[Site], str]:
    """Returns what says the kind (one of `record.KINDS`) of a site of `sites`.

    A gradient is what is computed, in the scope or the function of a gradient, from the gradient of the loss. It is that of a weight if no other gradient
    reads it but something else does. What is computed from gradients outside of those scopes, or read from a variable after that, or used for that only, is
    an update. Everything else is an activation, unless it is read from a variable.
    """
    flow = _Flow(sites)
    gradients, updates = flow.gradients(), flow.updates()

    def kind(site: Site) -> str:
        outputs = {(site.instance, site.number, port) for port in site.ports}
        if outputs & gradients:
            readers = {flow.makes_gradients(instance, node) for one in outputs for instance, node in flow.final_readers(one)}
            return WEIGHT_GRADIENT if readers == {False} else ACTIVATION_GRADIENT
        if (site.instance, site.number) in updates:
            return UPDATE
        return WEIGHT if site.op in READS else ACTIVATION

    return kind


class _Flow:
    """Follows values through a program: from a tensor to what reads it, into functions, round loops and out again."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._bodies = [sites.body(number) for number in range(len(sites.instances))]
        self._callers: dict[int, list[tuple[int, int, str]]] = {}
        for one in sites.instances:
            for node, found in one.calls.items():
                for callee in found:
                    self._callers.setdefault(callee.instance, []).append((one.number, node, callee.attr))
        self._backward = self._backward_instances()

    def _backward_instances(self) -> set[int]:
        found = {one.number for one in self._sites.instances if BACKWARD_FUNCTION in one.function}
        for one in self._sites.instances:  # callers come first
            for node, callees in one.calls.items():
                if one.number in found or GRADIENT_SCOPE.search(self._bodies[one.number].names[node]):
                    found.update(callee.instance for callee in callees)
        return found

    def is_gradient_scope(self, instance: int, node: int) -> bool:
        """Returns whether a node is in the scope or function of a gradient."""
        return node in self._gradient_nodes(instance)

    @functools.cache  # noqa: B019  (lives as long as the answers are asked for)
    def _gradient_nodes(self, instance: int) -> frozenset[int]:
        body, everything = self._bodies[instance], instance in self._backward
        return frozenset(node for node, name in enumerate(body.names) if everything or GRADIENT_SCOPE.search(name))

    def makes_gradients(self, instance: int, node: int) -> bool:
        """Returns whether what a node computes from a gradient is one: in the scope of a gradient, or where gradients are added up for one."""
        body = self._bodies[instance]
        if self.is_gradient_scope(instance, node) or body.ops[node] == SUM_OF_GRADIENTS:
            return True
        return any(self.is_gradient_scope(instance, reader) for port in self._readers(instance)[node] for reader, _ in port)

    def _readers(self, instance: int) -> Readers:
        return self._bodies[instance].readers

    def _next(self, output: Output, through: Callable[[int, int], bool]) -> Iterator[Output]:
        """Yields what a tensor is handed on to, or goes into if the reader lets it `through`."""
        instance, node, port = output
        body, calls = self._bodies[instance], self._sites.instances[instance].calls
        for reader, place in self._readers(instance)[node][port]:
            if body.ops[reader] == RETVAL:
                yield from self._out(instance, reader - body.proto_nodes.stop)
            elif reader in calls:
                for callee in calls[reader]:
                    argument = place - len(body.inputs[reader]) + self._bodies[callee.instance].arguments  # the first input of an If is its predicate
                    if argument >= 0:
                        yield callee.instance, argument, 0
            elif through(instance, reader):
                yield from ((instance, reader, out) for out in range(len(body.layouts[reader].outputs)))

    def _out(self, instance: int, result: int) -> Iterator[Output]:
        for caller, node, attr in self._callers.get(instance, ()):
            row = CALLING_OPS[self._bodies[caller].ops[node]]
            if attr not in row.predicates:
                yield caller, node, result
                for callee in self._sites.instances[caller].calls[node] if row.inputs == row.outputs else ():
                    yield callee.instance, result, 0  # what a loop carries comes in again

    def _reach(self, starts: Iterable[Output], through: Callable[[int, int], bool]) -> set[Output]:
        found: set[Output] = set()
        stack = list(starts)
        while stack:
            output = stack.pop()
            if output not in found:
                found.add(output)
                stack += self._next(output, through)
        return found

    @functools.cache  # noqa: B019
    def gradients(self) -> frozenset[Output]:
        """Returns every output that is a gradient."""
        everything = [(i, n, p) for i, body in enumerate(self._bodies) for n in body.proto_nodes for p in range(len(body.layouts[n].outputs))]
        mine = [(i, n, p) for i, n, p in everything if self.is_gradient_scope(i, n)]
        seeds = [one for one in everything if self._is_seed(*one)]
        return frozenset(self._reach(seeds or mine, self.makes_gradients)) if mine else frozenset()

    def _is_seed(self, instance: int, node: int, port: int) -> bool:
        body = self._bodies[instance]
        readers = self._readers(instance)[node][port]
        return SEED.search(body.names[node]) is not None and any(self.is_gradient_scope(instance, reader) for reader, _ in readers)

    def updates(self) -> set[tuple[int, int]]:
        """Returns instance and number of every node that is part of an update."""
        leaving = [one for one in self.gradients() if self.makes_gradients(one[0], one[1])]
        outside = [new for one in leaving for new in self._next(one, self._is_outside) if new not in self.gradients()]
        found = self._reached(outside) | {reader for one in leaving for reader in self._read_outside(one)}
        for number, body in enumerate(self._bodies):
            self._wait_for(found, number, body)
            self._serve_only(found, number, body)
        return found

    def _is_outside(self, instance: int, node: int) -> bool:
        return not self.makes_gradients(instance, node)

    def _reached(self, starts: Iterable[Output]) -> set[tuple[int, int]]:
        """Returns the nodes outside of gradients that are computed from `starts`, those without outputs (writes of variables) among them."""
        outputs = self._reach(starts, self._is_outside)
        return {(instance, node) for instance, node, _ in outputs} | {reader for one in outputs for reader in self._read_outside(one)}

    def _read_outside(self, output: Output) -> Iterator[tuple[int, int]]:
        instance, node, port = output
        calls, ops = self._sites.instances[instance].calls, self._bodies[instance].ops
        for reader, _ in self._readers(instance)[node][port]:
            if self._is_outside(instance, reader) and reader not in calls and ops[reader] != RETVAL:
                yield instance, reader

    def _wait_for(self, found: set[tuple[int, int]], number: int, body: Body) -> None:
        """Adds the reads of variables that wait for updates, as that of a momentum that has just been written does, and what is computed from them."""
        for node in topological(body):
            if body.ops[node] in READS and any((number, before) in found for before in body.controlled.get(node, ())):
                starts = [(number, node, port) for port in range(len(body.layouts[node].outputs))]
                found |= self._reached(starts) | {(number, node)}

    def _serve_only(self, found: set[tuple[int, int]], number: int, body: Body) -> None:
        """Adds what only updates read: learning rates and the like."""
        for node in reversed(topological(body)):
            read_by = {(number, reader) in found for port in self._readers(number)[node] for reader, _ in port}
            if read_by == {True} and self._is_outside(number, node):
                found.add((number, node))

    def final_readers(self, output: Output) -> set[tuple[int, int]]:
        """Returns instance and number of the nodes that read a tensor in the end, past Identity nodes and out of functions; a result of the root is its own
        reader, as are Assign ops and the like.
        """
        handed_on = self._reach([output], lambda instance, node: self._bodies[instance].ops[node] == "Identity")
        readers = set()
        for instance, node, port in handed_on:
            body, calls = self._bodies[instance], self._sites.instances[instance].calls
            for reader, _ in self._readers(instance)[node][port]:
                if reader not in calls and body.ops[reader] != "Identity" and (body.ops[reader] != RETVAL or instance not in self._callers):
                    readers.add((instance, reader))
        return readers


def layers(sites: Sites) -> Callable[[Site], str]:
    """Returns what says the Keras layers that a site of `sites` belongs to, outermost first, joined by "/", or "".

    The layers are those of the marks that tracing has left (`LAYER_MARK`). In a program without any, the name scopes stand for them. A node of an inner
    function, a loop or a branch is at least where the call is.
    """
    marks = [_marks(sites, number) for number in range(len(sites.instances))]
    marked = any(map(any, marks))
    outer = [""] * len(marks)
    for instance in sites.instances:
        for node, callees in instance.calls.items():
            for callee in callees:
                if callee.instance > instance.number:
                    outer[callee.instance] = marks[instance.number][node] or outer[instance.number]

    def layer(site: Site) -> str:
        if marked:
            return marks[site.instance][site.number] or outer[site.instance]
        names = [*(step.partition(":")[0] for step in site.place), site.node]
        scopes = [scope for name in names for scope in GRADIENT_SCOPE.sub("/", name).lstrip("/").split("/")[:-1]]
        return "/".join(dict.fromkeys(scopes))

    return layer


def _marks(sites: Sites, instance: int) -> list[str]:
    """Node to the layers in its mark, their classes left out, or ""."""
    values = (proto.attr.get(LAYER_MARK) if proto is not None else None for proto in sites.body(instance).protos)
    return ["" if value is None else "/".join(part.partition(":")[0] for part in value.s.decode().split("/")) for value in values]
