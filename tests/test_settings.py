"""The settings: their names, their values, what the environment makes of them, and what wins over what."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from tfmp import oplists
from tfmp.errors import SettingsError
from tfmp.settings import (
    DEVICES,
    DTYPES,
    FALSE_WORDS,
    LEVELS,
    LOSS_SCALING_SWITCH,
    PREFIX,
    REWRITE_SWITCH,
    SWITCH,
    TRUE_WORDS,
    VARIABLES,
    Settings,
    flag,
    from_environment,
    make_settings,
)

# TensorFlow's variables (auto_mixed_precision.cc and auto_mixed_precision_lists.h) and NVIDIA's (user guide, "Automatic Mixed Precision").
TENSORFLOW_VARIABLES = {
    *(f"{PREFIX}{name}LIST_{direction}" for name in ("ALLOW", "WHITE", "INFER", "GRAY", "DENY", "BLACK", "CLEAR") for direction in ("ADD", "REMOVE")),
    *(PREFIX + name for name in ("LEVEL", "IGNORE_PERFORMANCE", "LOG_PATH", "EMULATE_FP16", "SIMULATE_GPU")),
}
NVIDIA_VARIABLES = {
    "TF_ENABLE_AUTO_MIXED_PRECISION",
    "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE",
    "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING",
}


def test_all_variables_of_tensorflow_and_nvidia_are_known_and_ours_are_few() -> None:
    names = {variable.name for variable in VARIABLES}
    assert names == TENSORFLOW_VARIABLES | NVIDIA_VARIABLES | {
        "TFMP_DTYPE",
        "TFMP_FUSE",
        "TFMP_LEVEL",
        "TFMP_STRICT",
        "TFMP_SAVE_REWRITTEN",
        "TFMP_KEEP_FLOAT32",
        "TFMP_FORCE_16BIT",
        "TFMP_RULES",
        "TFMP_RANGES",
    }
    assert all(variable.meaning for variable in VARIABLES)


def test_every_variable_sets_a_setting_or_is_a_switch() -> None:
    fields = {field.name for field in dataclasses.fields(Settings)} | {f"{kind}list_{move}" for kind in oplists.KINDS for move in ("add", "remove")}
    assert {variable.setting for variable in VARIABLES if variable.setting} <= fields | {"rules"}
    assert {variable.name for variable in VARIABLES if not variable.setting} == NVIDIA_VARIABLES


def test_nothing_set_means_everything_off_and_all_defaults() -> None:
    switches = from_environment({})
    assert (switches.graph_rewrite, switches.loss_scaling, switches.settings) == (False, False, Settings())


def test_empty_variables_count_as_unset() -> None:
    assert from_environment({variable.name: " " for variable in VARIABLES}) == from_environment({})


def test_foreign_variables_are_ignored() -> None:
    assert from_environment({"PATH": "/bin", "TF_CPP_MIN_LOG_LEVEL": "nonsense"}) == from_environment({})


@pytest.mark.parametrize("word", [*TRUE_WORDS, *(word.upper() for word in TRUE_WORDS), " Yes "])
def test_words_for_on(word: str) -> None:
    assert flag(word) is True


@pytest.mark.parametrize("word", [*FALSE_WORDS, *(word.upper() for word in FALSE_WORDS), " oFF"])
def test_words_for_off(word: str) -> None:
    assert flag(word) is False


@pytest.mark.parametrize(("both", "rewrite", "scaling"), list(itertools.product((None, False, True), repeat=3)))
def test_each_half_follows_its_own_switch_and_else_the_common_one(both: bool | None, rewrite: bool | None, scaling: bool | None) -> None:
    given = {SWITCH: both, REWRITE_SWITCH: rewrite, LOSS_SCALING_SWITCH: scaling}
    switches = from_environment({name: str(int(value)) for name, value in given.items() if value is not None})
    assert switches.graph_rewrite is (bool(both) if rewrite is None else rewrite)
    assert switches.loss_scaling is (bool(both) if scaling is None else scaling)


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("TFMP_DTYPE", "float16", "dtype", "float16"),
        ("TFMP_DTYPE", " BFloat16 ", "dtype", "bfloat16"),
        ("TFMP_DTYPE", "auto", "dtype", "auto"),
        ("TFMP_LEVEL", "tensorflow", "level", "tensorflow"),
        ("TFMP_LEVEL", "unsafe_force_all", "level", "UNSAFE_FORCE_ALL"),
        (f"{PREFIX}LEVEL", "TENSOR_CORES_ONLY", "level", "TENSOR_CORES_ONLY"),
        (f"{PREFIX}LEVEL", "treat_infer_as_deny", "level", "TREAT_INFER_AS_DENY"),
        ("TFMP_STRICT", "on", "strict", True),
        (f"{PREFIX}IGNORE_PERFORMANCE", "1", "ignore_performance", True),
        (f"{PREFIX}SIMULATE_GPU", "yes", "simulate_gpu", True),
        (f"{PREFIX}EMULATE_FP16", "0", "emulate", False),
        (f"{PREFIX}EMULATE_FP16", "true", "emulate", True),
        (f"{PREFIX}LOG_PATH", "/a folder/x", "log_path", "/a folder/x"),
    ],
)
def test_each_variable_sets_its_setting(variable: str, text: str, field: str, value: object) -> None:
    assert from_environment({variable: text}).settings == dataclasses.replace(Settings(), **{field: value})


@pytest.mark.parametrize(
    ("new", "old", "kind"),
    [("ALLOWLIST", "WHITELIST", "allow"), ("INFERLIST", "GRAYLIST", "infer"), ("DENYLIST", "BLACKLIST", "deny")],
)
@pytest.mark.parametrize("direction", ["add", "remove"])
def test_old_list_names_still_work_and_add_to_the_new_ones(new: str, old: str, kind: str, direction: str) -> None:
    names = [f"{PREFIX}{name}_{direction.upper()}" for name in (new, old)]
    assert getattr(from_environment({names[1]: "Sin"}).settings, direction) == ((kind, ("Sin",)),)
    assert getattr(from_environment({names[0]: "Sin,Cos", names[1]: "Tan"}).settings, direction) == ((kind, ("Sin", "Cos", "Tan")),)


def test_the_clearlist_has_no_old_name() -> None:
    assert from_environment({f"{PREFIX}CLEARLIST_ADD": " Sin , Cos,, "}).settings.add == (("clear", ("Sin", "Cos")),)


def test_tensorflows_name_of_the_level_wins_over_ours() -> None:
    assert from_environment({"TFMP_LEVEL": "tensorflow", f"{PREFIX}LEVEL": "TENSOR_CORES_ONLY"}).settings.level == "TENSOR_CORES_ONLY"


FLAG_ANSWER = "valid values are 1, true, yes, on (on) and 0, false, no, off (off)"
LEVEL_ANSWER = "valid values are default, tensorflow, TENSOR_CORES_ONLY, TREAT_INFER_AS_DENY, UNSAFE_FORCE_ALL, O0, O1, O2, O3"


@pytest.mark.parametrize(
    ("variable", "text", "answer"),
    [
        (SWITCH, "2", FLAG_ANSWER),
        (REWRITE_SWITCH, "ja", FLAG_ANSWER),
        (LOSS_SCALING_SWITCH, "dynamic", FLAG_ANSWER),
        ("TFMP_STRICT", "maybe", FLAG_ANSWER),
        (f"{PREFIX}IGNORE_PERFORMANCE", "-1", FLAG_ANSWER),
        (f"{PREFIX}SIMULATE_GPU", "V100", FLAG_ANSWER),
        (f"{PREFIX}EMULATE_FP16", "half", FLAG_ANSWER),
        ("TFMP_DTYPE", "float8", "valid values are auto, float16, bfloat16"),
        ("TFMP_LEVEL", "O4", LEVEL_ANSWER),
        (f"{PREFIX}LEVEL", "half", LEVEL_ANSWER),
    ],
)
def test_a_value_that_cannot_be_used_is_answered_with_the_valid_ones(variable: str, text: str, answer: str) -> None:
    with pytest.raises(SettingsError) as error:
        from_environment({variable: text})
    assert str(error.value) == f"environment variable {variable} is {text!r}; {answer}."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float8"}, "dtype is 'float8'; valid values are 'auto', 'float16', 'bfloat16'."),
        ({"dtype": None}, "dtype is None; valid values are 'auto', 'float16', 'bfloat16'."),
        ({"device": "TPU"}, "device is 'TPU'; valid values are 'auto', 'GPU', 'CPU'."),
        ({"level": "O4"}, f"level is 'O4'; valid values are {', '.join(map(repr, LEVELS))}."),
        ({"denylist_ad": "Sin"}, "unknown setting 'denylist_ad' = 'Sin'; did you mean 'denylist_add'?"),
        ({"ignore_perf": True}, "unknown setting 'ignore_perf' = True; did you mean 'ignore_performance'?"),
        ({"add": (("grey", ("Sin",)),)}, "op list is 'grey'; valid values are 'allow', 'infer', 'deny', 'clear'."),
    ],
)
def test_arguments_that_cannot_be_used_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        make_settings(**changes)
    assert str(error.value) == message


def test_a_name_like_nothing_known_is_answered_with_all_names() -> None:
    with pytest.raises(SettingsError, match=r"unknown setting 'xyzzy' = 1; known settings are add, allowlist_add, .*, weaknesses\."):
        make_settings(xyzzy=1)


def test_settings_are_values() -> None:
    settings = make_settings(denylist_add="Softmax")
    assert settings == make_settings(denylist_add=["Softmax"])
    assert hash(settings) == hash(make_settings(denylist_add=("Softmax",)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.dtype = "float16"  # type: ignore[misc]


def test_changes_are_made_on_a_base_which_stays() -> None:
    base = make_settings(dtype="float16", denylist_add="Softmax", allowlist_add="Sin")
    changed = make_settings(base, level="tensorflow", denylist_add="Tanh", clearlist_remove="Relu")
    assert (changed.dtype, changed.level) == ("float16", "tensorflow")
    assert dict(changed.add) == {"allow": ("Sin",), "deny": ("Tanh",)}
    assert dict(changed.remove) == {"clear": ("Relu",)}
    assert dict(base.add) == {"allow": ("Sin",), "deny": ("Softmax",)}


@pytest.mark.parametrize("level", sorted(LEVELS.keys() - {"O0"}))
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "auto"])
def test_lists_of_each_level(level: str, dtype: str) -> None:
    lists = make_settings(level=level).lists(dtype)
    plain = make_settings(level="tensorflow" if LEVELS[level].exact else "default").lists(dtype)
    assert lists.ops("allow") == plain.ops("allow")
    expected = {
        "TENSOR_CORES_ONLY": (frozenset(), frozenset(), frozenset()),
        "TREAT_INFER_AS_DENY": (frozenset(), plain.ops("infer") | plain.ops("deny"), plain.ops("clear")),
    }.get(level, tuple(plain.ops(kind) for kind in ("infer", "deny", "clear")))
    assert tuple(lists.ops(kind) for kind in ("infer", "deny", "clear")) == expected


def test_the_lists_of_o0_are_empty() -> None:
    assert make_settings(level="O0").lists("float16").kind_of == {}


def test_adding_an_op_to_a_list_takes_it_off_the_others() -> None:
    lists = make_settings(denylist_add="MatMul, Relu", allowlist_add="Exp").lists("float16")
    assert [lists.kind_of[op] for op in ("MatMul", "Relu", "Exp")] == ["deny", "deny", "allow"]
    assert lists.overridden == {"MatMul", "Relu", "Exp"}


def test_removals_come_before_additions_and_only_touch_their_own_list() -> None:
    lists = make_settings(inferlist_remove="Tanh,MatMul", clearlist_add="Tanh").lists("float16")
    assert (lists.kind_of["Tanh"], lists.kind_of["MatMul"]) == ("clear", "allow")
    assert "Relu" not in make_settings(clearlist_remove="Relu").lists("float16").kind_of


def test_one_op_on_two_lists_is_a_conflict() -> None:
    with pytest.raises(SettingsError) as error:
        make_settings(allowlist_add="Sin", denylist_add="Cos,Sin").lists("float16")
    assert str(error.value) == "op 'Sin' is added to the allowlist and to the denylist; keep one of the two."


def test_a_level_is_carried_out_before_the_users_moves() -> None:
    lists = make_settings(level="TENSOR_CORES_ONLY", inferlist_add="Tanh").lists("float16")
    assert lists.ops("infer") == {"Tanh"}


def test_devices_are_the_three_that_the_documentation_names() -> None:
    assert DEVICES == ("auto", "GPU", "CPU")
