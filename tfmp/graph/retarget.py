"""Functions under new names, and calls that go to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tfmp import tf_api
from tfmp.graph.wire import Original, Proto, as_bytes, copy_of


@dataclasses.dataclass(frozen=True)
class Retarget:
    """The function attribute `attr` (entry `position`, if it is a list) of the node called `node` names `function` from now on."""

    node: str
    attr: str
    position: int
    function: str


@dataclasses.dataclass(frozen=True)
class Renamed:
    """The function `original` under the name `name`, for those who only want its serialised form."""

    original: Original
    name: str

    def SerializeToString(self) -> bytes:  # noqa: N802  (protobuf's name)
        """Returns the function, serialised. A message that is followed by another is parsed as the first with what the second says merged into it
        (protobuf's encoding guide, "Last One Wins"), and so the new name wins.
        """
        renaming = tf_api.FunctionDef()
        renaming.signature.name = self.name
        return as_bytes(self.original) + bytes(renaming.SerializeToString())


def retargeted(original: Original, name: str, retargets: Iterable[Retarget]) -> Proto:
    """Returns a copy of `original`, a function under the name `name` or a GraphDef, whose calls go where `retargets` say."""
    copy = copy_of(original)
    is_function = isinstance(copy, tf_api.FunctionDef)
    if is_function:
        copy.signature.name = name
    nodes = {node.name: node for node in (copy.node_def if is_function else copy.node)}
    for retarget in retargets:
        value = nodes[retarget.node].attr[retarget.attr]
        (value.func if value.HasField("func") else value.list.func[retarget.position]).name = retarget.function
    return copy
