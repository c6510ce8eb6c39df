"""Two agents see half of the numbers each, write each other a message, and are rewarded together for the sum.

It is a tree of MAGRPO (arXiv 2508.04652) with two turns, which ``recipes/magrpo/tree.py`` samples::

    first node      alice and bob write ``samples`` messages each, from what each sees (roles ``alice``, ``bob``)
    joint actions   message k of one with message k of the other (aligned), or with every message (crossed)
    child nodes     alice and bob write ``samples`` answers each, from what each sees, said and heard (roles
                    ``alice_answer``, ``bob_answer``)
    reward          of a joint action of answers: the share of the two that are right. Messages have reward 0

So the authors' default ``threshold`` of −0.2 would end every branch after the messages.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cotrain.core.arguments import Positive
from cotrain.core.notes import CORRECT, Metadata
from cotrain.core.signals import gives
from cotrain.core.types import ParseFailure, Task
from cotrain.formats.answers import final_answer
from cotrain.metrics.heldout import measure_metadata
from cotrain.recipes.magrpo.halves import HalvesGrader, halves_grader_of
from cotrain.recipes.magrpo.joint import Pairing
from cotrain.recipes.magrpo.tree import JOINT, JointActions, Path, play_tree
from cotrain.rollout.common_roles import Prompt, make_role
from cotrain.rollout.protocols import show_answer
from cotrain.rollout.role import Role, Turn
from cotrain.rollout.runner import Roles

Sees = Literal["half", "all"]  # numbers that an agent sees
AGENTS = ("alice", "bob")
MESSAGE_TOKENS = 8
BOTH = Metadata[bool]("both", bool, "are both answers right")
TELLS = Metadata[bool]("tells", bool, "is the message the sum of what its author sees")

# Three teams are evaluated, whose roles have these prefixes: as it is trained, without messages, and with the two
# policies in each other's seat.
TEAMS = ("", "silent_", "swapped_")
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
    answer = final_answer(text)
    if answer is None:
        return ParseFailure(reason="no answer")
    return ParsedSum(answer=answer)


def halves_roles(model: str) -> dict[str, Role]:
    """The roles of all three teams."""
    alice, bob = AGENTS
    in_own_seats = {alice: alice, bob: bob}  # agent → policy that plays it
    roles = team_roles(in_own_seats, model)
    roles |= team_roles(in_own_seats, model, "silent_")
    roles |= team_roles({alice: bob, bob: alice}, model, "swapped_")
    return roles


def team_roles(policies: Mapping[str, str], model: str, prefix: str = "") -> dict[str, Role]:
    """The four roles of a team, with a ``prefix`` to their names. ``policies``: agent → policy that plays it."""
    message_full = Prompt(MESSAGE_FULL, MESSAGE_TOKENS)
    message_terse = Prompt(MESSAGE, MESSAGE_TOKENS)
    answer_full = Prompt(ANSWERED_FULL, 256)
    answer_terse = Prompt(ANSWERED, 8)
    roles = {}
    for agent, policy in policies.items():
        roles[f"{prefix}{agent}"] = make_role(policy, model, terse=message_terse, full=message_full, parse=None)
        roles[f"{prefix}{agent}_answer"] = make_role(
            policy, model, terse=answer_terse, full=answer_full, parse=parse_sum
        )
    return roles


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvesTeam:
    """Two agents at one problem, who write a message and then an answer."""

    task: Task
    roles: Roles
    samples: int
    sees: Sees
    silent: bool  # no message reaches the other agent
    prefix: str  # prefix of the team's roles, see ``TEAMS``

    @property
    def halves_grader(self) -> HalvesGrader:
        return halves_grader_of(self.task)

    def visible_numbers(self, agent: int) -> str:
        """The numbers that an agent sees, as a text for its prompt."""
        if self.sees == "half":
            return self.halves_grader.view(agent)
        return f"{self.halves_grader.view(0)}, {self.halves_grader.view(1)}"

    def ask_agent(self, agent: int, history: Path, node: str | None) -> Coroutine[Any, Any, list[Turn]]:
        name = f"{self.prefix}{AGENTS[agent]}"
        own_numbers = self.visible_numbers(agent)
        if node is None:
            return getattr(self.roles, name).many(self.samples, seen=own_numbers)

        [messages] = history  # one turn so far: a message of each agent
        texts = [message.text.strip() or "nothing" for message in messages]
        message_of_other = "nothing" if self.silent else texts[1 - agent]
        role = getattr(self.roles, f"{name}_answer")
        group = f"{node}/{AGENTS[agent]}"
        return role.many(self.samples, group=group, seen=own_numbers, said=texts[agent], heard=message_of_other)

    async def reward_actions(self, answers: list[list[Turn]], joint: JointActions, turn: int) -> list[float | None]:
        """0 for messages; for answers the share of the two that are right. An answer that could not be graded fails,
        and counts as wrong in its partner's reward."""
        if turn == 0:
            for numbers, messages in zip(self.halves_grader.numbers, answers, strict=True):
                for message in messages:
                    message.add_metadata(TELLS, message.text.strip() == str(sum(numbers)))
            return [0.0] * len(joint)

        first_answers, second_answers = answers
        first_right = [await self._grade_turn(answer) for answer in first_answers]
        second_right = [await self._grade_turn(answer) for answer in second_answers]
        for answer, is_first_right, is_second_right in zip(first_answers, first_right, second_right, strict=True):
            answer.add_metadata(BOTH, is_first_right and is_second_right)
        return [(first_right[i] + second_right[j]) / 2 for i, j in joint]

    async def _grade_turn(self, turn: Turn) -> bool:
        """Whether an answer is right; False where it could not be graded."""
        grade = await self.roles.grade(self.task, turn)
        if grade.value is None:
            turn.fail(grade.reason or "ungraded")
            return False
        turn.add_metadata(CORRECT, grade.value)
        show_answer(turn)
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
    """The tree above, with rewards. ``sees="all"``: both see all numbers (ceiling). ``silent``: nobody hears a message
    (floor)."""
    team = HalvesTeam(task=task, roles=roles, samples=samples, sees=sees, silent=silent, prefix="")
    returns = await play_tree(
        team, agents=2, turns=2, samples=samples, pairing=pairing, gamma=gamma, threshold=threshold
    )
    for turn, value in returns:
        turn.reward(JOINT, value)


async def together_and_apart(task: Task, roles: Roles, *, sees: Sees = "half", silent: bool = False) -> None:
    """The evaluation, without rewards: the three teams of ``TEAMS``, one after the other."""
    for prefix in TEAMS:
        is_silent = silent or prefix == "silent_"
        team = HalvesTeam(task=task, roles=roles, samples=1, sees=sees, silent=is_silent, prefix=prefix)
        await play_tree(team, agents=2, turns=2, samples=1)
