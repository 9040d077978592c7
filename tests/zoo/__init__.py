"""A zoo of graphs: what TensorFlow's own tests of its mixed precision pass cover, real models, and random graphs.

`ZOO` maps each case's name to its GraphCase. Importing this package builds nothing and does not import TensorFlow.
"""

from __future__ import annotations

import itertools

from tests.zoo import chains, keras_models, layers, lists, loops, random_graphs, settings_cases
from tests.zoo.case import GraphCase

__all__ = ["MODULES", "ZOO", "GraphCase", "tagged"]

MODULES = (chains, lists, loops, layers, keras_models, random_graphs, settings_cases)

ZOO: dict[str, GraphCase] = {case.name: case for case in itertools.chain.from_iterable(module.CASES for module in MODULES)}


def tagged(*wanted: str, without: tuple[str, ...] = ()) -> list[GraphCase]:
    """Returns the cases that have every tag in `wanted` and none of `without`, in the order of ZOO."""
    return [case for case in ZOO.values() if case.tags.issuperset(wanted) and case.tags.isdisjoint(without)]
