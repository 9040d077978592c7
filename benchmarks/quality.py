"""The judge of tfmp's colouring: what mixed precision saves and risks on real models, beside TensorFlow's own pass, Keras's policy and the least possible.

    python benchmarks/quality.py [--models mlp lenet] [--variants tfmp] [--explain MODEL] [--flips] [--json FILE]

Each row is one training step (`steps.py`) with a static batch; nothing is run, except small steps with loops or branches, once, to count trips.

What counts as bytes. An op moves the bytes of all float32, float16 and bfloat16 tensors that it reads and writes, at the width they have, as often as it runs.
Reshape, Identity, ExpandDims, Squeeze, StopGradient, PreventGradient, IdentityN and the ops that carry values into, round and out of loops and branches
(Enter, Merge, Switch, NextIteration, Exit) move none: they share their input's buffer (`executed.SHARED`). Nor do constants, placeholders, reads of a variable
(a reference), ops that look at shapes only, and ops that put tensors on a list or take them from it; TensorListStack and TensorListFromTensor read and write
their items (`executed.FREE`). AssignAdd and AssignSub read and write a variable as large as what they add. A gather reads as much as it writes of indices only,
so that a table is not counted. Casts of constants are left out: TensorFlow folds them. Ops are not fused, XLA's neither.

Whose bytes. The weight update is every node in the name scope "weight_update", which each step opens around its optimizer, and casts of what such a node makes.
A cast that hands a gradient to the optimizer is therefore counted without the update, too.

Columns:
  FLOPs      share of the FLOPs of matrix multiplications and convolutions in 16 bit
  casts      casts between float types that one step runs; MiB cast: what those read and write
  traffic    bytes of all ops, relative to float32; "no update": without the weight update
  saved      bytes that the forward part keeps for the backward part, relative to float32: every float tensor, no weight and no constant, that a node behind a
             gradient reads and a node before it made
  redundant  casts that another cast makes superfluous (`costs.redundant_casts`)
  unsafe     ops left in 16 bit that sum, exponentiate or compute a loss (`costs.UNSAFE`), sums over the steps of a loop included
  rounded    tensors in 16 bit between a variable's read and its write (`costs.rounded_slots`)
  seconds    to rewrite (CPU time for tfmp, wall time for TensorFlow's pass in its process)
The row "bound" is the least traffic of any colouring that goes by TensorFlow's lists; "loose bound" frees every op that neither sums, exponentiates nor
computes a loss (`bound.py`). Neither says anything of replacing ops.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]  # for `tests.oracle`, which starts TensorFlow with a simulated GPU

from benchmarks import bound, explain, flips
from benchmarks.costs import Costs, by_maker, by_node, costs, plain
from benchmarks.flat import Flat, Program, flatten, joined, lowered
from benchmarks.steps import MODELS, Model, Step
from tests.oracle import client
from tests.oracle.tf_pass import PASSES, unavailable_reason
from tfmp import engine, tf_api
from tfmp.settings import make_settings

VARIANTS = ("float32", "tensorflow", "policy", "tfmp")
BOUND, LOOSE = "bound", "loose bound"
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Variant:
    """One variant of a step: its graph, how long the rewrite took, and, for tfmp, the conversion."""

    program: Program
    seconds: float = 0.0
    conversion: Any = None


def text(name: bytes | str) -> str:
    """Returns a function's name as a string."""
    return name.decode() if isinstance(name, bytes) else name


def parts(step: Step, names: Sequence[str] = (), compiled: bool = False) -> list[Flat]:
    """Returns the functions of `step`, or those called `names` in their place, as flat graphs."""
    chosen = names or [text(function.name) for function in step.functions]
    return [flatten(name, captured, compiled) for name, captured in zip(chosen, step.captured, strict=True)]


def float32(step: Step) -> Variant:
    """Returns `step` as it was traced."""
    return Variant(Program(joined(parts(step), step.links)))


def tensorflow(step: Step, model: Model, dtype: str) -> Variant:
    """Returns `step` after TensorFlow's pass, which sees what TensorFlow's runtime hands it: a function for XLA as a call, everything else flat."""
    seconds, rewritten = 0.0, []
    for part in parts(step, compiled=model.jit):
        before = time.perf_counter()
        answer = client.optimize(part.graph.SerializeToString(), part.fetches, [PASSES[dtype]], dtype=dtype)
        seconds += time.perf_counter() - before
        flat = Flat(type(part.graph).FromString(answer.graph), part.fetches)
        rewritten.append(lowered(flat) if model.jit else flat)
    return Variant(Program(joined(rewritten, step.links)), seconds)


def converted(step: Step, dtype: str) -> Variant:
    """Returns `step` after tfmp, with its defaults for a GPU."""
    settings = make_settings(dtype=dtype, device="GPU")
    names = [text(function.name) for function in step.functions]
    graphs = tf_api.python_graphs([getattr(one, "inference_fn", one) for one in step.functions]).get
    start = time.process_time()
    if len(names) == 1:
        conversion = engine.convert_named(names[0], tf_api.function_definition, settings, graphs=graphs)
    else:
        conversion = engine.convert_pair(*names, step.links, tf_api.function_definition, settings, graphs=graphs)
    seconds = time.process_time() - start
    linked = conversion.functions(lambda name, version: f"{name}_{dtype}_{version}")
    for one in linked:
        if not tf_api.has_function(one.name):
            tf_api.add_function(one.proto)
    roots = [one.name for one in linked[: conversion.roots]]
    return Variant(Program(joined(parts(step, roots), step.links)), seconds, conversion)


@dataclasses.dataclass(frozen=True)
class Row:
    """All of one model: variant to its graph and costs; the bound with and without the update, the loose one, and the cost model and colouring of the bound."""

    name: str
    variants: Mapping[str, Variant]
    costs: Mapping[str, Costs]
    bounds: Mapping[bool, int]
    loose: Mapping[bool, int]
    problem: bound.Problem
    colouring: Mapping[bound.Vertex, bool]


def measure(name: str, wanted: Sequence[str], dtype: str) -> Row:
    """Returns the row of one model; a variant that cannot be had is missing. float32 is always there."""
    model = MODELS[name]
    step = model.trace("float32")
    variants = {"float32": float32(step)}
    if "tensorflow" in wanted and not unavailable_reason(dtype):
        variants["tensorflow"] = tensorflow(step, model, dtype)
    if "policy" in wanted and model.policy:
        variants["policy"] = float32(model.trace(f"mixed_{dtype}"))
    if "tfmp" in wanted:
        variants["tfmp"] = converted(step, dtype)
    program = variants["float32"].program
    problems = {(kind, update): bound.problem(program, update, kind) for kind in (bound.strict, bound.loose) for update in (True, False)}
    colourings = {key: bound.least(problem) for key, problem in problems.items()}
    least = {key: problem.traffic(colourings[key]) for key, problem in problems.items()}
    bounds, loose = ({update: least[kind, update] for update in (True, False)} for kind in (bound.strict, bound.loose))
    found = {variant: costs(one.program) for variant, one in variants.items()}
    return Row(name, variants, found, bounds, loose, problems[bound.strict, False], colourings[bound.strict, False])


HEADER = (
    f"{'':<14}{'FLOPs':>7}{'casts':>7}{'MiB cast':>10}{'traffic':>9}{'no update':>11}{'saved':>8}{'redundant':>11}{'unsafe':>8}{'rounded':>9}{'seconds':>9}"
)


def lines(row: Row) -> list[str]:
    """Returns the printed lines of one row."""
    reference = row.costs["float32"]
    result = [row.name]
    for variant, one in row.costs.items():
        ratios = f"{one.traffic / reference.traffic:9.3f}{one.without_update / reference.without_update:11.3f}{one.saved / (reference.saved or 1):8.3f}"
        counts = f"{len(one.redundant):11d}{len(one.unsafe):8d}{len(one.rounded):9d}"
        result.append(f"  {variant:<12}{one.coverage:7.1%}{one.casts:7d}{one.cast_bytes / MIB:10.1f}{ratios}{counts}{row.variants[variant].seconds:9.2f}")
    for words, least in ((BOUND, row.bounds), (LOOSE, row.loose)):
        result.append(f"  {words:<12}{'':24}{least[True] / reference.traffic:9.3f}{least[False] / reference.without_update:11.3f}")
    return [*result, *(f"  {words}" for words in verdicts(row))]


def verdicts(row: Row) -> list[str]:
    """Returns the targets that tfmp misses, one line each, or that it meets all."""
    if "tfmp" not in row.costs:
        return []
    ours, rivals = row.costs["tfmp"], [row.costs[name] for name in ("tensorflow", "policy") if name in row.costs]
    missed, stand_in_the_way = [], ""
    for words, own, least, theirs in (
        ("traffic", ours.traffic, row.bounds[True], [one.traffic for one in rivals]),
        ("traffic without update", ours.without_update, row.bounds[False], [one.without_update for one in rivals]),
    ):
        if own > 1.05 * least:
            missed.append(f"{words} is {own / least:.3f} of the bound")
        if theirs and own > 1.05 * min(theirs):
            missed.append(f"{words} is {own / min(theirs):.3f} of the better rival's")
            stand_in_the_way = _unsafe_of(row, min(theirs))
    if rivals and ours.coverage < max(one.coverage for one in rivals):
        missed.append("coverage is below a rival's")
    missed += [f"{len(found)} {words}: {', '.join(found[:3])}" for words, found in _faults(ours).items() if found]
    if ours.saved > 0.6 * row.costs["float32"].saved:
        missed.append(f"saved activations are {ours.saved / row.costs['float32'].saved:.3f} of float32's")
    return [*(f"missed: {words}" for words in missed), *([stand_in_the_way] if stand_in_the_way else [])] or ["all targets met"]


def _unsafe_of(row: Row, traffic: int) -> str:
    """Returns which unsafe ops a rival that moves `traffic` bytes has in 16 bit, and how many bytes more each costs tfmp with its casts; "" if none."""
    rival = next(name for name, one in row.costs.items() if traffic in (one.traffic, one.without_update))
    ours, theirs = (by_node(program) + by_maker(program) for program in (row.variants["tfmp"].program, row.variants[rival].program))
    more = {name: ours[plain(name)] - theirs[plain(name)] for name in row.costs[rival].unsafe}
    listed = (f"{name} {size / 1024:+,.0f} KiB" for name, size in sorted(more.items(), key=lambda one: -one[1]))
    return f"in the way stands what is unsafe in 16 bit, where {rival} has it: {', '.join(listed)}" if more else ""


def _faults(ours: Costs) -> dict[str, tuple[str, ...]]:
    return {"redundant casts": ours.redundant, "unsafe ops": ours.unsafe, "rounded tensors": ours.rounded}


def as_record(row: Row) -> dict[str, Any]:
    """Returns the row as JSON would have it: variant to figures, bytes as they are."""
    record: dict[str, Any] = {variant: dataclasses.asdict(one) | {"seconds": row.variants[variant].seconds} for variant, one in row.costs.items()}
    return record | {words: {"traffic": least[True], "without_update": least[False]} for words, least in ((BOUND, row.bounds), (LOOSE, row.loose))}


def explained(name: str, dtype: str, top: int) -> list[str]:
    """Returns the printed lines of one model's row, with tfmp alone, and of where it moves more than the bound."""
    row = measure(name, ["tfmp"], dtype)
    ours = row.variants["tfmp"]
    return [*lines(row), *explain.lines(row.problem, row.colouring, row.variants["float32"].program, ours.program, ours.conversion, top)]


def main() -> None:
    """Prints the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    split = lambda words: [word for word in words.split(",") if word]  # noqa: E731
    parser.add_argument("--models", type=split, default=list(MODELS), help=f"separated by commas, of {', '.join(MODELS)}")
    parser.add_argument("--variants", type=split, default=list(VARIANTS), help=f"separated by commas, of {', '.join(VARIANTS)}")
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    parser.add_argument("--explain", metavar="MODEL", help="print where tfmp moves more than the bound, and why")
    parser.add_argument("--top", type=int, default=40, help="how many nodes --explain prints")
    parser.add_argument("--flips", action="store_true", help="also check that no flip of what tfmp was free to choose pays; what its guards cost")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file, too")
    options = parser.parse_args()
    if unknown := {*options.models, *([options.explain] if options.explain else [])} - MODELS.keys():
        parser.error(f"no model {sorted(unknown)[0]!r}; there are {', '.join(MODELS)}")
    if options.explain:
        print("\n".join([HEADER, *explained(options.explain, options.dtype, options.top)]))
        return
    print(HEADER)
    records = {}
    for name in options.models:
        row = measure(name, options.variants, options.dtype)
        print("\n".join(lines(row)), flush=True)
        records[name] = as_record(row)
        if options.flips and "tfmp" in row.variants:
            found = flips.flips(row.variants["tfmp"].program, row.variants["tfmp"].conversion)
            print("\n".join(f"  {line}" for line in flips.lines(found, row.costs["tfmp"].traffic)), flush=True)
            records[name]["flips"] = dataclasses.asdict(found)
        if options.json:
            options.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
