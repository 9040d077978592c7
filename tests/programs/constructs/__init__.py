"""The table of constructs: how programs are put together out of functions, loops, branches and gradients."""

from __future__ import annotations

from tests.programs.constructs import branches, calls, loops
from tests.programs.constructs.construct import Construct, Program, program

CONSTRUCTS: tuple[Construct, ...] = (*calls.CONSTRUCTS, *loops.CONSTRUCTS, *branches.CONSTRUCTS)

__all__ = ["CONSTRUCTS", "Construct", "Program", "program"]
