"""A solver, a verifier and a refiner who work on one problem in turn: the game of AT-GRPO and of Dr. MAS.

::

    turn 0   solver      a solution
    turn 1   verifier    its review; a verdict CORRECT ends the game
    turn 2   refiner     the solution revised after the review, and so on for ``rounds`` reviews

At every turn the role speaks ``samples`` times; the best of them goes on, the first of equals (the tree of AT-GRPO,
arXiv 2510.11062). With one sample this is a plain trajectory, and several episodes are several of them (Dr. MAS, arXiv
2602.08847). The team's score is 1 where its present solution is right. A turn earns ``alpha`` · team + ``local`` · own,
where own is the format of a solution, and of a review whether its verdict is the truth. With ``pay="end"`` the team's
score is that of the last solution, for every turn of a trajectory.

``group`` says whose turns are compared with each other: "turn" those of one problem, turn and agent, "agent" those of
one problem and agent, "global" those of one problem. Solver and refiner are one agent, the verifier is the other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cotrain.core.arguments import NotNegative, Positive
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.notes import CORRECT, TEAM, Metadata
from cotrain.core.signals import Signal, gives
from cotrain.core.types import Task
from cotrain.rollout.protocols import examine
from cotrain.rollout.reviews import review
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import Roles

Grouping = Literal["turn", "agent", "global"]
GROUPINGS: tuple[str, ...] = get_args(Grouping)
REASONER, CHECKER = "reasoner", "checker"  # the two agents
TURN_REWARD = Signal("turn_reward", meaning="of a turn: the team's score and its own")
TURNS = Metadata[float]("turns", float, "turns until the team's game ended")


def check_turns(samples: int, rounds: int, pay: str) -> None:
    """Raise ConfigError for what ``take_turns`` does not take."""
    if rounds < 0 or samples < 1:
        raise ConfigError(
            f"turns: rounds is {rounds} and samples {samples}; expected 0 or more, and at least 1",
            code="E_SETTING_RANGE",
        )
    if pay == "end" and samples > 1:
        raise ConfigError(
            f"turns: pay='end' with {samples} samples a turn; expected 1, since a branch that is left has no end",
            code="E_PAY_END_WITH_SAMPLES",
        )


def group_key(group: str, problem: str, turn: int, agent: str) -> str:
    """The group in which a turn is compared. Raises UnknownName."""
    if group not in GROUPINGS:
        raise UnknownName("grouping of turns", group, GROUPINGS)
    if group == "turn":
        return f"{problem}/{turn}/{agent}"
    if group == "agent":
        return f"{problem}/{agent}"
    return problem


@gives(TURN_REWARD.to("solver"), TURN_REWARD.to("verifier"), TURN_REWARD.to("refiner"))
async def take_turns(
    task: Task,
    roles: Roles,
    *,
    samples: Positive = 1,
    rounds: NotNegative = 1,
    pay: Literal["turn", "end"] = "turn",
    alpha: float = 1.0,
    local: float = 1.0,
    group: Grouping = "turn",
) -> None:
    """One game, as the head of this file says. A solution that cannot be read is not reviewed and ends it. Turns that
    cannot be graded fail. Metadata of the first solution: is the last solution right (``team``), and how many ``turns``
    the game had?"""
    check_turns(samples, rounds, pay)
    problem_key = roles.solver.whole_group  # by its place in the step: a problem that is drawn twice has two groups
    turns_to_pay: list[ScoredTurn] = []  # with pay="end": all turns of the game

    def pay_turns(entries: Sequence[ScoredTurn]) -> None:
        """Reward these turns, or keep them until the end."""
        if pay == "end":
            turns_to_pay.extend(entries)
            return
        for entry in entries:
            entry.turn.reward(TURN_REWARD, entry.worth(alpha, local))

    def best_of(entries: Sequence[ScoredTurn]) -> Turn:
        """The turn with which the game goes on: the first of the best ones."""
        return max(entries, key=lambda entry: entry.worth(alpha, local)).turn

    group_of_first = group_key(group, problem_key, 0, REASONER)
    drafts = await roles.solver.many(samples, group=group_of_first, problem=task.prompt)
    solutions = [draft for draft in drafts if await examine(task, roles, draft) is not None]
    if not solutions:
        return
    first_solution = solutions[0]

    n_turns = 0
    while solutions:
        scored_solutions = []
        for turn in solutions:
            scored_solutions.append(ScoredTurn(turn, float(CORRECT.require(turn)), turn.parsed.format_score))
        pay_turns(scored_solutions)
        solution = best_of(scored_solutions)
        n_turns += 1
        was_last_round = n_turns > 2 * rounds  # a round is a review and a revision
        if was_last_round or not solution.parsed.ok:
            break

        is_right = CORRECT.require(solution)
        group_of_reviews = group_key(group, problem_key, n_turns, CHECKER)
        reviews = await review(task, roles, solution, n=samples, group=group_of_reviews)
        scored_reviews = []
        for turn in reviews:
            agrees = turn.parsed.ok and turn.parsed.final == is_right
            scored_reviews.append(ScoredTurn(turn, float(is_right), float(agrees)))
        pay_turns(scored_reviews)
        best_review = best_of(scored_reviews)
        n_turns += 1
        says_right = best_review.parsed.ok and best_review.parsed.final
        if says_right:
            break

        revisions = await roles.refiner.many(
            samples,
            group=group_key(group, problem_key, n_turns, REASONER),
            parent=solution,
            problem=task.prompt,
            solution=solution.tagged_text,
            review=best_review.text,
        )
        solutions = [revision for revision in revisions if await examine(task, roles, revision) is not None]

    # ``solution`` is the last one that goes on: where no revision could be graded, the one before.
    team_right = CORRECT.require(solution)
    for entry in turns_to_pay:
        at_end = replace(entry, team=float(team_right))
        entry.turn.reward(TURN_REWARD, at_end.worth(alpha, local))
    first_solution.add_metadata(TEAM, team_right)
    first_solution.add_metadata(TURNS, float(n_turns))


@dataclass(frozen=True, slots=True)
class ScoredTurn:
    """A turn of the game, and its two scores."""

    turn: Turn
    team: float  # 1 where the team's present solution is right
    own: float  # the format score of a solution; for a review 1 where its verdict is the truth

    def worth(self, alpha: float, local: float) -> float:
        """The reward of the turn: α · team reward + ``local`` · own reward."""
        return alpha * self.team + local * self.own
