"""All settings in one frozen record, and the one parser of the environment.

Nothing else in tfmp reads `os.environ`. The variables are TensorFlow's and NVIDIA's own names (`auto_mixed_precision.cc`,
`auto_mixed_precision_lists.h` and NVIDIA's TensorFlow user guide) plus our own, which begin with `TFMP_`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tfmp import oplists, slow_kernels
from tfmp.dtypes import SIXTEEN_BIT
from tfmp.errors import SettingsError
from tfmp.measured.rules import RangeRules, range_rules
from tfmp.user_rules import FIELDS, UserRule, parse_rule, read_rules

PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
SWITCH = "TF_ENABLE_AUTO_MIXED_PRECISION"
REWRITE_SWITCH = f"{SWITCH}_GRAPH_REWRITE"
LOSS_SCALING_SWITCH = f"{SWITCH}_LOSS_SCALING"

DTYPES = ("auto", *SIXTEEN_BIT)
DEVICES = ("auto", "GPU", "CPU")
TRUE_WORDS, FALSE_WORDS = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclasses.dataclass(frozen=True)
class Level:
    """One way of colouring.

    Attributes:
      name: the value of `level=`.
      exact: colour exactly as TensorFlow's pass does, nothing added (`passes.EXACT`); else with tfmp's own guards (`passes.DEFAULT`).
      only_allow: the infer, deny and clear lists are empty (TensorFlow's TENSOR_CORES_ONLY).
      infer_is_deny: the inferlist is added to the denylist (TREAT_INFER_AS_DENY).
      force: everything that TensorFlow's `CanForceFP16` lets through becomes 16 bit (UNSAFE_FORCE_ALL).
      nothing: all lists are empty, so that nothing is converted.
      keep: rules that keep in float32, beside the user's own.
      meaning: one sentence for the documentation.
    """

    name: str
    meaning: str
    exact: bool = True
    only_allow: bool = False
    infer_is_deny: bool = False
    force: bool = False
    nothing: bool = False
    keep: tuple[str, ...] = ()


LEVELS = {
    level.name: level
    for level in (
        Level("default", "TensorFlow's rules, made independent of node order, with guards for kernels, constants and weight updates", exact=False),
        Level("tensorflow", "the same colour for every type attribute as TensorFlow's own pass"),
        Level("TENSOR_CORES_ONLY", "only allowlist ops are converted", only_allow=True),
        Level("TREAT_INFER_AS_DENY", "inferlist ops stay in float32 and spread that downstream", infer_is_deny=True),
        Level("UNSAFE_FORCE_ALL", "everything that has a 16-bit form is converted; numerically unsafe", force=True),
        Level("O0", "Apex's O0: nothing is converted", exact=False, nothing=True),
        Level("O1", "Apex's O1: the default level, whose lists say what is safe in 16 bit", exact=False),
        Level(
            "O2",
            "Apex's O2: everything that has a 16-bit form is converted, but not batch normalisation, weight updates and what the default level's guards keep",
            exact=False,
            force=True,
            keep=("op:FusedBatchNorm*", "op:_FusedBatchNormEx", "layer:BatchNormalization", "layer:batch_norm*"),
        ),
        Level("O3", "Apex's O3: UNSAFE_FORCE_ALL; variables stay in float32 here as well", force=True),
    )
}
"""All levels by name. The last four are those of NVIDIA's Apex (`apex/amp/frontend.py`, as last released); its loss scale goes with its level, ours is
switched apart: O1 and O2 had a dynamic one, O0 and O3 none."""

Moves = tuple[tuple[str, tuple[str, ...]], ...]
"""Pairs of (kind, op types)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides how a graph is converted.

    Attributes:
      dtype: "float16", "bfloat16", or "auto" (chosen by the hardware at the first conversion).
      level: a key of `LEVELS`.
      device: "GPU", "CPU", or "auto" (a GPU if TensorFlow sees one, else the CPU): whose kernels are asked for.
      ignore_performance: convert even where 16 bit is slow (no GPU of compute capability 7.0, a CPU without bf16 instructions, kernels in `slow_kernels.ROWS`).
      simulate_gpu: choose "auto" as if a GPU of compute capability 8.0 were there; kernels are still asked of the device that runs.
      emulate: on a CPU and in float16, keep the kernels in float32 and round what goes in and out to float16 (TensorFlow's EMULATE_FP16).
      add: ops to put on lists, as (kind, ops) pairs.
      remove: ops to take off lists, likewise.
      log_path: folder that receives graph dumps, or "".
      weaknesses: what the hardware lacks (`slow_kernels.WEAKNESSES`), so that ops with slow kernels stay in float32. Functions that are run find it out by
        themselves; for a graph that will run elsewhere, say it.
      strict: raise where tfmp would fall back to the unrewritten function.
      keep_float32: the user's rules (`user_rules.KINDS`) for what stays in float32.
      force_16bit: the user's rules for what becomes 16 bit wherever there is a kernel for it.
      save_rewritten: put the rewritten graphs into SavedModels, not the float32 ones.
      fuse: run normalisations, scales and offsets of channels, and sums of products by kernels that take 16 bit (`tfmp.fusion`). Levels that colour as
        TensorFlow does, or by force, and emulation leave them as they are.
      ranges: which nodes measured ranges (`tfmp.numerics.calibrate`) keep in float32 or free.
    """

    dtype: str = "auto"
    level: str = "default"
    device: str = "auto"
    ignore_performance: bool = False
    simulate_gpu: bool = False
    emulate: bool = False
    add: Moves = ()
    remove: Moves = ()
    log_path: str = ""
    weaknesses: tuple[str, ...] = ()
    strict: bool = False
    keep_float32: tuple[str, ...] = ()
    force_16bit: tuple[str, ...] = ()
    save_rewritten: bool = False
    fuse: bool = True
    ranges: RangeRules = RangeRules()

    def __post_init__(self) -> None:
        """Raises `SettingsError` if a value is not one of those documented above."""
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("level", self.level, LEVELS)
        _one_of("device", self.device, DEVICES)
        for kind, _ in (*self.add, *self.remove):
            _one_of("op list", kind, oplists.KINDS)
        for weakness in self.weaknesses:
            _one_of("weakness", weakness, slow_kernels.WEAKNESSES)
        kept, forced = self.user_rules
        for rule in set(kept) & set(forced):
            raise SettingsError(f"the rule {str(rule)!r} is in both keep_float32 and force_16bit; take it out of one.")

    @property
    def fuses(self) -> bool:
        """Whether kernels are put in the place of what they compute."""
        return self.fuse and not (self.rules.exact or self.rules.force or self.emulate)

    @property
    def user_rules(self) -> tuple[tuple[UserRule, ...], tuple[UserRule, ...]]:
        """The rules that keep in float32, and those that force into 16 bit."""
        kept, forced = (tuple(parse_rule(text, name) for text in _words(getattr(self, name))) for name in FIELDS)
        return kept, forced

    @property
    def slow_ops(self) -> dict[str, str]:
        """Op type to reason for the ops whose 16-bit kernels are slow where the program runs."""
        return {} if self.ignore_performance or self.simulate_gpu else slow_kernels.slow_ops(self.dtype, self.device, self.weaknesses)

    @property
    def slow_filter(self) -> str:
        """Why depthwise convolutions with filters that cuDNN does not take are slow where the program runs; "" if they are not."""
        return "" if self.ignore_performance or self.device != "GPU" else slow_kernels.SLOW_FILTER

    @property
    def rules_of_level(self) -> tuple[UserRule, ...]:
        """The rules with which the level keeps something in float32."""
        return tuple(parse_rule(text, f"level {self.level}") for text in self.rules.keep)

    def has_rules_of(self, kind: str) -> bool:
        """Returns whether there are rules of that kind, the user's or the level's."""
        return any(text.startswith(f"{kind}:") for texts in (self.keep_float32, self.force_16bit, self.rules.keep) for text in _words(texts))

    @property
    def rules(self) -> Level:
        """The row of `LEVELS` that `level` names."""
        return LEVELS[self.level]

    def lists(self, dtype: str) -> oplists.OpLists:
        """Returns the op lists in force for `dtype` ("float16" or "bfloat16"), the user's moves and the level's changes carried out."""
        kinds = {} if self.rules.nothing else oplists.default_lists(dtype, self.rules.exact)
        if self.rules.only_allow:
            kinds = {op: kind for op, kind in kinds.items() if kind == oplists.ALLOW}
        if self.rules.infer_is_deny:
            kinds = {op: oplists.DENY if kind == oplists.INFER else kind for op, kind in kinds.items()}
        return oplists.moved(kinds, dict(self.add), dict(self.remove))


@dataclasses.dataclass(frozen=True)
class Switches:
    """What the environment asks for: each half on or off, and the settings of the rewrite."""

    graph_rewrite: bool
    loss_scaling: bool
    settings: Settings


def make_settings(base: Settings | None = None, **changes: Any) -> Settings:
    """Returns `base` (default: `Settings()`) with `changes` made; the values of `Settings` fields and, for each list, `allowlist_add`,
    `allowlist_remove`, `inferlist_add`, ... (an op type, or several in any iterable, or comma-separated; so too `keep_float32`, `force_16bit` and
    `weaknesses`), and `rules`: a file of rules (`user_rules.read_rules`), which add to those.

    Raises:
      SettingsError: an unknown name (the message lists the known ones), or a value that `Settings` refuses.
    """
    fields = {field.name for field in dataclasses.fields(Settings)}
    moves: dict[str, dict[str, tuple[str, ...]]] = {"add": {}, "remove": {}}
    plain: dict[str, Any] = {}
    for name, value in changes.items():
        kind, _, direction = name.partition("list_")
        if kind in oplists.KINDS and direction in moves:
            moves[direction][kind] = _words(value)
        elif name in (*FIELDS, "weaknesses"):
            plain[name] = (*plain.get(name, ()), *_words(value))
        elif name == "rules":
            for field, found in read_rules(value).items():
                plain[field] = (*plain.get(field, ()), *found)
        elif name == "ranges":
            plain[name] = range_rules(value)
        elif name in fields:
            plain[name] = value
        else:
            raise SettingsError(f"unknown setting {name!r} = {value!r}{_did_you_mean(name, fields | _move_names() | {'rules'})}")
    for direction, kinds in moves.items():
        if kinds:
            merged = dict(getattr(base, direction, ())) | kinds
            plain[direction] = tuple(sorted(merged.items()))
    return dataclasses.replace(base or Settings(), **plain)


def from_environment(environ: Mapping[str, str]) -> Switches:
    """Returns what the variables in `environ` ask for. A variable that is unset or empty leaves the default.

    The two halves follow `TF_ENABLE_AUTO_MIXED_PRECISION`; `..._GRAPH_REWRITE` and `..._LOSS_SCALING`, where set, win for their half
    (NVIDIA's rule).

    Raises:
      SettingsError: a value that cannot be used; the message names the variable, shows the value and lists the valid ones.
    """
    both = _read(environ, SWITCH, flag, False)
    changes: dict[str, Any] = {}
    for row in VARIABLES:
        value = _read(environ, row.name, row.parse, None) if row.setting else None
        if isinstance(value, tuple):  # the new and the old name of one list add up
            value = changes.get(row.setting, ()) + value
        if value is not None:
            changes[row.setting] = value
    return Switches(
        graph_rewrite=_read(environ, REWRITE_SWITCH, flag, both),
        loss_scaling=_read(environ, LOSS_SCALING_SWITCH, flag, both),
        settings=make_settings(**changes),
    )


def flag(text: str) -> bool:
    """Returns True for 1/true/yes/on and False for 0/false/no/off, in any case; raises ValueError listing them for anything else."""
    word = text.strip().lower()
    if word in TRUE_WORDS or word in FALSE_WORDS:
        return word in TRUE_WORDS
    raise ValueError(f"valid values are {', '.join(TRUE_WORDS)} (on) and {', '.join(FALSE_WORDS)} (off)")


def _level(text: str) -> str:
    wanted = text.strip().lower()
    for name in LEVELS:
        if name.lower() == wanted:
            return name
    raise ValueError(f"valid values are {', '.join(LEVELS)}")


def _dtype(text: str) -> str:
    if text.strip().lower() in DTYPES:
        return text.strip().lower()
    raise ValueError(f"valid values are {', '.join(DTYPES)}")


def _rules(text: str) -> tuple[str, ...]:
    words = _words(text)
    for word in words:
        parse_rule(word, "it")
    return words


def _rules_file(text: str) -> str:
    read_rules(text.strip())
    return text.strip()


def _words(value: str | Iterable[str]) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else list(value)
    return tuple(name.strip() for name in names if name.strip())


@dataclasses.dataclass(frozen=True)
class Variable:
    """One environment variable: its name, the setting it sets ("" if it is a switch of `Switches`), its parser and its meaning."""

    name: str
    setting: str
    parse: Callable[[str], Any]
    meaning: str


def _list_variables() -> Iterable[Variable]:
    """New names first, then the old ones, which win where both are set, as in TensorFlow (`AutoMixedPrecisionLists::UpdateList`)."""
    for kind, old in ((oplists.ALLOW, "WHITE"), (oplists.INFER, "GRAY"), (oplists.DENY, "BLACK"), (oplists.CLEAR, "")):
        for stem in filter(None, (kind.upper(), old)):
            for direction in ("add", "remove"):
                meaning = f"comma-separated op types to {direction} {'to' if direction == 'add' else 'from'} the {kind}list"
                yield Variable(f"{PREFIX}{stem}LIST_{direction.upper()}", f"{kind}list_{direction}", _words, meaning)


VARIABLES: tuple[Variable, ...] = (
    Variable(SWITCH, "", flag, "graph rewrite and loss scaling"),
    Variable(REWRITE_SWITCH, "", flag, "the graph rewrite alone; wins over the first for its half"),
    Variable(LOSS_SCALING_SWITCH, "", flag, "loss scaling alone; wins over the first for its half"),
    Variable("TFMP_DTYPE", "dtype", _dtype, "float16, bfloat16, or auto: by the hardware"),
    Variable("TFMP_LEVEL", "level", _level, "how to colour: " + ", ".join(LEVELS)),
    Variable("TFMP_KEEP_FLOAT32", "keep_float32", _rules, "comma-separated rules for what stays in float32"),
    Variable("TFMP_FORCE_16BIT", "force_16bit", _rules, "comma-separated rules for what becomes 16 bit"),
    Variable("TFMP_RULES", "rules", _rules_file, "file with a line `keep_float32 RULE` or `force_16bit RULE` for each rule"),
    Variable("TFMP_STRICT", "strict", flag, "raise instead of falling back to float32 when a rewrite fails"),
    Variable("TFMP_SAVE_REWRITTEN", "save_rewritten", flag, "save SavedModels with the rewritten graphs; variables stay float32"),
    Variable("TFMP_FUSE", "fuse", flag, "0: leave normalisations and sums of products as they are spelled, without fused kernels"),
    Variable("TFMP_RANGES", "ranges", str, "file of measured ranges (`tfmp.numerics.calibrate`), which say what stays in float32"),
    Variable(f"{PREFIX}LEVEL", "level", _level, "TensorFlow's name for the level"),
    Variable(f"{PREFIX}IGNORE_PERFORMANCE", "ignore_performance", flag, "convert even on hardware where 16 bit is slow"),
    Variable(f"{PREFIX}SIMULATE_GPU", "simulate_gpu", flag, "choose dtype as if a GPU of compute capability 8.0 were there"),
    Variable(f"{PREFIX}EMULATE_FP16", "emulate", flag, "on a CPU, keep float32 kernels and round to float16 between them"),
    Variable(f"{PREFIX}LOG_PATH", "log_path", str, "folder for graph dumps before and after, and the lists in force"),
    *_list_variables(),
)


def _read(environ: Mapping[str, str], name: str, parse: Callable[[str], Any], default: Any) -> Any:
    text = environ.get(name, "")
    if not text.strip():
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise SettingsError(f"environment variable {name} is {text!r}; {error}.") from None


def _one_of(what: str, value: object, valid: Iterable[str]) -> None:
    if value not in tuple(valid):
        raise SettingsError(f"{what} is {value!r}; valid values are {', '.join(map(repr, valid))}.")


def _move_names() -> set[str]:
    return {f"{kind}list_{direction}" for kind in oplists.KINDS for direction in ("add", "remove")}


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known settings are {', '.join(sorted(known))}."
