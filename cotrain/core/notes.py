"""Notes of a protocol on a turn, next to its rewards: ground truth (``Metadata``) and what a parser found
(``Finding``).

::

    turn.add_metadata(CORRECT, True)              turn.add_finding(ANSWER, "12")
    CORRECT.of(trace)  →  True            ANSWER.of(trace)  →  "12"

Each key is declared once, with its type: a string in a key's place, or a value of another type, raises at once. This
file has the keys that several files share; a method declares its own next to its protocol. Metadata and findings
become plain JSON in the ledger.

Telemetry and evaluation read notes; algorithms never do. What an adaptive ramp draws follows one, whether answers are
right (``data/curriculum.py``). Metadata that is a number or a boolean becomes the metric
``{role}/metadata/{name}`` (``docs/metrics.md``), unless its key is ``measured``: such keys have metrics of their own.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class HasMetadata(Protocol):
    """A turn while its rollout runs, or its trace."""

    @property
    def metadata(self) -> Mapping[str, Any]: ...


class HasFindings(Protocol):
    """A trace."""

    @property
    def findings(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)  # not slotted: Python sets ``__orig_class__`` on an object of a generic class
class _Key(Generic[T]):
    name: str  # in the ledger
    kind: Any  # its type: bool, int, float, str, list[…], tuple[…], or a union with None
    meaning: str  # one line

    def checked_json(self, value: Any, where: str) -> Any:
        """The value as the ledger holds it, tuples as lists. Raises TypeError for another type than the declared one,
        ValueError for a number that is not finite or beyond ``LARGEST``. ``where``: the turn, for the message."""
        fitted = _fit_json(value, self.kind)
        if fitted is _WRONG_TYPE:
            expected = self.kind.__name__ if type(self.kind) is type else self.kind
            raise TypeError(f"{self.name!r} of {where} is {value!r}; expected {expected}: {self.meaning}")
        if fitted is _TOO_LARGE:
            expected = f"a number within ±{LARGEST:g}"
            raise ValueError(f"{self.name!r} of {where} is {value!r}; expected {expected}: {self.meaning}")
        return fitted


@dataclass(frozen=True)
class Metadata(_Key[T]):
    """A key of ``metadata``: what the oracle knows of a turn."""

    measured: bool = False  # there are metrics of its own for it

    def of(self, trace: HasMetadata) -> T | None:
        """The value of this key; None if there is none."""
        return trace.metadata.get(self.name)

    def require(self, trace: HasMetadata) -> T:
        """The value of this key. Raises LookupError if there is none."""
        value = self.of(trace)
        if value is None:
            raise LookupError(f"{self.name!r} is not noted: {self.meaning}")
        return value


@dataclass(frozen=True)
class Finding(_Key[T]):
    """A key of ``findings``: what a parser read in a turn, as its trace keeps it."""

    def of(self, trace: HasFindings) -> T | None:
        """The value of this key; None if there is none."""
        return trace.findings.get(self.name)

    def is_in(self, trace: HasFindings) -> bool:
        """Whether the trace has this key, also with the value None."""
        return self.name in trace.findings


LARGEST = 1e100  # largest number that is noted or shown: squares of it can be added up
# What ``_fit_json`` returns where there is no value; None is a value.
_WRONG_TYPE = object()
_TOO_LARGE = object()  # a number beyond ``LARGEST``, or none that is finite


def _fit_json(value: Any, kind: Any) -> Any:
    """The value as JSON if it is of this type, else ``_WRONG_TYPE`` or ``_TOO_LARGE``."""
    origin = typing.get_origin(kind)
    parts = typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        for part in parts:
            fitted = _fit_json(value, part)
            if fitted is not _WRONG_TYPE:
                return fitted
        return _WRONG_TYPE

    if kind in (None, type(None)):
        return None if value is None else _WRONG_TYPE
    if origin in (list, tuple):
        if not isinstance(value, list | tuple) or (origin is tuple and len(value) != len(parts)):
            return _WRONG_TYPE
        item_kinds = parts if origin is tuple else parts[:1] * len(value)
        items = [_fit_json(item, item_kind) for item, item_kind in zip(value, item_kinds, strict=True)]
        for problem in (_WRONG_TYPE, _TOO_LARGE):
            if any(item is problem for item in items):
                return problem
        return items

    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return value if abs(value) <= LARGEST else _TOO_LARGE
    if kind is int and type(value) is int:
        return value if abs(value) <= LARGEST else _TOO_LARGE
    return value if type(value) is kind else _WRONG_TYPE


# -- Metadata: the truth

CORRECT = Metadata[bool](
    "correct", bool | None, "is the answer right; of a judgement: is what it judges right", measured=True
)
GOLD = Metadata[str]("gold", str | None, "the gold answer", measured=True)
STEP_OK = Metadata[list[bool]]("step_ok", list[bool] | None, "is each step right, as the oracle says", measured=True)
STEP_REASONS = Metadata[list[str]](
    "step_reasons", list[str], "why each step is wrong, empty where right", measured=True
)
FIRST_WRONG = Metadata[int](
    "first_wrong", int | None, "0-based index of the first wrong step, None for none", measured=True
)
LABEL_RIGHT = Metadata[float]("label_right", bool | float, "is the pseudo-label the truth; of several, their share")
REWARD_RIGHT = Metadata[bool]("reward_right", bool, "is the reward what the truth would have paid")
TEAM = Metadata[bool]("team", bool, "is the solution right with which the team ends")
GATHERED = Metadata[float]("gathered", float, "share of the needed facts that the solver found")
JUDGED = Metadata[bool]("judged", bool, "was the solution shown to a judge")

SHARED = (CORRECT, GOLD, STEP_OK, STEP_REASONS, FIRST_WRONG, LABEL_RIGHT, REWARD_RIGHT, JUDGED)
MEASURED = frozenset(note.name for note in SHARED if note.measured)

# -- Findings: what a parser read

PROBLEM = Finding[str]("problem", str, "what was asked")
STEPS = Finding[list[tuple[int, int, str]]](
    "steps", list[tuple[int, int, str]], "of a solution: start, end and text of each step"
)
VERDICTS = Finding[list[bool]]("steps", list[bool], "of a judgement: what it says of each step")
ANSWER = Finding[str]("answer", str | None, "the final answer")
FAILURE = Finding[str]("failure", str, "why the text could not be read: a short fixed phrase")
FINAL = Finding[bool]("final", bool, "the verdict on the whole solution")
SCORE = Finding[float]("score", float | None, "the probability of CORRECT that the judgement stands for")
PAYER_SAID = Finding[float](
    "payer_said", float, "of a hidden audit: the share of the paying judge's reviews that call the same answer right"
)
CALLS = Finding[list[str]]("calls", list[str], "what became of each call of a tool")
