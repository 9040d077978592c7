"""What the classic examples share that is not theirs: data, and a look at what TensorFlow really runs."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

WORDS = {"products": ("MatMul", "Conv2D"), "updates": ("ApplyAdam", "AssignSubVariableOp")}
"""Parts of the names of ops, which TensorFlow's own optimisers may have fused or replaced by those of oneDNN."""


def digits() -> tuple[Any, ...]:
    """Returns training and test data of scikit-learn's digits: images of 8 by 8 from 0 to 1, and labels."""
    data = load_digits()
    images, labels = (data.images / 16).astype("float32")[..., None], data.target.astype("int32")
    return images[:1500], labels[:1500], images[1500:], labels[1500:]


def types(graphs: Iterable[Any]) -> dict[str, list[str]]:
    """Returns the types of products and of updates of variables in graphs, their functions included."""
    found: dict[str, set[str]] = {kind: set() for kind in WORDS}
    for graph in graphs:
        for node in [*graph.node, *(node for function in graph.library.function for node in function.node_def)]:
            for kind, words in WORDS.items():
                attr = "T" if "T" in node.attr else "dtype"
                if any(word in node.op for word in words) and tf.dtypes.as_dtype(node.attr[attr].type).is_floating:
                    found[kind].add(tf.dtypes.as_dtype(node.attr[attr].type).name)
    return {kind: sorted(names) for kind, names in found.items()}


@contextlib.contextmanager
def functions_run() -> Iterator[dict[str, list[str]]]:
    """Yields what will hold, afterwards, the types in the graphs of the functions that were set up to run inside, as TensorFlow's executors got them."""
    from tensorflow.python.eager import context

    found: dict[str, list[str]] = {}
    context.context().enable_run_metadata()
    context.context().enable_graph_collection()
    try:
        yield found
        metadata = context.context().export_run_metadata()
        found.update(types(graph for graphs in metadata.function_graphs for graph in graphs.partition_graphs))
    finally:
        context.context().disable_graph_collection()
        context.context().disable_run_metadata()


def tell(name: str, **facts: Any) -> None:
    """Prints facts of an example as a line of JSON, together with whether tfmp is in the process."""
    plain = {key: value.tolist() if isinstance(value, np.generic | np.ndarray) else value for key, value in facts.items()}
    print(json.dumps({"example": name, "tfmp": "tfmp.hooks.conversion" in sys.modules, **plain}), flush=True)
