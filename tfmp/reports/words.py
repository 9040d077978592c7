"""Reasons as a user would put them."""

from __future__ import annotations

import re

from tfmp.colouring.reasons import Decision

SUM, LOSS = "sums must stay in float32", "losses must stay in float32"

WHY_DENIED = {
    "Exp": "an exponential overflows float16 above 11 and loses its digits in bfloat16",
    "Expm1": "an exponential overflows float16 above 11 and loses its digits in bfloat16",
    "L2Loss": f"{SUM}, of squares all the more",
    "Mean": SUM,
    "Pow": "powers leave the range of 16 bit quickly",
    "Prod": "a product of many factors leaves the range of 16 bit",
    "SaveV2": "what is saved must keep its type",
    "SoftmaxCrossEntropyWithLogits": LOSS,
    "SparseSoftmaxCrossEntropyWithLogits": LOSS,
    "Sum": SUM,
}
"""Op of the denylist to why it is there ("Mixed Precision Training", Micikevicius et al., 2018, section 3.3, for sums; the ranges are those of the formats)."""

WHY_UNLISTED = {
    "Const": "a constant stays as it is; what reads it in 16 bit gets a copy that is stored so",
    "ReadVariableOp": "variables stay in float32; what reads one in 16 bit gets a cast copy",
}
"""Op that is on no list, since its values are not computed, to what becomes of them."""

WRITES, WRITTEN = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply"), "variables stay in float32, and so does what is written to them"
"""Beginnings of the names of ops on no list that write variables, and why."""

BY_USER = "you put it on the denylist"

DOWNSTREAM = "downstream of deny"
"""The rule of a node that has its colour only from what it computes with."""

PLAIN = ("nothing asked", "unlisted", "fetched", "fixed type", "call", "cheapest in float32")
"""Rules that say that nobody wanted the node in 16 bit: they come last where reasons are listed."""


def why(decision: Decision, root: Decision | None, by_user: bool) -> str:
    """Returns why a node has its colour, without the node's own op.

    Args:
      decision: that of the node.
      root: that of the node at the beginning of the reason, if it is another one.
      by_user: whether the user moved the op of the node between lists.
    """
    if decision.rule == DOWNSTREAM and root is not None:
        return f"follows {root.op} {root.node!r}, which stays in float32"
    if decision.rule == "denylist" and by_user:
        return BY_USER
    if decision.rule == "denylist" and decision.op in WHY_DENIED:
        return WHY_DENIED[decision.op]
    if decision.rule == "unlisted" and decision.op.startswith(WRITES):
        return WRITTEN
    if decision.rule == "unlisted" and decision.op in WHY_UNLISTED:
        return WHY_UNLISTED[decision.op]
    return decision.reason.removeprefix(f"{decision.op}: ")


def pulling(reason: str, pulled: int, nodes: int = 1) -> str:
    """Returns `reason` and how many neighbours the `nodes` nodes with it have pulled with them."""
    if not pulled:
        return reason
    return f"{reason}; pulled {pulled} {'neighbour' if pulled == 1 else 'neighbours'} with {'it' if nodes == 1 else 'them'}"


def in_units(number: float, unit: str) -> str:
    """Returns a number of bytes ("B") or FLOPs with three digits and a prefix: 1234567 B is "1.23 MB"."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 999.5 or prefix == "P":
            break
        number /= 1000
    digits = 0 if not prefix else 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    return f"{number:.{digits}f} {prefix}{unit}"


def microseconds(seconds: float) -> str:
    """Returns a time with two digits after the point below ten microseconds, and none above."""
    number = seconds * 1e6
    return f"{number:,.2f} microseconds" if number < 9.995 else f"{number:,.0f} microseconds"


def short(text: str) -> str:
    """Returns `text` with quoted names that are long cut to their last two parts."""
    return re.sub(r"'[^' ]+/([^'/]+/[^'/]+)'", r"'.../\1'", text)
