"""Two debaters accuse steps of each other's solutions, and a judge says who wins.

``debate`` (the recipe) says who they are. An accusation is the number of a step, counted from 1, between answer tags,
and whatever is said in front of it is its argument.

::

    won     share of the verdicts that a speech wins; what one debater wins, the other one loses
    paid    won − over · min(1, max(0, words − limit) / limit); one that cannot be read is paid ``unread`` instead

``won`` is constant-sum, ``paid`` is what is learned from: the word limit and the format cost nobody else.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cotrain.core.arguments import NotNegative, Positive
from cotrain.core.notes import ANSWER, CORRECT, FAILURE, FINAL, STEP_OK, Metadata
from cotrain.core.seeding import rng_of
from cotrain.core.signals import Signal, gives
from cotrain.core.types import ParseFailure, Task
from cotrain.formats.answers import final_answer
from cotrain.formats.solutions import without_thought
from cotrain.rollout.event_loop import gather
from cotrain.rollout.judges import guarded_fields
from cotrain.rollout.protocols import attempts
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import Roles

SIDES = ("alice", "bob")
WON = Signal("won", meaning="share of the judge's verdicts that a speech wins")
PAID = Signal("paid", meaning="that share, less what the word limit costs; less than nothing for what cannot be read")
JUDGED_RIGHT = Metadata[float]("judged_right", float, "share of the verdicts that are for the right solution")
HIT = Metadata[bool]("hit", bool, "is the accused step wrong")
RIGHT_SIDE = Metadata[bool]("right_side", bool, "does the debater defend the right solution")
WORDS = Metadata[int]("words", int, "words of a speech")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """A step that is said to be wrong, and why."""

    step: int | None  # 0-based; None: it calls no step wrong
    argument: str = ""  # what was said in front of it
    words: int = 1  # of the whole speech, a thought left out
    format_score: float = 1.0
    ok: ClassVar[bool] = True


def parse_accusation(text: str, fields: Mapping[str, Any]) -> Accusation | ParseFailure:
    spoken = without_thought(text)
    if isinstance(spoken, ParseFailure):
        return spoken
    said = (final_answer(spoken) or "").strip()
    if not (said.isascii() and said.isdigit()) or len(said) > 3:
        return ParseFailure(reason="no step")
    if not 1 <= int(said) <= fields["count"]:
        return ParseFailure(reason="no such step", format_score=0.5)
    argument = spoken.rpartition("<answer>")[0].strip()
    return Accusation(step=int(said) - 1, argument=argument, words=len(spoken.split()))


def debate_shares(hits: Sequence[bool | None]) -> tuple[float, float]:
    """What each of two debaters wins from a judge who checks one accusation, each as likely; ``hits``: is the step that
    a debater accuses wrong, None where it accuses nobody because it is not heard. They add up to 1."""
    checks = [float(hit) if i == 0 else 1.0 - float(hit) for i, hit in enumerate(hits) if hit is not None]
    first = sum(checks) / len(checks)
    return first, 1.0 - first


def speech_pay(won: float, words: int, limit: int, over: float) -> float:
    """What a speech of so many words earns that wins this share; ``limit`` 0 is none."""
    return won - (over * min(1.0, max(0, words - limit) / limit) if limit else 0.0)


def reward_speech(turn: Turn, won: float, limit: int, over: float, unread: float) -> None:
    """The signal ``paid`` of a speech."""
    turn.reward(PAID, speech_pay(won, turn.parsed.words, limit, over) if turn.parsed.ok else unread)


def word_limit_text(limit: int) -> str:
    """A word limit as a prompt says it."""
    return f"at most {limit} words" if limit else "as many words as you need"


@gives(*(signal.to(side) for signal in (WON, PAID) for side in SIDES))
async def argue(
    task: Task,
    roles: Roles,
    *,
    drafts: Positive = 4,
    samples: Positive = 1,
    turns: Positive = 1,
    leaves: Positive = 1,
    consultancy: bool = False,
    jury: NotNegative = 0,
    words: NotNegative = 0,
    over: float = 1.0,
    unread: float = -1.0,
) -> None:
    """One debate of ``turns`` simultaneous turns, where the ``drafts`` solutions hold a right and a wrong one whose
    steps are known.

    Prefix, then diverge: a turn and a side are drawn. All before is said once; there that side speaks ``samples`` times
    and is paid, the other one once; each speech has ``leaves`` continuations of its own, whose outcomes are averaged
    (a speech of the last turn has none). The last accusation of a side is what the judge looks at. ``jury``: votes of
    the role ``judge``; 0 for the judge who checks one step. ``words``: the limit of a speech, 0 for none.
    """
    examined = [s for s in await attempts(task, roles, drafts) if s.parsed.ok and STEP_OK.of(s) is not None]
    right = next((s for s in examined if CORRECT.require(s)), None)
    wrong = next((s for s in examined if not CORRECT.require(s)), None)
    if right is None or wrong is None:
        return
    coins = rng_of("sides", task.id, right.id, wrong.id)
    side_solutions = [right, wrong] if coins.random() < 0.5 else [wrong, right]  # the solution of each side
    speaker, drawn_turn = int(coins.random() < 0.5), coins.randrange(turns)
    game = DebateGame(task=task, roles=roles, mine=side_solutions, limit=words)
    speaking_sides = [speaker] if consultancy else [0, 1]
    line: Line = []
    for _ in range(drawn_turn):
        line = (await game.play_turn([line], speaking_sides))[0]
    replies = await gather([game.ask_side(line, side, samples if side == speaker else 1) for side in speaking_sides])
    speeches_by_side = dict(zip(speaking_sides, replies, strict=True))
    for side, speeches in speeches_by_side.items():
        game.note_side(speeches, side)
    opposing_speech = speeches_by_side[1 - speaker][0] if 1 - speaker in speeches_by_side else None
    pairs: list[Pair] = [
        (mine_k, opposing_speech) if speaker == 0 else (opposing_speech, mine_k) for mine_k in speeches_by_side[speaker]
    ]
    each = leaves if drawn_turn + 1 < turns else 1
    lines = [[*line, pair] for pair in pairs for _ in range(each)]
    for _ in range(drawn_turn + 1, turns):
        lines = await game.play_turn(lines, speaking_sides)
    line_shares = await game.judge_lines(lines, jury)
    means = [sum(line_shares[i * each + j] for j in range(each)) / each for i in range(len(pairs))]  # of the first side
    for turn, first in zip(speeches_by_side[speaker], means, strict=True):
        share = first if speaker == 0 else 1.0 - first
        turn.reward(WON, share)
        reward_speech(turn, share, words, over, unread)
        turn.add_metadata(JUDGED_RIGHT, first if side_solutions[0] is right else 1.0 - first)
    for turn in speeches_by_side.get(1 - speaker, ()):
        first = sum(means) / len(means)
        turn.reward(WON, first if speaker == 1 else 1.0 - first)


Pair = tuple[Turn | None, Turn | None]  # what each side says in one turn, None where it is not heard
Line = list[Pair]  # what was said so far


@dataclass(frozen=True, slots=True, kw_only=True)
class DebateGame:
    """A problem with two solutions, and who speaks for each."""

    task: Task
    roles: Roles
    mine: Sequence[Turn]  # [2] solutions
    limit: int  # words of a speech, 0 for no limit

    def ask_side(self, line: Line, side: int, n: int) -> Coroutine[Any, Any, list[Turn]]:
        """A side speaks ``n`` times after all that was said."""
        accused = self.mine[1 - side]
        speeches: Coroutine[Any, Any, list[Turn]] = getattr(self.roles, SIDES[side]).many(
            n,
            problem=self.task.prompt,
            mine=self.mine[side].tagged_text,
            other=accused.tagged_text,
            count=len(accused.parsed.steps),
            said=" ".join(f"Mine {_accused_step(pair[side])} Other {_accused_step(pair[1 - side])}" for pair in line)
            or "nothing",
            words=word_limit_text(self.limit),
        )
        return speeches

    async def play_turn(self, lines: Sequence[Line], heard: Sequence[int]) -> list[Line]:
        """These lines with one more turn, all of which are spoken at once."""
        asked = [(line, side) for line in lines for side in heard]
        spoken = await gather([self.ask_side(line, side, 1) for line, side in asked])
        for (_, side), speeches in zip(asked, spoken, strict=True):
            self.note_side(speeches, side)
        longer = []
        for i, line in enumerate(lines):
            said = dict(zip(heard, (speeches[0] for speeches in spoken[i * len(heard) :]), strict=False))
            longer.append([*line, (said.get(0), said.get(1))])
        return longer

    def note_side(self, speeches: Sequence[Turn], side: int) -> None:
        """What speeches of a side say, and the truth of it."""
        for turn in speeches:
            turn.add_metadata(RIGHT_SIDE, CORRECT.require(self.mine[side]))
            note_speech(turn, STEP_OK.require(self.mine[1 - side]))

    async def judge_lines(self, lines: Sequence[Line], jury: int) -> list[float]:
        """The share of the verdicts that the first side wins, for each line."""
        if not jury:
            ends = [line[-1] for line in lines]
            return [debate_shares([None if turn is None else bool(HIT.of(turn)) for turn in end])[0] for end in ends]
        votes = await gather([self.ask_jury(line, jury) for line in lines])
        truth = CORRECT.require(self.mine[0])
        return [sum(_first_side_vote(turn, truth) for turn in turns) / jury for turns in votes]

    def ask_jury(self, line: Line, votes: int) -> Coroutine[Any, Any, list[Turn]]:
        """A model reads both solutions and the last speech against each."""
        ends = zip(self.mine, line[-1], strict=True)
        texts = [solution.tagged_text + accusation_text(said, "The other is wrong") for solution, said in ends]
        fields: dict[str, Any] = {"first": texts[0], "second": texts[1]}
        guarded = "nonce" in self.roles.judge.fields
        asked: dict[str, Any] = guarded_fields(self.roles.nonce(self.mine[0]), **fields) if guarded else fields
        said: Coroutine[Any, Any, list[Turn]] = self.roles.judge.many(
            votes, parent=self.mine[0], problem=self.task.prompt, **asked
        )
        return said


def note_speech(turn: Turn, steps: Sequence[bool] | None) -> None:
    """What an accusation says, and whether it is true of these steps, where that is known."""
    if turn.parsed.ok:
        turn.add_finding(ANSWER, "no step" if turn.parsed.step is None else str(turn.parsed.step + 1))
        turn.add_metadata(WORDS, turn.parsed.words)
    else:
        turn.add_finding(FAILURE, turn.parsed.reason)
    if steps is not None:
        turn.add_metadata(HIT, turn.parsed.ok and turn.parsed.step is not None and not steps[turn.parsed.step])


def accusation_text(turn: Turn | None, claim: str) -> str:
    """An accusation in words, for a judge who reads; empty where there is none that could be read."""
    if turn is None or not turn.parsed.ok or turn.parsed.step is None:
        return ""
    argument = f" {turn.parsed.argument}" if turn.parsed.argument else ""
    return f"\n{claim} in step {turn.parsed.step + 1}.{argument}"


def _accused_step(turn: Turn | None) -> str:
    return str(turn.parsed.step + 1) if turn is not None and turn.parsed.ok else "-"


def _first_side_vote(turn: Turn, truth: bool) -> float:
    """A vote for the first side as 0 or 1; one that cannot be read is a half."""
    turn.add_metadata(CORRECT, truth)
    if not turn.parsed.ok:
        turn.add_finding(FAILURE, turn.parsed.reason)
        return 0.5
    turn.add_finding(FINAL, bool(turn.parsed.final))
    return float(bool(turn.parsed.final))
