"""Labels by majority vote, for methods that do not use the right answers.

Where a problem has a truth, it is noted on every turn for telemetry; it is never rewarded. Answers are compared as
text: two ways to write one number are two answers.
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
    return next((t for t in turns if t.parsed.ok and t.parsed.answer == answer), None)


def rarest_turn(turns: Sequence[Turn], label: str) -> Turn | None:
    """The first of the turns that give the least frequent answer beside ``label``; of equally rare ones the first."""
    others = [t for t in turns if t.parsed.ok and t.parsed.answer != label]
    counts = Counter(t.parsed.answer for t in others)
    return min(others, key=lambda t: counts[t.parsed.answer], default=None)


def agrees_with(turn: Turn, label: Turn | None) -> bool:
    """Does a turn give the answer that was elected? Never where nothing was elected or nothing could be read."""
    return label is not None and bool(turn.parsed.ok) and turn.parsed.answer == label.parsed.answer


def reward_vote(turns: Sequence[Turn], label: Turn | None) -> None:
    """Reward ``VOTE``: 1 for the elected answer, else 0. Notes, where the truth is known, ``label_right``, is the label
    the truth, and ``reward_right``, is the reward what the truth would have paid."""
    note_label(turns, label)
    for turn in turns:
        paid, right = agrees_with(turn, label), CORRECT.of(turn)
        turn.reward(VOTE, float(paid))
        if right is not None:
            turn.add_metadata(REWARD_RIGHT, paid == right)


def note_label(turns: Sequence[Turn], label: Turn | None) -> None:
    """Notes ``label_right`` on turns of which the truth is known."""
    for turn in turns:
        if CORRECT.of(turn) is not None:
            turn.add_metadata(LABEL_RIGHT, is_right(label))


def is_right(label: Turn | None) -> bool:
    """What the oracle knows of the elected answer: a note, and no reward."""
    return label is not None and CORRECT.require(label)
