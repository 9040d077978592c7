"""What the hooks tell the user, each thing once: fallbacks, nothing converted, slow hardware, functions that were traced too early."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tfmp import tf_api
from tfmp.errors import MixedPrecisionWarning
from tfmp.oplists import ALLOW, ROWS
from tfmp.reports.ledger import LEDGER

if TYPE_CHECKING:
    from tfmp.conversion import Conversion
    from tfmp.reports.account import Record

_CANNOT_START = (
    "No registered", "No OpKernel", "incompatible with expected", "expected type", "unsupported operations", "XLA compilation", "HLO verif",
    "nodes in a cycle",
)  # fmt: skip
"""Parts of the messages with which TensorFlow refuses a function before running any of it: a missing kernel, types that do not fit, a failed
compilation, nodes that wait for themselves.
"""

FAST_OPS = frozenset(row.op for row in ROWS if ALLOW in (row.float16, row.bfloat16))


@dataclasses.dataclass
class _State:
    """What has been seen and said in this process."""

    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    said: set[str] = dataclasses.field(default_factory=set)
    on: bool = False
    converted: bool = False
    used_rules: set[str] = dataclasses.field(default_factory=set)
    unused_rules: set[str] = dataclasses.field(default_factory=set)
    unscaled: str = ""
    early: weakref.WeakSet[tf_api.ConcreteFunction] = dataclasses.field(default_factory=weakref.WeakSet)


_state = _State()


def warn_once(key: str, message: str) -> None:
    """Issues `message` as a `MixedPrecisionWarning` unless something was said under `key` before in this process."""
    with _state.lock:
        if key in _state.said:
            return
        _state.said.add(key)
    LEDGER.warned(message)
    warnings.warn(f"tfmp: {message}", MixedPrecisionWarning, stacklevel=2)


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


@contextlib.contextmanager
def falling_back(name: bytes | str, strict: bool, let_through: type[Exception] | tuple[type[Exception], ...] = (), what: str = "") -> Iterator[None]:
    """Turns any failure inside into one warning that names the function and the cause; with `strict`, or for `let_through`, it is raised."""
    try:
        yield
    except let_through:
        raise
    except Exception as error:
        if strict:
            raise
        fell_back(name, error, what)


def fell_back(name: bytes | str, error: BaseException, what: str = "") -> None:
    """Says that the function `name`, or what is called `what` instead, runs unrewritten, and why."""
    cause = f"{type(error).__name__}: {error}"
    warn_once(f"fallback {_text(name)}", f"{what or f'function {_text(name)!r}'} runs unrewritten, in float32: {cause}. TFMP_STRICT=1 raises instead.")


def could_not_start(error: tf_api.OpError) -> bool:
    """Returns whether TensorFlow refused a function before running any of it, so that running another one instead is safe."""
    return any(part in str(error) for part in _CANNOT_START)


def hardware_caution(caution: str) -> None:
    """Says once that the hardware is slow in the type, or that nothing is converted because of it."""
    if caution.startswith("nothing is converted"):
        _state.converted = True  # said: no need to say so again at exit
    warn_once("hardware", f"{caution}.")


def something_converted() -> None:
    """Notes that the switch had an effect."""
    _state.converted = True
    _tell_unscaled()


def applied_unscaled(kind: str) -> None:
    """Notes that a function applies the gradients of an optimizer of this kind without loss scaling; says so once something runs in 16 bit."""
    _state.unscaled = _state.unscaled or kind
    _tell_unscaled()


def _tell_unscaled() -> None:
    if _state.converted and _state.unscaled:
        warn_once(
            "unscaled",
            f"an optimizer ({_state.unscaled}) applies gradients of a loss that is not scaled, and small float16 gradients become zero. Model.compile wraps "
            "its optimizer by itself; in other loops wrap it with tfmp.enable_mixed_precision_graph_rewrite and scale the loss with its scale_loss (Keras 3) "
            "or get_scaled_loss and get_unscaled_gradients, or use tfmp.LossScaler. TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0 accepts it.",
        )


def nothing_converted(record: Record) -> None:
    """Says once that mixed precision is on but a function with fast ops kept all of them in float32, with the first reason."""
    if not _state.converted:
        first = record.kept[0]
        warn_once("nothing", f"mixed precision is on, but nothing was converted in {record.function!r}. {first.reason} (node {first.node!r}).")


def check_overrides(conversion: Conversion) -> None:
    """Says once, for each op type that was moved between lists and is not registered, that there is no such op."""
    for op in sorted(conversion.lists.overridden):
        if tf_api.op_def(op) is None:
            warn_once(f"override {op}", f"op {op!r} was moved between lists, but TensorFlow has no op of that name.")


def check_rules(conversion: Conversion) -> None:
    """Notes which rules of the user have covered something; says once that there is no such op as a rule names."""
    rules = [rule for rules in conversion.settings.user_rules for rule in rules]
    for rule in rules:
        if rule.kind == "op" and rule.pattern.isidentifier() and tf_api.op_def(rule.pattern) is None:
            warn_once(f"rule {rule}", f"the rule {str(rule)!r} names an op that TensorFlow does not have.")
    with _state.lock:
        _state.unused_rules.update(conversion.unused_rules)
        _state.used_rules.update({*map(str, rules), conversion.settings.ranges.rule}.difference(conversion.unused_rules))


def session_ran_too_early(graph: Any) -> None:
    """Says once that a Session which ran before mixed precision was switched on stays in float32, if there is something to convert in its graph."""
    if any(operation.type in FAST_OPS for operation in graph.get_operations()):
        warn_once(
            "session",
            "mixed precision was switched on, but that has no effect on a tf.compat.v1.Session that has run before: it stays in float32. Switch it on "
            "before the Session first runs, or make a new Session.",
        )


def session_unscaled(optimizer: str) -> None:
    """Says once that the graph of a Session applies gradients (with nodes of the op type `optimizer`) of a loss that is not scaled."""
    warn_once(
        "unscaled",
        f"a graph with {optimizer} trains in float16, but its loss is not scaled, and small float16 gradients become zero. Wrap the optimizer: "
        "opt = tfmp.enable_mixed_precision_graph_rewrite(opt). TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0 accepts it.",
    )


def traced_in_float32(function: tf_api.ConcreteFunction) -> None:
    """Remembers, weakly, a function that was traced while mixed precision was off, in case it is switched on later."""
    if not _state.on:
        _state.early.add(function)


def switched_on() -> None:
    """Notes that mixed precision is on; the first time, says which functions with fast ops came too early to be converted."""
    if _state.on:
        return
    _state.on = True
    atexit.register(nothing_at_all)
    early = [f for f in list(_state.early) if any(op.type in FAST_OPS for op in f.graph.get_operations())]
    _state.early.clear()
    if early:
        names = ", ".join(repr(_text(f.name)) for f in early[:3])
        warn_once(
            "early",
            f"{len(early)} function(s) with matrix multiplications or convolutions were traced before mixed precision was switched on and stay in "
            f"float32: {names}. Switch it on before they are first called.",
        )


def nothing_at_all() -> None:
    """At the end of the process: says that mixed precision was on and had no effect, unless it had one or the reason has been said; and which rules of the
    user have covered nothing in any program.
    """
    unused = sorted(_state.unused_rules - _state.used_rules)
    if unused:
        warn_once("unused rules", f"rules that covered nothing in any converted program: {', '.join(unused)}. tfmp.report() shows the programs.")
    if not _state.converted and not _state.said & {"nothing", "hardware"}:
        warn_once(
            "nothing",
            "mixed precision was on, but nothing was converted: no traced tf.function with a matrix multiplication or convolution was called. "
            "Eager code, and models compiled with run_eagerly=True, are not rewritten.",
        )
