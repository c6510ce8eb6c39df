"""Two agents who act at once, hear of each other, and are rewarded together: the game of MAGRPO (arXiv 2508.04652).

::

    node 0     alice, bob: ``samples`` messages each, of what each sees (roles ``alice`` and ``bob``)
    joint      message k of one with message k of the other (aligned), or with every one (crossed)
    node j     alice_answer, bob_answer: ``samples`` answers each, of what each sees, said and heard
    reward     of a joint action of answers: the share of the two that are right; messages have none

``recipes/magrpo/tree.py`` plays it. The authors' default of −0.2 as ``threshold`` ends every branch after its first
turn where rewards are not negative.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cotrain.core.arguments import Positive
from cotrain.core.notes import ANSWER, CORRECT, FAILURE, Metadata
from cotrain.core.signals import gives
from cotrain.core.types import ParseFailure, Sampling, Task
from cotrain.formats.answers import final_answer
from cotrain.metrics.heldout import measure_metadata
from cotrain.recipes.magrpo.halves import HalvesGrader, halves_grader_of
from cotrain.recipes.magrpo.joint import Pairing
from cotrain.recipes.magrpo.tree import JOINT, JointActions, Path, play_tree
from cotrain.rollout.common_roles import is_terse
from cotrain.rollout.role import Role, Turn
from cotrain.rollout.runner import Roles

Sees = Literal["half", "all"]  # numbers of an agent
AGENTS = ("alice", "bob")
MESSAGE_TOKENS = 8
BOTH = Metadata[bool]("both", bool, "are both answers right")
TELLS = Metadata[bool]("tells", bool, "is the message the sum of what its author sees")

TEAMS = ("", "silent_", "swapped_")  # prefixes of their roles
MEASURES = (
    *(measure_metadata(f"{prefix}{agent}_answer", CORRECT) for prefix in TEAMS for agent in AGENTS),
    *(measure_metadata(f"{prefix}alice_answer", BOTH) for prefix in TEAMS),
    *(measure_metadata(agent, TELLS) for agent in AGENTS),
)

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
    ok: ClassVar[bool] = True


def parse_sum(text: str, fields: Mapping[str, Any]) -> ParsedSum | ParseFailure:
    said = final_answer(text)
    return ParseFailure(reason="no answer") if said is None else ParsedSum(answer=said)


def halves_roles(model: str) -> dict[str, Role]:
    """Those of the team, and of the team without messages and swapped, as ``together_and_apart`` names them."""
    policies = {prefix: AGENTS[:: -1 if prefix == "swapped_" else 1] for prefix in TEAMS}
    made = [team_roles(dict(zip(AGENTS, of, strict=True)), model, prefix) for prefix, of in policies.items()]
    return made[0] | made[1] | made[2]


def team_roles(policies: Mapping[str, str], model: str, prefix: str = "") -> dict[str, Role]:
    """The four roles, with a ``prefix`` to their names; ``policies``: of each agent."""
    short = is_terse(model)
    prompts = (MESSAGE, ANSWERED) if short else (MESSAGE_FULL, ANSWERED_FULL)
    told = Sampling(max_tokens=MESSAGE_TOKENS)
    asked = Sampling(max_tokens=8 if short else 256)
    roles = {}
    for agent, policy in policies.items():
        roles[f"{prefix}{agent}"] = Role(policy=policy, prompt=prompts[0], sampling=told)
        roles[f"{prefix}{agent}_answer"] = Role(policy=policy, prompt=prompts[1], parse=parse_sum, sampling=asked)
    return roles


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvesTeam:
    """Two agents at one problem, who write a message and then an answer."""

    task: Task
    roles: Roles
    samples: int
    sees: Sees
    silent: bool
    prefix: str

    @property
    def halves_grader(self) -> HalvesGrader:
        return halves_grader_of(self.task)

    def visible_numbers(self, agent: int) -> str:
        if self.sees == "half":
            return self.halves_grader.view(agent)
        return f"{self.halves_grader.view(0)}, {self.halves_grader.view(1)}"

    def ask_agent(self, agent: int, said: Path, node: str | None) -> Coroutine[Any, Any, list[Turn]]:
        name = f"{self.prefix}{AGENTS[agent]}"
        seen = self.visible_numbers(agent)
        if node is None:
            return getattr(self.roles, name).many(self.samples, seen=seen)
        messages = [turn.text.strip() or "nothing" for turn in said[0]]
        own_message = messages[agent]
        heard_message = "nothing" if self.silent else messages[1 - agent]
        role = getattr(self.roles, f"{name}_answer")
        group = f"{node}/{AGENTS[agent]}"
        return role.many(self.samples, group=group, seen=seen, said=own_message, heard=heard_message)

    async def reward_actions(self, answers: list[list[Turn]], joint: JointActions, turn: int) -> list[float | None]:
        """The share of a joint action's answers that are right; messages have no reward. An answer that could not be
        graded fails and counts as wrong for its partner."""
        if turn == 0:
            for seen, messages in zip(self.halves_grader.seen, answers, strict=True):
                for message in messages:
                    message.add_metadata(TELLS, message.text.strip() == str(sum(seen)))
            return [0.0] * len(joint)
        first_answers, second_answers = answers
        first_right = [await self._grade_turn(answer) for answer in first_answers]
        second_right = [await self._grade_turn(answer) for answer in second_answers]
        for answer, first, second in zip(first_answers, first_right, second_right, strict=True):
            answer.add_metadata(BOTH, first and second)
        return [(first_right[i] + second_right[j]) / 2 for i, j in joint]

    async def _grade_turn(self, turn: Turn) -> bool:
        grade = await self.roles.grade(self.task, turn)
        if grade.value is None:
            turn.fail(grade.reason or "ungraded")
            return False
        turn.add_metadata(CORRECT, grade.value)
        if turn.parsed.ok:
            turn.add_finding(ANSWER, turn.parsed.answer)
        else:
            turn.add_finding(FAILURE, turn.parsed.reason)
        return grade.value


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
    team = HalvesTeam(task=task, roles=roles, samples=samples, sees=sees, silent=silent, prefix="")
    shape = {"agents": 2, "turns": 2, "samples": samples}
    for turn, value in await play_tree(team, **shape, pairing=pairing, gamma=gamma, threshold=threshold):
        turn.reward(JOINT, value)


async def together_and_apart(task: Task, roles: Roles, *, sees: Sees = "half", silent: bool = False) -> None:
    """To measure, without rewards: the team as it is trained; without messages; and with the two policies in each
    other's seat. The roles have the prefixes "", "silent_" and "swapped_"."""
    for prefix, mute in zip(TEAMS, (silent, True, silent), strict=True):
        team = HalvesTeam(task=task, roles=roles, samples=1, sees=sees, silent=mute, prefix=prefix)
        await play_tree(team, agents=2, turns=2, samples=1)
