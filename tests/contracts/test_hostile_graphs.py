"""Graphs that nobody would write and that turn up all the same: what cannot be read is an error that names it, everything else is converted or left alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.contracts import running
from tests.graph_text import functions, nodes, parse
from tfmp import engine, tf_api
from tfmp.dtypes import DT_FLOAT, DT_HALF
from tfmp.errors import GraphError, RewriteError, SettingsError, TfmpError

X = "x = Placeholder() shape=[4, 4]\n"
SQUARE = "\nfunction square(a: float) -> (b: float)\n  m = MatMul(a, a)\n  return b = m:product:0\n"
FEEDS = {"x": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)}
SECONDS = 20
"""Far more than the slowest of these needs, and far less than anything quadratic would."""


def convert(text: str | tf_api.GraphDef, **changes: Any) -> engine.Conversion:
    """Returns the conversion for the CPU of a text or a graph."""
    return engine.convert_graph_def(parse(text) if isinstance(text, str) else text, device="CPU", **changes)


def half(conversion: engine.Conversion) -> set[str]:
    """Returns the names of the main graph's old nodes that have a half type now and had none before."""
    old = nodes(conversion.originals[""])
    return {name for name, node in nodes(conversion.graph_def).items() if name in old and _has_half(node) and not _has_half(old[name])}


def _has_half(node: tf_api.NodeDef) -> bool:
    return any(value.type == DT_HALF or DT_HALF in value.list.type for value in node.attr.values())


def same_numbers(conversion: engine.Conversion, *fetches: str) -> bool:
    """Returns whether graph and conversion give the same up to a hundredth, which a wrong wire would not."""
    before, after = (running.run(graph, fetches, FEEDS) for graph in (conversion.originals[""], conversion.graph_def))
    return all(before[name].dtype == after[name].dtype and np.allclose(before[name], after[name], rtol=0.01, atol=0.01) for name in fetches)


def broken(change: Callable[[tf_api.GraphDef], object]) -> tf_api.GraphDef:
    """Returns x -> MatMul m -> Identity f, and a function, with `change` made."""
    graph = parse(X + "m = MatMul(x, x)\nc = PartitionedCall(m) Tout=[float] f=square\nf = Identity(c)\n" + SQUARE)
    change(graph)
    return graph


def _input(text: str) -> Callable[[tf_api.GraphDef], object]:
    return lambda graph: graph.node[1].input.__setitem__(0, text)


UNREADABLE = {
    "an unknown op": (
        lambda graph: setattr(graph.node[1], "op", "Frobnicate"),
        "op 'Frobnicate' is not registered in this process; load the library that defines it before converting.",
    ),
    "no op": (lambda graph: setattr(graph.node[1], "op", ""), "op '' is not registered in this process; load the library that defines it before converting."),
    "no such node": (_input("nobody"), "node 'm' reads 'nobody', which is not there."),
    "no such output": (_input("x:1"), "node 'm' reads 'x:1', but 'x' has 1 outputs."),
    "a negative output": (_input("x:-1"), "node 'm' reads 'x:-1', which is not there."),
    "an output of a function's form": (_input("x:output:7:7"), "node 'm' reads 'x:output:7:7', which is not there."),
    "an output of a node that has none": (
        lambda graph: (graph.node.add(name="n", op="NoOp"), graph.node[1].input.__setitem__(0, "n:")),
        "node 'm' reads 'n:', but 'n' has 0 outputs.",
    ),
    "an empty input": (_input(""), "node 'm' reads '', which is not there."),
    "a missing input": (lambda graph: graph.node[1].input.pop(), "MatMul node 'm' has 1 data inputs; its op takes 2."),
    "data after control": (
        lambda graph: graph.node[1].input.insert(0, "^x"),
        "MatMul node 'm' has 0 data inputs; its op takes 2.",
    ),
    "twins": (lambda graph: setattr(graph.node[1], "name", "x"), "two nodes are called 'x'; rename one of them."),
    "a missing function": (
        lambda graph: graph.library.ClearField("function"),
        "function 'square' is called, but is not in the graph's library, which has 0 functions.",
    ),
    "a missing result": (lambda graph: graph.library.function[0].ClearField("ret"), "node 'b' of function 'square' reads '', which is not there."),
    "a result that reads nothing": (
        lambda graph: graph.library.function[0].ret.update({"b": "m:nothing:0"}),
        "node 'b' of function 'square' reads 'm:nothing:0', which is not there.",
    ),
    "a node with an argument's name": (
        lambda graph: setattr(graph.library.function[0].node_def[0], "name", "a"),
        "two nodes of function 'square' are called 'a'; rename one of them.",
    ),
    "a node without a name": (lambda graph: setattr(graph.node[1], "name", ""), "MatMul node number 1 has no name; give it one."),
    "a node of a function without a name": (
        lambda graph: setattr(graph.library.function[0].node_def[0], "name", ""),
        "MatMul node number 0 of function 'square' has no name; give it one.",
    ),
    "an empty input in a function": (
        lambda graph: graph.library.function[0].node_def[0].input.__setitem__(1, ""),
        "node 'm' of function 'square' reads '', which is not there.",
    ),
    "an argument without a name": (
        lambda graph: setattr(graph.library.function[0].signature.input_arg[0], "name", ""),
        "an argument of function 'square' has no name, so that nothing can read it; give it one.",
    ),
    "a control result that is not there": (
        lambda graph: graph.library.function[0].control_ret.update({"c": "nobody"}),
        "node 'nobody' of function 'square' is always to run (control_ret), but is not there.",
    ),
    "an argument too many": (
        lambda graph: graph.library.function[0].signature.input_arg.add(name="z", type=DT_FLOAT),
        "PartitionedCall node 'c' hands over 1 values and takes 1, but 'square' takes 2 and gives 1.",
    ),
    "an argument of another type": (
        lambda graph: setattr(graph.library.function[0].signature.input_arg[0], "type", 2),
        "PartitionedCall 'c' and _Arg 'a' share a value, but have the types 1 and 2.",
    ),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_an_unreadable_graph_is_an_error_that_names_the_place(what: str) -> None:
    change, message = UNREADABLE[what]
    graph = broken(change)
    before = graph.SerializeToString(deterministic=True)
    with pytest.raises(GraphError) as error:
        convert(graph)
    assert str(error.value) == message
    assert graph.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n = NoOp()\nm = MatMul(n, n)\n", "node 'm' reads 'n', but 'n' has 0 outputs."),
        ("n = NoOp()\nm = MatMul(n:0, n)\n", "node 'm' reads 'n:0', but 'n' has 0 outputs."),
        (X + "n = NextIteration(x)\nr = Relu(n)\n", "NextIteration node 'n' feeds Relu; only Merge may follow it."),
        ("k = Const() value=absent\nm = MatMul(k, k)\nf = Identity(m)\n", "Const node 'k' has no value."),
    ],
)
def test_other_graphs_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(GraphError) as error:
        convert(text)
    assert str(error.value) == message


def test_a_graph_that_was_wrong_before_is_refused_when_something_in_it_changes() -> None:
    text = X + "m = MatMul(x, x)\nd = Sin(m) T=double\nf = Identity(m)\n"
    with pytest.raises(RewriteError, match=r"the main graph: input 0 of Sin node 'd' wants type 2, but .* gives type 1\."):
        convert(text)


def test_fetches_and_feeds_must_be_there() -> None:
    for changes in ({"fetches": ["f", "q"]}, {"feeds": ["q:0"]}):
        with pytest.raises(GraphError, match="fetched or fed node 'q' is not in the graph, which has 2 nodes"):
            convert(X + "f = Identity(x)\n", **changes)


@pytest.mark.parametrize(("changes", "word"), [({"dtype": "auto"}, "dtype is 'auto'"), ({"device": "auto"}, "device is 'auto'")])
def test_types_and_devices_must_be_decided(changes: dict[str, str], word: str) -> None:
    with pytest.raises(SettingsError, match=word):
        engine.convert_graph_def(parse(X), **changes)


@pytest.mark.parametrize("text", ["", "n = NoOp()\n", X, "s = Const() dtype=string value=\"a\"\n", "h = VarHandleOp() shape=[4]\n"])
def test_graphs_with_nothing_to_convert_come_back(text: str) -> None:
    conversion = convert(text)
    assert not conversion.changed
    assert conversion.graph_def == parse(text)


LEFT_ALONE = {
    "no type given": "m = MatMul(x, x) T=absent\nf = Identity(m) T=absent\n",
    "doubles": "d = Cast(x) DstT=double\nm = MatMul(d, d) T=double\nf = Identity(m) T=double\n",
    "complex numbers": "c = Complex(x, x)\nm = MatMul(c, c) T=complex64\nf = Identity(m) T=complex64\n",
    "half already": "h = Cast(x) DstT=half\nm = MatMul(h, h) T=half\nr = Relu(m) T=half\nu = Cast(r) SrcT=half\nf = Identity(u)\n",
    "another device": "m = MatMul(x, x) @/job:worker/replica:0/task:1/device:TPU:0\nf = Identity(m)\n",
    "a job without a device": "m = MatMul(x, x) @/job:worker/task:0\nf = Identity(m)\n",
    "an op without a half form": "m = GRUBlockCell(x, x, x, x, x, x) T=float\nf = Identity(m)\n",
}


@pytest.mark.parametrize("what", LEFT_ALONE)
def test_what_cannot_be_half_is_left_alone(what: str) -> None:
    graph = parse(X + LEFT_ALONE[what])
    conversion = convert(graph)
    assert not conversion.changed
    assert conversion.graph_def == graph


@pytest.mark.parametrize("value", [tf_api.AttrValue(type=999), tf_api.AttrValue(s=b"float"), tf_api.AttrValue(placeholder="T")], ids=str)
def test_a_type_that_is_none_is_left_alone(value: tf_api.AttrValue) -> None:
    graph = parse(X + "m = MatMul(x, x)\nf = Identity(m)\n")
    graph.node[1].attr["T"].CopyFrom(value)
    assert not convert(graph).changed


CONVERTED = {
    "defaults stripped": ("m = MatMul(x, x) transpose_a=absent transpose_b=absent grad_a=absent grad_b=absent\nf = Identity(m)\n", {"m"}),
    "names with everything": ("a.b/c-d_e>f\\g = MatMul(x, x)\nf = Identity(a.b/c-d_e>f\\g)\n", {"a.b/c-d_e>f\\g"}),
    "a cast's name is taken": (
        "x-0-CastToFp16-0-AutoMixedPrecision = Relu(x)\nm = MatMul(x, x-0-CastToFp16-0-AutoMixedPrecision)\nf = Identity(m)\n",
        {"m", "x-0-CastToFp16-0-AutoMixedPrecision"},
    ),
    "an old device name": ("m = MatMul(x, x) @/cpu:0\nf = Identity(m)\n", {"m"}),
    "a device in small letters": ("m = MatMul(x, x) @/device:cpu:0\nf = Identity(m)\n", {"m"}),
    "a part of a job": ("m = MatMul(x, x) @/job:localhost/replica:0/task:0/device:CPU:0\nf = Identity(m)\n", {"m"}),
    "a function with an op's name": (
        "m = MatMul(x, x)\nr = Relu(m)\nf = Identity(r)\n\nfunction Relu(a: float) -> (b: float)\n  n = Neg(a)\n  return b = n:y:0\n",
        {"m"},
    ),
    "a call by name": (f"m = MatMul(x, x)\nr = square(m)\nn = MatMul(r, r)\nf = Identity(n)\n{SQUARE}", {"m", "n"}),
    "empty lists of types": ("m = MatMul(x, x)\nr = PartitionedCall() f=nothing\nf = Identity(m, ^r)\n\nfunction nothing() -> ()\n  n = NoOp()\n", {"m"}),
    "a constant read by control only": ("k = Const() value=0.5 shape=[4, 4]\nm = MatMul(x, x, ^k)\nf = Identity(m)\n", {"m"}),
    "resources and strings around": (
        "h = VarHandleOp() shape=[4, 4]\nv = ReadVariableOp(h)\nm = MatMul(x, v)\ns = StringJoin() N=0\nt = AsString(m)\nf = Identity(m)\n",
        {"m"},
    ),
    "a double beside": ("m = MatMul(x, x)\nd = Cast(x) DstT=double\nn = MatMul(d, d) T=double\nf = Identity(m)\ng = Identity(n) T=double\n", {"m"}),
}


@pytest.mark.parametrize("what", CONVERTED)
def test_the_rest_of_a_strange_graph_is_converted(what: str) -> None:
    text, expected = CONVERTED[what]
    assert half(convert(X + text)) == expected


def test_a_taken_cast_name_gets_the_next_number() -> None:
    conversion = convert(X + CONVERTED["a cast's name is taken"][0])
    assert "x-0-CastToFp16-1-AutoMixedPrecision" in nodes(conversion.graph_def)
    assert same_numbers(conversion, "f")


def test_outputs_of_functions_may_be_written_without_their_names() -> None:
    text = X + "r = PartitionedCall(x) f=parts Tout=[float]\n\nfunction parts(a: float) -> (b: float)\n"
    text += "  d = Const() dtype=int32 value=0\n  s = Split(d, a) num_split=2\n  m = MatMul(s:0, s:1) transpose_a=true\n  return b = m:0\n"
    (function,) = [f for f in convert(text).graph_def.library.function if f.signature.name == "parts"]
    written = {node.name: node for node in function.node_def}
    assert written["m"].attr["T"].type == DT_HALF
    assert list(written["m"].input) == ["s:0", "s:1"]


def test_control_results_and_gradients_stay() -> None:
    text = X + f"m = MatMul(x, x)\nc = PartitionedCall(m) Tout=[float] f=square\nn = MatMul(c, c)\nf = Identity(n)\n{SQUARE}"
    text += "  control effect = m\ngradient square = other\n"
    library = convert(text).graph_def.library
    assert [(gradient.function_name, gradient.gradient_func) for gradient in library.gradient] == [("square", "other")]
    assert all(dict(function.control_ret) == {"effect": "m"} for function in library.function)
    assert functions(convert(text).graph_def)["square"] == functions(parse(text))["square"]


def test_a_function_that_calls_itself_is_one_function() -> None:
    text = X + "m = MatMul(x, x)\nr = PartitionedCall(m) f=again Tout=[float]\nn = MatMul(r, r)\nf = Identity(n)\n\n"
    text += "function again(a: float) -> (b: float)\n  m = MatMul(a, a)\n  c = PartitionedCall(m:product:0) f=again Tout=[float]\n  return b = c:output:0\n"
    library = functions(convert(text).graph_def)
    (new,) = [name for name in library if name != "again"]
    assert [node.attr["f"].func.name for node in library[new].node_def if node.op == "PartitionedCall"] == [new]
    assert library[new].signature.input_arg[0].type == DT_HALF


@pytest.mark.parametrize("result", ["p:output:0", "s:z:0"])
def test_a_cycle_of_identities_in_a_loop_is_no_trap(result: str) -> None:
    text = X + "z = Const() dtype=int32 value=0\nw = StatelessWhile(z, x) T=[int32, float] cond=c body=b\nf = Identity(w:1)\n\n"
    text += "function c(i: int32, a: float) -> (r: bool)\n  t = Const() dtype=bool value=true\n  return r = t:output:0\n\n"
    text += "function b(i: int32, a: float) -> (j: int32, d: float)\n  p = Identity(q:output:0)\n  q = Identity(p:output:0)\n  m = MatMul(a, a)\n"
    text += f"  s = AddV2(p:output:0, m:product:0)\n  return j = i\n  return d = {result}\n"
    assert convert(text).changed


def test_a_template_is_left_alone() -> None:
    graph = parse(X + f"m = MatMul(x, x)\nc = PartitionedCall(m) Tout=[float] f=square\nn = MatMul(c, c)\nf = Identity(n)\n{SQUARE}")
    template = graph.library.function[0]
    template.signature.attr.add(name="T", type="type")
    template.signature.input_arg[0].type = 0
    template.signature.input_arg[0].type_attr = "T"
    template.node_def[0].attr["T"].placeholder = "T"
    conversion = convert(graph)
    assert half(conversion) == {"m", "n"}
    assert conversion.graph_def.library == graph.library


def test_a_function_with_a_stand_in_for_another_device_keeps_its_signature() -> None:
    """tf_keras's LSTM: TensorFlow swaps functions with the same `api_implements`, and refuses if their signatures differ."""
    stand_in = SQUARE.replace("(b: float)", '(b: float) api_implements="lstm" api_preferred_device="CPU"')
    conversion = convert(X + f"m = MatMul(x, x)\nc = PartitionedCall(m) Tout=[float] f=square\nn = MatMul(c, c)\nf = Identity(n)\n{stand_in}")
    (function,) = conversion.graph_def.library.function
    assert [arg.type for arg in (*function.signature.input_arg, *function.signature.output_arg)] == [DT_FLOAT, DT_FLOAT]
    assert _has_half(function.node_def[0])
    assert same_numbers(conversion, "f")


@pytest.mark.parametrize("fetches", [(), ("c",), ("c:0", "f")])
def test_a_fetched_call_keeps_its_types(fetches: tuple[str, ...]) -> None:
    text = X + f"m = MatMul(x, x)\nc = PartitionedCall(m) Tout=[float] f=square\n{'f = Identity(c)' if fetches else ''}\n{SQUARE}"
    assert same_numbers(convert(text, fetches=fetches), "c")


def test_what_is_fed_keeps_its_type_and_what_nothing_reads_is_fetched_all_the_same() -> None:
    text = X + "r = Relu(x)\nm = MatMul(r, r)\nf = Identity(m)\n"
    assert half(convert(text)) == {"r", "m"}
    assert half(convert(text, feeds=["r:0"])) == {"m"}
    assert half(convert(text, fetches=["r", "f"])) == {"m"}
    assert half(convert(text, fetches=["x"])) == {"r", "m", "f"}


def test_reference_variables_are_read_and_written_in_float32() -> None:
    text = X + "v = VariableV2() shape=[4, 4]\nread = Identity(v)\nm = MatMul(read, x)\nw = AssignAdd(v, m)\nn = MatMul(v, x)\nf = Identity(n)\n"
    conversion = convert(text)
    assert half(conversion) == {"m"}
    after = nodes(conversion.graph_def)
    assert [list(after[name].input) for name in ("read", "n")] == [["v"], ["v", "x"]]
    assert after["w"].input[1].startswith("m-0-CastToFp32")


def test_a_variable_read_by_reference_after_its_write_is_read_after_it_still() -> None:
    """A cast of the variable would not wait for the write that the product waits for."""
    text = X + "s0 = Sin(x)\n" + "".join(f"s{i} = Sin(s{i - 1})\n" for i in range(1, 30)) + "v = VariableV2() shape=[4, 4]\n"
    text += "w = Assign(v, s29)\nn = MatMul(v, x, ^w)\nr = Relu(n)\nm = MatMul(r, x)\nf = Identity(m)\n"
    conversion = convert(text)
    assert half(conversion) == {"r", "m"}
    assert list(nodes(conversion.graph_def)["n"].input) == ["v", "x", "^w"]
    assert same_numbers(conversion, "f")


def test_quantized_ops_are_left_alone_between_converted_ones() -> None:
    text = X + "k = Const() value=1.0\nz = Const() value=0.0\nm = MatMul(x, x)\nq = QuantizeV2(m, z, k) T=qint8\n"
    text += "d = Dequantize(q, q:1, q:2) T=qint8\nn = MatMul(d, d)\nf = Identity(n)\n"
    assert half(convert(text)) == {"m", "n"}


def test_a_forced_call_keeps_its_types() -> None:
    text = X + f"s = Sin(x)\nc = PartitionedCall(s) Tout=[float] f=square\nt = Sin(c)\nf = Identity(t)\n{SQUARE}"
    conversion = convert(text, level="UNSAFE_FORCE_ALL")
    assert half(conversion) == {"s", "t"}
    assert same_numbers(conversion, "f")


LARGE = {
    "one tensor with 20,000 readers": X + "m = MatMul(x, x)\n" + "".join(f"e{i} = Exp(m)\n" for i in range(20_000)),
    "a chain of 20,000 ops": X + "m0 = MatMul(x, x)\n" + "".join(f"m{i} = Relu(m{i - 1})\n" for i in range(1, 20_000)) + "f = Identity(m19999)\n",
    "a chain in reverse": X + "".join(f"m{i} = Tanh(m{i - 1})\n" for i in reversed(range(1, 20_000))) + "m0 = MatMul(x, x)\nf = Identity(m19999)\n",
    "3,000 nested frames": X
    + "m0 = Identity(x)\n"
    + "".join(f'm{i} = Enter(m{i - 1}) frame_name="f{i}"\n' for i in range(1, 3_000))
    + "m = MatMul(m2999, m2999)\nf = Identity(m)\n",
    "400 functions deep": X
    + "c = PartitionedCall(x) Tout=[float] f=f399\nf = Identity(c)\n"
    + "".join(f"\nfunction f{k}(a: float) -> (b: float)\n  c = PartitionedCall(a) Tout=[float] f=f{k - 1}\n  return b = c:output:0\n" for k in range(1, 400))
    + SQUARE.replace("square", "f0"),
    "calls that double 25 times": X
    + "c = PartitionedCall(x) Tout=[float] f=f24\nf = Identity(c)\n"
    + "".join(
        f"\nfunction f{k}(a: float) -> (b: float)\n  c = PartitionedCall(a) Tout=[float] f=f{k - 1}\n"
        f"  d = PartitionedCall(c:output:0) Tout=[float] f=f{k - 1}\n  return b = d:output:0\n"
        for k in range(1, 25)
    )
    + SQUARE.replace("square", "f0"),
}


@pytest.mark.parametrize("what", LARGE)
def test_size_and_depth_do_no_harm(what: str) -> None:
    graph = parse(LARGE[what])
    start = time.perf_counter()
    conversion = convert(graph)
    assert conversion.changed
    assert time.perf_counter() - start < SECONDS
    assert not convert(conversion.graph_def).changed


def test_every_error_is_one_of_ours() -> None:
    assert issubclass(GraphError, TfmpError)
    assert issubclass(RewriteError, TfmpError)
    assert issubclass(SettingsError, TfmpError)
