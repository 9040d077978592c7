"""Rules with which a user keeps parts of a program in float32 or forces them into 16 bit: how they are written, in code, in the environment and in files.

A rule is `KIND:GLOB`, with the globs of Python's `fnmatch` (`*`, `?`, `[abc]`), in which case matters.
"""

from __future__ import annotations

import dataclasses
import pathlib

from tfmp.errors import SettingsError

KINDS = {
    "op": "every node of an op type (op:Softmax)",
    "name": "every node whose name matches (name:*/attention/*); gradients mostly have the name of what they differentiate in theirs",
    "function": "everything in a function and in what it calls, its gradient included (function:loss_of_*)",
    "layer": "everything in a Keras layer, its gradient included, by name or class, nested layers joined by / (layer:encoder/LayerNorm*)",
    "variable": "what reads a variable directly, by the variable's name (variable:*/embeddings)",
}
"""Kind of a rule to what such a rule covers. A node that calls functions, or is a loop or a branch, covers everything in them."""

FIELDS = ("keep_float32", "force_16bit")
"""The settings that hold rules; also the first words of the lines of a rules file."""

FLOAT32_MARK = "_tfmp_float32"
"""Attribute of nodes that were made inside `with tfmp.float32():`, and of their gradients."""

LAYER_MARK = "_tfmp_layer"
"""Attribute of nodes, and of their gradients, that holds the Keras layers they were made in, outermost first: "encoder:Encoder/norm:LayerNormalization"."""


@dataclasses.dataclass(frozen=True)
class UserRule:
    """One rule; printed as it is written. A region (`with tfmp.float32():`) is a rule too, which no text can make."""

    kind: str
    pattern: str

    def __str__(self) -> str:
        """Returns the rule as the user wrote it."""
        return self.pattern if self == REGION else f"{self.kind}:{self.pattern}"


REGION = UserRule("region", "with tfmp.float32()")


def parse_rule(text: str, where: str) -> UserRule:
    """Returns the rule that `text` is; raises `SettingsError`, which says `where` it stands and what is valid, if it is none."""
    kind, colon, pattern = text.strip().partition(":")
    if not colon or kind not in KINDS or not pattern:
        forms = "; ".join(f"{kind}:GLOB for {meaning}" for kind, meaning in KINDS.items())
        raise SettingsError(f"{where} has the rule {text.strip()!r}; a rule is one of: {forms}.")
    return UserRule(kind, pattern)


def read_rules(path: str) -> dict[str, tuple[str, ...]]:
    """Returns the rules in the file at `path`, by setting.

    Each line is `keep_float32 RULE` or `force_16bit RULE`; empty lines, and what follows a `#` that starts a line or a word, are ignored.

    Raises:
      SettingsError: the file cannot be read, or a line is none of these; the message names file and line.
    """
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"rules file {str(path)!r} cannot be read: {error}.") from error
    found: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        comment = next((index for index, word in enumerate(words) if word.startswith("#")), len(words))
        words = words[:comment]
        if not words:
            continue
        where = f"rules file {str(path)!r}, line {number}"
        if len(words) != 2 or words[0] not in FIELDS:
            raise SettingsError(f"{where} is {line.strip()!r}; a line is {' or '.join(f'{field} RULE' for field in FIELDS)}, such as keep_float32 op:Softmax.")
        parse_rule(words[1], where)
        found[words[0]] = (*found.get(words[0], ()), words[1])
    return found
