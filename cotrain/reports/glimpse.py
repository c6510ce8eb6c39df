"""One rollout with its verdicts in a few lines, for a terminal that follows a run.

::

    step 31: There are 2 hats. There are 3 more pies than hats. There are 4 times as many nuts as pies. How many nuts
    are there?
    ✓  pies = 3 + hats = 3 + 2 = 5      says right
    ✗  nuts = 4 * pies = 4 * 5 = 21     says right ≠
    ✗  answer 21, gold 20               says right ≠   the verifier was fooled

The marks on the left are the truth, the words on the right the verdict of the solution's first review; ``≠`` marks a
verdict that the truth contradicts. Everything a model wrote is shown without a control character.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cotrain.core.errors import CotrainError
from cotrain.core.notes import ANSWER, CORRECT, FINAL, GOLD, PROBLEM, STEP_OK, STEPS, VERDICTS
from cotrain.core.types import Episode, Trace
from cotrain.core.verbosity import escape_terminal
from cotrain.storage.ledger import Ledger

EPISODES = "episodes"  # the folder of a run that holds its ledger
MOST_STEPS = 6  # most steps of a solution; a longer one is cut
MOST_LINES = 3  # most lines of a problem
VERDICT_WIDTH = 22  # columns of the mark and of the verdict's words
MARKS = {True: "✓", False: "✗", None: "·"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A solution and one review of it."""

    problem: str
    solution: Trace
    review: Trace

    @property
    def is_misjudged(self) -> bool:
        return FINAL.of(self.review) != CORRECT.of(self.solution)

    @property
    def kind(self) -> str:
        """What the review's verdict was worth: one of ``KINDS``."""
        if CORRECT.of(self.solution):
            return "a right answer was doubted" if self.is_misjudged else "right, and accepted"
        return "the verifier was fooled" if self.is_misjudged else "the error was caught"


# The kinds of a verdict, the most telling one first.
KINDS = ("the verifier was fooled", "the error was caught", "a right answer was doubted", "right, and accepted")


def choose_glimpse(episodes: Sequence[Episode]) -> Judged | None:
    """The most telling rollout of a step: the first one of the first of ``KINDS`` that occurs. None if there is no
    verdict."""
    judged: list[Judged] = []
    for episode in episodes:
        judged += _judged_in(episode)
    return min(judged, key=lambda pair: KINDS.index(pair.kind), default=None)


def glimpse_lines(step: int, judged: Judged, width: int) -> list[str]:
    """The lines for a terminal of ``width`` columns. ``step`` counts from 1."""
    problem = escape_terminal(" ".join(judged.problem.split()), 400)
    problem_lines = textwrap.wrap(f"step {step}: {problem}", width)
    lines = problem_lines[:MOST_LINES]
    if len(problem_lines) > MOST_LINES:
        lines.append("…")

    rows = [*_step_rows(judged), _answer_row(judged)]
    space = max(20, width - VERDICT_WIDTH)
    text_width = min(space, max(len(text) for _, text, _ in rows))
    for truth, text, verdict in rows:
        cell = f"{_cut(text, text_width):{text_width}}"
        lines.append(f"{MARKS[truth]}  {cell}  {_verdict_words(truth, verdict)}".rstrip())
    lines.append(f"   {judged.kind}")
    return lines


GlimpseRow = tuple[bool | None, str, bool | None]  # the truth, a text, the verdict on it


def _step_rows(judged: Judged) -> list[GlimpseRow]:
    """The first steps of the solution."""
    truths = list(STEP_OK.of(judged.solution) or ())
    verdicts = list(VERDICTS.of(judged.review) or ())
    steps = list(STEPS.of(judged.solution) or ())
    rows: list[GlimpseRow] = []
    for place, (_, _, text) in enumerate(steps[:MOST_STEPS]):
        rows.append((_at(truths, place), escape_terminal(str(text).strip(), 200), _at(verdicts, place)))
    return rows


def _answer_row(judged: Judged) -> GlimpseRow:
    text = f"answer {escape_terminal(ANSWER.of(judged.solution), 40)}"
    gold = GOLD.of(judged.solution)
    if gold is not None:
        text += f", gold {escape_terminal(gold, 40)}"
    return CORRECT.of(judged.solution), text, FINAL.of(judged.review)


def read_glimpse(directory: Path, step: int, width: int) -> list[str]:
    """The lines of a step, counted from 0, of the run in ``directory``; none where nothing can be read or was
    judged."""
    try:
        with Ledger(directory / EPISODES) as ledger:
            judged = choose_glimpse(ledger.read(step))
    except (CotrainError, OSError, ValueError):
        return []
    return [] if judged is None else glimpse_lines(step + 1, judged, width)


def _judged_in(episode: Episode) -> list[Judged]:
    """The solutions of an episode that have a known truth, an answer and a review with a verdict."""
    by_address = {str(trace.address): trace for trace in episode.traces}
    pairs = []
    for trace in episode.traces:
        solution = by_address.get(trace.parent or "")
        if solution is None:  # a trace that judges no other one
            continue
        has_truth_and_verdict = CORRECT.of(solution) is not None and FINAL.of(trace) is not None
        if has_truth_and_verdict and ANSWER.of(solution) is not None:
            pairs.append(Judged(problem=str(PROBLEM.of(solution) or ""), solution=solution, review=trace))
    return pairs


def _verdict_words(truth: bool | None, verdict: bool | None) -> str:
    if verdict is None:
        return ""
    said = "says right" if verdict else "says wrong"
    return said if truth is None or truth == verdict else f"{said} ≠"


def _at(values: Sequence[bool], place: int) -> bool | None:
    return bool(values[place]) if place < len(values) and values[place] is not None else None


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
