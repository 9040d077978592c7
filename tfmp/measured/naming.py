"""Names of nodes that do not depend on what else a process has made: Keras and TensorFlow number what has the same name, model by model."""

from __future__ import annotations

import re
from collections.abc import Sequence

NUMBER = re.compile(r"(?:_\d+)+$")


def aliases(names: Sequence[str]) -> list[str]:
    """Returns, for each node name of a function, the name with every scope numbered by where it first stands among those of its kind beside it.

    "model_3/dense_7/MatMul" and "model_3/dense_8/MatMul" become "model#0/dense#0/MatMul#0" and "model#0/dense#1/MatMul#0", whatever the numbers were. So
    two functions with the same nodes in the same order have the same aliases.
    """
    known: dict[str, str] = {"": ""}
    counted: dict[tuple[str, str], int] = {}
    found = []
    for name in names:
        path, alias = "", ""
        for part in name.split("/"):
            path = f"{path}/{part}"
            if path not in known:
                kind = (alias, NUMBER.sub("", part))
                known[path] = f"{alias}/{kind[1]}#{counted.get(kind, 0)}"
                counted[kind] = counted.get(kind, 0) + 1
            alias = known[path]
        found.append(alias[1:])
    return found
