"""Two debaters accuse steps of each other's solutions, and a judge says who wins.

``debate`` (the recipe) says who they are. An accusation is the number of a step, counted from 1, between answer tags.
Rewards are constant-sum: what one debater wins, the other one loses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from cotrain.core.address import rng_of
from cotrain.core.notes import ANSWER, CORRECT, FAILURE, STEP_OK, Note
from cotrain.core.signals import Signal, gives
from cotrain.core.types import ParseFailure, Task
from cotrain.play.executor import Roles
from cotrain.play.judges import shown
from cotrain.play.protocols import attempts
from cotrain.play.role import Turn
from cotrain.text.parsers import final_answer

SIDES = ("alice", "bob")
WON = Signal("won", meaning="share of the judge's verdicts that a debater wins")
JUDGED_RIGHT = Note[float]("judged_right", float, "share of the verdicts that are for the right solution")
HIT = Note[bool]("hit", bool, "is the accused step wrong")
RIGHT_SIDE = Note[bool]("right_side", bool, "does the debater defend the right solution")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """A step that is said to be wrong."""

    step: int  # 0-based
    format_score: float = 1.0

    @property
    def ok(self) -> bool:
        return True


def parse_accusation(text: str, fields: Mapping[str, Any]) -> Accusation | ParseFailure:
    said = (final_answer(text) or "").strip()
    if not (said.isascii() and said.isdigit()) or len(said) > 3:
        return ParseFailure(reason="no step")
    if not 1 <= int(said) <= fields["count"]:
        return ParseFailure(reason="no such step", format_score=0.5)
    return Accusation(step=int(said) - 1)


def accuse_anything(fields: Mapping[str, Any], rng: Random) -> str:
    """A program that points anywhere."""
    return f"<answer>{rng.randint(1, fields['count'])}</answer>"


def shares(hits: Sequence[bool | None]) -> tuple[float, float]:
    """What each of two debaters wins from a judge who checks one accusation, each as likely; ``hits``: is the step that
    a debater accuses wrong, None where it accuses nobody because it is not heard. They add up to 1."""
    checks = [float(hit) if i == 0 else 1.0 - float(hit) for i, hit in enumerate(hits) if hit is not None]
    first = sum(checks) / len(checks)
    return first, 1.0 - first


@gives(WON.to("alice"), WON.to("bob"))
async def argue(
    task: Task,
    roles: Roles,
    *,
    drafts: int = 4,
    samples: int = 1,
    consultancy: bool = False,
    jury: int = 0,
    rehearsed: bool = False,
) -> None:
    """One debate, where the ``drafts`` solutions hold a right and a wrong one whose steps are known. One side, drawn,
    speaks ``samples`` times and is rewarded, the other one once. ``jury``: votes of the role ``judge``; 0 for the judge
    who checks one step. ``rehearsed``: the role ``teacher`` speaks for both, for the format."""
    written = [s for s in await attempts(task, roles, drafts) if s.parsed.ok and STEP_OK.of(s) is not None]
    right = next((s for s in written if CORRECT.known(s)), None)
    wrong = next((s for s in written if not CORRECT.known(s)), None)
    if right is None or wrong is None:
        return
    coins = rng_of("sides", task.id, right.id, wrong.id)
    mine = [right, wrong] if coins.random() < 0.5 else [wrong, right]  # the solution of each side
    speaker = int(coins.random() < 0.5)
    if rehearsed:
        for i in (0, 1):
            await _accuse(task, roles, "teacher", i, mine, 1)
        return
    other = [] if consultancy else await _accuse(task, roles, SIDES[1 - speaker], 1 - speaker, mine, 1)
    for turn in await _accuse(task, roles, SIDES[speaker], speaker, mine, samples):
        spoken: list[Turn | None] = [turn, other[0] if other else None]
        pair = spoken if speaker == 0 else spoken[::-1]
        won = (
            await _votes(task, roles, mine, pair, jury)
            if jury
            else shares([None if p is None else bool(HIT.of(p)) for p in pair])
        )
        turn.reward(WON, won[speaker])
        turn.note(JUDGED_RIGHT, won[mine.index(right)])


async def _accuse(task: Task, roles: Roles, role: str, side: int, mine: Sequence[Turn], samples: int) -> list[Turn]:
    """What a side says of the other's solution, ``samples`` times at once, with the truth noted."""
    accused = mine[1 - side]
    turns: list[Turn] = await getattr(roles, role).many(
        samples,
        problem=task.prompt,
        mine=mine[side].text,
        other=accused.text,
        count=len(accused.parsed.steps),
    )
    for turn in turns:
        turn.note(RIGHT_SIDE, CORRECT.known(mine[side]))
        if turn.parsed.ok:
            turn.show(ANSWER, str(turn.parsed.step + 1))
            turn.note(HIT, not STEP_OK.known(accused)[turn.parsed.step])
        else:
            turn.show(FAILURE, turn.parsed.reason)
            turn.note(HIT, False)
    return turns


async def _votes(
    task: Task, roles: Roles, mine: Sequence[Turn], spoken: Sequence[Turn | None], votes: int
) -> tuple[float, float]:
    """A model's votes; those that cannot be read are halves."""
    texts = [
        solution.text + (f"\nThe other is wrong in step {said.parsed.step + 1}." if said and said.parsed.ok else "")
        for solution, said in zip(mine, spoken, strict=True)
    ]
    fields: dict[str, Any] = {"first": texts[0], "second": texts[1]}
    asked: dict[str, Any] = shown(roles.nonce(mine[0]), **fields) if "nonce" in roles.judge.fields else fields
    first = 0.0
    for turn in await roles.judge.many(votes, problem=task.prompt, **asked):
        if turn.parsed.ok:
            first += float(bool(turn.parsed.final)) / votes
        else:
            turn.show(FAILURE, turn.parsed.reason)
            first += 0.5 / votes
    return first, 1.0 - first
