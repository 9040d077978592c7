"""The op lists: every name is an op, the sizes are TensorFlow's, and no heavy op was forgotten."""

from __future__ import annotations

import collections
import fnmatch
import re

import pytest
from tensorflow.core.framework import op_def_pb2, types_pb2
from tensorflow.python.client import pywrap_tf_session

from tfmp import oplists, tf_api
from tfmp.errors import SettingsError

SIXTEEN_BIT = frozenset({types_pb2.DT_HALF, types_pb2.DT_BFLOAT16})
HEAVY = re.compile("MatMul|Conv|Einsum|LSTM|GRU|RNN")

# Registered ops whose names sound heavy and that are on no list, as glob patterns, each with the reason.
_AFTERWARDS = "made by TensorFlow's fusion and layout passes, which run after tfmp and keep the types they find"
_INTEGERS = "computes with quantized integers"
_NO_KERNEL = "no 16-bit kernel is registered"
REVIEWED_AND_LEFT_OUT = {
    "BatchMatMulV3": "has a result type of its own; TensorFlow's pass does not convert it either",
    "Conv": "a new general convolution that no layer of Keras uses; TensorFlow's pass does not convert it either",
    "Conv2DBackprop*V2": _NO_KERNEL,
    "Convert*": "converts sparse tensors for TPU embeddings; the name only sounds like a convolution",
    "CudnnRNNCanonicalToParams*": "moves weights between layouts; nothing is multiplied",
    "CudnnRNNParams*": "sizes and layouts of weights; nothing is multiplied",
    "FusedResizeAndPadConv2D": "made for inference on phones; TensorFlow's pass does not convert it either",
    "Quantized*": _INTEGERS,
    "UniformQuantized*": _INTEGERS,
    "_FusedQuantized*": _INTEGERS,
    "_QuantizedMatMul": _INTEGERS,
    "RiscConv": _NO_KERNEL,
    "SparseMatMul": "has no float16 form; TensorFlow's pass does not convert it to bfloat16 either",
    "SparseMatrix*MatMul": _NO_KERNEL,
    "SparseTensorDenseMatMul": "sums as many products as there are entries; TensorFlow's pass does not convert it either",
    "TridiagonalMatMul": _NO_KERNEL,
    "XlaConv*": "written by hand for XLA, with types of its own",
    "XlaEinsum": "written by hand for XLA",
    "_Fused*": _AFTERWARDS,
    "_Mkl*": _AFTERWARDS,
    "__MklDummy*": _AFTERWARDS,
}


def registered_ops() -> set[str]:
    """Returns the names of all ops of this TensorFlow."""
    found = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return {op.name for op in found.op}


def listed(dtype: str) -> dict[str, str]:
    """Returns TensorFlow's own lists."""
    return oplists.default_lists(dtype, exact=True)


@pytest.mark.parametrize(("dtype", "sizes"), [("float16", (39, 43, 9, 110)), ("bfloat16", (14, 48, 7, 111))])
def test_lists_have_tensorflows_sizes(dtype: str, sizes: tuple[int, ...]) -> None:
    found = collections.Counter(listed(dtype).values())
    assert tuple(found[kind] for kind in oplists.KINDS) == sizes


def test_every_name_is_registered_or_known_to_be_missing_from_pip() -> None:
    names = {row.op for row in oplists.ROWS} | {change.op for change in oplists.DEFAULT_CHANGES}
    assert names - registered_ops() == oplists.NOT_IN_PIP_TENSORFLOW


def test_every_op_has_one_row_and_a_source() -> None:
    names = [row.op for row in oplists.ROWS]
    assert len(names) == len(set(names))
    assert all(row.source and (row.float16 or row.bfloat16) for row in oplists.ROWS)
    assert {kind for row in oplists.ROWS for kind in (row.float16, row.bfloat16)} == {*oplists.KINDS, None}


def test_the_source_says_which_type_a_row_is_for() -> None:
    for row in oplists.ROWS:
        if row.source == oplists.FLOAT16:
            assert row.bfloat16 is None, row
        if row.source == oplists.BFLOAT16:
            assert row.float16 is None, row
        if row.source in (oplists.BOTH, oplists.LISTS):
            assert row.float16 and row.bfloat16, row


def test_all_listed_ops_but_two_of_tensorflows_can_have_some_type_in_sixteen_bit() -> None:
    in_vain = set()
    for op in {row.op for row in oplists.ROWS} - oplists.NOT_IN_PIP_TENSORFLOW:
        types = [attr.allowed_values.list.type for attr in tf_api.op_def(op).attr if attr.type in ("type", "list(type)")]
        if not any(not allowed or SIXTEEN_BIT.intersection(allowed) for allowed in types):
            in_vain.add(op)
    assert in_vain == {"GRUBlockCell", "GRUBlockCellGrad"}


def test_heavy_ops_are_on_a_list_or_left_out_for_a_reason() -> None:
    heavy = {op for op in registered_ops() if HEAVY.search(op)} - {row.op for row in oplists.ROWS}
    forgotten = {op for op in heavy if not any(fnmatch.fnmatchcase(op, pattern) for pattern in REVIEWED_AND_LEFT_OUT)}
    assert forgotten == set()


def test_every_reason_for_leaving_out_is_about_some_op() -> None:
    heavy = {op for op in registered_ops() if HEAVY.search(op)} - {row.op for row in oplists.ROWS}
    assert [pattern for pattern in REVIEWED_AND_LEFT_OUT if not fnmatch.filter(heavy, pattern)] == []


def test_ops_left_out_for_want_of_kernels_have_none() -> None:
    for pattern, reason in REVIEWED_AND_LEFT_OUT.items():
        for op in fnmatch.filter(registered_ops(), pattern) if reason == _NO_KERNEL else ():
            constraints = [constraint for kernel in tf_api.kernels_of(op) for constraint in kernel.constraint]
            assert not any(SIXTEEN_BIT.intersection(constraint.allowed_values.list.type) for constraint in constraints), op


def test_the_default_level_changes_the_lists_only_where_it_says_so() -> None:
    changes = {change.op: change.kind for change in oplists.DEFAULT_CHANGES}
    for dtype in ("float16", "bfloat16"):
        default, exact = oplists.default_lists(dtype, exact=False), listed(dtype)
        float16 = listed("float16")
        for op in {*default, *exact}:
            assert default.get(op) == changes.get(op, float16.get(op, exact.get(op))), op


def test_every_change_has_a_reason() -> None:
    assert all(change.reason for change in oplists.DEFAULT_CHANGES)


def test_moving_what_is_not_there_changes_nothing_but_is_remembered() -> None:
    lists = oplists.moved({"MatMul": "allow"}, {}, {"deny": ["MatMul", "Sin"]})
    assert (dict(lists.kind_of), lists.overridden) == ({"MatMul": "allow"}, {"MatMul", "Sin"})


def test_moving_gives_a_new_table() -> None:
    kinds = {"MatMul": "allow"}
    assert oplists.moved(kinds, {"deny": ["MatMul"]}, {}).kind_of == {"MatMul": "deny"}
    assert kinds == {"MatMul": "allow"}


def test_adding_one_op_twice_to_one_list_is_no_conflict() -> None:
    assert oplists.moved({}, {"deny": ["Sin", "Sin"]}, {}).ops("deny") == {"Sin"}
    with pytest.raises(SettingsError, match="op 'Sin' is added to the denylist and to the clearlist; keep one of the two"):
        oplists.moved({}, {"deny": ["Sin"], "clear": ["Sin"]}, {})
