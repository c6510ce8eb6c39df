"""A few rollouts for trackers: the problem, what was said, the verdicts next to the truth, and the rewards.

They are sampled, never all: of every tenth step a wrong one and a right one first, since the two are read next to each
other. The ledger of the run has them all, and `cotrain view` shows each token of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError
from cotrain.core.notes import CORRECT, FINAL, PROBLEM
from cotrain.reports.counts import bool_or_none
from cotrain.reports.rollouts import address_text, join_trajectories, mean_rewards, read_episodes
from cotrain.storage.ledger import WRONG_SHAPE_ERRORS, Ledger

EVERY = 10  # steps between those of which rollouts are sent
TURNS = 12  # most turns of a rollout
CHARACTERS = 4000  # most characters of a text


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTurn:
    """The turn of one role."""

    role: str
    text: str
    verdict: str  # "says right", "says wrong", or "" where it gives none
    rewards: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRollout:
    """One rollout, as a tracker is sent it."""

    address: str  # STEP:TASK:MEMBER, as `cotrain view` and `cotrain why` name it
    problem: str
    right: bool | None  # the truth, of the first one who spoke; None where nobody knows it
    turns: tuple[TrackedTurn, ...]

    @property
    def truth(self) -> str:
        return {True: "right", False: "wrong", None: "unknown"}[self.right]

    @property
    def verdicts(self) -> str:
        """``verifier says right, verifier says wrong``; "" without a verdict."""
        return ", ".join(f"{turn.role} {turn.verdict}" for turn in self.turns if turn.verdict)

    @property
    def rewards(self) -> str:
        """``solver: outcome 1, verifier: agreement 0``."""
        return "; ".join(f"{turn.role}: {_rewards_text(turn)}" for turn in self.turns if turn.rewards)

    def markdown(self) -> str:
        """The rollout as a page that a tracker renders. Texts are indented, so that nothing in them is markup."""
        head = f"**{self.address}**: in truth {self.truth}" + (f"; {self.verdicts}" if self.verdicts else "")
        parts = [head, _indent(self.problem)]
        for turn in self.turns:
            rewards = f" ({_rewards_text(turn)})" if turn.rewards else ""
            parts += [f"**{turn.role}** {turn.verdict}{rewards}", _indent(turn.text)]
        return "\n\n".join(parts)


def is_sampled(step: int) -> bool:
    """Whether rollouts of this step are sent."""
    return step >= 0 and step % EVERY == 0


def sampled_rollouts(directory: Path, step: int, count: int) -> list[TrackedRollout]:
    """At most ``count`` rollouts of a step, as the ledger of the run has them; [] where it has none."""
    if not (directory / "episodes").is_dir():
        return []
    ledger = Ledger(directory / "episodes")
    try:
        member = next((member for member in ledger.members() if member.step == step), None)
        episodes = read_episodes(ledger.path, member)[0] if member is not None else []
    except (CotrainError, OSError, ValueError, zlib.error):  # it is cut back meanwhile, as a run that goes back does
        return []
    return _wrong_beside_right(list(_readable(episodes)))[:count]


def _wrong_beside_right(rollouts: Sequence[TrackedRollout]) -> list[TrackedRollout]:
    """The rollouts, wrong ones and right ones in turn, and then those whose truth is unknown."""
    wrong = [rollout for rollout in rollouts if rollout.right is False]
    right = [rollout for rollout in rollouts if rollout.right is True]
    unknown = [rollout for rollout in rollouts if rollout.right is None]
    in_turn = chain.from_iterable(zip_longest(wrong, right))
    return [rollout for rollout in in_turn if rollout is not None] + unknown


def _readable(episodes: Sequence[Mapping[str, Any]]) -> Iterator[TrackedRollout]:
    for episode in episodes:
        try:
            rollout = _rollout_of(episode)
        except (ValueError, *WRONG_SHAPE_ERRORS):  # what a protocol noted has any shape
            continue
        if rollout.turns:
            yield rollout


def _rollout_of(episode: Mapping[str, Any]) -> TrackedRollout:
    traces = sorted(join_trajectories(episode["traces"]), key=lambda trace: trace.get("parent") is not None)
    problem = next((t["findings"][PROBLEM.name] for t in traces if t["findings"].get(PROBLEM.name)), None)
    return TrackedRollout(
        address=":".join(address_text(traces[0]).split(":")[:3]) if traces else "",
        problem=_shorten(str(problem or episode.get("task_id") or "")),
        right=bool_or_none(CORRECT.name, traces[0]["metadata"]) if traces else None,
        turns=tuple(map(_turn_of, traces[:TURNS])),
    )


def _turn_of(trace: Mapping[str, Any]) -> TrackedTurn:
    said = bool_or_none(FINAL.name, trace["findings"])
    return TrackedTurn(
        role=str(trace["address"][3]),
        text=_shorten(str(trace.get("text") or "")),
        verdict={True: "says right", False: "says wrong", None: ""}[said],
        rewards=mean_rewards(trace),
    )


def _rewards_text(turn: TrackedTurn) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in turn.rewards.items())


def _shorten(text: str) -> str:
    left_out = len(text) - CHARACTERS
    if left_out <= 0:
        return text
    return f"{text[:CHARACTERS]} … ({left_out} more characters)"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))
