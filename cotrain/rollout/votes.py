"""Labels by majority vote, for methods that do not use the right answers.

Where the truth of a problem is known, every turn has it as metadata, for telemetry; it is never rewarded. Answers are
compared as text: two ways to write one number are two answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cotrain.core.notes import CORRECT, LABEL_RIGHT, REWARD_RIGHT
from cotrain.core.signals import Signal
from cotrain.rollout.protocols import plurality_answer
from cotrain.rollout.role import Turn

VOTE = Signal("vote", meaning="1 for the elected answer, else 0")


def elected_turn(turns: Sequence[Turn]) -> Turn | None:
    """The first of the turns that give the most frequent answer; None when no answer could be read."""
    answer = plurality_answer(turns)
    for turn in turns:
        if turn.parsed.ok and turn.parsed.answer == answer:
            return turn
    return None


def rarest_turn(turns: Sequence[Turn], label: str) -> Turn | None:
    """The first turn with the least frequent answer, the answer ``label`` apart; None where there is no other one."""
    disagreeing = [turn for turn in turns if turn.parsed.ok and turn.parsed.answer != label]
    votes = Counter(turn.parsed.answer for turn in disagreeing)
    return min(disagreeing, key=lambda turn: votes[turn.parsed.answer], default=None)


def agrees_with(turn: Turn, label: Turn | None) -> bool:
    """Does a turn give the elected answer? False where no answer was elected, or the turn's cannot be read."""
    if label is None or not turn.parsed.ok:
        return False
    return bool(turn.parsed.answer == label.parsed.answer)


def reward_vote(turns: Sequence[Turn], label: Turn | None) -> None:
    """Reward ``VOTE``: 1 for the elected answer, else 0. ``label``: the turn that gives it (``elected_turn``).

    Where the truth is known, metadata says whether the label is right (``label_right``), and whether the truth would
    have given the same reward (``reward_right``).
    """
    note_label(turns, label)
    for turn in turns:
        agrees = agrees_with(turn, label)
        turn.reward(VOTE, float(agrees))
        is_right = CORRECT.of(turn)
        if is_right is not None:
            turn.add_metadata(REWARD_RIGHT, agrees == is_right)


def note_label(turns: Sequence[Turn], label: Turn | None) -> None:
    """Record ``label_right`` on turns of which the truth is known."""
    for turn in turns:
        if CORRECT.of(turn) is not None:
            turn.add_metadata(LABEL_RIGHT, label_is_right(label))


def label_is_right(label: Turn | None) -> bool:
    """Whether the elected answer is right, by the oracle: for metadata, never for a reward."""
    return label is not None and CORRECT.require(label)
