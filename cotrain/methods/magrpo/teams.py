"""Two agents who act at once, hear of each other, and are rewarded together: the game of MAGRPO (arXiv 2508.04652).

::

    node 0     alice, bob: ``samples`` messages each, of what each sees (roles ``alice`` and ``bob``)
    joint      message k of one with message k of the other (aligned), or with every one (crossed)
    node j     alice_answer, bob_answer: ``samples`` answers each, of what each sees, said and heard
    reward     of a joint action of answers: the share of the two that are right; messages have none

Returns go up the tree (``methods/magrpo/joint.py``); the signal ``joint`` of an answer is its return, and answers of
one agent at one node are one group. ``threshold``: a branch ends where the mean reward of its node is above it; None
never ends one (the authors' default of −0.2 ends every branch after its first turn where rewards are not negative).
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cotrain.core.arguments import Positive
from cotrain.core.notes import ANSWER, CORRECT, FAILURE, Note
from cotrain.core.signals import Signal, gives
from cotrain.core.types import ParseFailure, Sampling, Task
from cotrain.methods.magrpo.halves import HalvesGrader, halves_grader_of
from cotrain.methods.magrpo.joint import Pairing, answer_returns, backed_up_return, joint_actions
from cotrain.rollout.common_roles import speaks_short
from cotrain.rollout.executor import Roles
from cotrain.rollout.idle_loop import together
from cotrain.rollout.role import Role, Turn
from cotrain.text.answers import final_answer

Sees = Literal["half", "all"]  # numbers of an agent
AGENTS = ("alice", "bob")
MESSAGE_TOKENS = 8
JOINT = Signal("joint", meaning="return of the joint actions that an answer took part in")
BOTH = Note[bool]("both", bool, "are both answers right")
TELLS = Note[bool]("tells", bool, "is the message the sum of what its author sees")

MESSAGE = "Numbers {seen}.\nMessage:"
ANSWERED = "Numbers {seen}. Said {said}. Heard {heard}.\nSum:"
MESSAGE_FULL = """You see these numbers: {seen}. Your partner sees others. Together you are to find the sum of all
numbers.
Write a message to your partner, of a few characters, and nothing else."""
ANSWERED_FULL = """You see these numbers: {seen}. Your partner sees others. You told your partner: {said}
Your partner told you: {heard}
Write the sum of all numbers, alone, in one pair of tags: <answer> ... </answer>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSum:
    """An answer that could be read."""

    answer: str
    format_score: float = 1.0

    @property
    def ok(self) -> bool:
        return True


def parse_sum(text: str, fields: Mapping[str, Any]) -> ParsedSum | ParseFailure:
    said = final_answer(text)
    return ParseFailure(reason="no answer") if said is None else ParsedSum(answer=said)


def team_roles(policies: Mapping[str, str], model: str, prefix: str = "") -> dict[str, Role]:
    """The four roles, with a ``prefix`` to their names; ``policies``: of each agent."""
    short = speaks_short(model)
    prompts = (MESSAGE, ANSWERED) if short else (MESSAGE_FULL, ANSWERED_FULL)
    told, asked = Sampling(max_tokens=MESSAGE_TOKENS), Sampling(max_tokens=8 if short else 256)
    roles = {}
    for agent, policy in policies.items():
        roles[f"{prefix}{agent}"] = Role(policy=policy, prompt=prompts[0], sampling=told)
        roles[f"{prefix}{agent}_answer"] = Role(policy=policy, prompt=prompts[1], parse=parse_sum, sampling=asked)
    return roles


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamGame:
    """What is the same at all nodes of one game."""

    task: Task
    roles: Roles
    samples: int
    joint: tuple[tuple[int, ...], ...]
    sees: Sees
    silent: bool
    prefix: str

    @property
    def halves_grader(self) -> HalvesGrader:
        return halves_grader_of(self.task)

    def visible_numbers(self, agent: int) -> str:
        return (
            self.halves_grader.view(agent)
            if self.sees == "half"
            else f"{self.halves_grader.view(0)}, {self.halves_grader.view(1)}"
        )


@gives(*(JOINT.to(name) for agent in AGENTS for name in (agent, f"{agent}_answer")))
async def cooperate(
    task: Task,
    roles: Roles,
    *,
    samples: Positive = 1,
    pairing: Pairing = "aligned",
    gamma: float = 0.9,
    threshold: float | None = None,
    sees: Sees = "half",
    silent: bool = False,
) -> None:
    """The tree above, to be learned from. ``sees`` "all": both see all numbers, the ceiling; ``silent``: nobody hears
    anything, the floor."""
    table = TeamGame(
        task=task,
        roles=roles,
        samples=samples,
        joint=joint_actions(pairing, 2, samples),
        sees=sees,
        silent=silent,
        prefix="",
    )
    messages = await _ask_messages(table)
    returns = [0.0] * len(table.joint)  # messages have no reward of their own
    if threshold is None or not sum(returns) / len(returns) > threshold:
        nodes = [_ask_answers(table, [messages[i][k] for i, k in enumerate(places)]) for places in table.joint]
        for j, (answers, rewards) in enumerate(await _reward_nodes(table, nodes)):
            _pay_returns(table, answers, rewards)
            returns[j] = backed_up_return(0.0, rewards, gamma)
    _pay_returns(table, messages, returns)


async def together_and_apart(task: Task, roles: Roles, *, sees: Sees = "half", silent: bool = False) -> None:
    """To measure, without rewards: the team as it is trained; without messages; and with the two policies in each
    other's seat. The roles have the prefixes "", "silent_" and "swapped_"."""
    for prefix, mute in (("", silent), ("silent_", True), ("swapped_", silent)):
        table = TeamGame(task=task, roles=roles, samples=1, joint=((0, 0),), sees=sees, silent=mute, prefix=prefix)
        said = await _ask_messages(table)
        await _reward_nodes(table, [_ask_answers(table, [turns[0] for turns in said])])


async def _ask_messages(table: TeamGame) -> list[list[Turn]]:
    names = [f"{table.prefix}{agent}" for agent in AGENTS]
    asked = [
        getattr(table.roles, name).many(table.samples, seen=table.visible_numbers(i)) for i, name in enumerate(names)
    ]
    said: list[list[Turn]] = await together(asked)
    for i, turns in enumerate(said):
        for turn in turns:
            turn.note(TELLS, turn.text.strip() == str(sum(table.halves_grader.seen[i])))
    return said


def _ask_answers(table: TeamGame, said: Sequence[Turn]) -> Coroutine[Any, Any, list[list[Turn]]]:
    """Both agents' answers at one node, asked at once; the node's name is that of its messages."""
    node, asked = "+".join(turn.id for turn in said), []
    for i, agent in enumerate(AGENTS):
        mine, other = (said[k].text.strip() or "nothing" for k in (i, 1 - i))
        fields = {"seen": table.visible_numbers(i), "said": mine, "heard": "nothing" if table.silent else other}
        role = getattr(table.roles, f"{table.prefix}{agent}_answer")
        asked.append(role.many(table.samples, group=f"{node}/{agent}", **fields))
    return together(asked)


async def _reward_nodes(
    table: TeamGame, nodes: Sequence[Coroutine[Any, Any, list[list[Turn]]]]
) -> list[tuple[list[list[Turn]], list[float]]]:
    """Of each node the answers of both agents, and the reward of every joint action of them. An answer that could not
    be graded fails and counts as wrong for its partner."""
    found = []
    for answers in await together(list(nodes)):
        right = [[await _grade_turn(table, turn) for turn in turns] for turns in answers]
        for k, turn in enumerate(answers[0]):
            turn.note(BOTH, right[0][k] and right[1][k])
        found.append((answers, [sum(right[i][k] for i, k in enumerate(places)) / 2 for places in table.joint]))
    return found


def _pay_returns(table: TeamGame, turns: Sequence[Sequence[Turn]], returns: Sequence[float]) -> None:
    for mine, values in zip(turns, answer_returns(table.joint, returns, 2, table.samples), strict=True):
        for turn, value in zip(mine, values, strict=True):
            turn.reward(JOINT, value)


async def _grade_turn(table: TeamGame, turn: Turn) -> bool:
    grade = await table.roles.grade(table.task, turn)
    if grade.value is None:
        turn.fail(grade.reason or "ungraded")
        return False
    turn.note(CORRECT, grade.value)
    if turn.parsed.ok:
        turn.show(ANSWER, turn.parsed.answer)
    else:
        turn.show(FAILURE, turn.parsed.reason)
    return grade.value
