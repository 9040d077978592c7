"""The same graphs under other settings of the pass: its levels, and ops moved between lists."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from tests.zoo.case import Built, GraphCase, case
from tests.zoo.chains import chain
from tests.zoo.keras_models import CONV_BN, training
from tests.zoo.random_graphs import random_graph

PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"

# TensorFlow wants an op that moves taken off one list and put on the other.
_SETTINGS: dict[str, dict[str, str]] = {
    "allow_only": {"LEVEL": "TENSOR_CORES_ONLY"},
    "force_all": {"LEVEL": "UNSAFE_FORCE_ALL"},
    "infer_as_deny": {"LEVEL": "TREAT_INFER_AS_DENY"},
    "no_matmul": {"ALLOWLIST_REMOVE": "MatMul", "INFERLIST_ADD": "MatMul"},
    "unlisted_allowed": {"ALLOWLIST_ADD": "Sin,Xdivy,SparseMatMul"},
    "exp_clear": {"DENYLIST_REMOVE": "Exp,Expm1", "CLEARLIST_ADD": "Exp,Expm1"},
    "softmax_denied": {"INFERLIST_REMOVE": "Softmax,Mul", "DENYLIST_ADD": "Softmax,Mul"},
    "relu_unlisted": {"CLEARLIST_REMOVE": "Relu,Identity,ReluGrad"},
    "two_lists": {"INFERLIST_REMOVE": "Sqrt,AddV2", "ALLOWLIST_ADD": "Sqrt", "CLEARLIST_ADD": "AddV2"},
}

_GRAPHS: dict[str, Callable[[], Built]] = {
    "plain_chain": chain("dcicaclc"),
    "chain": chain("dcicaclcuc"),
    "random": functools.partial(random_graph, 101, 60),
    "random_loop": functools.partial(random_graph, 102, 60),
    "conv_bn": functools.partial(training, "keras", *CONV_BN),
}

# UNSAFE_FORCE_ALL makes TensorFlow's pass fail ("Failed to set type attribute") on graphs with SparseMatMul, which has no float16 form.
_WITH_SPARSE_MATMUL = ("chain", "random", "random_loop")


def _cases() -> Iterator[GraphCase]:
    for setting, variables in _SETTINGS.items():
        for graph, builder in _GRAPHS.items():
            if setting == "force_all" and graph in _WITH_SPARSE_MATMUL:
                continue
            environment = {PREFIX + name: value for name, value in variables.items()}
            yield case(f"settings/{setting}/{graph}", builder, "settings", environment=environment)


CASES: tuple[GraphCase, ...] = tuple(_cases())
