"""Random small graphs as text: ops of every list and of none, several types, lists, functions, casts that are there already.

Every tensor is a [4, 4], so that any op may read any tensor of its type. A graph is drawn as text (tests/graph_text.py), so that what hypothesis prints
when a property fails can be read, and pasted into a test.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

SIZE = 4


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to add something to a graph.

    Attributes:
      lines: node lines; `@` stands for a new name, `{f}` for some float32 tensor of the graph, `{d}` float64, `{i}` int32, `{b}` bool, `{h}` half, and
        `{f:a}` for one that is meant more than once.
      outputs: what the lines make that others may read: letter and the text after the new name.
      inlined: lines that make the same without a call, loop or branch, if `lines` has one.
    """

    lines: str
    outputs: tuple[tuple[str, str], ...] = (("f", ""),)
    inlined: str = ""


def _made(letter: str) -> tuple[tuple[str, str], ...]:
    return ((letter, ""),)


ALLOW = (
    Recipe("@ = MatMul({f}, {f})"),
    Recipe("@ = MatMul({f}, {f}) transpose_b=true"),
    Recipe("@ = BatchMatMulV2({f}, {f})"),
    Recipe('@ = Einsum({f}, {f}) equation="ij,jk->ik"'),
    Recipe(
        "@shape = Const() dtype=int32 value=[1, 4, 4, 1]\n@image = Reshape({f}, @shape)\n@filter = Const() value=0.75 shape=[1, 1, 1, 1]\n"
        '@conv = Conv2D(@image, @filter) strides=[1, 1, 1, 1] padding="SAME"\n@flat = Const() dtype=int32 value=[4, 4]\n@ = Reshape(@conv, @flat)'
    ),
)
INFER = (
    *(Recipe(f"@ = {op}({{f}}, {{f}})") for op in ("AddV2", "Sub", "Mul")),
    *(Recipe(f"@ = {op}({{f}})") for op in ("Tanh", "Sigmoid", "Softplus", "Softmax")),
    Recipe("@ = AddN({f}, {f}, {f})"),
    Recipe("@bias = Const() value=[0.5, -0.25, 0.125, 1.0]\n@ = BiasAdd({f}, @bias)"),
    Recipe(
        "@shape = Const() dtype=int32 value=[1, 4, 1, 4]\n@image = Reshape({f}, @shape)\n@one = Const() value=0.5 shape=[4]\n"
        "@bn = FusedBatchNormV3(@image, @one, @one, @one, @one) U=float is_training=false\n"
        "@flat = Const() dtype=int32 value=[4, 4]\n@ = Reshape(@bn, @flat)"
    ),
)
DENY = (
    Recipe("@ = Exp({f})"),
    Recipe("@axis = Const() dtype=int32 value=[1]\n@sum = Sum({f}, @axis) keep_dims=true\n@ = AddV2({f}, @sum)"),
    Recipe("@axis = Const() dtype=int32 value=[0]\n@mean = Mean({f}, @axis) keep_dims=true\n@ = Sub({f}, @mean)"),
)
CLEAR = (
    *(Recipe(f"@ = {op}({{f}})") for op in ("Relu", "Neg", "Abs", "Identity")),
    *(Recipe(f"@ = {op}({{f}}, {{f}})") for op in ("Maximum", "Minimum")),
    Recipe("@perm = Const() dtype=int32 value=[1, 0]\n@ = Transpose({f}, @perm)"),
    Recipe("@flat = Const() dtype=int32 value=[16]\n@line = Reshape({f}, @flat)\n@square = Const() dtype=int32 value=[4, 4]\n@ = Reshape(@line, @square)"),
    Recipe("@axis = Const() dtype=int32 value=1\n@both = ConcatV2({f}, {f}, @axis)\n@ = Split(@axis, @both) num_split=2", (("f", ""), ("f", ":1"))),
    Recipe("@both = Pack({f}, {f})\n@ = Unpack(@both) num=2", (("f", ""), ("f", ":1"))),
    Recipe("@ = SelectV2({b}, {f}, {f})"),
    Recipe("@ = IdentityN({f}, {i}, {f}) T=[float, int32, float]", (("f", ""), ("i", ":1"), ("f", ":2"))),
    Recipe("@ = Greater({f}, {f})", _made("b")),
)
UNLISTED = (Recipe("@ = Sin({f})"), Recipe("@ = Atan({f})"))
OTHER_TYPES = (
    Recipe("@ = Cast({f}) DstT=double", _made("d")),
    Recipe("@ = Cast({d}) SrcT=double"),
    Recipe("@ = Sin({d}) T=double", _made("d")),
    Recipe("@ = MatMul({d}, {d}) T=double", _made("d")),
    Recipe("@ = Cast({f}) DstT=int32", _made("i")),
    Recipe("@ = Cast({i}) SrcT=int32"),
    Recipe("@ = AddV2({i}, {i}) T=int32", _made("i")),
    Recipe("@ = LogicalNot({b})", _made("b")),
    Recipe("@ = Cast({b}) SrcT=bool"),
    Recipe("@ = Cast({f}) DstT=half", _made("h")),
    Recipe("@ = Relu({h}) T=half", _made("h")),
    Recipe("@ = MatMul({h}, {h}) T=half", _made("h")),
    Recipe("@ = Cast({h}) SrcT=half"),
)
CONSTANTS = tuple(Recipe(f"@ = Const() value={value} shape=[4, 4]") for value in ("0.3", "-1e9", "1e-9")) + tuple(
    Recipe(f"@c = Const() value={value}\n@ = {op}({{f}}, @c)") for value, op in (("0.1", "Mul"), ("0.999999", "Mul"), ("1e-12", "AddV2"), ("-1e9", "AddV2"))
)
LISTS = (
    Recipe(
        "@shape = Const() dtype=int32 value=[4, 4]\n@size = Const() dtype=int32 value=-1\n"
        "@list = EmptyTensorList(@shape, @size) element_dtype=float shape_type=int32\n"
        "@push = TensorListPushBack(@list, {f}) element_dtype=float\n@push2 = TensorListPushBack(@push, {f}) element_dtype=float\n"
        "@ = TensorListPopBack(@push2, @shape) element_dtype=float",
        (("f", ":1"),),
    ),
)
FUNCTIONS = """
function square(a: float) -> (b: float)
  m = MatMul(a, a)
  return b = m:product:0

function squash(a: float) -> (b: float)
  p = PartitionedCall(a) Tout=[float] f=square
  t = Tanh(p:output:0)
  return b = t:y:0

function more(i: int32, a: float) -> (c: bool)
  two = Const() dtype=int32 value=2
  l = Less(i, two:output:0) T=int32
  return c = l:z:0

function step(i: int32, a: float) -> (j: int32, b: float)
  one = Const() dtype=int32 value=1
  n = AddV2(i, one:output:0) T=int32
  p = PartitionedCall(a) Tout=[float] f=squash
  return j = n:z:0
  return b = p:output:0

function more4(i: int32, a: float, b: float, w: float, s: float) -> (c: bool)
  two = Const() dtype=int32 value=2
  l = Less(i, two:output:0) T=int32
  return c = l:z:0

function swap(i: int32, a: float, b: float, w: float, s: float) -> (j: int32, x: float, y: float, v: float, t: float)
  one = Const() dtype=int32 value=1
  n = AddV2(i, one:output:0) T=int32
  m = MatMul(b, w)
  h = Tanh(m:product:0)
  add = AddV2(s, h:y:0)
  return j = n:z:0
  return x = h:y:0
  return y = a
  return v = w
  return t = add:z:0

function left(a: float, b: float) -> (x: float, y: float)
  m = MatMul(a, b)
  return x = m:product:0
  return y = b

function right(a: float, b: float) -> (x: float, y: float)
  half = Const() value=0.5 shape=[4, 4]
  e = Exp(a)
  return x = half:output:0
  return y = e:y:0

function push(list: variant, a: float) -> (longer: variant)
  m = MatMul(a, a)
  p = TensorListPushBack(list, m:product:0) element_dtype=float
  return longer = p:output_handle:0
"""
_LIST = (
    "@shape = Const() dtype=int32 value=[4, 4]\n@size = Const() dtype=int32 value=-1\n"
    "@list = EmptyTensorList(@shape, @size) element_dtype=float shape_type=int32\n"
)


_BRANCHES = {"StatelessIf": "then_branch=left else_branch=right Tcond=bool", "Case": "branches=[right, left]"}


def _branches(call: str, predicate: str, which: str) -> Recipe:
    taken = {"left": "@x = MatMul({f:a}, {f:b})\n@y = Identity({f:b})", "right": "@x = Const() value=0.5 shape=[4, 4]\n@y = Exp({f:a})"}[which]
    called = f"@p = Const() {predicate}\n@call = {call}(@p, {{f:a}}, {{f:b}}) Tout=[float, float] output_shapes=[[4, 4], [4, 4]] {_BRANCHES[call]}"
    return Recipe(f"{called}\n@x = Identity(@call)\n@y = Identity(@call:1)", (("f", "x"), ("f", "y")), taken)


CALLS = (
    Recipe("@ = PartitionedCall({f:a}) Tout=[float] f=square", inlined="@ = MatMul({f:a}, {f:a})"),
    Recipe("@ = StatefulPartitionedCall({f:a}) Tout=[float] f=squash", inlined="@m = MatMul({f:a}, {f:a})\n@ = Tanh(@m)"),
    Recipe(
        "@zero = Const() dtype=int32 value=0\n@loop = StatelessWhile(@zero, {f:a}) T=[int32, float] cond=more body=step\n@ = Identity(@loop:1)",
        inlined="@m = MatMul({f:a}, {f:a})\n@t = Tanh(@m)\n@n = MatMul(@t, @t)\n@ = Tanh(@n)",
    ),
    Recipe(
        "@zero = Const() dtype=int32 value=0\n@none = Const() value=0.0 shape=[4, 4]\n"
        "@loop = While(@zero, {f:a}, {f:b}, {f:c}, @none) T=[int32, float, float, float, float] cond=more4 body=swap\n"
        "@x = Identity(@loop:1)\n@y = Identity(@loop:2)\n@s = Identity(@loop:4)",
        (("f", "x"), ("f", "y"), ("f", "s")),
        "@m = MatMul({f:b}, {f:c})\n@y = Tanh(@m)\n@n = MatMul({f:a}, {f:c})\n@x = Tanh(@n)\n@s = AddV2(@y, @x)",
    ),
    *(_branches("StatelessIf", f"dtype=bool value={value}", which) for value, which in (("true", "left"), ("false", "right"))),
    *(_branches("Case", f"dtype=int32 value={value}", which) for value, which in ((0, "right"), (1, "left"))),
    Recipe(
        f"{_LIST}@push = PartitionedCall(@list, {{f:a}}) Tin=[variant, float] Tout=[variant] f=push\n"
        "@ = TensorListPopBack(@push, @shape) element_dtype=float",
        (("f", ":1"),),
        f"{_LIST}@m = MatMul({{f:a}}, {{f:a}})\n@push = TensorListPushBack(@list, @m) element_dtype=float\n"
        "@ = TensorListPopBack(@push, @shape) element_dtype=float",
    ),
)
ALL = (*ALLOW, *ALLOW, *INFER, *DENY, *CLEAR, *UNLISTED, *OTHER_TYPES, *CONSTANTS, *LISTS, *CALLS)
WITHOUT_CALLS = tuple(recipe for recipe in ALL if recipe not in CALLS)

START = """x = Placeholder() shape=[4, 4]
y = Placeholder() shape=[4, 4]
w = Const() value=[[0.5, -0.25, 0.125, 0.3], [0.1, 0.7, -0.6, 0.2], [-0.4, 0.33, 0.9, -0.05], [0.25, 0.15, -0.35, 0.45]]
xd = Cast(x) DstT=double
xi = Cast(y) DstT=int32
xb = Greater(x, y)
xh = Cast(y) DstT=half
"""
FEEDS = {name: np.random.default_rng(seed).uniform(-1, 1, (SIZE, SIZE)).astype(np.float32) for seed, name in enumerate(("x", "y"))}


@dataclasses.dataclass(frozen=True)
class RandomGraph:
    """A graph as text, and the nodes that are fetched, one for each tensor that nothing else reads.

    `inlined` is the same graph without functions: where its tensors have the same names, they have the same values.
    """

    text: str
    inlined: str
    fetches: tuple[str, ...]

    def __repr__(self) -> str:
        return f"RandomGraph of\n{self.text.removeprefix(START).removesuffix(FUNCTIONS)}"


@st.composite
def random_graphs(draw: st.DrawFn, recipes: tuple[Recipe, ...] = ALL, smallest: int = 3, largest: int = 25) -> RandomGraph:
    """Draws a graph of `smallest` to `largest` recipes."""
    tensors: dict[str, list[str]] = {"f": ["x", "y", "w"], "d": ["xd"], "i": ["xi"], "b": ["xb"], "h": ["xh"]}
    lines, inlined = [], []
    length = draw(st.integers(smallest, largest))
    for number, recipe in enumerate(draw(st.lists(st.sampled_from(recipes), min_size=length, max_size=length))):
        name = f"n{number}"
        filler = _Filler(name, tensors, lambda found: draw(st.integers(0, found - 1)))
        lines.append(filler.fill(recipe.lines))
        inlined.append(filler.fill(recipe.inlined) if recipe.inlined else lines[-1])
        if draw(st.integers(0, 9)) == 9:
            other = draw(st.sampled_from(tensors["f"])).partition(":")[0]
            lines[-1], inlined[-1] = (_after(text, other) for text in (lines[-1], inlined[-1]))
        for letter, suffix in recipe.outputs:
            tensors[letter].append(f"{name}{suffix}")
    ends = _ends(tensors, "\n".join(lines))
    fetches = [f"fetch{index} = Identity({tensor}) T={_TYPES[letter]}" for index, (letter, tensor) in enumerate(ends)]
    names = tuple(line.partition(" ")[0] for line in fetches)
    return RandomGraph("\n".join([START, *lines, *fetches, FUNCTIONS]), "\n".join([START, *inlined, *fetches]), names)


def _after(lines: str, other: str) -> str:
    """Returns `lines` with a control input from the node `other` on the last node."""
    first, found, last = lines.rpartition(")")
    return f"{first}{'' if first.endswith('(') else ', '}^{other}{found}{last}"


_TYPES = {"f": "float", "d": "double", "i": "int32", "b": "bool", "h": "half"}


class _Filler:
    """Puts a name and tensors into the lines of one recipe; recent tensors are likelier, since hypothesis prefers small numbers."""

    def __init__(self, name: str, tensors: Mapping[str, Sequence[str]], choose: Callable[[int], int]) -> None:
        self._name, self._tensors, self._choose = name, tensors, choose
        self._chosen: dict[str, str] = {}

    def fill(self, lines: str) -> str:
        """Returns `lines` with everything put in."""
        return re.sub(r"\{(\w)(:\w)?\}", self._tensor, lines.replace("@", self._name))

    def _tensor(self, match: re.Match[str]) -> str:
        found = self._tensors[match[1]]
        if match[2] is None:
            return found[-1 - self._choose(len(found))]
        return self._chosen.setdefault(match[0], found[-1 - self._choose(len(found))])


def _ends(tensors: Mapping[str, Sequence[str]], text: str) -> list[tuple[str, str]]:
    read = set(re.findall(r"[(\s](\w+(?::\d)?)(?=[,)])", text))
    everything = [(letter, tensor) for letter, found in tensors.items() for tensor in found]
    return [(letter, tensor) for letter, tensor in everything if tensor not in read]
