"""Handles of variables: what a function says of what they lead to."""

from __future__ import annotations

from collections.abc import Iterable

from tfmp import tf_api


def set_handle_types(function: tf_api.FunctionDef, arguments: Iterable[int], dtype: int) -> None:
    """Says that the handles that are `arguments` of `function`, which is changed, lead to variables of type `dtype`, wherever their type is noted."""
    for argument in arguments:
        for data in function.signature.input_arg[argument].handle_data:
            data.dtype = dtype
        for name in ("_handle_dtypes",) if argument in function.arg_attr else ():
            types = function.arg_attr[argument].attr[name].list.type if name in function.arg_attr[argument].attr else []
            types[:] = [dtype] * len(types)
