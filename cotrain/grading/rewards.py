"""The graders by themselves, for other trainers: as a reward function of TRL, and in a task of verifiers.

::

    from cotrain.grading import AnswerReward, grade_response, score_response

    grade_response("1/2", "So it is \\boxed{0.5}.")              Grade(value=True)

    GRPOTrainer(reward_funcs=AnswerReward("answer"), …)           TRL: the data set has a column "answer"

    class Sum(vf.Task[SumData]):                                  verifiers
        @vf.reward
        async def is_right(self, trace):
            return await score_response(self.data.answer, trace.last_reply)

Loads neither torch nor Ray. The processes that do the algebra start with the first answer that needs them, and end with
this one. An answer that could not be graded is no wrong one: TRL is given None, which it leaves out, and verifiers an
error, which keeps the rollout from training.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

from cotrain.core.errors import ConfigError, UserError
from cotrain.core.types import Grade
from cotrain.formats.answers import answer_in, check_answer
from cotrain.grading.pool import WORKERS, GradingPool

NO_ANSWER = "no answer found"  # why an answer is wrong


class NotGraded(UserError):
    """An answer could not be graded; that is no word about the answer."""

    code = "E_NOT_GRADED"


@functools.cache
def _shared_pool() -> GradingPool:
    return GradingPool(workers=WORKERS)


def grade_response(gold: str, response: str, answer: str | None = None) -> Grade:
    """Is the answer in this text right?

    Args:
        gold: the reference answer alone.
        response: the whole text that a model wrote.
        answer: the format in which the text gives its answer, as ``--answer-format``: "tags", "boxed", "hash",
            "phrase", "last-number" or a pattern; None: in tags, in a box, behind #### or behind "the answer is".

    Returns:
        True or False; None with a reason where the grader failed. A text without an answer is False.
    """
    answer_text = answer_in(response, answer)
    if answer_text is None:
        return Grade(value=False, reason=NO_ANSWER)
    return _shared_pool().grade(str(gold), answer_text)


def grade_responses(golds: Sequence[str], responses: Sequence[str], answer: str | None = None) -> list[Grade]:
    """``grade_response`` for many responses, several at once. Raises ConfigError where there are not as many reference
    answers as responses."""
    if len(golds) != len(responses):
        raise ConfigError(
            f"grade_responses: {len(golds)} reference answers for {len(responses)} responses", code="E_REFERENCE_COUNT"
        )
    with ThreadPoolExecutor(WORKERS) as threads:
        return list(threads.map(grade_response, golds, responses, repeat(answer)))


async def score_response(gold: str, response: str, answer: str | None = None) -> float:
    """1 for a right answer and 0 for a wrong one, without blocking the event loop. Raises NotGraded where the grader
    failed."""
    answer_text = answer_in(response, answer)
    if answer_text is None:
        return 0.0
    grade = await _shared_pool().agrade(str(gold), answer_text)
    if grade.value is None:
        raise NotGraded(f"an answer could not be graded: {grade.reason}")
    return float(grade.value)


class AnswerReward:
    """A reward function of TRL: 1 where a completion gives the answer of its row, 0 where it does not, None where it
    could not be graded."""

    def __init__(self, column: str = "answer", *, answer: str | None = None, name: str = "answer_reward") -> None:
        """Raises ConfigError for an unknown answer format.

        Args:
            column: the column of the data set that has the reference answers.
            answer: the answer format, as in ``grade_response``.
            name: the reward's name in TRL's logs.
        """
        if answer is not None:
            check_answer(answer)
        self._column = column
        self._answer = answer
        self.__name__ = name

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Raises ConfigError where the data set has no such column."""
        if self._column not in columns:
            names = ", ".join(sorted(columns)) or "none"
            raise ConfigError(
                f"{self.__name__}: the data set has no column {self._column!r} (there are: {names})",
                code="E_GOLD_COLUMN_MISSING",
            )
        golds = [str(gold) for gold in columns[self._column]]
        texts = [_text_in(completion) for completion in completions]
        rewards: list[float | None] = []
        for grade in grade_responses(golds, texts, self._answer):
            rewards.append(None if grade.value is None else float(grade.value))
        return rewards


def _text_in(completion: Any) -> str:
    """The text of one of TRL's completions: a text, or messages, of which the last one counts."""
    if isinstance(completion, str):
        return completion
    last_message = completion[-1] if completion else {}
    content = last_message.get("content") if isinstance(last_message, Mapping) else last_message
    return content if isinstance(content, str) else ""
