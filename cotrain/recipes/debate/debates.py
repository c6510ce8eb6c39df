"""The rollouts and rewards of a debate: two debaters accuse steps of each other's solutions, and a judge says who wins.

A speech is an accusation: the number of a step, counted from 1, between answer tags. What is said before it is its
argument. Each speech has two signals:

::

    won     share of the judge's verdicts for its side. What one debater wins, the other one loses
    paid    won − overlong_penalty · min(1, max(0, words − limit) / limit); ``unread`` for one that cannot be read

The debaters learn from ``paid``, so that the word limit and the format cost only the one who breaks them.
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
from cotrain.rollout.protocols import attempts
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import RoleHandle, Roles
from cotrain.rollout.verifier_roles import fields_to_show

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
    argument: str = ""  # the text in front of it
    words: int = 1  # number of words of the whole speech, without a thought
    format_score: float = 1.0
    ok: ClassVar[bool] = True


def parse_accusation(text: str, fields: Mapping[str, Any]) -> Accusation | ParseFailure:
    """The accusation of one of ``count`` steps, a field of the prompt."""
    speech_text = without_thought(text)
    if isinstance(speech_text, ParseFailure):
        return speech_text
    answer = (final_answer(speech_text) or "").strip()
    is_number = answer.isascii() and answer.isdigit() and len(answer) <= 3
    if not is_number:
        return ParseFailure(reason="no step")
    step = int(answer)  # 1-based
    if not 1 <= step <= fields["count"]:
        return ParseFailure(reason="no such step", format_score=0.5)
    argument, _, _ = speech_text.rpartition("<answer>")
    return Accusation(step=step - 1, argument=argument.strip(), words=len(speech_text.split()))


def debate_shares(hits: Sequence[bool | None]) -> tuple[float, float]:
    """The chance with which each of two debaters wins from a judge who checks one accusation, each as likely.

    ``hits``: for each debater, whether the step that it accuses is wrong; None for one who does not speak.
    """
    wins_of_first = []  # 1 or 0 for each accusation that may be checked
    for side, accuses_wrong_step in enumerate(hits):
        if accuses_wrong_step is None:
            continue
        wins_of_first.append(float(accuses_wrong_step) if side == 0 else 1.0 - float(accuses_wrong_step))
    share_of_first = sum(wins_of_first) / len(wins_of_first)
    return share_of_first, 1.0 - share_of_first


def speech_pay(share_won: float, words: int, limit: int, overlong_penalty: float) -> float:
    """The reward of a speech that wins this share, with its number of words. ``limit`` 0: no limit."""
    if not limit:
        return share_won
    share_over = max(0, words - limit) / limit
    return share_won - overlong_penalty * min(1.0, share_over)


def reward_speech(turn: Turn, share_won: float, limit: int, overlong_penalty: float, unread: float) -> None:
    """The signal ``paid`` of a speech."""
    if turn.parsed.ok:
        turn.reward(PAID, speech_pay(share_won, turn.parsed.words, limit, overlong_penalty))
    else:
        turn.reward(PAID, unread)


def word_limit_text(limit: int) -> str:
    """A word limit as a prompt says it."""
    if not limit:
        return "as many words as you need"
    return f"at most {limit} words"


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
    overlong_penalty: float = 1.0,
    unread: float = -1.0,
) -> None:
    """One debate of ``turns`` turns, in each of which both sides speak at once.

    There is one only where the ``drafts`` solutions hold a right and a wrong one whose steps are known. A turn and a
    side, the speaker, are drawn. All before that turn is said once. There the speaker speaks ``samples`` times and is
    paid, and the other side speaks once. Each speech has ``leaves`` continuations of its own, whose outcomes are
    averaged; a speech of the last turn has none. The judge looks at the last accusation of each side.

    ``jury``: votes of the role ``judge``; 0: the judge checks one step. ``words``: limit of a speech, 0 for none.
    """
    right, wrong = await _draft_pair(task, roles, drafts)
    if right is None or wrong is None:
        return

    rng = rng_of("sides", task.id, right.id, wrong.id)
    right_is_first = rng.random() < 0.5
    speaker = int(rng.random() < 0.5)
    listener = 1 - speaker
    drawn_turn = rng.randrange(turns)
    side_solutions = [right, wrong] if right_is_first else [wrong, right]
    game = DebateGame(task=task, roles=roles, solutions=side_solutions, limit=words)
    speaking_sides = [speaker] if consultancy else [0, 1]

    # The prefix: all turns before the drawn one are said once.
    prefix: Line = []
    for _ in range(drawn_turn):
        [prefix] = await game.play_turn([prefix], speaking_sides)

    # The drawn turn.
    calls = [game.ask_side(prefix, side, samples if side == speaker else 1) for side in speaking_sides]
    speeches_by_side = dict(zip(speaking_sides, await gather(calls), strict=True))
    for side, speeches in speeches_by_side.items():
        game.record_side(speeches, side)
    speeches = speeches_by_side[speaker]
    reply = None if consultancy else speeches_by_side[listener][0]

    # The continuations of each speech, side by side.
    is_last_turn = drawn_turn + 1 == turns
    n_leaves = 1 if is_last_turn else leaves
    lines: list[Line] = []
    for speech in speeches:
        pair: Pair = (speech, reply) if speaker == 0 else (reply, speech)
        for _ in range(n_leaves):
            lines.append([*prefix, pair])
    for _ in range(drawn_turn + 1, turns):
        lines = await game.play_turn(lines, speaking_sides)

    # The share that the first side wins with each speech, over its continuations.
    line_shares = await game.judge_lines(lines, jury)
    first_side_shares = []
    for start in range(0, len(lines), n_leaves):
        leaf_shares = line_shares[start : start + n_leaves]
        first_side_shares.append(sum(leaf_shares) / n_leaves)

    for speech, first_share in zip(speeches, first_side_shares, strict=True):
        share_won = first_share if speaker == 0 else 1.0 - first_share
        speech.reward(WON, share_won)
        reward_speech(speech, share_won, words, overlong_penalty, unread)
        speech.add_metadata(JUDGED_RIGHT, first_share if right_is_first else 1.0 - first_share)
    if reply is not None:
        mean_share = sum(first_side_shares) / len(first_side_shares)
        reply.reward(WON, mean_share if listener == 0 else 1.0 - mean_share)


async def _draft_pair(task: Task, roles: Roles, drafts: int) -> tuple[Turn | None, Turn | None]:
    """The first right and the first wrong one of ``drafts`` solutions whose steps are graded; None where there is
    none."""
    right = wrong = None
    for solution in await attempts(task, roles, drafts):
        if not solution.parsed.ok or STEP_OK.of(solution) is None:
            continue
        if CORRECT.require(solution):
            right = right or solution
        else:
            wrong = wrong or solution
    return right, wrong


Pair = tuple[Turn | None, Turn | None]  # the speeches of both sides in one turn; None for a side that does not speak
Line = list[Pair]  # the turns of a debate so far


@dataclass(frozen=True, slots=True, kw_only=True)
class DebateGame:
    """A problem with two solutions, and who speaks for each."""

    task: Task
    roles: Roles
    solutions: Sequence[Turn]  # [2] one for each side
    limit: int  # words of a speech, 0 for no limit

    def ask_side(self, line: Line, side: int, n: int) -> Coroutine[Any, Any, list[Turn]]:
        """``n`` speeches of a side, after the turns of ``line``."""
        opponent = 1 - side
        accused_solution = self.solutions[opponent]
        earlier = [f"Mine {_accused_step(pair[side])} Other {_accused_step(pair[opponent])}" for pair in line]
        debater: RoleHandle = getattr(self.roles, SIDES[side])
        return debater.many(
            n,
            problem=self.task.prompt,
            mine=self.solutions[side].tagged_text,
            other=accused_solution.tagged_text,
            count=len(accused_solution.parsed.steps),
            said=" ".join(earlier) or "nothing",
            words=word_limit_text(self.limit),
        )

    async def play_turn(self, lines: Sequence[Line], speaking_sides: Sequence[int]) -> list[Line]:
        """Each of these lines with one more turn; all speeches are sampled at once."""
        calls = []
        for line in lines:
            for side in speaking_sides:
                calls.append(self.ask_side(line, side, 1))
        speeches = iter(await gather(calls))

        longer_lines: list[Line] = []
        for line in lines:
            pair: list[Turn | None] = [None, None]
            for side in speaking_sides:
                [speech] = next(speeches)
                self.record_side([speech], side)
                pair[side] = speech
            longer_lines.append([*line, (pair[0], pair[1])])
        return longer_lines

    def record_side(self, speeches: Sequence[Turn], side: int) -> None:
        """Record what speeches of a side say, and whether it is true."""
        for turn in speeches:
            turn.add_metadata(RIGHT_SIDE, CORRECT.require(self.solutions[side]))
            record_speech(turn, STEP_OK.require(self.solutions[1 - side]))

    async def judge_lines(self, lines: Sequence[Line], jury: int) -> list[float]:
        """The share of the verdicts that the first side wins, for each line."""
        shares = []
        if not jury:
            for line in lines:
                hits = [None if turn is None else bool(HIT.of(turn)) for turn in line[-1]]
                first_share, _ = debate_shares(hits)
                shares.append(first_share)
            return shares

        first_is_right = CORRECT.require(self.solutions[0])
        for verdicts in await gather([self.ask_jury(line, jury) for line in lines]):
            votes_for_first = sum(_first_side_vote(turn, first_is_right) for turn in verdicts)
            shares.append(votes_for_first / jury)
        return shares

    def ask_jury(self, line: Line, votes: int) -> Coroutine[Any, Any, list[Turn]]:
        """``votes`` of a model that reads both solutions, and the last speech for each."""
        texts = []
        for solution, speech in zip(self.solutions, line[-1], strict=True):
            texts.append(solution.tagged_text + accusation_text(speech, "The other is wrong"))
        text_a, text_b = texts
        judge: RoleHandle = self.roles.judge
        fields = fields_to_show(judge.fields, self.roles.nonce(self.solutions[0]), first=text_a, second=text_b)
        return judge.many(votes, parent=self.solutions[0], problem=self.task.prompt, **fields)


def record_speech(turn: Turn, steps: Sequence[bool] | None) -> None:
    """Record what an accusation says, and whether it is true. ``steps``: whether each step that it may accuse is right;
    None where that is not known."""
    accused_step = None
    if turn.parsed.ok:
        accused_step = turn.parsed.step
        turn.add_finding(ANSWER, "no step" if accused_step is None else str(accused_step + 1))
        turn.add_metadata(WORDS, turn.parsed.words)
    else:
        turn.add_finding(FAILURE, turn.parsed.reason)
    if steps is not None:
        is_hit = accused_step is not None and not steps[accused_step]
        turn.add_metadata(HIT, is_hit)


def accusation_text(turn: Turn | None, claim: str) -> str:
    """An accusation in words, for a judge who reads; empty where there is none that could be read."""
    if turn is None or not turn.parsed.ok or turn.parsed.step is None:
        return ""
    argument = f" {turn.parsed.argument}" if turn.parsed.argument else ""
    return f"\n{claim} in step {turn.parsed.step + 1}.{argument}"


def _accused_step(turn: Turn | None) -> str:
    """The number of the step that a speech accuses; a dash where it could not be read, or was not heard."""
    if turn is None or not turn.parsed.ok:
        return "-"
    return str(turn.parsed.step + 1)


def _first_side_vote(turn: Turn, truth: bool) -> float:
    """1 for a vote for the first side, 0 for one against it, ½ for one that cannot be read. ``truth``: whether the
    first side is right."""
    turn.add_metadata(CORRECT, truth)
    if not turn.parsed.ok:
        turn.add_finding(FAILURE, turn.parsed.reason)
        return 0.5
    turn.add_finding(FINAL, bool(turn.parsed.final))
    return float(bool(turn.parsed.final))
