"""Which variable a tensor holds, or is the handle of, across calls, loops and branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tfmp.graph.body import ARG, Edge
from tfmp.program.calls import CALLING_OPS, argument_ports
from tfmp.program.program import Program
from tfmp.program.unfold import Instance

HANDLES = frozenset({"VarHandleOp", "Variable", "VariableV2"})
"""Ops that are a variable; its name is their `shared_name`, or their own."""

PASSING = frozenset({"Enter", "Identity", "ReadVariableOp", "RefEnter", "RefIdentity", "StopGradient"})
"""Ops whose first result is their first input, or the value of the variable that it is the handle of."""


class VariableReaders:
    """Finds the nodes that read variables. Made for one program, its instances, and the names of variables that are handed to the roots."""

    def __init__(self, program: Program, instances: Sequence[Instance], names: Mapping[str, Mapping[int, str]]) -> None:
        """Takes `names`: root function to the names of variables by argument number."""
        self._bodies = [program.bodies[instance.function] for instance in instances]
        self._instances, self._names = instances, names
        self._links = {argument: result for result, argument in program.links}
        self._callers: dict[int, tuple[int, int, str]] = {}
        for instance in instances:
            for node, callees in instance.calls.items():
                for callee in callees:
                    self._callers.setdefault(callee.instance, (instance.number, node, callee.attr))
        self._roots = len(program.roots)
        self._known: dict[tuple[int, Edge], str] = {}

    def readers(self, number: int) -> Iterator[tuple[int, str]]:
        """Yields (node, variable name) for each node of an instance that computes with the value of a variable; one that only hands it on is none."""
        body = self._bodies[number]
        for node in body.proto_nodes:
            if body.ops[node] not in PASSING and body.ops[node] not in CALLING_OPS:
                for name in {self._name(number, edge) for edge in body.inputs[node]} - {""}:
                    yield node, name

    def _name(self, number: int, edge: Edge) -> str:
        """Returns the name of the variable behind a tensor, or ""; "" also where a cycle leads back to the question."""
        key = (number, edge)
        if key not in self._known:
            self._known[key] = ""
            self._known[key] = self._find(number, edge)
        return self._known[key]

    def _find(self, number: int, edge: Edge) -> str:
        body, (node, port) = self._bodies[number], edge
        op, proto = body.ops[node], body.protos[node]
        if proto is None:
            return self._argument(number, node) if op == ARG else ""
        if op in HANDLES:
            shared = proto.attr["shared_name"].s.decode() if "shared_name" in proto.attr else ""
            return shared or body.names[node]
        if op in PASSING and body.inputs[node] and port == 0:
            return self._name(number, body.inputs[node][0])
        callees = [callee for callee in self._instances[number].calls.get(node, ()) if callee.attr not in CALLING_OPS[op].predicates]
        if not callees:
            return ""
        called = self._bodies[callees[0].instance]
        result = len(called) - called.results + port
        if CALLING_OPS[op].inputs == CALLING_OPS[op].outputs:  # a loop: what it does not change, it hands on
            return self._name(number, body.inputs[node][port]) if called.origin(called.inputs[result][0]) == (port, 0) else ""
        return self._name(callees[0].instance, called.inputs[result][0])

    def _argument(self, number: int, index: int) -> str:
        if number < self._roots:
            if number == 1 and index in self._links:
                first = self._bodies[0]
                return self._name(0, first.inputs[len(first) - first.results + self._links[index]][0])
            return self._names.get(self._instances[number].function, {}).get(index, "")
        caller, node, attr = self._callers[number]
        body = self._bodies[caller]
        if attr == "body":
            called = self._bodies[number]
            if called.origin(called.inputs[len(called) - called.results + index][0]) != (index, 0):
                return ""
        return self._name(caller, body.inputs[node][argument_ports(body, node)[index]])
