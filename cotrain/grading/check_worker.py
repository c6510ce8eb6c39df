"""Solving problems by a function of the user's, ``check(problem) -> answer or None``: loaded by ``grade_worker.py``,
for ``rollout/readers.py``.

The problem was written by a model, and the function may take for ever over it or fill the memory; so it runs in a
process that can be killed. The verdict is

- True, with the answer as its reason;
- False: the function gave None, as the text states no problem that has an answer;
- None, with the reason why nothing is known.
"""

from __future__ import annotations

from types import FunctionType

from cotrain.core.errors import ConfigError
from cotrain.core.user_code import load_object
from cotrain.grading.exam import Verdict
from cotrain.grading.grade_worker import Judging

MAX_ANSWER = 500  # characters


def load_check(target: str) -> Judging:
    """``target``: ``path/to/file.py:function``. Raises ImportError where it cannot be loaded."""
    try:
        check = load_object(target, "gate", FunctionType)
    except ConfigError as error:
        raise ImportError(str(error)) from error

    def judge(_gold: str, problem: str) -> Verdict:
        try:
            return verdict_of(check(problem))
        except BaseException as error:  # noqa: BLE001  a user's code: whatever comes of it is counted
            return None, type(error).__name__

    return Judging(judge=judge)


def verdict_of(answer: object) -> Verdict:
    """The verdict for what a user's check function returned."""
    if answer is None:
        return False, None
    if not isinstance(answer, str) or not answer.strip():
        return None, "no text"
    if len(answer) > MAX_ANSWER:
        return None, "answer too long"
    return True, answer
