"""One sentence of a word problem as data."""

from __future__ import annotations

from dataclasses import dataclass

OPERATOR: dict[str, str] = {"plus": "+", "minus": "-", "times": "*", "sum": "+", "difference": "-"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One sentence of a problem, such as ``pears = apples + 4`` (kind "plus", left "apples", right 4)."""

    target: str  # the noun this fact defines
    kind: str  # "given", or a key of OPERATOR
    left: str = ""  # noun; "" for a given
    right: str | int  # constant or noun; the value of a given

    @property
    def operator(self) -> str:
        return OPERATOR[self.kind]

    @property
    def expression(self) -> str:
        """The relation as a solution writes it: `` apples+4`` or `` pears- apples``."""
        right = self.right if isinstance(self.right, int) else f" {self.right}"
        return f" {self.left}{OPERATOR[self.kind]}{right}"
