"""How rules are written, and what is said about those that cannot be used."""

from __future__ import annotations

import pathlib

import pytest

from tests.graph_text import parse
from tfmp import convert_graph_def
from tfmp.errors import SettingsError
from tfmp.settings import LEVELS, Settings, from_environment, make_settings

GRAPH = """
x = Placeholder() shape=[4, 4]
m = MatMul(x, x)
t = Tanh(m)
e = Exp(t)
axis = Const() dtype=int32 value=0
s = Sum(e, axis)
f = Identity(s)
"""


def converted(**settings: object) -> set[str]:
    """Returns the ops that become 16 bit."""
    return {d.op for d in convert_graph_def(parse(GRAPH), device="CPU", **settings).decisions() if d.converted}


@pytest.mark.parametrize("rule", ["Softmax", "op:", ":x", "region:x", "ops:MatMul", "", "layer"])
def test_a_rule_that_is_none_is_refused_with_the_valid_kinds(rule: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings(keep_float32=(rule or " : ",))
    assert "keep_float32" in str(raised.value)
    assert all(f"{kind}:GLOB" in str(raised.value) for kind in ("op", "name", "function", "layer", "variable"))


def test_one_rule_in_both_settings_is_refused() -> None:
    with pytest.raises(SettingsError, match="'op:Exp' is in both keep_float32 and force_16bit"):
        make_settings(keep_float32="op:Exp", force_16bit=["op:Exp"])


def test_rules_come_as_text_as_tuples_from_files_and_from_the_environment(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rules.txt"
    file.write_text("# what the paper keeps\n\nkeep_float32 op:Tanh  # here\n  force_16bit name:s#1\nkeep_float32 layer:a/b\n", encoding="utf-8")
    expected = (("op:Tanh", "layer:a/b"), ("name:s#1",))
    from_file = make_settings(rules=file)
    assert (from_file.keep_float32, from_file.force_16bit) == expected
    both = make_settings(keep_float32="op:Exp, op:Sum", rules=str(file))
    assert both.keep_float32 == ("op:Exp", "op:Sum", "op:Tanh", "layer:a/b")
    environment = from_environment({"TFMP_KEEP_FLOAT32": "op:Exp,op:Sum", "TFMP_RULES": f" {file} ", "TFMP_FORCE_16BIT": "variable:w*"}).settings
    assert environment.keep_float32 == both.keep_float32
    assert environment.force_16bit == ("variable:w*", "name:s#1")
    assert make_settings(environment, keep_float32="op:Relu").keep_float32 == ("op:Relu",), "in code wins over the environment"


@pytest.mark.parametrize(
    ("line", "message"),
    [("keep op:Exp", r"line 2 is 'keep op:Exp'; a line is keep_float32 RULE or force_16bit RULE"), ("keep_float32 Exp", r"line 2 has the rule 'Exp'")],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: pathlib.Path, line: str, message: str) -> None:
    file = tmp_path / "rules"
    file.write_text(f"keep_float32 op:Tanh\n{line}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=message):
        make_settings(rules=file)
    with pytest.raises(SettingsError, match=f"environment variable TFMP_RULES is '{file}'; .*{message}"):
        from_environment({"TFMP_RULES": str(file)})


def test_a_file_that_is_not_there_and_a_bad_variable_are_named() -> None:
    with pytest.raises(SettingsError, match="rules file '/nowhere/rules' cannot be read"):
        make_settings(rules="/nowhere/rules")
    with pytest.raises(SettingsError, match="environment variable TFMP_KEEP_FLOAT32 is 'Exp'"):
        from_environment({"TFMP_KEEP_FLOAT32": "Exp"})


@pytest.mark.parametrize("level", ["default", "tensorflow"])
def test_rules_come_before_the_lists(level: str) -> None:
    assert {"MatMul"} <= converted(level=level) <= {"MatMul", "Tanh"}, "TensorFlow before 2.20 leaves Tanh"
    assert converted(level=level, keep_float32="op:Tanh") == {"MatMul"}
    assert converted(level=level, force_16bit="name:[est]") == {"MatMul", "Tanh", "Exp", "Sum"}


@pytest.mark.parametrize("level", ["default", "tensorflow", "UNSAFE_FORCE_ALL"])
def test_a_node_that_is_kept_and_forced_is_an_error_that_names_both_rules(level: str) -> None:
    with pytest.raises(SettingsError, match=r"node 't' \(Tanh\) is kept in float32 by 'op:Ta\*' and forced into 16 bit by 'name:t'"):
        convert_graph_def(parse(GRAPH), level=level, keep_float32="op:Ta*", force_16bit="name:t")


def test_unused_rules_and_reasons_are_named() -> None:
    conversion = convert_graph_def(parse(GRAPH), device="CPU", keep_float32=("op:Tanh", "layer:nothing"), force_16bit="op:Sofmax,op:Sum")
    assert conversion.unused_rules == ("layer:nothing", "op:Sofmax")
    reasons = {d.op: d.reason for d in conversion.decisions()}
    assert reasons["Tanh"] == "Tanh: a rule keeps it in float32: op:Tanh"
    assert reasons["Sum"] == "Sum: a rule forces it into 16 bit: op:Sum"


def test_what_has_no_kernel_is_not_forced_and_the_reason_says_so() -> None:
    graph = parse("x = Placeholder() shape=[4, 4]\nd = MatrixDeterminant(x)\nf = Identity(d)")
    conversion = convert_graph_def(graph, device="CPU", force_16bit="op:MatrixDeterminant")
    assert not conversion.changed
    (decision,) = conversion.decisions({"MatrixDeterminant"})
    assert decision.reason == ("MatrixDeterminant: a rule would force it into 16 bit, but there is no 16-bit kernel on the device: op:MatrixDeterminant")


NETWORK = """
x = Placeholder() shape=[4, 4, 4, 4]
w = Const() value=0.5 shape=[3, 3, 4, 4]
scale = Const() value=1.0 shape=[4]
c = Conv2D(x, w) padding=SAME strides=[1,1,1,1]
b = FusedBatchNormV3(c, scale, scale, scale, scale) is_training=false
e = Exp(b)
r = Relu(e)
f = Identity(r)
"""


def test_apexs_levels() -> None:
    def ops(level: str) -> set[str]:
        return {d.op for d in convert_graph_def(parse(NETWORK), device="CPU", level=level).decisions() if d.converted}

    assert ops("O0") == set()
    assert ops("O1") == ops("default") == {"Conv2D", "FusedBatchNormV3"}
    assert ops("O2") == {"Conv2D", "Exp", "Relu"}
    assert ops("O3") == ops("UNSAFE_FORCE_ALL") >= {"Conv2D", "Exp", "Relu", "FusedBatchNormV3"}
    assert all(LEVELS[level].meaning.startswith("Apex's") for level in ("O0", "O1", "O2", "O3"))
