"""The description of one metric, and how a key of a row finds its own.

A key is a path; marks in braces stand for names::

    {role}/parse_failures      {policy}/{objective}/kl      {role}/reward/{signal}/at_max      {role}/pass@{k}

The marks in front say whose it is; what follows is the metric's name. A figure of held-out problems stands in
``metrics.jsonl`` under ``eval/`` and, on a further set of problems, with that set's name behind the role:
``eval/verifier/fixed/balanced_accuracy``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)
OWNERS = ("{role}", "{policy}", "{objective}")
SHARE, TOKENS, NATS, NUMBER, COUNT, SECONDS, WORDS, UNKNOWN = (
    "share", "tokens", "nats", "number", "count", "seconds", "words", "",
)  # fmt: skip
STEP = "step"
HELD_OUT = "held-out"
BOTH = "both"
FIRST = "first"
MAIN = "main"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One line of the table."""

    key: str
    meaning: str  # one line, for docs/metrics.md
    label: str = ""  # a few words for charts and tables, marks filled in; by default the name
    unit: str = SHARE  # ``UNKNOWN``: a share where all values lie in [0, 1]
    better: int = 0  # +1 higher, −1 lower, 0 neither
    best_value: float | None = None  # of a metric that can miss its best value on both sides, where ``better`` is 0
    bounds: Range | None = None  # what it can be at all; by default [0, 1] for shares
    healthy: Range = ANY
    tolerable: Range = ANY  # beyond: the report says so, and an alarm where a band watches it
    trend: str = ""  # what to look for where there is no range
    advice: str = ""  # one sentence, said when it is not healthy
    at: str = STEP  # at which rows: of training steps, of held-out problems, or both
    headline: str = ""  # ``FIRST``: in every line about held-out problems; ``MAIN``: in summaries and reports too

    @cached_property
    def name(self) -> str:
        """The key without whose it is: ``parse_failures``."""
        parts = self.key.split("/")
        while len(parts) > 1 and parts[0] in OWNERS:
            parts.pop(0)
        return "/".join(parts)

    @cached_property
    def name_pattern(self) -> re.Pattern[str]:
        """Matches names."""
        return _mark_pattern(self.name)

    @property
    def is_share(self) -> bool:
        return self.unit == SHARE

    @property
    def limits(self) -> Range:
        """The least and the largest value: intervals end there."""
        return self.bounds or ((0.0, 1.0) if self.is_share else ANY)

    def label_of(self, name: str) -> str:
        """Its label for a name that it matches: ``pass@8``."""
        match = self.name_pattern.fullmatch(name)
        parts = re.findall(r"\{(\w+)\}", self.name)
        filled = dict(zip(parts, match.groups(), strict=True)) if match else {}
        return self.label.format(**filled) if self.label else name.replace("_", " ")


def _mark_pattern(key: str) -> re.Pattern[str]:
    """A pattern for keys with marks. ``{reason}`` and ``{outcome}`` may hold a slash, other marks not."""
    marks = {"{reason}": "(.+)", "{outcome}": "(.+)", "{k}": r"(\d+)"}
    pattern = ""
    for part in re.split(r"(\{\w+\})", key):
        if part.startswith("{"):
            pattern += marks.get(part, "([^/]+)")
        else:
            pattern += re.escape(part)
    return re.compile(pattern)
