"""Where the truth of an answer comes from: a column of the file, its reference answer and the package's graders, a
program of the user's, or labels that somebody wrote.

A grader's or a program's None is no truth, and counted with its reason: it never turns into "wrong".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cotrain.core.errors import DataError
from cotrain.core.types import Grade
from cotrain.core.user_code import failure_reason
from cotrain.data.columns import ANY, row_of
from cotrain.data.question_text import normal_question
from cotrain.data.read_rows import numbered_lines
from cotrain.data.row_files import object_of
from cotrain.formats.answers import answer_in
from cotrain.grading.pool import GradingPool
from cotrain.runs.foreign_files import ForeignRollout
from cotrain.runs.kept_answers import KeptAnswers

NO_ANSWER = "no answer found"
START = 16  # letters of a question by which it is found in a prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """Rollouts with their truth, and how it was found."""

    rollouts: tuple[ForeignRollout, ...]
    source: str  # in words
    reasons: Mapping[str, int] = field(default_factory=dict)  # why an answer has no truth, or is wrong unread


def grade_by_reference(
    rollouts: Sequence[ForeignRollout], *, answer_format: str | None = None, workers: int = 2
) -> Graded:
    """Compare each response with its reference answer by the package's grader. Answers that are the same text of one
    problem are graded once."""
    reasons: Counter[str] = Counter()
    known: dict[tuple[str, str], Grade] = {}
    graded = []
    with GradingPool(workers=workers) as pool:
        for rollout in rollouts:
            if rollout.truth is not None or rollout.gold is None:
                graded.append(rollout)
                continue
            answer = answer_in(rollout.response, answer_format)
            if answer is None:
                reasons[NO_ANSWER] += 1
                graded.append(replace(rollout, truth=False))
                continue
            pair = (rollout.gold, answer)
            if pair not in known:
                known[pair] = pool.grade(*pair)
            grade = known[pair]
            if grade.value is None:
                reasons[str(grade.reason)] += 1
            graded.append(replace(rollout, truth=grade.value))
    return Graded(rollouts=tuple(graded), source="the package's grader against the reference", reasons=dict(reasons))


def grade_by_program(
    rollouts: Sequence[ForeignRollout], program: Callable[..., Any], name: str, kept: KeptAnswers | None = None
) -> Graded:
    """Ask a function of the user's, of prompt, response and reference answer, what is right: True, False or None.
    ``kept``: has what it said in an earlier try, of which it is not asked again, and keeps the rest."""
    reasons: Counter[str] = Counter()
    graded = []
    try:
        for rollout in rollouts:
            right = None if kept is None else kept.right(rollout)
            if right is None:
                right, reason = _ask_program(rollout, program, name)
                if reason:
                    reasons[reason] += 1
                if right is not None and kept is not None:
                    kept.add(rollout, right)
            graded.append(replace(rollout, truth=right))
    finally:
        if kept is not None:
            kept.write()
    return Graded(rollouts=tuple(graded), source=name, reasons=dict(reasons))


def _ask_program(rollout: ForeignRollout, program: Callable[..., Any], name: str) -> tuple[bool | None, str]:
    """What a program says of one answer; and where it says nothing, why."""
    try:
        said = program(rollout.prompt, rollout.response, rollout.gold)
    except Exception as error:  # noqa: BLE001  code of the user's raises anything
        return None, failure_reason(name, error)
    if said is None:
        return None, "the program says nothing"
    if said not in (True, False):
        raise DataError(
            f"{name}: returned {said!r:.40} for {rollout.where}; expected True, False or None",
            code="E_TRUTH_NOT_BOOLEAN",
        )
    return bool(said), ""


def with_references(
    rollouts: Sequence[ForeignRollout], file: Path, question: str | None, answer: str | None
) -> tuple[list[ForeignRollout], int]:
    """The rollouts with reference answers from a file of questions, and how many have none. A prompt has the answer of
    the question that it is, or that stands in it; of several the longest."""
    references = _References(_read_references(file, question, answer))
    by_prompt: dict[str, str | None] = {}
    found = []
    without = 0
    for rollout in rollouts:
        if rollout.prompt not in by_prompt:
            by_prompt[rollout.prompt] = references.answer_to(normal_question(rollout.prompt))
        gold = by_prompt[rollout.prompt]
        without += gold is None
        found.append(rollout if gold is None else replace(rollout, gold=gold))
    return found, without


def _read_references(file: Path, question: str | None, answer: str | None) -> dict[str, str]:
    answers = {}
    for where, line in numbered_lines(file):
        row = row_of(object_of(line, where), question or ANY.question, answer or ANY.answer, where, True)
        if row.answer is not None:
            answers[normal_question(row.question)] = row.answer
    return answers


class _References:
    """Answers by question, found in prompts in time that grows with the prompt alone: by the first letters of each."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers
        self._by_start: dict[str, list[str]] = {}
        self._short = [question for question in answers if len(question) < START]
        for question in answers:
            if len(question) >= START:
                self._by_start.setdefault(question[:START], []).append(question)

    def answer_to(self, prompt: str) -> str | None:
        """The answer to the question that a prompt is, or to the longest that stands in it; None where there is
        none."""
        if prompt in self._answers:
            return self._answers[prompt]
        inside = [question for question in self._short if question in prompt]
        for place in range(len(prompt) - START + 1):
            for question in self._by_start.get(prompt[place : place + START], ()):
                if prompt.startswith(question, place):
                    inside.append(question)
        return self._answers[max(inside, key=len)] if inside else None
